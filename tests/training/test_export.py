"""A model from a step's checkpoint equals the model that the run saved."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scimult.checkpoints import load_pretrained
from scimult.checkpoints.weights import read_tensors
from scimult.errors import CheckpointError, SciMultError
from scimult.files import read_json, write_json
from scimult.training.folder import load_step
from scimult.training.run import pretrain
from tests.command import completed
from tests.ranks import run_ranks
from tests.training.corpus import prepare_corpus, run_config

pytestmark = pytest.mark.ranks

# Each way that DeepSpeed keeps weights: whole, float32 shards, half precision with masters.
RUNS = [("fp32", 0), ("fp32", 1), ("bf16", 2), ("bf16", 3)]
NAMES = [f"{precision}-stage{stage}" for precision, stage in RUNS]


def run_all(folder: Path) -> None:
    for precision, stage in RUNS:
        zero = {"deepspeed": {"zero_optimization": {"stage": stage}}}
        pretrain(
            run_config(
                folder,
                f"{precision}-stage{stage}",
                engine={"precision": precision, **zero},
                # Learned parts of the loss are saved with the run, but are not part of its model.
                loss={"learn_temperature": precision == "bf16"},
                schedule={"steps": 4},
                checkpoint={"every": 2},
                dev={"every": 0},
            )
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export")
    prepare_corpus(path)
    (path / "results").mkdir()
    run_ranks(run_all, 2, path / "results", path)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_last_step_is_the_final_model(folder: Path, name: str) -> None:
    final, last = load_pretrained(folder / name), load_step(folder / name, 4)
    earlier = load_step(folder / name, 2)
    assert last.config.encoder == final.config.encoder
    assert last.config.provenance == final.config.provenance
    assert last.tokenizer.fingerprint == final.tokenizer.fingerprint
    theirs, before = final.model.state_dict(), earlier.model.state_dict()
    moved = 0
    for key, weight in last.model.state_dict().items():
        assert torch.equal(weight, theirs[key]), key
        moved += not torch.equal(weight, before[key])
    assert moved > 10


def test_an_unfinished_run_is_exported_from_its_step(folder: Path, tmp_path: Path) -> None:
    run, name = tmp_path / "run", "bf16-stage2"
    shutil.copytree(folder / name, run, ignore=shutil.ignore_patterns("model"))
    with pytest.raises(CheckpointError, match="has not ended; scimult export RUN --step N"):
        load_pretrained(run)
    for step, to, more in (("4", "pretrained", []), ("2", "folded", ["--task", "search"])):
        out = ["--to", to, "--out", str(tmp_path / to), "--step", step, *more]
        completed("export", run, *out)
    weights = load_pretrained(folder / name).model.state_dict()
    found = load_pretrained(tmp_path / "pretrained")
    assert found.config.provenance["step"] == 4
    assert found.config.tasks == load_pretrained(folder / name).config.tasks
    assert all(torch.equal(v, weights[k]) for k, v in found.model.state_dict().items())
    assert load_pretrained(tmp_path / "folded").config.provenance["step"] == 2


def test_a_step_is_not_read_by_another_tokenizer_than_it_was_trained_with(
    folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "fp32-stage0", run, ignore=shutil.ignore_patterns("model"))
    kept, tokenizer = tmp_path / "kept.json", folder / "base" / "tokenizer.json"
    shutil.copy(tokenizer, kept)
    tree = read_json(tokenizer)
    vocabulary = tree["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    write_json(tokenizer, tree)
    with pytest.raises(CheckpointError, match="base: the run's base has another tokenizer than"):
        load_step(run, 2)
    shutil.copy(kept, tokenizer)
    assert load_step(run, 2).config.provenance["step"] == 2


def truncated(weights: Path) -> None:
    weights.write_bytes(weights.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("damage", "ours"),
    [
        (truncated, "file is damaged"),
        (lambda weights: weights.write_bytes(b"no tensors"), "file is damaged"),
        (lambda weights: weights.unlink(), "No such file"),
    ],
)
def test_damaged_checkpoints_are_refused(
    folder: Path, tmp_path: Path, damage: Callable[[Path], None], ours: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "bf16-stage2", run)
    step = run / "checkpoints" / "step-0000004"
    damage(step / "model.safetensors")
    with pytest.raises(SciMultError, match="is missing or truncated"):
        load_step(run, 4)
    # As if the list of checksums had been made after the damage.
    with pytest.raises(CheckpointError, match=ours):
        read_tensors(step / "model.safetensors")


def test_steps_that_are_not_kept_are_named(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint of this step.*value: 3.*one of 2, 4"):
        load_step(folder / NAMES[0], 3)
    with pytest.raises(CheckpointError, match="folder is not a run"):
        load_step(folder, 3)
    with pytest.raises(CheckpointError, match="does not exist"):
        load_step(folder / "absent", 3)
