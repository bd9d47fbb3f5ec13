"""The assignment against a min-cost flow by networkx, and its bounds as properties."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.errors import DataError
from scimult.matching import assignment
from scimult.matching.assignment import Loads, assign
from scimult.types import FloatArray


def loads(submissions: int, reviewers: int, needed: int, most: int, least: int = 0) -> Loads:
    return Loads(np.full(submissions, needed), np.full(reviewers, most), np.full(reviewers, least))


def best_total(scores_SR: FloatArray, wanted: Loads) -> float | None:
    """Return the best total by network simplex on integers; ``None`` if loads cannot be met."""
    graph = nx.DiGraph()
    needed = int(wanted.needed_S.sum())
    graph.add_node("source", demand=-needed)
    graph.add_node("sink", demand=needed)
    for row, need in enumerate(wanted.needed_S.tolist()):
        graph.add_edge("source", ("s", row), capacity=need, weight=0)
        for column in np.flatnonzero(~np.isnan(scores_SR[row])).tolist():
            cost = -round(float(scores_SR[row, column]) * 1000)
            graph.add_edge(("s", row), ("r", column), capacity=1, weight=cost)
    for column, (most, least) in enumerate(
        zip(wanted.most_R.tolist(), wanted.least_R.tolist(), strict=True)
    ):
        # A minimum is a node's own demand: that much of the flow ends there.
        graph.add_node(("r", column), demand=least)
        graph.add_edge(("r", column), "sink", capacity=most - least, weight=0)
    graph.nodes["sink"]["demand"] = needed - int(wanted.least_R.sum())
    try:
        cost, _ = nx.network_simplex(graph)
    except nx.NetworkXUnfeasible:
        return None
    return -cost / 1000


def check_bounds(found: assignment.Assignment, scores_SR: FloatArray, wanted: Loads) -> None:
    pairs = list(zip(found.submissions.tolist(), found.reviewers.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert not np.isnan(scores_SR[found.submissions, found.reviewers]).any()
    by_submission = np.bincount(found.submissions, minlength=len(wanted.needed_S))
    by_reviewer = np.bincount(found.reviewers, minlength=len(wanted.most_R))
    assert (by_submission == wanted.needed_S).all()
    assert (by_reviewer <= wanted.most_R).all()
    assert (by_reviewer >= wanted.least_R).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 9999),
    shape=st.tuples(st.integers(1, 12), st.integers(1, 10)),
    needed=st.integers(1, 3),
    most=st.integers(1, 6),
    least=st.integers(0, 2),
    conflicts=st.sampled_from([0.0, 0.3, 0.7]),
)
def test_the_total_is_that_of_a_second_solver(
    seed: int, shape: tuple[int, int], needed: int, most: int, least: int, conflicts: float
) -> None:
    rng = np.random.default_rng(seed)
    # Multiples of 1/1000, so that both solvers see the same numbers.
    scores_SR = (rng.integers(-1000, 1001, size=shape) / 1000).astype(np.float32)
    scores_SR[rng.random(shape) < conflicts] = np.nan
    wanted = loads(*shape, needed, most, min(least, most))
    expected = best_total(scores_SR, wanted)
    if expected is None:
        with pytest.raises(DataError):
            assign(scores_SR, wanted)
        return
    found = assign(scores_SR, wanted)
    check_bounds(found, scores_SR, wanted)
    assert float(found.scores.sum(dtype=np.float64)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("scale", [1e-8, 1e-6, 1e6])
def test_the_size_of_scores_changes_nothing(scale: float) -> None:
    """A half-life of weeks makes all scores minute, far below the solver's tolerances."""
    rng = np.random.default_rng(2)
    scores_SR = rng.integers(-1000, 1001, size=(9, 7)).astype(np.float32) / 1000
    wanted = loads(9, 7, needed=2, most=3, least=2)
    found = assign(scores_SR * np.float32(scale), wanted)
    total = float(scores_SR[found.submissions, found.reviewers].sum(dtype=np.float64))
    assert total == pytest.approx(best_total(scores_SR, wanted), abs=1e-4)


@pytest.mark.parametrize(("most", "least"), [(3, 1), (20, 2)])
def test_pairs_that_were_left_out_at_first_come_in(
    monkeypatch: pytest.MonkeyPatch, most: int, least: int
) -> None:
    """All submissions share their few best reviewers: the first pairs cannot fill the loads.

    Where these could review all, the others come in for their minimum alone.
    """
    rng = np.random.default_rng(1)
    scores_SR = rng.integers(0, 500, size=(120, 90)).astype(np.float32) / 1000
    scores_SR[:, :30] += 0.5
    wanted = loads(120, 90, needed=2, most=most, least=least)
    expected = best_total(scores_SR, wanted)
    whole = assign(scores_SR, wanted)
    monkeypatch.setattr(assignment, "best_pairs", lambda *_: assignment_pairs(scores_SR))
    found = assign(scores_SR, wanted)
    assert found.rounds > 1
    for one in (whole, found):
        check_bounds(one, scores_SR, wanted)
        assert float(one.scores.sum(dtype=np.float64)) == pytest.approx(expected, abs=1e-3)


def assignment_pairs(scores_SR: FloatArray) -> np.ndarray:
    """Return only the best three reviewers of each submission."""
    best = np.argsort(-scores_SR, axis=1)[:, :3]
    return np.unique((np.arange(len(best))[:, np.newaxis] * scores_SR.shape[1] + best).ravel())


def test_what_cannot_be_is_said() -> None:
    scores_SR = np.ones((4, 3), dtype=np.float32)
    with pytest.raises(DataError, match="8 reviews are needed, but reviewers") as refused:
        assign(scores_SR, loads(4, 3, needed=2, most=2))
    assert "--max-papers" in str(refused.value.fix)
    with pytest.raises(DataError, match="require at least 9 reviews, but only 8 are needed"):
        assign(scores_SR, loads(4, 3, needed=2, most=5, least=3))
    scores_SR[2] = [np.nan, np.nan, 1]
    with pytest.raises(DataError, match="1 of 4 submissions with too few reviewers who") as refused:
        assign(scores_SR, loads(4, 3, needed=2, most=4), ["a", "b", "c", "d"])
    assert refused.value.value == "c"
    assert "--max-papers" not in str(refused.value.fix)  # would change nothing
    scores_SR[:] = [1, np.nan, np.nan]
    scores_SR[0] = 1
    with pytest.raises(DataError, match="1 of 4 submissions without enough reviewers") as refused:
        assign(scores_SR, loads(4, 3, needed=1, most=2))
    assert "--max-papers" in str(refused.value.fix)
    blocked = np.ones((3, 2), dtype=np.float32)
    blocked[:, 1] = np.nan
    with pytest.raises(DataError, match="1 reviewer cannot get") as refused:
        assign(blocked, loads(3, 2, needed=1, most=3, least=1), "abc", ["Ada", "Bob"])
    assert (refused.value.value, "--max-papers" in str(refused.value.fix)) == ("Bob", False)


@pytest.mark.parametrize("length", [3, 12])
def test_a_last_slot_may_cost_every_other_match_its_score(length: int) -> None:
    """The last submission has one reviewer; then each of the others must take its next one."""
    scores_SR = np.full((length + 1, length + 1), np.nan, dtype=np.float32)
    for row in range(length):
        scores_SR[row, row : row + 2] = 1, 0
    scores_SR[length, 0] = 0
    found = assign(scores_SR, loads(length + 1, length + 1, needed=1, most=1))
    assert found.reviewers.tolist() == [*range(1, length + 1), 0]
    scores_SR[length, 0] = np.nan
    with pytest.raises(DataError, match="too few reviewers who have no conflict"):
        assign(scores_SR, loads(length + 1, length + 1, needed=1, most=1))
