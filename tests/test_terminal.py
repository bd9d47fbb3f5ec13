from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from scimult.terminal import counted, is_blank, trimmed, visible

UNSAFE_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def test_what_commands_a_terminal_is_shown() -> None:
    assert visible("a\x1b[31mRED\x1b[0m") == r"a\x1b[31mRED\x1b[0m"
    assert visible("\x1b]0;title\x07") == r"\x1b]0;title\x07"
    assert visible("\x9b31m\u202eabc\u2066\u200f\udcff") == r"\x9b31m\u202eabc\u2066\u200f\udcff"
    assert (
        visible("tab\tline\nRayleigh–Bénard مقالة 論文 👩‍🔬")
        == "tab\tline\nRayleigh–Bénard مقالة 論文 👩‍🔬"
    )


def test_characters_without_width_are_blank() -> None:
    assert is_blank("")
    assert is_blank(" \t\xa0\u200b\u200e\ufeff\xad\u2028")
    assert not is_blank("\u200bन")
    assert trimmed(" \u200ba\u200cb\ufeff ") == "a\u200cb"
    assert trimmed("\u200b") == ""


def test_counts_have_their_nouns_number() -> None:
    counts = [counted(1, "paper"), counted(0, "query"), counted(1200, "class"), counted(2, "day")]
    assert counts == ["1 paper", "0 queries", "1,200 classes", "2 days"]


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
