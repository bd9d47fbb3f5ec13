"""Tables of a report, written once for the terminal, Markdown, LaTeX, JSON and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.table import Table as RichTable
from rich.text import Text

from scimult.evaluation.report import ABSENT, escaped

Mark = Literal["", "better", "worse"]
SIGNS: dict[Mark, str] = {"": "", "better": "▲", "worse": "▼"}
LATEX_SIGNS: dict[Mark, str] = {
    "": "",
    "better": r"\rlap{$^{+}$}",
    "worse": r"\rlap{$^{-}$}",
}
_LATEX = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "α": r"$\alpha$",
}


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the number behind it, and how it is shown.

    Attributes
    ----------
    text : str
        What is shown.
    value : float, optional
        In full precision, for sorting and JSON.
    bold : bool
        Best of its row.
    mark : {"", "better", "worse"}
        Result of a test against the baseline.
    note : str
        Small print, such as an interval; in HTML only.
    """

    text: str
    value: float | None = None
    bold: bool = False
    mark: Mark = ""
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes
    ----------
    title : str
        Its heading.
    headings : list of str
        One per column.
    labels : int
        How many columns, from the left, name the row.
    rows : list of list of Cell
        Cells in the order of the headings.
    notes : list of str
        What a reader has to know.
    minor : list of int
        Rows that HTML shows on demand only.
    footer : int
        How many rows at the end sum up the others.
    """

    title: str
    headings: list[str]
    labels: int
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    minor: list[int] = field(default_factory=list)
    footer: int = 0

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headings) for row in self.rows), self.title


def label(text: str) -> Cell:
    """Return a cell that names something."""
    return Cell(text)


def percent(value: float | None, **shown: object) -> Cell:
    """Return a score × 100 with two decimals, as tables of papers have it."""
    return number(value, "{:.2f}", 100, **shown)


def change(value: float | None) -> Cell:
    """Return a relative change in per cent, with its sign."""
    return number(value, "{:+.2f}%", 100)


def number(value: float | None, form: str, factor: float = 1, **shown: object) -> Cell:
    """Return ``factor`` × ``value`` in a format; a dash for None."""
    if value is None:
        return Cell(ABSENT)
    return Cell(form.format(factor * value), value, **shown)  # type: ignore[arg-type]


def to_rich(grid: Grid) -> RichTable:
    """Return a table for the terminal."""
    table = RichTable(title=Text(grid.title), title_justify="left")
    for column, heading in enumerate(grid.headings):
        named = column < grid.labels
        table.add_column(Text(heading), justify="left" if named else "right", no_wrap=named)
    for row in grid.rows:
        table.add_row(
            *(Text(cell.text + SIGNS[cell.mark], style="bold" * cell.bold) for cell in row)
        )
    return table


def to_markdown(grid: Grid) -> str:
    """Return the table and its notes as Markdown."""
    head = [escaped(heading) for heading in grid.headings]
    rule = "---|" * grid.labels + "---:|" * (len(head) - grid.labels)
    lines = [f"## {escaped(grid.title)}", "", f"| {' | '.join(head)} |", f"|{rule}"]
    for row in grid.rows:
        texts = [escaped(cell.text) + SIGNS[cell.mark] for cell in row]
        shown = [f"**{t}**" if cell.bold else t for cell, t in zip(row, texts, strict=True)]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join([*lines, "", *(f"* {escaped(note)}" for note in grid.notes)]) + "\n"


def to_latex(grid: Grid) -> str:
    """Return the table as LaTeX for the package ``booktabs``; notes are comments."""
    columns = "l" * grid.labels + "r" * (len(grid.headings) - grid.labels)
    # A line break in a text would end the comment.
    lines = ["% " + " ".join(note.split()) for note in (grid.title, *grid.notes)]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [_latex_row([_latex(heading) for heading in grid.headings]), r"\midrule"]
    for previous, row in zip([None, *grid.rows], grid.rows, strict=False):
        if grid.labels > 1 and previous and previous[0].text != row[0].text:
            lines.append(r"\midrule")
        lines.append(_latex_row([_latex_cell(cell) for cell in row]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return (rf"\textbf{{{text}}}" if cell.bold else text) + LATEX_SIGNS[cell.mark]


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
