from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from scimult.terminal import visible

UNSAFE_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def test_what_commands_a_terminal_is_shown() -> None:
    assert visible("a\x1b[31mRED\x1b[0m") == r"a\x1b[31mRED\x1b[0m"
    assert visible("\x1b]0;title\x07") == r"\x1b]0;title\x07"
    assert visible("\x9b31m\u202eabc\u2066\u200f\udcff") == r"\x9b31m\u202eabc\u2066\u200f\udcff"
    assert (
        visible("tab\tline\nRayleigh–Bénard مقالة 論文 👩‍🔬")
        == "tab\tline\nRayleigh–Bénard مقالة 論文 👩‍🔬"
    )


@given(st.text(st.characters()))
def test_nothing_unsafe_is_left_and_nothing_else_changed(text: str) -> None:
    shown = visible(text)
    for character in shown:
        assert character in "\t\n" or unicodedata.category(character) not in (
            "Cc",
            "Cs",
            "Zl",
            "Zp",
        )
        assert unicodedata.bidirectional(character) not in UNSAFE_DIRECTIONS
    shown.encode()
    if all(c in "\n\t" or unicodedata.category(c)[0] != "C" for c in text):
        assert shown == text.replace("\u2028", r"\u2028").replace("\u2029", r"\u2029")
