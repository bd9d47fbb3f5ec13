"""State of any ZeRO stage and number of ranks continues under any other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from scimult import distributed
from scimult.checkpoints import load_pretrained
from scimult.errors import CheckpointError
from scimult.files import read_json
from scimult.training import build
from scimult.training.config import PretrainConfig
from scimult.training.deepspeed_config import resolve_deepspeed, resolve_precision
from scimult.training.engine import (
    DeepSpeedEngine,
    process_group,
)
from scimult.training.learned import learned_parts
from scimult.training.run import pretrain
from tests.ranks import run_ranks
from tests.training.corpus import metrics, prepare_corpus, run_config

pytestmark = pytest.mark.ranks

STEPS = 6
TASKS = ("classification", "link_prediction", "search")
FILES = ("model.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors", "counters.json")
HOST = {"device": "cpu"}
ZERO = {
    "0": {"stage": 0},
    "1": {"stage": 1},
    "2": {"stage": 2},
    "3": {"stage": 3},
    "2 offloaded": {"stage": 2, "offload_optimizer": HOST},
    "3 offloaded": {"stage": 3, "offload_optimizer": HOST, "offload_param": HOST},
}
# Precision, stage and ranks that wrote; stage and ranks that continue. Every stage is left
# and entered, with fewer ranks and with more.
MOVES = [
    ("fp32", "0", 2, "3", 1),
    ("bf16", "3", 2, "1", 1),
    ("fp32", "1", 1, "2", 2),
    ("fp32", "3", 1, "0", 2),
    ("bf16", "2", 1, "3", 2),
    ("fp32", "2 offloaded", 2, "1", 1),
    ("bf16", "1", 1, "3 offloaded", 2),
    ("fp32", "3 offloaded", 1, "2 offloaded", 2),
]


def shard_config(folder: Path, name: str, precision: str, stage: str) -> PretrainConfig:
    return run_config(
        folder,
        name,
        # One task more often than the others: its expert has more updates.
        data={"sampling": "proportional"},
        model={"dropout": 0.0, "attention_dropout": 0.0, "freeze": ["embeddings.positions.*"]},
        # Products of two states of 16 numbers, each of eight bits, are off by 16 * 2**-8 = 0.06: in
        # units of this temperature by half of the tolerance below.
        loss={"temperature": 4.0, "learn_temperature": True},
        # Adam would amplify rounding to full steps (docs/decisions/deepspeed.md).
        optimizer={"lr": 1e-3, "layer_decay": 0.9, "eps": 1e-4},
        schedule={"steps": STEPS},
        engine={"precision": precision, "deepspeed": {"zero_optimization": ZERO[stage]}},
        dev={"every": 0},
    )


def write_runs(folder: Path, ranks: int) -> None:
    for precision, stage, written_by, *_ in MOVES:
        if written_by == ranks:
            pretrain(shard_config(folder, f"{precision}-{stage}-{ranks}", precision, stage))


def continue_runs(folder: Path, ranks: int) -> None:
    """Resume every run after step 3 under another stage; also rewrite its state."""
    for precision, before, written_by, stage, continued_by in MOVES:
        if continued_by == ranks:
            run = f"{precision}-{before}-{written_by}"
            config = shard_config(folder, f"{run}-continued", precision, stage)
            if distributed.is_main():
                copy_to_step_three(folder / run, Path(config.output))
            distributed.barrier()
            write_again(config, folder / "again" / run)
            pretrain(config)


def on_two_ranks(folder: Path) -> None:
    write_runs(folder, 2)
    continue_runs(folder, 2)


def copy_to_step_three(run: Path, copy: Path) -> None:
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("model", "step-0000006"))


@contextmanager
def resumed(config: PretrainConfig, state: Path) -> Iterator[DeepSpeedEngine]:
    """Yield an engine with a checkpoint's state."""
    model = build.build_model(config).model
    learned = learned_parts(config, model, TASKS)
    settings = resolve_deepspeed(
        config.engine.deepspeed,
        pairs_per_step=config.batch.pairs_per_step,
        accumulation=1,
        world_size=distributed.world_size(),
        precision=resolve_precision(config.engine.precision, torch.device("cpu")),
        clip=config.optimizer.clip,
    )
    built = build.build_optimizer(config, model, STEPS, learned=learned)
    with process_group(600):
        engine = DeepSpeedEngine(model, *built, settings, resume=state)
        yield engine
        engine.close()


def write_again(config: PretrainConfig, folder: Path) -> None:
    """Load the state of step 3 and save it unchanged."""
    if distributed.is_main():
        folder.mkdir(parents=True)
    with resumed(config, Path(config.output) / "checkpoints" / "step-0000003") as engine:
        engine.save(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards")
    prepare_corpus(path)
    write_runs(path, 1)
    (path / "results").mkdir()
    run_ranks(on_two_ranks, 2, path / "results", path)
    continue_runs(path, 1)
    return path


@pytest.mark.parametrize(("precision", "stage", "ranks"), [move[:3] for move in MOVES])
def test_state_survives_another_layout(
    folder: Path, precision: str, stage: str, ranks: int
) -> None:
    run = f"{precision}-{stage}-{ranks}"
    written, again = folder / run / "checkpoints" / "step-0000003", folder / "again" / run
    updates = read_json(written / "counters.json")["updates"]
    assert len(set(updates.values())) > 1, "all experts were updated equally often"
    for name in FILES:
        assert (again / name).read_bytes() == (written / name).read_bytes(), name


@pytest.mark.parametrize(("precision", "stage", "ranks"), [move[:3] for move in MOVES])
def test_runs_resume_under_another_layout(
    folder: Path, precision: str, stage: str, ranks: int
) -> None:
    run = f"{precision}-{stage}-{ranks}"
    # Sums in another order through three steps; in bfloat16 with eight bits of mantissa.
    tolerance = 1e-4 if precision == "fp32" else 3e-2
    whole, continued = metrics(folder / run), metrics(folder / f"{run}-continued")
    assert [line["tasks"] for line in continued] == [line["tasks"] for line in whole]
    for one, other in zip(whole, continued, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=tolerance)
        assert other["lr"] == one["lr"]
    ours, theirs = load_pretrained(folder / f"{run}-continued"), load_pretrained(folder / run)
    for name, weight in theirs.model.state_dict().items():
        difference = (ours.model.state_dict()[name] - weight).abs().max()
        assert difference <= tolerance, name
    found, expected = (model.config.provenance["temperature"] for model in (ours, theirs))
    assert found == pytest.approx(expected, abs=tolerance)
    assert expected != 1.0


def test_weights_of_a_group_that_were_updated_differently_need_stage_0(folder: Path) -> None:
    written = folder / "fp32-1-1" / "checkpoints" / "step-0000003"
    name = "blocks.0.attention.norm.weight"
    for stage in ("1", "0"):
        with resumed(shard_config(folder, f"odd-{stage}", "fp32", stage), written) as engine:
            updates = engine._shards.updates()
            updates[name] -= 1
            if stage == "0":
                engine._shards.put_updates(updates)
                assert engine._shards.updates() == updates
                continue
            with pytest.raises(CheckpointError, match="different numbers.*under stage 0") as error:
                engine._shards.put_updates(updates)
            assert error.value.value == name
