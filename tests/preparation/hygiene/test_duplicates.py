"""Which papers are duplicates, by DOI, title or text, and which are kept apart."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pylatexenc.latexencode import UnicodeToLatexEncoder

from scimult.data.importers.doi import short_doi
from scimult.preparation.hygiene.config import HygieneConfig
from scimult.preparation.hygiene.duplicates import (
    _keepers,
    find_duplicates,
)
from scimult.preparation.hygiene.normal_forms import FOLDED, title_key
from scimult.types import IntArray, Text
from tests.prepared_folders import write_texts

ABSTRACT = " ".join(f"word{number}" for number in range(40))
OTHER = " ".join(f"term{number}" for number in range(40))
TITLE = "A long enough title of a paper"


def _find(
    folder: Path, texts: list[Text], dois: list[str | None] | None = None
) -> tuple[IntArray, Counter[str]]:
    store = write_texts(folder, {f"t:{number}": text for number, text in enumerate(texts)})
    return find_duplicates(store, dois or [None] * len(texts), HygieneConfig(duplicates="merge"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Poincaré maps", r"Poincar\'e maps"),
        ("GRAPH-Drawing: an overview.", "graph drawing  an overview"),
        ("The ﬁrst x² law", "The first x2 law"),
        ("Über Straßen", "Uber STRASSEN"),
        ("Erdős–Rényi, Čech, Łojasiewicz", r"Erd\H{o}s--R\'enyi, {\v C}ech, {\L}ojasiewicz"),
        ("Sørensen and Ångström of Æther", r"S\o{}rensen and \AA ngstr\"om of \AE ther"),
        ("Ёлка й ЭЛЕМЕНТ", "елка и элемент"),
        ("Άλφα ῥῆμα", "αλφα ρημα"),
        ("ﾊﾟﾀｰﾝ認識", "パターン認識"),
        ("التَّعَلُّم الآلي", "التعلم الالي"),
        ("בְּרֵאשִׁית", "בראשית"),
        ("葛\U000e0100城の研究", "葛城の研究"),
        ("e\u20dd 3\ufe0f\u20e3", "e3"),
    ],
)
def test_titles_that_differ_in_form_alone(first: str, second: str) -> None:
    assert title_key(first) == title_key(second) != ""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("दिल का अध्ययन", "दाल का अध्ययन"),  # heart, lentils
        ("ガラスの研究", "カラスの研究"),  # glass, crows
        ("การศึกษาเสือ", "การศึกษาเสื้อ"),  # tigers, shirts
        ("கல் ஆய்வு", "கால் ஆய்வு"),  # stones, legs
    ],
)
def test_titles_that_differ_in_a_mark(first: str, second: str) -> None:
    assert title_key(first) != title_key(second)


@given(st.text(st.characters(categories=["L", "M", "N", "Zs"]), max_size=20))
def test_normal_forms_of_unicode_have_one_key(text: str) -> None:
    forms = {title_key(unicodedata.normalize(form, text)) for form in ("NFC", "NFD", "NFKC")}
    assert len(forms) == 1


letters = st.characters(categories=["L", "M"], max_codepoint=0x1CFF, exclude_characters="\u0345")


@given(st.text(letters, max_size=20))
def test_marks_that_scripts_need_stay(text: str) -> None:
    """Against a walk over the letters; the names of characters tell their scripts."""
    bare = ("LATIN", "GREEK", "COPTIC", "CYRILLIC", "HEBREW", "ARABIC")
    kept, drops = "", True
    for character in unicodedata.normalize("NFKD", text).casefold():
        if character.isalpha():
            drops = unicodedata.name(character).startswith(bare)
            kept += character
        elif not unicodedata.category(character).startswith("M"):
            drops = True
        elif not drops:
            kept += character
    assert title_key(text) == unicodedata.normalize("NFKC", kept).translate(FOLDED)


def test_letters_of_latin_are_as_in_latex() -> None:
    """As pylatexenc writes them; letters outside LaTeX's fonts are left out."""
    encode = UnicodeToLatexEncoder(
        replacement_latex_protection="braces-almost-all",
        unknown_char_policy="keep",
        unknown_char_warning=False,
    ).unicode_to_latex
    written = {letter: encode(f"a{letter}b") for letter in map(chr, range(0xC0, 0x250))}
    compared = [
        letter
        for letter, latex in written.items()
        if letter.isalpha() and latex.isascii() and not re.search(r"\\(text|nument)", latex)
    ]
    assert len(compared) > 180
    for letter in compared:
        assert title_key(written[letter]) == title_key(f"a{letter}b"), letter


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("10.1000/ABC.1", "10.1000/abc.1"),
        ("https://doi.org/10.1000/abc.1", "10.1000/abc.1"),
        ("http://dx.doi.org/10.1000/abc.1 ", "10.1000/abc.1"),
        ("doi: 10.1000/abc.1", "10.1000/abc.1"),
        ("https://www.doi.org/10.1000.10/ABC.", "10.1000.10/abc"),
        ("n/a", ""),
        ("", ""),
    ],
)
def test_dois_in_their_usual_forms(written: str, key: str) -> None:
    assert short_doi(written) == key


def test_papers_with_the_same_doi_title_or_text_are_merged(tmp_path: Path) -> None:
    near = ABSTRACT.replace("word39", "other")
    texts = [
        Text("paper", "One long title of this paper", ABSTRACT),
        Text("paper", "Something quite different", OTHER),
        Text("paper", "one long title: of THIS paper", ""),
        Text("paper", "One long name of this paper", near),
        Text("paper", "Known by its number alone", "Nothing else."),
        Text("paper", "Unrelated", "Short."),
    ]
    dois = [None, "10.1/X", None, None, "https://doi.org/10.1/x", None]
    found = _find(tmp_path, texts, dois)
    assert found[0].tolist() == [0, 1, 0, 0, 1, 5]
    assert {k: v for k, v in found[1].items() if v} == {
        "duplicates by doi": 1,
        "duplicates by title": 1,
        "duplicates by near": 1,
    }


def test_one_title_over_two_abstracts_is_two_papers(tmp_path: Path) -> None:
    texts = [
        Text("paper", TITLE, ABSTRACT),
        Text("paper", TITLE, OTHER),
        Text("paper", TITLE, ""),
        Text("paper", TITLE, OTHER + " and more"),
    ]
    found = _find(tmp_path, texts)
    assert found[0].tolist() == [0, 1, 0, 1]
    assert found[1]["same title, other abstract"] == 1


def test_the_one_with_an_abstract_stands_for_the_others(tmp_path: Path) -> None:
    texts = [Text("paper", TITLE), Text("paper", TITLE, ABSTRACT), Text("paper", TITLE, ABSTRACT)]
    assert _find(tmp_path, texts)[0].tolist() == [1, 1, 1]


def test_short_titles_and_labels_are_left_alone_and_queries_are_one(tmp_path: Path) -> None:
    texts = [
        Text("label", TITLE, ABSTRACT),
        Text("label", TITLE, ABSTRACT),
        Text("paper", "Preface", "A few words."),
        Text("paper", "Preface", "A few words."),
        Text("query", "maps"),
        Text("query", "Maps"),
        Text("paper", TITLE, ABSTRACT),
    ]
    assert _find(tmp_path, texts)[0].tolist() == [0, 1, 2, 3, 4, 4, 6]


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20), st.integers())
def test_keepers_are_those_of_a_naive_union(pairs: list[tuple[int, int]], bits: int) -> None:
    has_body = [bool(bits >> row & 1) for row in range(12)]
    groups = [{row} for row in range(12)]
    for first, second in pairs:
        one = next(g for g in groups if first in g) | next(g for g in groups if second in g)
        groups = [g for g in groups if not g & one] + [one]
    expected = [0] * 12
    for group in groups:
        keeper = min(group, key=lambda row: (not has_body[row], row))
        for row in group:
            expected[row] = keeper
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    assert _keepers(columns, np.array(has_body)).tolist() == expected
