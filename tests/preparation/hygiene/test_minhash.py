"""Near-duplicates: signatures estimate Jaccard, and banding reaches its recall."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.preparation.hygiene.config import NearConfig
from scimult.preparation.hygiene.minhash import (
    NEIGHBOURS,
    RECALL,
    Sketches,
    SortedBands,
    candidate_pairs,
    jaccard,
    rows_per_band,
    text_shingles,
)
from scimult.types import Text

NEAR = NearConfig(threshold=0.7, min_words=12)


def _text(numbers: list[int]) -> Text:
    return Text("paper", "", " ".join(f"w{number}" for number in numbers))


def _variants(pairs: int, words: int, changed: int) -> list[Text]:
    """Return texts in pairs; the second of each has its last words replaced."""
    texts = []
    for pair in range(pairs):
        first = list(range(pair * 10_000, pair * 10_000 + words))
        second = [*first[: words - changed], *(number + 5_000 for number in first[-changed:])]
        texts += [_text(first), _text(second)]
    return texts


def _sketch(texts: list[Text]) -> Sketches:
    sketches = Sketches.empty(len(texts), NEAR)
    sketches.fill(0, texts, NEAR)
    return sketches


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_jaccard_is_the_share_of_common_members(first: set[int], second: set[int]) -> None:
    union = [x for x in range(31) if x in first or x in second]
    both = [x for x in union if x in first and x in second]
    found = jaccard({str(x) for x in first}, {str(x) for x in second})
    assert found == (len(both) / len(union) if union else 0)


@given(st.lists(st.sampled_from("a b ab ba aab é ω 12".split()), min_size=3))
def test_shingles_are_all_runs_of_words(words: list[str]) -> None:
    config = NearConfig(shingle_words=3, min_words=3)
    runs = {" ".join(words[i : i + 3]) for i in range(len(words) - 2)}
    title, body = " ".join(words[:2]), " ".join(words[2:])
    assert text_shingles(Text("paper", title, body), config) == {
        run.replace("é", "e") for run in runs
    }


def test_signatures_agree_as_often_as_shingles_do() -> None:
    texts = _variants(40, words=60, changed=12)
    sketches = _sketch(texts)
    shared = sketches.signatures_NP[0::2] == sketches.signatures_NP[1::2]
    exact = jaccard(*(text_shingles(text, NEAR) for text in texts[:2]))
    # 40 x 128 draws: the standard error of the mean is below 0.007.
    assert abs(shared.mean() - exact) < 0.03


@given(st.floats(0.3, 0.99), st.integers(16, 256))
def test_bands_find_a_pair_at_the_threshold(threshold: float, permutations: int) -> None:
    rows = rows_per_band(threshold, permutations)
    recall = 1 - (1 - threshold**rows) ** (permutations // rows)
    assert recall >= RECALL or rows == 1
    longer = rows + 1
    if longer <= permutations:
        assert 1 - (1 - threshold**longer) ** (permutations // longer) < RECALL


def test_pairs_above_the_threshold_are_found() -> None:
    """With 300 pairs just above it, 0.99 of them on average: 289 is five deviations below."""
    texts = _variants(300, words=80, changed=13)
    assert jaccard(*(text_shingles(text, NEAR) for text in texts[:2])) > NEAR.threshold
    first, second = candidate_pairs(_sketch(texts), NEAR)
    found = set(zip(first.tolist(), second.tolist(), strict=True))
    assert len(found & {(row, row + 1) for row in range(0, 600, 2)}) >= 289
    assert (first < second).all()


def test_cross_candidates_are_those_of_both_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking texts up does not sort again what they are looked up in, a million papers maybe."""
    texts = _variants(50, words=80, changed=8)
    left, right = texts[0::2], texts[1::2]
    bands = SortedBands(_sketch(right), NEAR)
    own = _sketch(left)
    with monkeypatch.context() as patch:
        patch.setattr(np, "argsort", None)
        row, other = bands.candidates(own)
    first, second = candidate_pairs(_sketch([*left, *right]), NEAR)
    across = {(a, b - 50) for a, b in zip(first.tolist(), second.tolist(), strict=True) if b >= 50}
    assert set(zip(row.tolist(), other.tolist(), strict=True)) == across


@pytest.mark.parametrize("copies", [1, 5, NEIGHBOURS, NEIGHBOURS + 4])
def test_a_text_meets_the_first_of_the_copies_that_are_looked_up(copies: int) -> None:
    text, other = _text(list(range(20))), _text(list(range(100, 120)))
    bands = SortedBands(_sketch([other, *[text] * copies, other]), NEAR)
    row, found = bands.candidates(_sketch([text]))
    assert row.tolist() == [0] * len(found)
    assert found.tolist() == list(range(1, 1 + min(copies, NEIGHBOURS)))


def test_a_text_that_all_share_costs_no_square() -> None:
    texts = [_text(list(range(20)))] * 400 + [_text([1, 2])]
    first, second = candidate_pairs(_sketch(texts), NEAR)
    assert len(first) <= 400 * NEIGHBOURS
    # Neighbours are enough to connect the group.
    assert set(zip(range(399), range(1, 400), strict=True)) <= set(
        zip(first.tolist(), second.tolist(), strict=True)
    )
    assert 400 not in second, "a text too short for shingles meets nobody"


@pytest.mark.parametrize("count", [0, 1])
def test_few_texts_have_no_pairs(count: int) -> None:
    first, second = candidate_pairs(_sketch([_text(list(range(20)))] * count), NEAR)
    assert len(first) == len(second) == 0
    assert np.issubdtype(first.dtype, np.integer)
