"""The report of a map made by hand: tables, picture, JSON and the suggested layout."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from scimult.training.interference import InterferenceMap, suggest_layout
from scimult.training.interference.affinity import AffinityRow
from scimult.training.interference.cosines import WHOLE, Estimate, PairCell, Verdict
from scimult.training.interference.drift import Drift
from scimult.training.interference.gradients import Location
from scimult.training.interference.report import (
    affinity_table,
    draw,
    drift_table,
    interference_table,
    write_report,
)

UNKNOWN = Estimate(math.nan, math.nan, math.nan)
Given = Mapping[tuple[Location, tuple[str, str]], tuple[Verdict, float]]


def _map(tasks: Sequence[str], num_blocks: int, given: Given) -> InterferenceMap:
    """Return a map with a verdict and a gap in some cells; elsewhere tasks are alike."""
    locations = [WHOLE, Location(-1, "embeddings"), Location(num_blocks, "norms")]
    for block in range(num_blocks):
        locations += [Location(block, "attention"), Location(block, "feed_forward")]
    pairs = []
    for location in locations:
        for pair in combinations(tasks, 2):
            verdict, gap = given.get((location, pair), ("alike", 0.0))
            cosine = Estimate(0.25 - gap, 0.125 - gap, 0.375 - gap)
            if verdict == "routed":
                pairs.append(PairCell(location, pair, UNKNOWN, math.nan, UNKNOWN, verdict))
            else:
                measured = Estimate(gap, gap - 0.125, gap + 0.125)
                pairs.append(PairCell(location, pair, cosine, 0.5, measured, verdict))
    within = {(location, task): Estimate(0.5, math.nan, math.nan) for location in locations
              for task in tasks}  # fmt: skip
    return InterferenceMap(list(tasks), num_blocks, 8, pairs, within)


def test_a_row_says_what_was_measured_in_a_sub_layer() -> None:
    given: Given = {
        (Location(0, "attention"), ("a", "b")): ("conflict", 0.5),
        (Location(0, "feed_forward"), ("a", "b")): ("routed", 0.0),
    }
    table = interference_table(_map(["a", "b"], 1, given))
    rows = [[cell.text for cell in row] for row in table.rows]
    alike = ["+0.250 ± 0.125", "0.500", "0.500", "+0.000 ± 0.125", "alike"]
    assert rows == [
        ["a – b", "encoder", "all", *alike],
        ["a – b", "embeddings", "embeddings", *alike],
        ["a – b", "block 0", "attention", "-0.250 ± 0.125", "0.500", "-0.500", "+0.500 ± 0.125",
         "conflict"],
        ["a – b", "block 0", "feed_forward", "–", "–", "–", "–", "routed"],
        ["a – b", "top", "norms", *alike],
    ]  # fmt: skip
    assert [row[-1].bold for row in table.rows] == [False, False, True, False, False]
    assert table.notes[0].startswith("8 rounds")


def test_affinity_prints_the_best_of_each_column_in_bold() -> None:
    rows = [
        AffinityRow((), {"a": 0.25, "b": 0.75}),
        AffinityRow(("a",), {"a": 0.5, "b": 0.25}),
        AffinityRow(("a", "b"), {"a": 0.5, "b": 0.625}),
    ]
    table = affinity_table(rows, steps=1200)
    assert table.headings == ["trained on", "a", "b", "mean"]
    shown = [[f"*{cell.text}*" if cell.bold else cell.text for cell in row] for row in table.rows]
    assert shown == [
        ["none", "25.00", "*75.00*", "50.00"],
        ["a", "*50.00*", "25.00", "37.50"],
        ["a + b", "*50.00*", "62.50", "*56.25*"],
    ]  # fmt: skip
    assert "for 1,200 steps" in table.notes[0]


def test_drift_that_is_unknown_has_no_number() -> None:
    table = drift_table([Drift("a", "query", 1500, 0.75, math.nan)])
    assert [cell.text for cell in table.rows[0]] == ["a", "query", "1,500", "0.750", "–"]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Keep pictures instead of rendering them."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path, **_: Any) -> None:
        Path(path).touch()
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def test_the_report_is_strict_json_and_its_layout_a_configuration(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    place = Location(1, "feed_forward")
    found = _map(["a", "b"], 2, {(place, ("a", "b")): ("conflict", 0.5)})
    layout, drifts = suggest_layout(found), [Drift("a", "query", 3, 0.5, math.nan)]
    affinity = [AffinityRow(("a",), {"a": 0.5, "b": 0.25})]
    tables = [interference_table(found)]
    write_report(tmp_path / "new", {"model": "m"}, found, layout, drifts, affinity, tables)
    text = (tmp_path / "new/interference.json").read_text(encoding="utf-8")
    report = json.loads(text, parse_constant=pytest.fail)
    assert report["drift"][0]["cka"] is None
    assert report["within"][0] == {
        "block": "encoder", "part": "all", "task": "a", "mean": 0.5, "low": None, "high": None,
    }  # fmt: skip
    assert report["affinity"] == [{"trained_on": ["a"], "a": 0.5, "b": 0.25}]
    (conflict,) = (pair for pair in report["pairs"] if pair["verdict"] == "conflict")
    assert (conflict["block"], conflict["part"]) == ("block 1", "feed_forward")
    assert (conflict["cosine"]["mean"], conflict["corrected"]) == (-0.25, -0.5)
    page = (tmp_path / "new/interference.md").read_text(encoding="utf-8")
    snippet = page.partition("```yaml\n")[2].partition("```")[0]
    wanted = {"variant": "ffn_expert", "options": {"blocks": [1]}}
    assert yaml.safe_load(snippet) == {"model": wanted}
    assert report["layout"]["model"] == wanted
    assert len(drawn) == 1


def test_the_picture_has_a_map_of_every_pair_and_task_four_abreast(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    """Fifteen pairs of six tasks were side by side: 6,000 pixels wide and 600 high."""
    tasks, place = ["a", "b", "c", "d", "e"], Location(0, "attention")
    found = _map(tasks, 1, {(place, ("b", "d")): ("conflict", 1.0)})
    draw(found, tmp_path / "map.png")
    (figure,) = drawn
    panels = {axes.get_title().partition("\n")[0]: axes for axes in figure.axes}
    pairs = {" – ".join(pair) for pair in combinations(tasks, 2)}
    assert panels.keys() - {""} == pairs | {f"{task}, other batches" for task in tasks}
    spec = panels["d – e"].get_subplotspec()
    assert spec is not None
    assert spec.get_gridspec().ncols == 4
    assert {axes.axison for title, axes in panels.items() if title} == {True}
    empty = [
        axes for axes in figure.axes if not axes.get_title() and axes.get_label() != "<colorbar>"
    ]
    assert [axes.axison for axes in empty] == [False] * (5 * 4 - 15)
    # Blocks from top to bottom, parts from left to right.
    panel = panels["b – d"]
    assert [tick.get_text() for tick in panel.get_yticklabels()] == ["top", "block 0", "embeddings"]
    parts = ["embeddings", "attention", "feed\nforward", "norms"]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == parts
    said = {text.get_position(): text.get_text() for text in panel.texts}
    assert said == {
        (3, 0): "0.25\n±0.12",
        (1, 1): "-0.75\n±0.12",
        (2, 1): "0.25\n±0.12",
        (0, 2): "0.25\n±0.12",
    }
    boxes = [patch.get_xy() for patch in panel.patches if isinstance(patch, Rectangle)]
    assert boxes == [(0.5, 0.5)]
    assert not [patch for patch in panels["a – b"].patches if isinstance(patch, Rectangle)]
    assert panels["a, other batches"].texts[0].get_text() == "0.50"


def test_without_conflict_experts_go_where_tasks_are_most_apart() -> None:
    """The half of the blocks with the largest gaps of the worse pair, in one kind of sub-layer."""
    attention = {(0, ("a", "b")): 0.1, (1, ("a", "b")): 0.2, (1, ("b", "c")): 0.6,
                 (2, ("a", "c")): 0.5, (3, ("a", "c")): 0.3}  # fmt: skip
    given: dict[tuple[Location, tuple[str, str]], tuple[Verdict, float]] = {
        (Location(block, "attention"), pair): ("apart", gap)
        for (block, pair), gap in attention.items()
    }
    given[Location(0, "feed_forward"), ("a", "b")] = ("apart", 0.9)
    found = suggest_layout(_map(["a", "b", "c"], 4, given))
    assert found.model == {"variant": "mha_expert", "options": {"blocks": [1, 2]}}
    one = {(Location(0, "feed_forward"), ("a", "b")): ("apart", 0.9)}
    assert suggest_layout(_map(["a", "b"], 1, one)).model == {  # type: ignore[arg-type]
        "variant": "ffn_expert",
        "options": {"blocks": [0]},
    }
    three: Given = {
        (Location(block, "attention"), ("a", "b")): ("apart", gap)
        for block, gap in enumerate((0.2, 0.9, 0.4))
    }
    assert suggest_layout(_map(["a", "b"], 3, three)).model["options"] == {"blocks": [1]}
    elsewhere: Given = {(Location(1, "norms"), ("a", "b")): ("conflict", 0.9)}
    assert suggest_layout(_map(["a", "b"], 1, elsewhere)).model == {"variant": "vanilla"}
