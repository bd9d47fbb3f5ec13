"""Training improves scores: a small run on a small generated world, from raw files on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import completed
from tests.ranks import Verb

pytestmark = pytest.mark.ranks

# Seeded; measured: fields_fine 0.145 -> 0.812, cite 0.120 -> 0.455, search 0.072 -> 0.492.
# The margins allow for other processors, whose last bits change the course of training.
MARGINS = {"fields_fine": 0.4, "cite": 0.2, "search": 0.25}


def scimult(*arguments: object) -> None:
    completed(*arguments)


def pretrain(repository: Path, log: Path, *overrides: str) -> None:
    config = repository / "configs" / "demo" / "curriculum.yaml"
    verb = Verb(["pretrain", "--config", str(config), *overrides], log)
    assert verb.wait(timeout=280) == 0, verb.printed()


def test_trained_model_beats_the_untrained_one_by_a_margin(
    repository: Path, tmp_path: Path
) -> None:
    world, prepared, tokenizer = (tmp_path / name for name in ("world", "prepared", "tokenizer"))
    scimult("generate", "--papers", 1000, "--seed", 1, "--out", world)
    config = repository / "configs" / "data" / "world.yaml"
    scimult("prepare", "--config", config, "--root", world / "train", "--out", prepared)
    scimult("train-tokenizer", "--texts", prepared, "--vocab-size", 2000, "--out", tokenizer)
    shared = [f"data.prepared={prepared}", f"model.tokenizer={tokenizer}", "dev.every=0"]
    sizes = ["model.architecture.hidden_size=64", "model.architecture.intermediate_size=128"]
    length = ["batch.pairs_per_step=64", "stages.vanilla.schedule.steps=60"]
    stage = ["--stage=vanilla", *shared, *sizes, *length, f"output={tmp_path}"]
    pretrain(repository, tmp_path / "log", *stage)
    results = tmp_path / "results"
    models = [f"--model={name}={tmp_path / name}" for name in ("untrained", "vanilla")]
    scimult("evaluate", "--suite", "demo", "--data", world / "eval", "--out", results, *models)
    scores = {}
    for name in ("untrained", "vanilla"):
        sets = json.loads((results / name / "result.json").read_text())["sets"]
        scores[name] = {key: entry["scores"][entry["main_metric"]] for key, entry in sets.items()}
    for key, margin in MARGINS.items():
        assert scores["vanilla"][key] >= scores["untrained"][key] + margin, scores
