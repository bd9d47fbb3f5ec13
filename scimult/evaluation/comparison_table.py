"""Comparisons as tables: one row per data set, metric and system."""

from __future__ import annotations

from rich.table import Table as RichTable
from rich.text import Text

from scimult.evaluation.comparison import Comparison, Difference
from scimult.evaluation.report import ABSENT, escaped

LABELS = ("set", "metric", "system")


def to_rich(comparison: Comparison) -> RichTable:
    """Return the table for the terminal, differences that pass the corrected test in bold."""
    table = RichTable(title=Text(_title(comparison)), title_justify="left")
    for column, heading in enumerate(_headings(comparison)):
        label = column < len(LABELS)
        table.add_column(Text(heading), justify="left" if label else "right", no_wrap=label)
    previous = None
    for row in (*comparison.rows, *comparison.averages):
        if previous and previous.name != row.name:
            table.add_section()
        style = "bold" if _passes(row, comparison) else ""
        table.add_row(*(Text(cell, style=style) for cell in _cells(row, comparison)))
        previous = row
    return table


def to_markdown(comparison: Comparison) -> str:
    """Return the table and its notes as Markdown."""
    headings = [escaped(heading) for heading in _headings(comparison)]
    right = len(headings) - len(LABELS)
    lines = [f"# {escaped(_title(comparison))}", "", "| " + " | ".join(headings) + " |"]
    lines.append("|" + "---|" * len(LABELS) + "---:|" * right)
    for row in (*comparison.rows, *comparison.averages):
        cells = _cells(row, comparison)
        labels, numbers = map(escaped, cells[: len(LABELS)]), cells[len(LABELS) :]
        lines.append("| " + " | ".join([*labels, *numbers]) + " |")
    return "\n".join([*lines, "", *(f"* {escaped(note)}" for note in comparison.notes)]) + "\n"


def _title(comparison: Comparison) -> str:
    return f"Suite {comparison.suite}: compared with {comparison.settings.baseline}"


def _headings(comparison: Comparison) -> list[str]:
    settings = comparison.settings
    ends = f"{100 * settings.confidence:g}% interval"
    numbers = [settings.baseline, "score", "difference", "relative", ends, "p", "p (Holm)"]
    return [*LABELS, *numbers]


def _cells(row: Difference, comparison: Comparison) -> list[str]:
    relative = row.relative_change
    mark = "*" if _passes(row, comparison) else ""
    return [
        f"average ({row.task})" if row.name == "average" else row.name,
        row.metric,
        row.system,
        f"{100 * row.baseline_score:.2f}",
        f"{100 * row.score:.2f}",
        f"{100 * row.difference:+.2f}",
        ABSENT if relative is None else f"{100 * relative:+.2f}%",
        f"[{100 * row.low:+.2f}, {100 * row.high:+.2f}]",
        ABSENT if row.p is None else _p_value(row.p),
        ABSENT if row.p_holm is None else _p_value(row.p_holm) + mark,
    ]


def _p_value(p: float) -> str:
    return f"{p:.4f}" if p >= 0.00005 else "<0.0001"


def _passes(row: Difference, comparison: Comparison) -> bool:
    return row.p_holm is not None and row.p_holm <= comparison.settings.level
