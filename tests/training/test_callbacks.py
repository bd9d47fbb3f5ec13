"""Reports of steps: the numbers of a window, and everywhere they are written."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from scimult.errors import ConfigError, StorageError
from scimult.training.callbacks import Console, MetricsFile, TensorBoard, Tracker, open_tracker
from scimult.training.loop import Callback, StepReport
from scimult.training.metrics import STATISTICS
from scimult.training.summary import Window
from tests.test_full_disk import small_disk


def report(step: int, task: str, loss: float, **changes: Any) -> StepReport:
    """Return a step of one task: four queries, one of them with a hard negative that wins."""
    found = {"queries": 4, "ranked": 4, "loss": 4 * loss, "correct": 2}
    found |= {"compared": 4, "margin": 6, "with_hard": 2, "hard_wins": 1}
    assert found.keys() <= set(STATISTICS)
    values: dict[str, Any] = {
        "step": step,
        "tasks": [task],
        "sources": ["s"],
        "loss": loss,
        "accuracy": 0.5,
        "masked": 0,
        "tokens": 100,
        "seconds": 0.5 * step,
        "lr": 0.1 / step,
        "gradient_norm": float(step),
        "sums": {task: [found.get(name, 0) for name in STATISTICS]},
        "usage": {
            "padding_if_padded": 0.1 * step,
            "padding_in_attention": 0.01,
            "model_flops": 1e9,
            "model_flop_utilisation": 0.2 * step,
            "peak_memory_bytes": step * 2**30,
        },
        "gradient_norms": {"shared": 2.0 * step, "expert/a": 1.0},
    }
    return StepReport(**values | changes)


STEPS = [report(1, "a", 1.0), report(2, "b", 2.0), report(3, "a", 3.0)]
EXPECTED = {
    "train/loss": 2.0,
    "train/loss/a": 2.0,
    "train/loss/b": 2.0,
    "train/in_batch_accuracy": 0.5,
    "train/in_batch_accuracy/a": 0.5,
    "train/in_batch_accuracy/b": 0.5,
    "train/margin/a": 1.5,
    "train/margin/b": 1.5,
    "train/hard_wins/a": 0.5,
    "train/hard_wins/b": 0.5,
    "train/lr": 0.1 / 3,
    "train/gradient_norm": 2.0,
    "train/gradient_norm/a": 2.0,
    "train/gradient_norm/b": 2.0,
    "train/gradient_norm_of/shared": 4.0,
    "train/gradient_norm_of/expert/a": 1.0,
    # 300 tokens in 0.5 + 1 + 1.5 seconds.
    "speed/tokens_per_second": 100.0,
    "speed/padding_if_padded": 0.2,
    "speed/padding_in_attention": 0.01,
    # By time: (0.2 * 0.5 + 0.4 * 1 + 0.6 * 1.5) / 3.
    "speed/model_flop_utilisation": 1.4 / 3,
    "memory/peak_memory_gib": 3.0,
}


def test_a_window_summarises_its_steps_and_starts_over() -> None:
    window = Window()
    for step in STEPS:
        window.add(step)
    assert window.take() == pytest.approx(EXPECTED)
    window.add(report(4, "b", 7.0, loss_scale=1024.0, skipped_steps=2))
    second = window.take()
    assert second["train/loss"] == second["train/loss/b"] == 7
    assert "train/loss/a" not in second
    assert (second["fp16/loss_scale"], second["fp16/skipped_steps"]) == (1024, 2)


def play(callback: Callback) -> None:
    """Run three steps of which the second has a dev score."""
    callback.on_start({"dev/mean/mrr": 0.25})
    for step in STEPS:
        scored = {"metrics": {"dev/mean/mrr": 0.5}} if step.step == 2 else {}
        callback.on_step(StepReport(**vars(step) | scored))
    callback.on_end()


def test_tensorboard_holds_the_windows_and_the_scores(tmp_path: Path) -> None:
    play(TensorBoard(tmp_path, 0, every=3, steps=3))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    scores = found.pop("dev/mean/mrr")
    assert [(event.step, event.value) for event in scores] == [(0, 0.25), (2, 0.5)]
    assert {tag: event.step for tag, (event,) in found.items()} == dict.fromkeys(EXPECTED, 3)
    # TensorBoard keeps float32.
    assert {tag: event.value for tag, (event,) in found.items()} == pytest.approx(EXPECTED)


@pytest.mark.parametrize(("first_step", "losses"), [(2, [1.0, 1.0, 9.0]), (0, [9.0, 9.0, 9.0])])
def test_tensorboard_shows_a_repeated_step_once(
    first_step: int, losses: list[float], tmp_path: Path
) -> None:
    """A run killed after step 3 continues from a checkpoint, or starts over without one."""
    for first, loss in ((0, 1.0), (first_step, 9.0)):
        callback = TensorBoard(tmp_path, first, every=1, steps=4)
        for step in range(first + 1, 4):
            callback.on_step(report(step, "a", loss))
        callback.on_end()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert found == list(zip([1, 2, 3], losses, strict=True))


def test_a_full_disk_under_tensorboard_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("threading.excepthook", shown.append)
    with small_disk(10), pytest.raises(StorageError, match="cannot write: File too large.*Fix"):
        callback = TensorBoard(tmp_path, 0, every=1, steps=3)
        for _ in range(3):
            play(callback)
            time.sleep(0.1)
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("tensorboard."):
            thread.join(5)
    assert not shown


def test_metrics_file_has_means_by_task(tmp_path: Path) -> None:
    play(MetricsFile(tmp_path / "metrics.jsonl", 0))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    means = {"loss": 3.0, "accuracy": 0.5, "margin": 1.5, "hard_wins": 0.5}
    assert lines[3]["by_task"] == {"a": means}
    assert lines[3]["usage"]["model_flops"] == 1e9
    # Killed before its first checkpoint, a run begins again.
    play(MetricsFile(tmp_path / "metrics.jsonl", 0))
    again = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [line["step"] for line in again] == [0, 1, 2, 3]


def test_a_damaged_line_of_metrics_does_not_keep_a_run_from_resuming(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    play(MetricsFile(path, 0))
    first, second, third, fourth = path.read_bytes().splitlines(True)
    path.write_bytes(first + second + b"\xfe\x80\0\n" + third[:9] + b"\n" + fourth)
    MetricsFile(path, 2).on_end()
    assert path.read_bytes() == first + second


def test_a_step_skipped_by_fp16_has_no_norm(tmp_path: Path) -> None:
    skipped = report(1, "a", 1.0, gradient_norm=math.inf, loss_scale=8.0, skipped_steps=1)
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    window = Window()
    for step in (skipped, report(2, "a", 1.0, loss_scale=8.0, skipped_steps=1)):
        file.on_step(step)
        window.add(step)
    line = (tmp_path / "metrics.jsonl").read_text().splitlines()[0]
    assert json.loads(line, parse_constant=pytest.fail)["gradient_norm"] is None
    assert window.take()["train/gradient_norm"] == 2


def test_console_prints_a_line_per_window_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(Console(0, steps=3, every=2))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["step", "0:"],
        ["step", "2:"],
        ["step", "2/3"],
        ["step", "3/3"],
    ]
    assert "loss 1.500 (a 1.000, b 2.000)  acc 0.50" in lines[2]
    assert "133 tok/s  MFU 33%" in lines[2]
    assert "loss 3.000  acc" in lines[3]


def test_steps_that_learn_nothing_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A margin above an untrained model's differences masks all candidates of all steps."""
    console = Console(0, steps=3, every=3)
    for step in (report(1, "a", 0.0), *(report(n, "a", 0.0, gradient_norm=0.0) for n in (2, 3))):
        console.on_step(replace(step, masked=1240))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "nothing" in line]
    assert "step 2 learned nothing" in line
    assert "1,240 candidates were excluded (loss.mask_margin" in line


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for both trackers; ``calls`` has what was reported."""
    calls: list[tuple[Any, ...]] = []
    fake = SimpleNamespace(
        calls=calls,
        init=lambda **options: calls.append(("init", options)),
        log=lambda scalars, step: calls.append((step, scalars)),
        finish=lambda: calls.append(("finish",)),
    )
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, fake)
    return fake


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_trackers_get_each_step_once_and_a_resumed_run_its_name(
    package: SimpleNamespace, tmp_path: Path, name: Any
) -> None:
    for _ in range(2):
        play(Tracker(name, tmp_path, "papers", every=2, steps=3, config={"seed": 1}))
    first, second = package.calls[:5], package.calls[5:]
    assert first == second
    options = first[0][1]
    assert options["project"] == "papers"
    assert options["config"] == {"seed": 1}
    assert options["name"].startswith(tmp_path.name)
    assert options["resume"] == "allow"
    assert ("id" in options) == (name == "wandb")
    assert [call[0] for call in first] == ["init", 0, 2, 3, "finish"]
    assert first[1][1] == {"dev/mean/mrr": 0.25}
    assert first[2][1]["dev/mean/mrr"] == 0.5
    assert first[2][1]["train/loss"] == 1.5
    assert first[3][1]["train/loss"] == 3.0


def test_an_absent_tracker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ConfigError, match="pip install trackio"):
        open_tracker("trackio")
