"""Report an interference map: tables, a heat map, and one JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.files import atomic_file, write_json, write_text
from scimult.table import Cell, Table, label, number, percent, to_markdown
from scimult.training.interference.affinity import AffinityRow
from scimult.training.interference.cosines import WHOLE, Estimate, InterferenceMap, PairCell
from scimult.training.interference.drift import Drift
from scimult.training.interference.gradients import Location
from scimult.training.interference.layout import SuggestedLayout

if TYPE_CHECKING:
    from matplotlib.axes import Axes

JSON_FILE, PAGE_FILE, PICTURE_FILE = "interference.json", "interference.md", "interference.png"
_COLUMNS = ("embeddings", "attention", "feed_forward", "norms")
# Maps side by side in the picture: six tasks have 15 pairs, too wide for any screen.
_ABREAST = 4


def block_name(interference: InterferenceMap, location: Location) -> str:
    """Return the name of a row of the map."""
    names = {WHOLE.block: "encoder", -1: "embeddings", interference.num_blocks: "top"}
    return names.get(location.block, f"block {location.block}")


def interference_table(interference: InterferenceMap) -> Table:
    """Return the table of cosine, ceiling and verdict of every location and pair."""
    rows = [
        [
            label(" – ".join(cell.tasks)),
            label(block_name(interference, cell.location)),
            label(cell.location.sublayer),
            _estimate(cell.cosine),
            _plain(cell.ceiling),
            _plain(cell.corrected),
            _estimate(cell.gap),
            Cell(cell.verdict, bold=cell.verdict == "conflict"),
        ]
        for cell in sorted(interference.pairs, key=lambda cell: (cell.tasks, cell.location))
    ]
    notes = [
        f"{interference.rounds} rounds of two batches per task; ± is half of a 95 % interval "
        "(Student's t over rounds).",
        "cosine: between gradients of the two tasks. ceiling: its expected value if both had the "
        "same gradient (geometric mean of each task's cosine with itself on other batches). "
        "corrected: cosine over ceiling. gap: ceiling less cosine.",
        "conflict: cosine below 0; apart: gap above 0; both at 5 % over all cells together "
        "(Bonferroni). routed: no parameter here has gradients of both.",
    ]
    headings = ["tasks", "block", "part", "cosine", "ceiling", "corrected", "gap", "verdict"]
    return Table("Interference between tasks", headings, 3, rows, notes, group=1)


def drift_table(drifts: Sequence[Drift]) -> Table:
    """Return the table of how far each side of a task has moved."""
    rows = [
        [
            label(drift.task),
            label(drift.role),
            Cell(f"{drift.texts:,}", drift.texts),
            _plain(drift.cosine),
            _plain(drift.cka),
        ]
        for drift in drifts
    ]
    notes = [
        "cosine: base against model, mean over texts; CKA: linear, 1 up to rotation and scale."
    ]
    return Table("Drift from the base", ["task", "role", "texts", "cosine", "CKA"], 2, rows, notes)


def affinity_table(rows: Sequence[AffinityRow], steps: int) -> Table:
    """Return the table of scores of every combination of tasks, the best of each column bold."""
    tasks = list(rows[0].scores)
    best = {task: max(row.scores[task] for row in rows) for task in tasks}
    highest = max(row.mean for row in rows)
    cells = [
        [
            label(" + ".join(row.trained_on) or "none"),
            *(percent(row.scores[task], bold=row.scores[task] == best[task]) for task in tasks),
            percent(row.mean, bold=row.mean == highest),
        ]
        for row in rows
    ]
    notes = [
        f"Each row is a model trained for {steps:,} steps on these tasks only; columns are mean "
        "reciprocal ranks × 100 on the dev pairs of a task. Like SciRepEval's Table 11 except for "
        "the scores. One seed: small differences may be chance."
    ]
    return Table("Task affinity", ["trained on", *tasks, "mean"], 1, cells, notes)


def write_report(
    folder: Path,
    facts: dict[str, Any],
    interference: InterferenceMap,
    layout: SuggestedLayout,
    drifts: Sequence[Drift],
    affinity: Sequence[AffinityRow],
    tables: Sequence[Table],
) -> None:
    """Write ``interference.json``, ``interference.md`` and ``interference.png`` to a folder.

    ``facts`` is the information needed to reproduce the report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        **facts,
        "tasks": interference.tasks,
        "rounds": interference.rounds,
        "pairs": [_pair(interference, cell) for cell in interference.pairs],
        "within": [
            {"block": block_name(interference, location), "part": location.sublayer, "task": task}
            | asdict(estimate)
            for (location, task), estimate in interference.within.items()
        ],
        "drift": [asdict(drift) for drift in drifts],
        "affinity": [{"trained_on": row.trained_on, **row.scores} for row in affinity],
        "layout": {"model": layout.model, "reason": layout.reason},
    }
    write_json(folder / JSON_FILE, json.loads(json.dumps(report), parse_constant=lambda _: None))
    parts = [
        f"![cosines between gradients]({PICTURE_FILE})\n",
        *(to_markdown(table) for table in tables),
        f"## Suggested layout\n\n{layout.reason[0].upper()}{layout.reason[1:]}.\n\n"
        f"```yaml\n{layout.snippet}\n```\n",
    ]
    write_text(folder / PAGE_FILE, "# Interference map\n\n" + "\n".join(parts))
    draw(interference, folder / PICTURE_FILE)


def draw(interference: InterferenceMap, path: Path) -> None:
    """Draw a heat map of cosines for each pair of tasks and, below, for each task with itself."""
    from matplotlib.figure import Figure

    pairs = list(dict.fromkeys(cell.tasks for cell in interference.pairs))
    columns = min(max(len(pairs), len(interference.tasks)), _ABREAST)
    above, below = (math.ceil(len(maps) / columns) for maps in (pairs, interference.tasks))
    height = 1.4 + 0.34 * (interference.num_blocks + 2)
    figure = Figure(figsize=(1.2 + 3.6 * columns, (above + below) * height), layout="constrained")
    grid = figure.subplots(above + below, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, pair in zip(grid[:above].flat, pairs, strict=False):
        cells = {cell.location: cell for cell in interference.pairs if cell.tasks == pair}
        estimates = {location: cell.cosine for location, cell in cells.items()}
        conflicts = {location for location, cell in cells.items() if cell.verdict == "conflict"}
        _panel(axes, interference, estimates, " – ".join(pair), conflicts)
    for axes, task in zip(grid[above:].flat, interference.tasks, strict=False):
        estimates = {
            location: interference.within[location, task] for location in interference.locations
        }
        image = _panel(axes, interference, estimates, f"{task}, other batches", set())
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=40)
    bar.set_label("cosine of gradients; boxes mark conflicts")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _panel(
    axes: Axes,
    interference: InterferenceMap,
    estimates: dict[Location, Estimate],
    title: str,
    boxed: set[Location],
) -> Any:
    from matplotlib.patches import Rectangle

    locations = [location for location in interference.locations if location != WHOLE]
    blocks = list(dict.fromkeys(location.block for location in locations))[::-1]
    parts = [name for name in _COLUMNS if any(location.sublayer == name for location in locations)]
    parts += sorted({location.sublayer for location in locations} - set(parts))
    means = np.full((len(blocks), len(parts)), np.nan)
    axes.set_axis_on()
    for location, estimate in estimates.items():
        if location == WHOLE or math.isnan(estimate.mean):
            continue
        row, column = blocks.index(location.block), parts.index(location.sublayer)
        means[row, column] = estimate.mean
        label = f"{estimate.mean:.2f}"
        if not math.isnan(estimate.high):
            label += f"\n±{estimate.high - estimate.mean:.2f}"
        colour = "white" if abs(estimate.mean) > 0.6 else "black"
        axes.text(column, row, label, ha="center", va="center", fontsize=6, color=colour)
        if location in boxed:
            box = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, linewidth=2)
            axes.add_patch(box)
    image = axes.imshow(means, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    names = [block_name(interference, Location(block, "")) for block in blocks]
    axes.set_yticks(range(len(blocks)), names, fontsize=7)
    axes.set_xticks(range(len(parts)), [part.replace("_", "\n") for part in parts], fontsize=7)
    whole = estimates[WHOLE]
    axes.set_title(f"{title}\nwhole encoder {whole.mean:.2f}", fontsize=8)
    return image


def _pair(interference: InterferenceMap, cell: PairCell) -> dict[str, Any]:
    return {
        "tasks": cell.tasks,
        "block": block_name(interference, cell.location),
        "part": cell.location.sublayer,
        "cosine": asdict(cell.cosine),
        "ceiling": cell.ceiling,
        "corrected": cell.corrected,
        "gap": asdict(cell.gap),
        "verdict": cell.verdict,
    }


def _estimate(estimate: Estimate) -> Cell:
    if math.isnan(estimate.mean):
        return number(None, "")
    reach = estimate.high - estimate.mean
    label = f"{estimate.mean:+.3f}" + ("" if math.isnan(reach) else f" ± {reach:.3f}")
    return Cell(label, estimate.mean)


def _plain(value: float) -> Cell:
    return number(None if math.isnan(value) else value, "{:.3f}")
