"""Draws of hard negatives follow the rules' shares as far as the pools allow.

``COUNTS`` are candidates of each group by the set of rules that gave them: alone by rule 0, alone
by rule 1, by both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize

from scimult.data.negatives import NO_NEGATIVE, NegativeDraws, draw_weights, drawn_by_rule
from scimult.data.pair_streams import PairStream
from scimult.data.pairs import PairFile, read_pairs, write_pairs
from scimult.types import FloatArray
from tests.data.pair_files import pair_file

COUNTS = st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=8)
SHARES = st.tuples(st.floats(0.1, 10), st.floats(0.1, 10))


def mined(
    counts: list[tuple[int, int, int]], shares: tuple[float, ...], positives: int = 1
) -> PairFile:
    file = pair_file("x", "search", [positives] * len(counts), [sum(group) for group in counts])
    bits = [
        bit
        for group in counts
        for bit, many in zip((1, 2, 3), group, strict=True)
        for _ in range(many)
    ]
    return replace(
        file, rules=("hard", "easy"), shares=shares, found_by=np.array(bits, dtype=np.uint8)
    )


def naive_chances(file: PairFile, weights: tuple[float, float]) -> list[list[float]]:
    """Return each candidate's probability: pick a rule by weight, then one of its candidates."""
    assert file.found_by is not None
    chances, place = [], 0
    for pool in file.negatives:
        bits = file.found_by[place : place + len(pool)].tolist()
        place += len(pool)
        there = [rule for rule in (0, 1) if any(bit >> rule & 1 for bit in bits)]
        total = sum(weights[rule] for rule in there)
        of_group = []
        for bit in bits:
            chance = 0.0
            for rule in there:
                if bit >> rule & 1:
                    many = sum(other >> rule & 1 for other in bits)
                    chance += weights[rule] / total / many
            of_group.append(chance)
        chances.append(of_group)
    return chances


@given(COUNTS, SHARES)
@example([(0, 0, 1), (0, 1, 0), (0, 1, 0)], (3.0, 1.0))  # the first rule finds far too little
def test_rules_are_drawn_by_their_shares_where_pools_allow_it(
    counts: list[tuple[int, int, int]], shares: tuple[float, float]
) -> None:
    """The first of two rules gets its share, or the nearest possible one."""
    file = mined(counts, shares)
    weights = draw_weights(file)
    sums = np.bincount(file.negatives.owners, weights=weights, minlength=len(file))
    filled = file.negatives.lengths > 0
    np.testing.assert_allclose(sums[filled], 1, rtol=1e-12)
    has = np.array([[a + both > 0, b + both > 0] for a, b, both in counts])[filled]
    if not len(has):
        return
    least, most = (has[:, 0] & ~has[:, 1]).mean(), has[:, 0].mean()
    nearest = np.clip(shares[0] / sum(shares), least, most)
    # The weights that give this share, by bisection on a naive implementation.
    low, high = 1e-12, 1 - 1e-12
    for _ in range(100):
        middle = (low + high) / 2
        by_first = least + middle * (has[:, 0] & has[:, 1]).mean()
        low, high = (middle, high) if by_first < nearest else (low, middle)
    chances = naive_chances(file, (low, 1 - low))
    expected = [chance for group in chances for chance in group]
    # The fitting ends at a relative difference of 1e-6, or in a limit that it only approaches.
    np.testing.assert_allclose(weights, expected, atol=2e-3 if nearest in (least, most) else 1e-5)


def test_what_is_drawn_has_the_chances() -> None:
    counts = [(2, 3, 0), (1, 0, 1), (0, 4, 0), (0, 0, 0)]
    file = mined(counts, (2.0, 3.0), positives=2)
    draws, epochs = NegativeDraws(file), 20_000
    rng = np.random.default_rng(0)
    groups_P = file.positives.owners
    drawn = np.concatenate([draws.draw(groups_P, rng) for _ in range(epochs)])
    assert (drawn[np.tile(groups_P, epochs) == 3] == NO_NEGATIVE).all()
    assert (drawn == NO_NEGATIVE).sum() == 2 * epochs
    for row, chance in zip(file.negatives.values, draw_weights(file), strict=True):
        # Five standard deviations of a binomial share.
        spread = 5 * np.sqrt(chance * (1 - chance) / (2 * epochs))
        assert abs((drawn == row).sum() / (2 * epochs) - chance) <= spread


def test_two_hard_and_three_easy_in_spite_of_groups_without_hard_ones() -> None:
    """One in five groups has no hard negative; a uniform draw is hard in under a third."""
    counts = [(2, 3, 0)] * 40 + [(1, 3, 0)] * 40 + [(0, 3, 0)] * 20
    assert drawn_by_rule(mined(counts, ()))["hard"] == pytest.approx(0.4 * 0.4 + 0.4 * 0.25)
    fair = drawn_by_rule(mined(counts, (2.0, 3.0)))
    assert fair == pytest.approx({"hard": 0.4, "easy": 0.6}, abs=1e-5)
    rare = [(2, 3, 0)] * 26 + [(0, 3, 0)] * 74
    assert drawn_by_rule(mined(rare, (2.0, 3.0)))["hard"] == pytest.approx(0.26, abs=1e-3)
    assert drawn_by_rule(mined([(0, 3, 0)], (2.0, 3.0))) == {"hard": 0.0, "easy": 1.0}
    assert drawn_by_rule(mined([(0, 0, 0)], (2.0, 3.0))) == {"hard": 0.0, "easy": 0.0}


def mined_by(groups: list[set[int]], shares: tuple[float, ...]) -> PairFile:
    """Return groups with one candidate of each of these rules."""
    file = pair_file("x", "search", [1] * len(groups), [len(group) for group in groups])
    bits = np.array([1 << rule for group in groups for rule in sorted(group)], dtype=np.uint8)
    return replace(file, rules=tuple("abcde"[: len(shares)]), shares=shares, found_by=bits)


@pytest.mark.parametrize(
    ("groups", "shares", "drawn"),
    [
        ([{0, 1, 2}] + [{1, 2}] * 9, (4.0, 4.0, 2.0), [0.1, 0.6, 0.3]),
        (
            [{0, 1, 2, 3}, *[{1, 2, 3}] * 3, *[{2, 3}] * 16],
            (4.0, 3.0, 2.0, 1.0),
            [0.05, 0.15, 0.8 * 2 / 3, 0.8 / 3],
        ),
    ],
)
def test_a_share_out_of_reach_leaves_the_others_their_shares(
    groups: list[set[int]], shares: tuple[float, ...], drawn: list[float]
) -> None:
    assert list(drawn_by_rule(mined_by(groups, shares)).values()) == pytest.approx(drawn)


@pytest.mark.parametrize("seed", range(8))
def test_draws_come_as_close_to_the_shares_as_any(seed: int) -> None:
    """A general solver finds no probabilities whose draws diverge less from the shares."""
    rng = np.random.default_rng(seed)
    has_GR = rng.random((8, 4)) < [0.7, 0.2, 0.7, 0.2]
    has_GR[:, 0] |= ~has_GR.any(axis=1)
    shares = rng.choice([0.1, 0.5, 3.0, 10.0], 4)
    drawn = drawn_by_rule(mined_by([set(np.flatnonzero(has)) for has in has_GR], tuple(shares)))
    wanted = np.where(has_GR.any(axis=0), shares, 0)
    wanted = wanted / wanted.sum()

    def drawn_with(chances: FloatArray) -> FloatArray:
        given_GR = np.zeros(has_GR.shape)
        given_GR[has_GR] = chances
        return given_GR

    def divergence(chances: FloatArray) -> float:
        given_R = np.maximum(drawn_with(chances).mean(axis=0), 1e-12)
        return float(-(wanted * np.log(given_R)).sum())

    start = (has_GR / has_GR.sum(axis=1, keepdims=True))[has_GR]
    best = minimize(
        divergence,
        start,
        constraints={"type": "eq", "fun": lambda chances: drawn_with(chances).sum(axis=1) - 1},
        bounds=[(0, 1)] * len(start),
        options={"maxiter": 500, "ftol": 1e-12},
    )
    expected = drawn_with(best.x).mean(axis=0)
    np.testing.assert_allclose(list(drawn.values()), expected, atol=3e-3)


@given(COUNTS, st.integers(0, 9))
def test_without_shares_draws_are_uniform_and_what_they_were(
    counts: list[tuple[int, int, int]], seed: int
) -> None:
    file = mined(counts, ())
    draws = NegativeDraws(file).draw(file.positives.owners, np.random.default_rng(seed))
    chances = np.random.default_rng(seed).random(len(file))
    for pool, chance, drawn in zip(file.negatives, chances, draws, strict=True):
        assert drawn == (pool[int(chance * len(pool))] if len(pool) else NO_NEGATIVE)


def test_a_stream_draws_by_shares_whatever_was_read_before() -> None:
    file = mined([(2, 3, 1), (0, 2, 0), (4, 1, 0)] * 5, (1.0, 3.0), positives=3)
    forward, backward = PairStream(file, 5), PairStream(file, 5)
    micro_batches = [forward.rows(7 * number, 7).negatives_R.tolist() for number in range(20)]
    assert len({tuple(micro_batch) for micro_batch in micro_batches}) > 1
    for number in reversed(range(20)):
        assert backward.rows(7 * number, 7).negatives_R.tolist() == micro_batches[number]


def test_shares_are_kept_in_the_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = mined([(2, 3, 0)], (2.0, 3.0))
    path = tmp_path_factory.mktemp("pairs") / "x.arrow"
    write_pairs(path, file)
    assert read_pairs(path).shares == (2.0, 3.0)
    write_pairs(path, replace(file, shares=()))
    assert read_pairs(path).shares == ()


def test_draws_of_a_later_group_do_not_depend_on_a_first_one_of_one_candidate() -> None:
    file = mined([(1, 0, 0), (1, 1, 0)], shares=(1.0, 1.0))
    drawn = NegativeDraws(file).draw(np.ones(4000, dtype=np.int64), np.random.default_rng(0))
    counts = np.unique(drawn, return_counts=True)[1]
    expected = draw_weights(file)[1:] * 4000
    np.testing.assert_allclose(counts, expected, atol=130)  # four standard deviations
