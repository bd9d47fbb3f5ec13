"""Learning curves: reading, smoothing, and a picture with content."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from scimult.errors import DataError
from scimult.training.curves import plot_curves, read_curves, smoothed
from tests.command import completed, invoke
from tests.raw_corpus import write_jsonl


def write_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    lines = [{"step": 0, "metrics": {"dev/x.search/mrr": 0.1}}]
    for step in range(1, 5):
        metrics = {"dev/x.search/mrr": 0.2 * step} if step % 2 == 0 else {}
        source = "x" if step % 2 else "y"
        numbers: dict[str, object] = {"loss": 1 / step, "tokens": 10, "seconds": 0.5}
        numbers["by_task"] = {"search": {"loss": 1 / step}}
        lines.append({"step": step, "sources": [source], "metrics": metrics, **numbers})
    write_jsonl(folder / "metrics.jsonl", lines)
    return folder


def test_curves_hold_scores_and_losses_by_source_and_task(tmp_path: Path) -> None:
    curves = {curve.metric: curve for curve in read_curves(write_run(tmp_path / "run"))}
    assert curves["dev/x.search/mrr"].steps == [0, 2, 4]
    assert curves["dev/x.search/mrr"].values == [0.1, 0.4, 0.8]
    assert curves["loss/x.search"].values == [1.0, pytest.approx(1 / 3)]
    assert curves["loss/y.search"].steps == [2, 4]


@pytest.mark.long
def test_mixed_steps_have_a_loss_of_each_task_and_no_scores_no_legend(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    line = {
        "step": 1,
        "sources": ["x", "y"],
        "loss": 2.0,
        "tokens": 10,
        "seconds": 0.5,
        "metrics": {},
        "by_task": {"search": {"loss": 1.0}, "classification": {"loss": 3.0}},
    }
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    curves = {curve.metric: curve.values for curve in read_curves(run)}
    assert curves == {"loss/search": [1.0], "loss/classification": [3.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_curves([run], tmp_path / "c.png")


def test_smoothing_keeps_a_constant_and_follows_a_closed_form() -> None:
    assert smoothed([3.0] * 5) == pytest.approx([3.0] * 5)
    assert smoothed([0.0, 1.0], weight=0.5) == pytest.approx([0.0, 0.5 / 0.75])


def test_picture_is_written(tmp_path: Path) -> None:
    plot_curves([write_run(tmp_path / "a"), write_run(tmp_path / "b")], tmp_path / "c.png")
    content = (tmp_path / "c.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


def test_each_task_of_a_source_has_a_name_and_a_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    scores = {f"dev/x.{task}/mrr": 0.5 for task in ("search", "link_prediction")}
    lines = [{"step": 0, "metrics": scores}]
    for step, task in enumerate(("search", "link_prediction"), start=1):
        numbers = {"step": step, "loss": 1.0, "tokens": 10, "seconds": 0.5}
        by_task = {task: {"loss": 1.0}}
        lines.append({**numbers, "sources": ["x"], "metrics": {}, "by_task": by_task})
    write_jsonl(run / "metrics.jsonl", lines)
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    plot_curves([run], tmp_path / "c.png")
    for axes in pyplot.gcf().axes:
        drawn = axes.get_lines()
        assert [line.get_label() for line in drawn] == ["x.search", "x.link_prediction"]
        assert len({line.get_color() for line in drawn}) == 2


def test_each_score_of_a_head_has_a_name_and_a_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import pyplot

    run = tmp_path / "run"
    run.mkdir()
    scores = {"dev/x.count/r2": 0.5, "dev/x.count/kendall": 0.4, "dev/x.search/mrr": 0.3}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 0, "metrics": scores}) + "\n")
    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    plot_curves([run], tmp_path / "c.png")
    drawn = pyplot.gcf().axes[0].get_lines()
    assert [line.get_label() for line in drawn] == ["x.count r2", "x.count kendall", "x.search"]
    assert len({line.get_color() for line in drawn}) == 3


def test_missing_and_damaged_metrics_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run has no metrics"):
        read_curves(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(DataError, match="run has no metrics"):
        read_curves(tmp_path)
    run = write_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "me\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:6: damaged line of metrics"):
        read_curves(run)


@pytest.mark.long
def test_a_name_is_no_formula(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("$lr_{$", "other")]
    plot_curves(runs, tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_runs_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    runs = [write_run(tmp_path / seed / "vanilla") for seed in ("seed0", "seed1")]
    plot_curves(runs, tmp_path / "c.png")
    labels = [line.get_label() for line in pyplot.gcf().axes[0].get_lines()]
    assert labels == ["x.search, seed0/vanilla", "x.search, seed1/vanilla"]


def test_a_source_of_any_name_is_in_the_legend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import pyplot

    run = tmp_path / "run"
    run.mkdir()
    scores = {"dev/_x.search/mrr": 0.5, "dev/y.search/mrr": 0.4}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 0, "metrics": scores}) + "\n")
    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    plot_curves([run], tmp_path / "c.png")
    legend = pyplot.gcf().axes[0].get_legend()
    assert legend is not None
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_x.search", "y.search"]


@pytest.mark.long
def test_only_our_own_plot_is_replaced(tmp_path: Path) -> None:
    from matplotlib import pyplot

    run, path = write_run(tmp_path / "run"), tmp_path / "figure.png"
    pyplot.figure().savefig(path)
    drawn = path.read_bytes()
    refused = invoke("curves", run, "--out", path)
    assert "is not a plot of curves" in refused.stderr
    assert path.read_bytes() == drawn
    path.unlink()
    for _ in range(2):
        result = completed("curves", run, "--out", path)
    for other in (str(tmp_path / "c.pdf"), "/", ""):
        result = invoke("curves", run, "--out", other)
        assert "is a PNG file" in result.stderr
