"""Names of concepts in texts, against regular expressions."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.tagging.names import NameFinder

FINDER = NameFinder(
    [("Vision",), ("Computer vision",), ("Neural networks", "NNs"), ("C++",), ("Bus", "Buses"), ()]
)


def test_whole_words_the_longest_name_and_plurals() -> None:
    assert FINDER.find("Computer Vision, by a neural-network; and vision.") == [1, 2, 0]
    assert FINDER.find("television, supervision and a computer") == []
    assert FINDER.find("An NN for the bus") == [2, 4]
    assert FINDER.find("computer") == []
    assert FINDER.find("") == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("Query", "of queries", True),
        ("House", "of houses", True),
        ("Movies", "a movie", True),
        ("Calorie", "of calories", True),
        ("Graph", "of graphs", True),
        ("Grap", "of graphs", False),
        ("Toe", "of toes", True),
        ("Corps", "of corp", True),
        ("Glas", "of glass", False),
        ("Viru", "of virus", False),
        ("Degree", "of degrees", True),
        ("Larva", "of larvae", False),
        ("A", "as", False),
        ("Q-u", "of q us", False),
    ],
)
def test_plurals_by_harmans_rules(name: str, text: str, found: bool) -> None:
    """The S stemmer of "How effective is suffixing?" (1991), but degrees are of a degree."""
    assert list(NameFinder([[name]]).find(text)) == ([0] if found else [])


def test_one_name_of_several_concepts_and_words_in_other_scripts() -> None:
    finder = NameFinder([("mercury",), ("Hg", "Mercury"), ("Größe",), ("光学",)])
    assert finder.find("Mercury of GRÖSSE") == [0, 1]
    assert finder.find("die größe; 光学") == [2, 3]


def test_names_with_marks() -> None:
    finder = NameFinder([("Poincaré map",), ("शिक्षा",), ("car",)])
    text = unicodedata.normalize("NFD", "a Poincaré map; la carène")
    assert finder.find(text) == [0]
    assert finder.find("मशीनी शिक्षा") == [1]
    assert finder.find("शिक्षक") == []


@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3), min_size=1, max_size=6),
    st.lists(st.sampled_from("abcd"), max_size=12),
)
def test_agrees_with_alternatives_of_a_regular_expression(
    names: list[list[str]], text: list[str]
) -> None:
    phrases = sorted({" ".join(name) for name in names}, key=lambda p: (-p.count(" "), p))
    finder = NameFinder([(phrase,) for phrase in phrases])
    pattern = "|".join(rf"\b{re.escape(phrase)}\b" for phrase in phrases)
    expected = [phrases.index(found) for found in re.findall(pattern, " ".join(text))]
    assert finder.find(" ".join(text)) == expected
