"""`scimult interference` on a run: what it writes, leaves out and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from scimult.config import save_config
from scimult.errors import ConfigError, DataError, StorageError
from scimult.hardware import MemoryFullError
from scimult.locks import temporary_name
from scimult.models import Encoder
from scimult.training.build import build_model
from scimult.training.config import PretrainConfig
from scimult.training.interference import (
    run,
)
from scimult.training.interference.run import run_interference
from tests.command import completed
from tests.training.corpus import (
    ALL_TASKS,
    KINDS,
    TARGETS,
    prepare_corpus,
    run_config,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interference")
    prepare_corpus(path, TARGETS)
    return path


@pytest.mark.long
def test_the_command_writes_a_report(folder: Path) -> None:
    config = run_config(
        folder, "shared", model={"variant": "vanilla"}, data={"prepared": "nowhere"}
    )
    save_config(config, folder / "config.yaml")
    (folder / "data #1").symlink_to(folder / "prepared")
    out = folder / "report"
    arguments = ["interference", "--model", folder / "base", "--config", folder / "config.yaml"]
    arguments += ["--data", folder / "data #1"]
    arguments += ["--out", out, "--rounds", 3, "--base", folder / "base", "batch.pairs_per_step=4"]
    result = completed(*arguments)
    assert "suggested layout: " in result.output
    assert sorted(path.name for path in out.iterdir() if path.name != ".lock") == [
        "interference.json",
        "interference.md",
        "interference.png",
    ]
    report = json.loads((out / "interference.json").read_text(encoding="utf-8"))
    assert report["config"]["batch"]["pairs_per_step"] == 4
    assert report["config"]["model"]["base"] == str(folder / "base")
    # Two blocks of attention, feed-forward and norms; embeddings and their norm; all.
    assert len(report["pairs"]) == 3 * (2 * 3 + 2 + 1)
    assert len(report["within"]) == 3 * (2 * 3 + 2 + 1)
    assert [drift["role"] for drift in report["drift"]] == ["query", "candidate"] * 3
    for drift in report["drift"]:
        assert drift["cosine"] == pytest.approx(1, abs=1e-6)
        assert drift["cka"] == pytest.approx(1, abs=1e-6)
    # A run accepts the suggested layout.
    model = {"base": str(folder / "base"), **report["layout"]["model"]}
    build_model(run_config(folder, "next", model=model))
    completed(*arguments)


@pytest.mark.long
def test_tasks_with_heads_are_left_out(folder: Path, tmp_path: Path) -> None:
    config = run_config(
        folder,
        "heads",
        tasks=ALL_TASKS,
        loss={"by_task": {**KINDS, "link_prediction": {"name": "triplet", "margin": 2.0}}},
        model={"variant": "vanilla", "similarity": "l2"},
        batch={"mix": "in_batch", "pairs_per_step": 24},
    )
    save_config(config, tmp_path / "run.yaml")
    run_interference(folder / "base", tmp_path / "out", config=tmp_path / "run.yaml", rounds=2)
    report = json.loads((tmp_path / "out" / "interference.json").read_text(encoding="utf-8"))
    assert report["tasks"] == ["search", "link_prediction", "classification"]
    assert list(report["config"]["loss"]["by_task"]) == ["link_prediction"]


def test_control_codes_are_not_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are one weight with a row per task, whose gradients shortened all cosines."""

    def measured(model: Encoder, *_: Any) -> None:
        names = [name for name, p in model.named_parameters() if not p.requires_grad]
        raise DataError(", ".join(names))

    monkeypatch.setattr("scimult.training.interference.run.measure", measured)
    save_config(run_config(folder, "run", model={"variant": "vanilla"}), tmp_path / "run.yaml")
    with pytest.raises(DataError, match=r"^embeddings\.codes\.weight$"):
        run_interference(
            folder / "base",
            tmp_path / "out",
            config=tmp_path / "run.yaml",
            overrides=["model.variant=control_codes"],
            rounds=1,
        )


def test_impossible_measurements_are_named(folder: Path, tmp_path: Path) -> None:
    config = run_config(folder, "run", model={"variant": "vanilla"})
    save_config(config, tmp_path / "run.yaml")
    given: dict[str, Any] = {"config": tmp_path / "run.yaml", "rounds": 2}
    with pytest.raises(ConfigError, match="model is not a run.*Fix: name a run's configuration"):
        run_interference(folder / "base", tmp_path / "out")
    with pytest.raises(ConfigError, match="runs/mien: there is no such folder.*Fix: name a run's"):
        run_interference(Path("runs/mien"), tmp_path / "out")
    with pytest.raises(ConfigError, match="interference needs at least two tasks"):
        run_interference(
            folder / "base", tmp_path / "out", overrides=["data.sources=[world.search]"], **given
        )
    with pytest.raises(ConfigError, match="no two tasks train a common parameter"):
        run_interference(
            folder / "base", tmp_path / "out", overrides=["model.variant=adapters"], **given
        )
    stages = f"include: {tmp_path / 'run.yaml'}\nstages: {{first: {{}}, second: {{}}}}\n"
    (tmp_path / "stages.yaml").write_text(stages, encoding="utf-8")
    message = "several runs, one per stage .*first.*second.*--config OUTPUT/STAGE/config.yaml"
    with pytest.raises(ConfigError, match=message):
        run_interference(
            folder / "base", tmp_path / "out", config=tmp_path / "stages.yaml", rounds=2
        )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match="is not a report of scimult interference"):
        run_interference(folder / "base", tmp_path / "mine", **given)
    (tmp_path / "killed").mkdir()
    temporary_name(tmp_path / "killed" / "interference.json").touch()
    with pytest.raises(ConfigError, match="model is not a run"):
        run_interference(folder / "base", tmp_path / "killed")


@pytest.mark.parametrize("name", ["", "model"])
def test_a_run_is_measured_with_its_own_configuration(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Named by its folder or by the model in it; another one with --config, and without dropout."""
    found = []

    def planned(config: PretrainConfig) -> None:
        found.append(config)
        raise DataError("seen")

    monkeypatch.setattr(run, "plan_run", planned)
    own = run_config(folder, "run", model={"variant": "mha_expert", "dropout": 0.5})
    save_config(own, tmp_path / "run" / "config.yaml")
    (tmp_path / "run" / "model").mkdir()
    save_config(run_config(folder, "run", model={"variant": "vanilla"}), tmp_path / "other.yaml")
    model = tmp_path / "run" / name
    for config in (None, tmp_path / "other.yaml"):
        with pytest.raises(DataError, match="seen"):
            run_interference(model, tmp_path / "out", config=config)
    assert [one.model.variant for one in found] == ["mha_expert", "vanilla"]
    assert [(one.model.dropout, one.model.base) for one in found] == [(0.0, str(model))] * 2


def test_full_memory_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fills(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    save_config(run_config(folder, "run", model={"variant": "vanilla"}), tmp_path / "run.yaml")
    monkeypatch.setattr(run, "measure", fills)
    with pytest.raises(MemoryFullError, match=r"GPU .*2.00 GiB.*Fix: lower batch.pairs_per_step"):
        run_interference(folder / "base", tmp_path / "out", config=tmp_path / "run.yaml", rounds=2)
