"""A step queues work on the device without waiting for it, as far as DeepSpeed allows."""

from __future__ import annotations

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scimult.training import run
from scimult.training.config import PretrainConfig
from scimult.training.loop import Trainer
from scimult.training.module import LaunchedStep, TrainModule
from scimult.training.run import pretrain
from tests.models.variants import tiny_encoder
from tests.ranks import run_ranks
from tests.training.corpus import assert_same_run, metrics, prepare_corpus, run_config
from tests.training.engines import do_step, tiny_engine

pytestmark = pytest.mark.ranks

STEPS = 4


def synchronisations() -> dict[int, int]:
    """Return how often steps of each stage waited for all work of the device."""
    from deepspeed.accelerator import get_accelerator

    counts = {}
    for stage in (0, 1, 2, 3):
        engine = tiny_engine(stage)
        calls: list[int] = []
        get_accelerator().synchronize = lambda *_, calls=calls: calls.append(1)
        for _ in range(STEPS):
            do_step(engine)
        counts[stage] = len(calls)
        engine.close()
    return counts


def test_deepspeed_does_not_wait_to_take_times(tmp_path: Path) -> None:
    """DeepSpeed's throughput timer waits by default, twice per step from the third on."""
    assert run_ranks(synchronisations, 1, tmp_path)[0] == {0: 0, 1: 0, 2: 0, 3: 0}


def bucket_sizes() -> list[int]:
    model = tiny_encoder("vanilla")
    model.embeddings.requires_grad_(False)
    engine = tiny_engine(2, model=model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    found = engine._engine.optimizer.reduce_bucket_size
    engine.close()
    return [found, trained]


def test_the_reduction_buffer_has_room_for_the_trained_weights(tmp_path: Path) -> None:
    found, trained = run_ranks(bucket_sizes, 1, tmp_path)[0]
    assert found == trained > 0


# Operations for which the host waits for a GPU: reading numbers, sizes that depend on numbers.
READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "unique_dim")


class NotedReads(TorchDispatchMode):
    """Records the lines that read numbers for which, on a GPU, the host would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or masks:
            callers = [
                frame
                for frame in traceback.extract_stack()
                if "/torch/" not in frame.filename and frame.filename != __file__
            ]
            self.lines.append(f"{Path(callers[-1].filename).name}: {callers[-1].name}")
        return func(*args, **(kwargs or {}))


READING = (
    ("0", 0, "fp32", None),
    ("1", 1, "fp32", None),
    # Gradients of chunks are accumulated in float32 outside DeepSpeed.
    ("2 in chunks", 2, "bf16", 120),
    ("3", 3, "fp32", None),
)


def reads_of_steps(folder: Path) -> dict[str, dict[str, float]]:
    """Return, by stage, which lines read device numbers before a step's report, and how often."""
    launch, read = TrainModule.launch, {}
    for name, stage, precision, chunk_tokens in READING:
        noted = NotedReads()

        def noting(
            self: TrainModule, step: int, micro_batch_at: Any, noted: NotedReads = noted
        ) -> LaunchedStep:
            with noted:
                return launch(self, step, micro_batch_at)

        TrainModule.launch = noting  # type: ignore[method-assign]
        config = run_config(
            folder,
            f"reads{name}",
            # On a CPU dropout is drawn differently, which reads the generator.
            model={"dropout": 0.0, "attention_dropout": 0.0},
            loss={"name": "symmetric_info_nce", "temperature": 0.7},
            schedule={"steps": 3},
            batch={"mix": "in_batch", "chunk_tokens": chunk_tokens},
            engine={"precision": precision, "deepspeed": {"zero_optimization": {"stage": stage}}},
            log={"gradient_norms": True},
            dev={"every": 0},
        )
        pretrain(config)
        steps = config.schedule.steps
        assert steps is not None
        read[name] = {line: count / steps for line, count in Counter(noted.lines).items()}
    TrainModule.launch = launch  # type: ignore[method-assign]
    return read


def test_a_step_reads_nothing_back_before_its_report(tmp_path: Path) -> None:
    """Except for objects, which stay on the host, and DeepSpeed's own reads under stage 3."""
    prepare_corpus(tmp_path)
    for read in run_ranks(reads_of_steps, 2, tmp_path, tmp_path):
        for places in read.values():
            places.pop("product_attention.py: _exponentials", None)  # only ever on CPUs
        # Objects travel between hosts; the symmetric loss shares each rank's count of positives.
        assert read["0"].keys() == {"distributed.py: all_gather_objects"}
        assert read["1"].keys() == read["2 in chunks"].keys() == read["0"].keys()
        # DeepSpeed clips: once for the step, and once for every group of parameters.
        assert read["3"].keys() >= {*read["0"], "utils.py: is_invalid_grad_norm"}
        assert not any("engine.py: step" in line for line in read["3"])


def early_and_late(folder: Path) -> None:
    """Do the same runs with immediate reports and with reports one step late."""
    for reports_late in (False, True):

        def trainer(*args: Any, late: bool = reports_late, **options: Any) -> Trainer:
            return Trainer(*args, **{**options, "reports_late": late})

        run.Trainer = trainer  # type: ignore[assignment,misc]
        name = "late" if reports_late else "early"
        pretrain(late_config(folder, name))
        engine = {"deepspeed": {"zero_optimization": {"stage": 0}}}
        log = {"gradient_norms": True}
        batch = {"chunk_tokens": 120}
        pretrain(run_config(folder, f"{name}0", engine=engine, log=log, batch=batch))
    run.Trainer = Trainer  # type: ignore[misc]


def late_config(folder: Path, name: str) -> PretrainConfig:
    """Return a run that evaluates, saves and selects at different steps."""
    return run_config(
        folder,
        name,
        schedule={"steps": 11},
        dev={"every": 4, "patience": 9},
        checkpoint={"every": 3, "keep_best": True},
        log={"gradient_norms": True},
    )


def test_a_late_report_says_the_same(tmp_path: Path) -> None:
    """Metrics, scores, weights and checkpoints are bit-equal: callbacks get the model in time."""
    prepare_corpus(tmp_path)
    run_ranks(early_and_late, 2, tmp_path, tmp_path)
    assert len(metrics(tmp_path / "late")) == 11
    for kind in ("", "0"):
        early, late = tmp_path / f"early{kind}", tmp_path / f"late{kind}"
        assert_same_run(early, late)
        norms = [[line["gradient_norms"] for line in metrics(path)] for path in (early, late)]
        assert norms[0] == norms[1] != [{}]
        names = sorted(path.name for path in (early / "checkpoints").iterdir())
        assert names == sorted(path.name for path in (late / "checkpoints").iterdir())
        for file in sorted(early.rglob("checkpoints/*/*.safetensors")):
            assert file.read_bytes() == (late / file.relative_to(early)).read_bytes()
