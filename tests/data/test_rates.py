"""Sampling rates against their closed forms."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.pairs import PairFile
from scimult.data.ragged import Ragged
from scimult.data.rates import SamplingMode, sampling_rates
from scimult.errors import SciMultError


def source(name: str, pairs: int) -> PairFile:
    """Make a pair file ``source.task`` with the given number of pairs."""
    source, task = name.split(".")
    positives = Ragged.from_lists([range(pairs)])
    return PairFile(source, task, "train", np.zeros(1, np.int64), positives, Ragged.empty(1))


# Two sources of one task, two of a source that trains two tasks.
SOURCES = [
    source("acl.cite", 64),
    source("vis.cite", 16),
    source("world.search", 4),
    source("world.label", 16),
]


@pytest.mark.parametrize(
    ("mode", "temperature", "explicit", "expected"),
    [
        ("proportional", 1, None, [0.64, 0.16, 0.04, 0.16]),
        ("proportional", 2, None, [8 / 18, 4 / 18, 2 / 18, 4 / 18]),
        ("proportional", 0.5, None, np.array([256, 16, 1, 16]) / 289),
        ("equal", 1, None, [1 / 4] * 4),
        ("equal_tasks", 1, None, [4 / 15, 1 / 15, 1 / 3, 1 / 3]),
        ("equal_tasks", 2, None, [2 / 9, 1 / 9, 1 / 3, 1 / 3]),
        (
            "explicit",
            1,
            {"acl": 3, "vis.cite": 1, "world.search": 0, "world.label": 4},
            [3 / 8, 1 / 8, 0, 1 / 2],
        ),
        ("explicit", 1, {"cite": 5, "search": 3, "label": 2}, [0.4, 0.1, 0.3, 0.2]),
        ("explicit", 2, {"cite": 6, "search": 2, "world.label": 2}, [0.4, 0.2, 0.2, 0.2]),
    ],
)
def test_closed_forms(
    mode: SamplingMode,
    temperature: float,
    explicit: dict[str, float] | None,
    expected: list[float],
) -> None:
    rates = sampling_rates(SOURCES, mode, explicit, temperature)
    assert rates == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.floats(0.2, 50))
def test_temperature_smooths_ratios(sizes: list[int], temperature: float) -> None:
    files = [source(f"s{number}.x", size) for number, size in enumerate(sizes)]
    rates = sampling_rates(files, "proportional", temperature=temperature)
    assert rates.sum() == pytest.approx(1)
    # The logarithm of a ratio of rates is that of the sizes, divided by T.
    logs = np.log(sizes)
    assert np.log(rates) - np.log(rates[0]) == pytest.approx((logs - logs[0]) / temperature)


def test_a_high_temperature_makes_sources_alike() -> None:
    assert sampling_rates(SOURCES, "proportional", temperature=1e9) == pytest.approx([0.25] * 4)
    root = sampling_rates(SOURCES[:2], "proportional", temperature=2)
    assert root[0] / root[1] == pytest.approx(sqrt(64 / 16))


EACH = {"acl": 1.0, "vis": 1.0, "world.search": 1.0, "world.label": 1.0}


@pytest.mark.parametrize(
    ("explicit", "message"),
    [
        ({"acl": 1, "vis": 1, "label": 1}, r"must give every source one weight.*world\.search"),
        ({**EACH, "cite": 1}, r"must give every source one weight.*acl\.cite.*vis\.cite"),
        ({**EACH, "acl.cite": 1}, r"must give every source one weight.*acl\.cite"),
        ({**EACH, "sarch": 1}, "unknown source or task.*did you mean 'search'"),
        ({"cite": 1, "world": 1}, r"trains several tasks.*world\.search, world\.label"),
        (dict.fromkeys(EACH, 0), "must give every source"),
    ],
)
def test_wrong_rates_are_refused(explicit: dict[str, float], message: str) -> None:
    with pytest.raises(SciMultError, match=message):
        sampling_rates(SOURCES, "explicit", explicit)


def test_a_name_of_a_task_and_another_source_is_refused() -> None:
    files = [source("cite.search", 3), source("acl.cite", 3)]
    with pytest.raises(SciMultError, match=r"task and a source.*one of cite\.search, acl\.cite"):
        sampling_rates(files, "explicit", {"cite": 1})
    assert sampling_rates(files, "explicit", {"search": 1, "acl": 3}) == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(
    ("sources", "mode", "explicit"),
    [
        (SOURCES, "equal", None),
        (SOURCES, "explicit", EACH),
        (SOURCES[1:], "equal_tasks", None),
    ],
)
def test_a_temperature_without_effect_is_refused(
    sources: list[PairFile], mode: SamplingMode, explicit: dict[str, float] | None
) -> None:
    with pytest.raises(SciMultError, match="ignores the sizes of these sources.*temperature 3"):
        sampling_rates(sources, mode, explicit, temperature=3)


def test_one_source_has_every_micro_batch_in_every_mode() -> None:
    for mode in ("proportional", "equal", "equal_tasks"):
        assert sampling_rates(SOURCES[:1], mode, temperature=2).tolist() == [1.0]
