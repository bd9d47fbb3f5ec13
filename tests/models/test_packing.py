"""Plans of packed batches against loops; slots of padded attention with and without a plan."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from scimult.models.packing import PackedTexts, PackingPlan, attention_slots, open_gap

CPU = torch.device("cpu")
ROWS = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 2)), min_size=1, max_size=60)


@given(ROWS)
def test_attention_slots_are_those_of_the_plan(rows: list[tuple[int, int]]) -> None:
    lengths, routes = [length for length, _ in rows], [route for _, route in rows]
    plan = PackingPlan.build(lengths, routes, CPU)
    assert attention_slots(lengths, routes) == sum(g.rows * g.longest for g in plan.groups)
    assert attention_slots(lengths, routes) >= sum(lengths)


@given(ROWS)
def test_a_plan_equals_loops(rows: list[tuple[int, int]]) -> None:
    lengths, routes = [length for length, _ in rows], [route for _, route in rows]
    starts = [sum(lengths[:row]) for row in range(len(rows))]
    order = sorted(range(len(rows)), key=lambda row: (routes[row], lengths[row], row))
    plan = PackingPlan.build(lengths, routes, CPU)
    tokens = [
        (place, starts[row], inside)
        for place, row in enumerate(order)
        for inside in range(lengths[row])
    ]
    assert plan.order_T.tolist() == [start + inside for _, start, inside in tokens]
    assert plan.positions_T.tolist() == [inside for *_, inside in tokens]
    assert plan.row_of_token_T.tolist() == [place for place, *_ in tokens]
    assert plan.lengths_B.tolist() == plan.lengths.tolist() == [lengths[row] for row in order]
    assert plan.routes_B.tolist() == plan.routes.tolist() == [routes[row] for row in order]
    assert [order[place] for place in plan.restore_B.tolist()] == list(range(len(rows)))
    assert plan.starts_B.tolist() == plan.bounds[:-1].tolist()
    assert plan.bounds.diff().tolist() == plan.lengths_B.tolist()
    assert plan.bounds.dtype == torch.int32
    assert plan.longest == max(lengths)
    assert [slice_.stop - slice_.start for _, slice_ in plan.route_slices] == [
        sum(length for length, of_row in rows if of_row == route) for route, _ in plan.route_slices
    ]
    assert [route for route, _ in plan.route_slices] == sorted(set(routes))


@given(ROWS)
def test_groups_hold_every_token_once(rows: list[tuple[int, int]]) -> None:
    plan = PackingPlan.build(*zip(*rows, strict=True), CPU)
    row = token = 0
    for group in plan.groups:
        lengths = plan.lengths[row : row + group.rows].tolist()
        places = [
            place * group.longest + inside
            for place, length in enumerate(lengths)
            for inside in range(length)
        ]
        assert set(plan.routes[row : row + group.rows].tolist()) == {group.route}
        assert (group.longest, group.num_tokens) == (max(lengths), sum(lengths))
        if group.slots_T is None:
            assert group.mask_BL is None
            assert places == list(range(group.rows * group.longest))
        else:
            assert group.mask_BL is not None
            assert group.slots_T.tolist() == places
            assert group.mask_BL.flatten().nonzero().flatten().tolist() == places
        row, token = row + group.rows, token + group.num_tokens
    assert (row, token) == (len(rows), int(plan.lengths.sum()))


@given(st.lists(st.tuples(st.sampled_from([1, 2, 9, 10, 90, 181, 300]), st.integers(0, 2))))
def test_unpadded_groups_are_rows_of_one_length_and_route(rows: list[tuple[int, int]]) -> None:
    plan = PackingPlan.build([length for length, _ in rows], [route for _, route in rows], CPU)
    row = 0
    for group in plan.unpadded_groups:
        some = slice(row, row + group.rows)
        assert set(plan.lengths[some].tolist()) == {group.longest}
        assert set(plan.routes[some].tolist()) == {group.route}
        assert group.num_tokens == group.rows * group.longest
        assert group.slots_T is None
        assert group.mask_BL is None
        # Few shapes, and scores that fit a cache.
        assert group.rows & (group.rows - 1) == 0
        assert group.rows == 1 or group.rows * group.longest**2 <= 1 << 16
        row += group.rows
    assert row == len(rows)


@given(ROWS, st.integers(0, 1))
def test_a_gap_opens_in_every_row(rows: list[tuple[int, int]], place: int) -> None:
    lengths = [length for length, _ in rows]
    tokens_T = torch.arange(1, sum(lengths) + 1)
    opened = open_gap(PackedTexts(tokens_T, lengths), place)
    assert opened.lengths == [length + 1 for length in lengths]
    expected = [
        [*row[:place].tolist(), 0, *row[place:].tolist()] for row in tokens_T.split(lengths)
    ]
    assert opened.tokens_T.tolist() == [token for row in expected for token in row]


def test_a_plan_is_made_once_for_each_choice_of_routes() -> None:
    texts = PackedTexts(torch.arange(6), [1, 2, 3])
    assert texts.plan(0) is texts.plan(0)
    assert texts.plan([0, 1, 0]) is texts.plan([0, 1, 0])
    assert texts.plan([0, 1, 0]) is not texts.plan([0, 0, 1])
    assert texts.with_gap(1) is texts.with_gap(1)
    assert texts.to("cpu").plan(0) is not texts.plan(0)
