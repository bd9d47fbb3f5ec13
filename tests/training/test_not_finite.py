"""Loss weights, and steps whose loss or gradient is not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult import distributed
from scimult.config import save_config
from scimult.data.batches import Batch, MicroBatch
from scimult.data.prepared import PreparedData
from scimult.models import PackedTexts
from scimult.training import build
from scimult.training.engine import DeepSpeedEngine
from scimult.training.failure import FailureFile
from scimult.training.learned import LearnedParts
from scimult.training.loop import Callback, NonFiniteError, StepReport, Trainer
from scimult.training.loss_config import LossConfig
from scimult.training.meter import Meter
from scimult.training.metrics import STATISTICS
from scimult.training.module import TrainModule
from scimult.training.objective import Objective, PartResult
from scimult.training.run import pretrain
from scimult.training.stopping import StoppedError, StopRequest
from scimult.training.weighting import Weighting
from tests.command import invoke
from tests.models.variants import tiny_encoder
from tests.ranks import run_ranks
from tests.training.corpus import metrics, plan_micro_batches, prepare_corpus, run_config

pytestmark = pytest.mark.ranks


class OnlyNumbers:
    """An engine without a model, which records the losses of its backward passes."""

    learning_rate = 0.1
    skipped_steps = 0
    loss_scale = None

    def __init__(self, norm: float, scales_loss: bool) -> None:
        self.gradient_norm, self.scales_loss = torch.tensor(norm), scales_loss
        self.losses: list[float] = []

    device = torch.device("cpu")

    def forward(self, texts: PackedTexts, _: Any) -> Tensor:
        """Return anything: the objective below ignores it."""
        return torch.zeros(len(texts), 1)

    def one_reduction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        self.losses.append(float(loss))

    def step(self, active: frozenset[int]) -> None:
        pass

    def take_squares(self) -> Tensor:
        return torch.zeros(0)

    def gradient_norms(self, *_: Any) -> dict[str, float]:
        return {}


def micro_batch_at(micro_batch: int) -> MicroBatch:
    part = Batch(
        source="s",
        task=["search", "classification"][micro_batch % 2],
        rows=[np.array([1, 2])],
        sides=[0],
        query_B=torch.tensor([0]),
        candidate_C=torch.tensor([0, 0]),
        query_ids_B=torch.tensor([micro_batch]),
        candidate_ids_C=torch.tensor([5, 6]),
        negative_rows_H=torch.tensor([0]),
        known_rows_P=torch.tensor([0]),
        known_ids_P=torch.tensor([5]),
    )
    return MicroBatch([part], pairs=1)


def trainer(
    engine: OnlyNumbers,
    losses: list[float],
    folder: Path,
    callbacks: Sequence[Callback] = (),
    reports_late: bool = False,
) -> Trainer:
    remaining = iter(losses)

    def objective(parts: list[Batch], *_: Any) -> list[PartResult]:
        (part,) = parts
        loss = next(remaining)
        statistics_S = torch.tensor([1, loss, 1, 1] + [0] * (len(STATISTICS) - 4))
        masked = torch.tensor(0)
        return [PartResult(part.source, part.task, 1, torch.tensor(loss), masked, 2, statistics_S)]

    def ids_at(rows: Any) -> list[str]:
        return [f"text{row}" for row in rows]

    model = tiny_encoder("vanilla")
    module = TrainModule(
        cast(DeepSpeedEngine, engine),
        lambda task: [0, 0],
        cast(Objective, objective),
        Weighting(LossConfig(), {"search": 0.25, "classification": 2.0}),
        LearnedParts(model, {}),
        Meter(model, torch.device("cpu"), torch.float32, None),
        accumulation=2,
        chunk_tokens=None,
        seed=0,
    )
    return Trainer(
        module,
        micro_batch_at,
        StopRequest(),
        [FailureFile(folder, ids_at), *callbacks],
        reports_late,
    )


def test_losses_are_weighted_by_task(tmp_path: Path) -> None:
    engine = OnlyNumbers(norm=1.0, scales_loss=False)
    trainer(engine, [4.0, 3.0, 8.0, 1.0], tmp_path).run(0, 2)
    assert engine.losses == [0.5, 3.0, 1.0, 1.0]


@pytest.mark.parametrize("reports_late", [False, True])
@pytest.mark.parametrize(
    ("losses", "norm", "message"),
    [
        ([1.0, 1.0, 1.0, math.nan], 1.0, "loss is not finite at step 2"),
        ([1.0, 1.0, math.inf, 1.0], math.nan, "loss is not finite at step 2"),
        ([1.0] * 4, math.inf, "gradient norm is not finite at step 1"),
        ([1.0] * 4, math.nan, "gradient norm is not finite at step 1"),
        ([1.0] * 4, -1.0, "gradient norm is not finite at step 1"),
    ],
)
def test_a_step_that_is_not_finite_stops_the_run_and_names_its_texts(
    tmp_path: Path, losses: list[float], norm: float, message: str, reports_late: bool
) -> None:
    engine = OnlyNumbers(norm if "gradient" in message else 1.0, scales_loss=False)
    # Even if found late, the step is named whose texts are listed.
    steps = [*losses, *[1.0] * 4]
    with pytest.raises(NonFiniteError, match=message) as caught:
        trainer(engine, steps, tmp_path, reports_late=reports_late).run(0, 4)
    failed = int(message[-1])
    assert len(engine.losses) == 2 * (failed + reports_late)
    assert caught.value.path is not None
    kept = json.loads(Path(caught.value.path).read_text(encoding="utf-8"))
    first = 2 * (kept["step"] - 1)
    (rank,) = kept["ranks"]
    for micro_batch, told in enumerate(rank["parts"], start=first):
        assert told["loss"] == str(losses[micro_batch])
        assert told["queries"] == [f"text{micro_batch}"]
        assert (told["positives"], told["hard_negatives"]) == (["text5"], ["text6"])


class Noted(Callback):
    """Records when steps begin and are reported; needs the model at some of them."""

    def __init__(self, needed: set[int]) -> None:
        self.events: list[str] = []
        self._needed = needed

    def needs_model(self, step: int) -> bool:
        return step in self._needed

    def on_step(self, report: StepReport) -> None:
        self.events.append(f"{report.step} {report.loss}")


class NotedEngine(OnlyNumbers):
    def __init__(self, events: list[str]) -> None:
        super().__init__(norm=1.0, scales_loss=False)
        self._events = events

    def step(self, active: frozenset[int]) -> None:
        self._events.append("launch")


@pytest.mark.parametrize(
    ("late", "needed", "events"),
    [
        (False, set(), "launch 1 launch 2 launch 3 launch 4"),
        (True, set(), "launch launch 1 launch 2 launch 3 4"),
        # Nothing may change the model between step 2 and the callback that needs it.
        (True, {2}, "launch launch 1 2 launch launch 3 4"),
        (True, {1, 2, 3}, "launch 1 launch 2 launch 3 launch 4"),
    ],
)
def test_a_report_waits_for_the_next_step_unless_the_model_is_needed(
    tmp_path: Path, late: bool, needed: set[int], events: str
) -> None:
    noted = Noted(needed)
    losses = [float(micro_batch) for micro_batch in range(8)]
    trainer(NotedEngine(noted.events), losses, tmp_path, [noted], late).run(0, 4)
    assert " ".join(event.split()[0] for event in noted.events) == events
    # Each with the numbers of its own step: the mean over two micro-batches.
    told = [event for event in noted.events if event != "launch"]
    assert told == ["1 0.5", "2 2.5", "3 4.5", "4 6.5"]


class StopAt(Callback):
    """Requests a stop when a step is reported; records what follows."""

    def __init__(self, step: int, request: StopRequest) -> None:
        self.events: list[str] = []
        self._step, self._request = step, request

    def on_step(self, report: StepReport) -> None:
        self.events.append(f"step {report.step}")
        if report.step == self._step:
            self._request.signal = 15

    def on_stop(self, step: int) -> None:
        self.events.append(f"stop {step}")


def test_a_stopped_run_has_reported_every_step(tmp_path: Path) -> None:
    engine = OnlyNumbers(1.0, scales_loss=False)
    late = trainer(engine, [1.0] * 12, tmp_path, reports_late=True)
    stop = StopAt(2, late._stop_request)
    late._callbacks = [stop]
    with pytest.raises(StoppedError, match="step 3"):
        late.run(0, 6)
    assert stop.events == ["step 1", "step 2", "step 3", "stop 3"]


def test_overflow_under_loss_scaling_is_no_failure(tmp_path: Path) -> None:
    trainer(OnlyNumbers(math.inf, scales_loss=True), [1.0] * 4, tmp_path).run(0, 2)


# 1 and 2 share DeepSpeed's code for norms and for skipping a step.
STAGES = (0, 2, 3)


def run_with_broken_gradient(folder: Path) -> dict[int, tuple[str, dict[str, Any], int]]:
    """Train under ZeRO stages with a NaN in rank 1's gradient; return the outcome."""
    whole = build.build_model

    def broken(config: Any) -> Any:
        pretrained = whole(config)
        if distributed.rank() == 1:
            words = pretrained.model.embeddings.words.weight
            words.register_hook(lambda gradient: gradient * math.nan)
        return pretrained

    build.build_model = broken
    told = {}
    for stage in STAGES:
        engine = {"deepspeed": {"zero_optimization": {"stage": stage}}}
        config = run_config(folder, f"nan{stage}", engine=engine, dev={"every": 0})
        with pytest.raises(NonFiniteError) as caught:
            pretrain(config)
        kept = json.loads(Path(str(caught.value.path)).read_text(encoding="utf-8"))
        told[stage] = (str(caught.value), kept, len(metrics(Path(config.output))))
    build.build_model = whole
    return told


def test_every_rank_stops_under_zero_stages(tmp_path: Path) -> None:
    prepare_corpus(tmp_path)
    ranks = run_ranks(run_with_broken_gradient, 2, tmp_path, tmp_path)
    config = run_config(tmp_path, "planned")
    ids_at = PreparedData.open(config.data.prepared).texts.ids_at
    (planned,) = plan_micro_batches(config).plan(0)
    columns = (planned.rows.queries_R, planned.rows.positives_R)
    assert ranks[0] == ranks[1]
    for stage, (message, kept, steps) in ranks[0].items():
        assert "gradient norm is not finite at step 1" in message, stage
        assert steps == 0
        told = [rank["parts"][0] for rank in kept["ranks"]]
        # The distribution of pairs over ranks depends on their lengths.
        assert [len(micro_batch["queries"]) for micro_batch in told] == [4, 4]
        pairs = [
            pair
            for micro_batch in told
            for pair in zip(micro_batch["queries"], micro_batch["positives"], strict=True)
        ]
        assert sorted(pairs) == sorted(zip(*map(ids_at, columns), strict=True))


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_says_why_all_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    def stops(*_: Any, **__: Any) -> Path:
        raise NonFiniteError("loss is not finite at step 3", path="run/not_finite_step_3.json")

    monkeypatch.setattr("scimult.training.run.pretrain", stops)
    monkeypatch.setenv("RANK", str(rank))
    save_config(run_config(tmp_path, "run"), tmp_path / "run.yaml")
    result = invoke("pretrain", "--config", tmp_path / "run.yaml")
    assert result.exit_code == 1
    assert ("not_finite_step_3.json: loss is not finite" in result.output) == (rank == 0)
