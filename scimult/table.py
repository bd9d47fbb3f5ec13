"""Tables for the terminal, Markdown, LaTeX, and (through the report) JSON and HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from scimult.terminal import visible

ABSENT = "–"
# Longer texts are folded on a terminal.
_LONGEST_NAME = 40

Mark = Literal["", "better", "worse"]
SIGNS: dict[Mark, str] = {"": "", "better": "▲", "worse": "▼"}
LATEX_SIGNS: dict[Mark, str] = {
    "": "",
    "better": r"\rlap{$^{+}$}",
    "worse": r"\rlap{$^{-}$}",
}
# Of CommonMark and of GitHub, whose tildes strike text out and whose dollars are formulas.
_MARKUP = re.compile(r"[\\|`*\[\]<>&~$]|(?<![^\W_])_|_(?![^\W_])")
_LATEX = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "\0": "{}",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "α": r"$\alpha$",
}
# Signs that LaTeX joins with the next one: hyphens to a dash, quotes to another quote. A null parts
# them, for which `_LATEX` has an empty group.
_JOINED = re.compile(r"([-`',])(?=\1)|[?!](?=`)")


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the number behind it, and its style.

    Attributes
    ----------
    text : str
        Displayed text.
    value : float, optional
        The number in full precision, for sorting and JSON.
    bold : bool
        Whether it is the best of its row.
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
class Table:
    """A table.

    Attributes
    ----------
    title : str
        Its heading.
    headings : list of str
        One per column.
    labels : int
        Number of leading text columns; the others are numbers.
    rows : list of list of Cell
        Cells in the order of the headings.
    notes : list of str
        Notes for the reader.
    minor : list of int
        Rows that HTML shows on demand only.
    footer : int
        Number of summary rows at the end.
    group : int
        Number of leading columns whose equal values group rows on a terminal.
    """

    title: str
    headings: list[str]
    labels: int
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    minor: list[int] = field(default_factory=list)
    footer: int = 0
    group: int = 0

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headings) for row in self.rows), self.title


def label(text: str) -> Cell:
    """Return a text cell."""
    return Cell(text)


def percent(value: float | None, **style: object) -> Cell:
    """Return a score × 100 with two decimals, as in papers' tables."""
    return number(value, "{:.2f}", 100, **style)


def percents(scores: Sequence[float | None]) -> list[Cell]:
    """Return scores × 100, in bold the best of several, as displayed."""
    cells = [percent(score) for score in scores]
    best = max((float(cell.text) for cell in cells if cell.value is not None), default=None)
    if len(cells) == 1 or best is None:
        return cells
    return [
        replace(cell, bold=cell.value is not None and float(cell.text) == best) for cell in cells
    ]


def change(value: float | None) -> Cell:
    """Return a relative change in per cent, with its sign."""
    return number(value, "{:+.2f}%", 100)


def number(value: float | None, form: str, factor: float = 1, **style: object) -> Cell:
    """Return ``factor`` × ``value`` in the format ``form``; a dash for None."""
    if value is None:
        return Cell(ABSENT)
    return Cell(form.format(factor * value), value, **style)  # type: ignore[arg-type]


def p_value(value: float | None, level: float, star: str = "") -> Cell:
    """Return a p-value to four decimals, never as 0.0000.

    More decimals are shown where four would put it on the other side of the level of the test.
    """
    if value is None:
        return Cell(ABSENT)
    decimals = 4
    while (value <= level) != (float(f"{value:.{decimals}f}") <= level):
        decimals += 1
    return Cell((f"{value:.{decimals}f}" if value >= 0.00005 else "<0.0001") + star, value)


def texts(*values: object) -> list[Cell]:
    """Return a row of text cells."""
    return [Cell(str(value)) for value in values]


def to_rich(table: Table) -> RichTable:
    """Return the table for the terminal, with control characters escaped."""
    grid = RichTable(title=_plain(table.title), title_justify="left", box=box.SIMPLE)
    for column, heading in enumerate(table.headings):
        is_text = column < table.labels
        longest = max((len(row[column].text) for row in table.rows), default=0)
        grid.add_column(
            _plain(heading),
            justify="left" if is_text else "right",
            no_wrap=is_text and longest <= _LONGEST_NAME,
            overflow="fold",
        )
    previous: list[str] = []
    for row in table.rows:
        group = [cell.text for cell in row[: table.group]]
        if previous and previous != group:
            grid.add_section()
        styled = [_plain(cell.text + SIGNS[cell.mark], bold=cell.bold) for cell in row]
        if previous == group:
            styled[: table.group] = [Text()] * table.group
        grid.add_row(*styled)
        previous = group
    return grid


def to_markdown(table: Table, level: int = 2) -> str:
    """Return the table and its notes as Markdown, under a heading of the given level."""
    head = [escaped(heading) for heading in table.headings]
    rule = "---|" * table.labels + "---:|" * (len(head) - table.labels)
    lines = [f"{'#' * level} {escaped(table.title)}", "", f"| {' | '.join(head)} |", f"|{rule}"]
    for row in table.rows:
        lines.append(f"| {' | '.join(map(_markdown_cell, row))} |")
    return "\n".join([*lines, "", *(f"* {escaped(note)}" for note in table.notes)]) + "\n"


def _markdown_cell(cell: Cell) -> str:
    text = (escaped(cell.text) if cell.value is None else cell.text) + SIGNS[cell.mark]
    return f"**{text}**" if cell.bold else text


def escaped(text: str) -> str:
    """Escape a user's text for a Markdown cell or line.

    A single underscore within a word starts no markup and stays.
    """
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def in_legend(name: str) -> str:
    """Return a name as matplotlib's legends show it.

    They leave out names that begin with an underscore, and two dollars begin and end a formula.
    """
    shown = name.replace("$", r"\$")
    return f" {shown}" if name.startswith("_") else shown


def to_latex(table: Table) -> str:
    """Return the table as LaTeX for the package ``booktabs``; notes are comments."""
    columns = "l" * table.labels + "r" * (len(table.headings) - table.labels)
    lines = [latex_comment(note) for note in (table.title, *table.notes)]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [_latex_row([_latex(heading) for heading in table.headings]), r"\midrule"]
    for previous, row in zip([None, *table.rows], table.rows, strict=False):
        if table.labels > 1 and previous and previous[0].text != row[0].text:
            lines.append(r"\midrule")
        lines.append(_latex_row([_latex_cell(cell) for cell in row]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def latex_comment(text: str) -> str:
    """Return a text as a comment of LaTeX: on one line, as a line break would end it."""
    return "% " + " ".join(text.split())


def _latex_row(cells: Sequence[str]) -> str:
    row = " & ".join(cells) + r" \\"
    # The end of the row before would take these as its own arguments.
    return "{}" + row if row.startswith(("[", "*")) else row


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return (rf"\textbf{{{text}}}" if cell.bold else text) + LATEX_SIGNS[cell.mark]


def _latex(text: str) -> str:
    parted = _JOINED.sub("\\g<0>\0", text)
    return "".join(_LATEX.get(sign, sign) for sign in parted)


def _plain(text: str, bold: bool = False) -> Text:
    return Text(visible(text), style="bold" if bold else "")
