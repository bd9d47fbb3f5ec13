"""A model from a step's DeepSpeed checkpoint equals the model that the run saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scimult.checkpoints import load_pretrained
from scimult.training.export import load_step
from scimult.training.run import pretrain
from tests.ranks import run_ranks
from tests.training.corpus import prepare_corpus, run_config

RUNS = [("fp32", 0), ("fp32", 1), ("fp32", 2), ("fp32", 3), ("bf16", 1), ("bf16", 2), ("bf16", 3)]


def run_all(folder: Path, ranks: int, runs: list[tuple[str, int]]) -> None:
    for precision, stage in runs:
        zero = {"deepspeed": {"zero_optimization": {"stage": stage}}}
        pretrain(
            run_config(
                folder,
                f"{precision}-stage{stage}-ranks{ranks}",
                engine={"precision": precision, **zero},
                schedule={"steps": 4},
                checkpoint={"every": 2},
                dev={"every": 0},
            )
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export")
    prepare_corpus(path)
    for ranks, runs in ((1, [("fp32", 2)]), (2, RUNS)):
        (path / f"results{ranks}").mkdir()
        run_ranks(run_all, ranks, path / f"results{ranks}", path, ranks, runs)
    return path


@pytest.mark.parametrize("name", ["fp32-stage2-ranks1", *(f"{p}-stage{s}-ranks2" for p, s in RUNS)])
def test_last_step_is_the_final_model(folder: Path, name: str) -> None:
    final, last = load_pretrained(folder / name), load_step(folder / name, 4)
    earlier = load_step(folder / name, 2)
    assert last.config.encoder == final.config.encoder
    assert last.config.provenance == final.config.provenance | {"step": 4}
    assert last.tokenizer.fingerprint == final.tokenizer.fingerprint
    theirs, before = final.model.state_dict(), earlier.model.state_dict()
    moved = 0
    for key, weight in last.model.state_dict().items():
        assert torch.equal(weight, theirs[key]), key
        moved += not torch.equal(weight, before[key])
    assert moved > 10
