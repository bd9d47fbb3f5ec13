"""The report of a day on a GPU: the last attempt at a step counts, and misses are marked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_day.predictions import PREDICTIONS, Prediction, extreme, one, over
from benchmarks.gpu_day.report import last_attempts, make_report, table


def _line(step: str, **content: Any) -> dict[str, Any]:
    return {"step": step, "dry": False, **content}


def _end(call: str, step: str, rc: int | str) -> dict[str, Any]:
    return _line(step, call=call, rc=rc, seconds=1.0, box=9.0, error="" if rc == 0 else "words")


def test_the_last_attempt_of_a_step_counts() -> None:
    lines = [
        _line("peaks", call="run", started=True),
        _line("peaks", found={"copy_tb_s": 1.0}),
        _end("run", "peaks", "timeout"),
        _line("peaks", call="speed", started=True),
        _line("peaks", found={"copy_tb_s": 2.0}),
        _end("speed", "peaks", 0),
        _line("peaks", call="run", started=True),
        _line("peaks", found={"copy_tb_s": 3.0}),
    ]
    attempts = last_attempts(lines)
    assert [(one.call, one.rc, one.findings) for one in attempts] == [
        ("run", "no end written", [{"copy_tb_s": 3.0}]),
        ("speed", 0, [{"copy_tb_s": 2.0}]),
    ]


@pytest.mark.parametrize(
    ("device", "copy", "verdict"),
    [
        ("NVIDIA H200", 4.3, "| held |"),
        ("NVIDIA H200", 2.9, "| held |"),
        ("NVIDIA H200", 2.7, "**missed by more than 1.5 times**"),
        ("NVIDIA H200", 6.7, "**missed by more than 1.5 times**"),
        ("NVIDIA A100", 1.2, "only for an H200"),
    ],
)
def test_a_report_marks_figures_far_from_their_prediction(
    tmp_path: Path, device: str, copy: float, verdict: str
) -> None:
    lines = [
        _line("machine", call="run", started=True),
        _line("machine", found={"device": device}),
        _end("run", "machine", 0),
        _line("peaks", call="run", started=True),
        _line("peaks", found={"copy_tb_s": copy}),
        _end("run", "peaks", 1),
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"cut sh'
    (tmp_path / "day.jsonl").write_text(text, encoding="utf-8")
    page = make_report([tmp_path])
    (row,) = [line for line in page.splitlines() if line.startswith("| copy within")]
    assert verdict in row
    assert "dry run" not in page
    assert "words" in page.partition("## Failures")[2]


def test_predictions_take_their_figures_from_the_findings() -> None:
    findings: Mapping[str, list[dict[str, Any]]] = {
        "a": [{"x": 1.0, "kind": "k"}, {"x": 4.0, "kind": "k"}, {"y": None}],
        "b": [{"x": 2.0, "kind": "other"}],
    }
    assert one("a", "x")(findings) == 1.0
    assert one("a", "y")(findings) is None
    assert one("b", "x", kind="k")(findings) is None
    assert extreme(max, ("a", "b", "c"), ("x",), kind=("k",))(findings) == 4.0
    assert extreme(max, ("a", "b"), ("x",), kind=("k", "other"))(findings) == 4.0
    assert over(one("a", "x"), one("b", "x"))(findings) == 0.5
    assert over(one("a", "x"), one("c", "x"))(findings) is None


def test_a_range_is_missed_beyond_half_as_much_again() -> None:
    both = Prediction("", 2.0, 4.0, one("a", "x"))
    assert [both.misses(figure) for figure in (1.3, 1.4, 3.0, 6.0, 6.1)] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert not replace(both, high=None).misses(1e9)
    assert not replace(both, low=None).misses(0.0)
    assert len({one.what for one in PREDICTIONS}) == len(PREDICTIONS)


def test_the_documents_state_every_prediction(repository: Path) -> None:
    page = (repository / "docs" / "gpu_machine.md").read_text(encoding="utf-8")
    for prediction in PREDICTIONS:
        assert f"| {prediction.what} | {prediction.range} |" in page


def test_cells_do_not_end_early() -> None:
    rows = [["a|b", None, 12345.6, True], ["c", [["x", 2]], 0.000123456, 1_000_000]]
    assert table(["a", "b", "c", "d"], rows).splitlines()[2:] == [
        "| a\\|b |  | 12,346 | True |",
        "| c | x 2 | 0.0001235 | 1,000,000 |",
    ]
