"""Tables in every output format."""

from __future__ import annotations

from io import StringIO

import pytest
from pylatexenc.latex2text import LatexNodes2Text
from rich.console import Console

from scimult.table import (
    Cell,
    Table,
    change,
    escaped,
    in_legend,
    label,
    p_value,
    percent,
    percents,
    to_latex,
    to_markdown,
    to_rich,
)

TABLE = Table(
    "A & B",
    ["set", "one_1", "two"],
    1,
    [
        [label("50% | x"), percent(0.5), percent(0.61234, bold=True, mark="better")],
        [label("y"), percent(None), percent(0.25, mark="worse")],
    ],
    ["a note"],
)


def test_the_best_of_several_is_bold_as_displayed() -> None:
    for scores, bold in (
        ([0.5, 0.50001, None, 0.4], [True, True, False, False]),
        ([-0.05, -0.01, None], [False, True, False]),
        ([0.5], [False]),
        ([None, None], [False, False]),
    ):
        assert [cell.bold for cell in percents(scores)] == bold


def test_markdown_keeps_texts_inside_their_cells() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[2:6] == [
        "| set | one_1 | two |",
        "|---|---:|---:|",
        "| 50% \\| x | 50.00 | **61.23▲** |",
        "| y | – | 25.00▼ |",
    ]
    assert lines[-1] == "* a note"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("__a__ _b_ c_d", r"\_\_a\_\_ \_b\_ c_d"),
        ("~~gone~~ R&amp;D", r"\~\~gone\~\~ R\&amp;D"),
        ("$x$ <b> `c` [d](e) *f*", r"\$x\$ \<b\> \`c\` \[d\](e) \*f\*"),
    ],
)
def test_markdown_shows_texts_as_they_are(text: str, written: str) -> None:
    assert escaped(text) == written


def test_latex_escapes_texts_and_marks_tests() -> None:
    lines = to_latex(TABLE).splitlines()
    assert lines[:3] == ["% A & B", "% a note", r"\begin{tabular}{lrr}"]
    assert r"set & one\_1 & two \\" in lines
    assert r"50\% | x & 50.00 & \textbf{61.23}\rlap{$^{+}$} \\" in lines
    assert r"y & -- & 25.00\rlap{$^{-}$} \\" in lines


@pytest.mark.parametrize(
    "text", ["models--allenai--specter", "a---b", "a - – b", "``a''", "?`a!`", ",,a--%_b"]
)
def test_latex_joins_no_signs(text: str) -> None:
    lines = to_latex(Table("t", ["a"], 1, [[label(text)]])).splitlines()
    assert LatexNodes2Text().latex_to_text(lines[-3].removesuffix(r" \\")) == text


def test_the_end_of_a_latex_row_takes_nothing_of_the_next() -> None:
    r"""LaTeX looks for a star and a bracket after ``\\\\``, also on the next line."""
    for name in ("[1] x", "*x"):
        lines = to_latex(Table("t", ["a"], 1, [[label("first")], [label(name)]])).splitlines()
        assert lines[-4:-2] == [r"first \\", rf"{{}}{name} \\"]


def test_a_line_break_in_a_text_does_not_end_a_latex_comment() -> None:
    found = to_latex(Table("one\n\\input{x}", ["a"], 1, [[label("b")]], ["two\n\\end{x}"]))
    assert all(line.startswith("%") for line in found.splitlines()[:2])
    assert found.splitlines()[2] == r"\begin{tabular}{l}"


def test_terminal_shows_marks() -> None:
    shown = StringIO()
    Console(file=shown, width=80).print(to_rich(TABLE))
    assert "61.23▲" in shown.getvalue()
    assert "25.00▼" in shown.getvalue()


@pytest.mark.parametrize(("value", "text"), [(0.031499, "+3.15%"), (-0.5, "-50.00%"), (None, "–")])
def test_relative_changes_have_a_sign(value: float | None, text: str) -> None:
    assert change(value) == Cell(text, value)


def test_a_p_value_is_on_its_side_of_the_level() -> None:
    shown = [p_value(value, 0.05).text for value in (0.04996, 0.05, 0.0500000001, 0.05004, 0.05006)]
    assert shown == ["0.0500", "0.0500", "0.0500000001", "0.05004", "0.0501"]
    assert p_value(0.00104, 0.001).text == "0.00104"
    assert p_value(0.00251, 0.00252, "*").text == "0.0025*"
    assert p_value(0.00256, 0.00258, "*").text == "0.00256*"


def test_a_legend_shows_every_name() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    names = ["a", "_b", "$c$", "d_e"]
    for name in names:
        axes.plot([0, 1], label=in_legend(name))
    shown = [text.get_text().strip() for text in axes.legend().get_texts()]
    assert shown == ["a", "_b", r"\$c\$", "d_e"]
