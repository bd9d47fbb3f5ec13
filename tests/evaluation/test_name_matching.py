"""Name matching against a literal implementation of the rule."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.ragged import Ragged
from scimult.evaluation.name_matching import match_names, matched_first, words
from scimult.retrieval.exact import ExactIndex

word = st.sampled_from(["art", "arts", "history", "of", "a", "star", "tar", "historyof"])
phrase = st.lists(word, max_size=4).map(" ".join)


def _literal_match(text: str, synonyms: list[str]) -> bool:
    """Every token of one name is a token of the text; with several tokens, also a substring."""
    for name in synonyms:
        needed = set(name.split())
        if not needed:
            continue
        if all(token in text.split() for token in needed) and (len(needed) == 1 or name in text):
            return True
    return False


@given(
    texts=st.lists(st.lists(word, max_size=12).map(" ".join), max_size=5),
    names=st.lists(st.lists(phrase, min_size=1, max_size=3), max_size=8),
)
def test_the_index_finds_what_the_rule_says(texts: list[str], names: list[list[str]]) -> None:
    wanted = [
        [row for row, synonyms in enumerate(names) if _literal_match(text, synonyms)]
        for text in texts
    ]
    assert [rows.tolist() for rows in match_names(texts, names)] == wanted


@pytest.mark.parametrize(
    ("text", "name", "matches"),
    [
        ("the history of art", "history of art", True),
        ("art of history", "history of art", False),
        ("smart of history", "art", False),
        ("the art histories and a history", "art history", False),
        ("the art historyx and a history", "art history", True),
        ("so so far", "so so", True),
        ("anything", "", False),
    ],
)
def test_corners_of_the_rule(text: str, name: str, matches: bool) -> None:
    assert match_names([text], [[name]])[0].tolist() == ([0] if matches else [])


def test_raw_text_is_normalised_to_words() -> None:
    assert words("  X-ray (soft) snake_case: Ärzte, 3D.") == "x ray soft snake case ärzte 3d"


@given(
    st.text(
        st.one_of(
            st.characters(categories=["L", "M", "N", "P"]), st.sampled_from("eJ _-\u0301\u030c")
        )
    )
)
def test_words_keep_their_marks(text: str) -> None:
    composed = unicodedata.normalize("NFC", text.lower())
    runs = regex.findall(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*", composed)
    assert [words(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")] == [
        " ".join(runs)
    ] * 2


@given(seed=st.integers(0, 2**16), k=st.integers(1, 14), n_labels=st.integers(1, 12))
def test_matched_labels_move_to_the_front_of_the_whole_list(
    seed: int, k: int, n_labels: int
) -> None:
    """The slow way reorders the list of all labels; ours only has its first k and the matches."""
    rng = np.random.default_rng(seed)
    papers_QD = rng.integers(-1, 2, (4, 3)).astype(np.float32)
    labels_CD = rng.integers(-1, 2, (n_labels, 3)).astype(np.float32)
    index = ExactIndex([str(row) for row in range(n_labels)], labels_CD, "dot")
    matched = [np.flatnonzero(rng.random(n_labels) < 0.4).tolist() for _ in range(4)]
    whole = index.search(papers_QD, n_labels).rows_QK.tolist()
    wanted = [
        ([row for row in rows if row in hits] + [row for row in rows if row not in hits])[:k]
        for rows, hits in zip(whole, matched, strict=True)
    ]
    ranked_matches = index.rank_listed(papers_QD, Ragged.from_lists(matched))
    found = matched_first(index.search(papers_QD, k), ranked_matches)
    assert found.rows_QK.tolist() == wanted
    assert (np.diff(found.scores_QK, axis=1) < 0).all()


def test_short_lists_stay_short() -> None:
    """BM25 lists only labels that share a word with the paper."""
    index = ExactIndex(["a", "b", "c"], np.eye(3, dtype=np.float32), "dot")
    ranking = index.search(np.array([[3, 2, 1]], np.float32), 3, exclude_Q=np.array([0]))
    matches = index.rank_listed(np.array([[3, 2, 1]], np.float32), Ragged.from_lists([[2]]))
    found = matched_first(ranking, matches)
    assert found.rows_QK.tolist() == [[2, 1, -1]]
    assert found.scores_QK.tolist() == [[3.0, 2.0, -np.inf]]
