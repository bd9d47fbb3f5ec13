"""Places of padded attention, counted without a plan and with it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from scimult.models.packing import PackingPlan, attention_places


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 2)), min_size=1, max_size=60))
def test_attention_places_are_those_of_the_plan(rows: list[tuple[int, int]]) -> None:
    lengths, routes = [length for length, _ in rows], [route for _, route in rows]
    plan = PackingPlan.build(lengths, routes, torch.device("cpu"))
    assert attention_places(lengths, routes) == sum(g.rows * g.longest for g in plan.groups)
    assert attention_places(lengths, routes) >= sum(lengths)
