"""Best step and patience: on scores alone, and in whole runs that are resumed."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scimult.checkpoints import load_pretrained
from scimult.errors import CheckpointError, ConfigError, SciMultError, StorageError
from scimult.training import dev
from scimult.training import folder as run_folder
from scimult.training.config import DevConfig
from scimult.training.folder import load_step
from scimult.training.loop import StepReport
from scimult.training.run import pretrain
from scimult.training.selection import BestStep, Selection
from scimult.training.stopping import StoppedError, StopRequest
from tests.training.corpus import metrics, run_config

MEAN = "dev/mean/mrr"


def report(step: int, **scores: float) -> StepReport:
    metrics = {f"dev/{name}/mrr": score for name, score in scores.items()}
    return StepReport(step, ["search"], ["world"], 1.0, 0.5, 0, 10, 0.1, 1e-3, 1.0, metrics=metrics)


def follow(scores: Sequence[float], selection: Selection, first: int = 1) -> int:
    """Feed scores until the run is over; return how many were seen."""
    for seen, score in enumerate(scores):
        if selection.is_over:
            return seen
        selection.on_step(report(first + seen, mean=score))
    return len(scores)


@given(
    scores=st.lists(st.integers(0, 4).map(float), min_size=1, max_size=12),
    patience=st.integers(1, 4),
    cut=st.integers(0, 12),
)
def test_selection_is_the_definition_also_when_resumed(
    scores: list[float], patience: int, cut: int
) -> None:
    # Naively: stop after the first window of `patience` scores without a new maximum.
    stop = next(
        (
            end
            for end in range(patience + 1, len(scores) + 1)
            if max(scores[end - patience : end]) <= max(scores[: end - patience])
        ),
        len(scores),
    )
    cut = min(cut, stop)
    before = Selection(DevConfig(patience=patience), keep_best=True)
    follow(scores[:cut], before)
    after = Selection(DevConfig(patience=patience), keep_best=True)
    after.restore(before.state, lambda step: True)
    assert cut + follow(scores[cut:], after, first=cut + 1) == stop
    assert after.best is not None
    assert after.best.score == max(scores[:stop])
    assert after.best.step == 1 + scores.index(after.best.score)
    assert after.wants_checkpoint(after.best.step)


def test_steps_without_the_score_are_ignored() -> None:
    selection = Selection(DevConfig(patience=1), keep_best=False)
    selection.on_step(report(1, mean=0.5))
    for step in range(2, 9):
        selection.on_step(report(step, other=0.1))
    assert not selection.is_over
    assert not selection.wants_checkpoint(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "dev/a/mrr"}, "dev.metric was dev/mean/mrr, now it is dev/a/mrr"),
        ({"candidates": 50}, "dev.candidates was 1000, now it is 50"),
        ({"seed": 1}, "dev.seed was 0, now it is 1"),
    ],
)
def test_scores_that_were_measured_otherwise_are_discarded(
    capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    before = Selection(DevConfig(patience=2), True)
    before.on_step(report(3, mean=0.9))
    after = Selection(DevConfig(patience=2, **change), True)
    after.restore(before.state, lambda step: True)
    assert after.best is None
    assert f"discarding scores: {message}" in capsys.readouterr().err


def test_states_of_older_versions_hold_the_metric_alone() -> None:
    selection = Selection(DevConfig(candidates=50), False)
    best = {"step": 3, "score": 0.5}
    selection.restore({"metric": MEAN, "best": best, "without_gain": 1}, lambda step: False)
    assert selection.best == BestStep(3, 0.5)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"checkpoint": {"export": "best"}}, "export best needs checkpoint.keep_best"),
        ({"checkpoint": {"keep_best": True}, "dev": {"every": 0}}, "set dev.every"),
        ({"dev": {"every": 0, "patience": 2}}, "set dev.every"),
        ({"dev": {"patience": 0}}, r"dev\.patience.*greater than or equal to 1"),
        ({"dev": {"metric": "dev/mean/mmr"}}, r"score in dev\.metric.*did you mean 'dev/mean/mrr'"),
        (
            {"dev": {"patience": 2}, "data": {"sources": ["world.search"]}},
            "need dev pairs, but the sources have none",
        ),
    ],
)
def test_selection_without_scores_is_refused_before_any_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], message: str
) -> None:
    if "data" in sections:
        monkeypatch.setattr(dev, "build_dev_sets", lambda *files, **options: [])
    with pytest.raises(SciMultError, match=message):
        pretrain(run_config(folder, "never", **sections))
    assert not (folder / "never").exists()


def test_a_full_disk_fails_before_any_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_config(folder, "no-room", checkpoint={"keep": 5})
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    with pytest.raises(StorageError, match=r"6 checkpoints and the model need .* 0\.0 MB are free"):
        pretrain(config)
    assert not (folder / "no-room" / "metrics.jsonl").exists()


@pytest.mark.long
def test_the_estimated_room_is_what_a_run_uses(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(folder, "room", dev={"every": 0}, model={"freeze": ["embeddings.*"]})
    needed: list[int] = []
    monkeypatch.setattr(run_folder, "require_room", lambda path, size, what: needed.append(size))
    pretrain(config)
    checkpoints = sum(f.stat().st_size for f in (folder / "room" / "checkpoints").rglob("*.saf*"))
    model = (folder / "room" / "model" / "model.safetensors").stat().st_size
    # Two remain of the three that exist for a moment; headers of files are not counted.
    assert needed[0] == pytest.approx(checkpoints * 3 / 2 + model, rel=0.2)


def test_a_file_in_the_way_is_named(folder: Path) -> None:
    (folder / "file").write_text("not a folder")
    with pytest.raises(StorageError, match=r"file.*cannot write"):
        pretrain(run_config(folder, "file/run"))


def scripted(scores: list[float]) -> Any:
    """Return a fake evaluation that yields these scores in turn."""
    left = iter(scores)
    return lambda *model, **options: next(left)


@pytest.mark.long
def test_a_run_stops_exports_its_best_step_and_remembers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections: dict[str, Any] = {
        "data": {"sources": ["world.search"]},
        "schedule": {"steps": 12},
        "dev": {"every": 1, "patience": 3},
    }
    keeps = {"every": 4, "keep": 1, "keep_best": True, "export": "best"}
    config = run_config(folder, "best", **sections, checkpoint=keeps)
    # Untrained first; best at step 3; patience runs out at step 6.
    monkeypatch.setattr(
        dev, "mean_reciprocal_rank", scripted([0.9, 0.2, 0.3, 0.5, 0.4, 0.5, 0.1, 0.8])
    )
    model = pretrain(config)
    output = Path(config.output)
    assert [line["step"] for line in metrics(output)] == [1, 2, 3, 4, 5, 6]
    assert sorted(p.name for p in (output / "checkpoints").iterdir()) == [
        "step-0000003",
        "step-0000006",
    ]
    exported = load_pretrained(model)
    assert exported.config.provenance["step"] == 3
    expected, last = (load_step(output, step).model.state_dict() for step in (3, 6))
    weights = exported.model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())
    assert not all(torch.equal(weights[name], weight) for name, weight in last.items())
    assert re.search(
        r"best at step 3 \(0\.5000\).*training ends at step 6", capsys.readouterr().err
    )
    # Restarted, the run is still over: no step and no evaluation, but the model is exported.
    shutil.rmtree(model)
    assert load_pretrained(pretrain(config)).config.provenance["step"] == 3
    # Without the best step's checkpoint nothing is exported, unless the last step is chosen.
    shutil.rmtree(output / "checkpoints" / "step-0000003")
    with pytest.raises(CheckpointError, match=r"no checkpoint of this step.*value: 3.*one of 6"):
        pretrain(config)
    config = run_config(folder, "best", **sections, checkpoint={**keeps, "export": "last"})
    assert load_pretrained(pretrain(config)).config.provenance["step"] == 6


def test_the_best_step_before_keep_best_was_turned_on_is_no_models(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoint is not there to be exported; the run used to fail at its end."""
    sections: dict[str, Any] = {
        "data": {"sources": ["world.search"]},
        "schedule": {"steps": 6},
        "dev": {"every": 1},
    }
    keeps: dict[str, Any] = {"every": 4, "keep": 1}
    # Untrained first; the best of all is step 2.
    scores, stop = [0.1, 0.5, 0.9, 0.2, 0.3, 0.4, 0.2], StopRequest()

    def score(*model: Any, **options: Any) -> float:
        stop.signal = signal.SIGTERM if len(scores) == 3 else 0  # after step 4
        return scores.pop(0)

    monkeypatch.setattr(dev, "mean_reciprocal_rank", score)
    with pytest.raises(StoppedError):
        pretrain(run_config(folder, "later", **sections, checkpoint=keeps), stop_request=stop)
    best = {**keeps, "keep_best": True, "export": "best"}
    config = run_config(folder, "later", **sections, checkpoint=best)
    assert load_pretrained(pretrain(config)).config.provenance["step"] == 5
    assert "discarding scores: the best step, 2, was not kept" in capsys.readouterr().err


def test_best_of_a_run_without_scores_is_the_last_with_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections: dict[str, Any] = {"data": {"sources": ["world.search"]}, "schedule": {"steps": 2}}
    pretrain(run_config(folder, "unscored", **sections, dev={"every": 1}))
    changed = {"dev": {"every": 1, "seed": 7}, "checkpoint": {"keep_best": True, "export": "best"}}
    config = run_config(folder, "unscored", **sections, **changed)
    assert load_pretrained(pretrain(config)).config.provenance["step"] == 2
    assert "exporting the last step: none has a score of dev/mean/mrr" in capsys.readouterr().err


def test_a_finished_run_without_checkpoints_does_not_start_over(folder: Path) -> None:
    """Its model would be lost, under another configuration without a word."""
    config = run_config(folder, "finished", schedule={"steps": 1})
    weights = pretrain(config) / "model.safetensors"
    before = weights.read_bytes()
    shutil.rmtree(Path(config.output) / "checkpoints")
    with pytest.raises(ConfigError, match="has finished, but its checkpoints are gone"):
        pretrain(run_config(folder, "finished", schedule={"steps": 2}))
    assert weights.read_bytes() == before
