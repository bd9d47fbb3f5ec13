"""No split leaks for any pairs; each pair is in one split or counted as in neither."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.config import validate
from scimult.data.text_store import TextStore
from scimult.errors import ConfigError
from scimult.preparation.collected import RawPairs
from scimult.preparation.config import SourceConfig
from scimult.preparation.hygiene.config import SplitBy, SplitConfig
from scimult.preparation.hygiene.splits import dev_texts, split_masks
from scimult.preparation.pair_columns import unique_pairs
from scimult.types import Text
from tests.prepared_folders import write_texts

LABELS, PAPERS, QUERIES = range(3), range(3, 23), range(23, 30)
SOURCE = SourceConfig(name="s", papers="p", citations="c", labels="l", queries="q", clicks="k")
YEARS = np.array([-1] * 3 + [2000 + row % 8 if row % 5 else -1 for row in PAPERS] + [-1] * 7)


def _pairs(first: range, second: range) -> st.SearchStrategy[list[tuple[int, int]]]:
    row = st.tuples(st.sampled_from(first), st.sampled_from(second))
    return st.lists(row.filter(lambda pair: pair[0] != pair[1]), max_size=30)


@st.composite
def _parts(draw: st.DrawFn) -> list[RawPairs]:
    drawn = {
        "labels": draw(_pairs(PAPERS, LABELS)),
        "citations": draw(_pairs(PAPERS, PAPERS)),
        "queries": draw(_pairs(QUERIES, PAPERS)),
    }
    columns = {
        part: unique_pairs([(row[:, 0], row[:, 1])], Path())
        for part, row in (
            (part, np.array(p, dtype=np.int64).reshape(-1, 2)) for part, p in drawn.items()
        )
    }
    return [RawPairs(SOURCE, part, *pairs) for part, pairs in columns.items()]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store() -> TextStore:
    kinds = {"label": LABELS, "paper": PAPERS, "query": QUERIES}
    texts = {f"{kind}:{row}": Text(kind, f"text {row}") for kind in kinds for row in kinds[kind]}  # type: ignore[arg-type]
    return write_texts(Path(tempfile.mkdtemp()), texts)


def _config(by: SplitBy) -> SplitConfig:
    return SplitConfig(by=by, dev_from_year=2005 if by == "year" else None)


@pytest.mark.long
@pytest.mark.parametrize("by", ["query", "paper", "year", "component"])
@given(parts=_parts(), seed=st.integers(0, 5), fraction=st.sampled_from([0.0, 0.2, 0.5]))
@settings(deadline=None, max_examples=25)
def test_no_split_leaks(
    store: TextStore, by: SplitBy, parts: list[RawPairs], seed: int, fraction: float
) -> None:
    config = _config(by)
    dev_N = dev_texts(parts, store, YEARS, config, fraction, seed)
    assert not dev_N[LABELS].any()
    texts: dict[str, set[int]] = {"train": set(), "dev": set()}
    queries: dict[str, set[int]] = {"train": set(), "dev": set()}
    all_masks = split_masks(parts, dev_N, config)
    pairs: dict[str, set[tuple[int, int]]] = {"train": set(), "dev": set()}
    for part, masks in zip(parts, all_masks, strict=True):
        assert not (masks["train"] & masks["dev"]).any()
        neither = ~masks["train"] & ~masks["dev"]
        whole = by == "component" or part.part == "labels"
        whole = whole or (by, part.part) == ("query", "queries")
        # By year, queries that a dev paper answers are dev queries.
        if whole or (by, part.part) == ("year", "queries"):
            assert not neither.any()
        # Pairs in neither split would show training a dev text.
        assert dev_N[part.positives[neither]].all()
        assert not dev_N[part.queries[neither]].any()
        for split, mask in masks.items():
            rows = zip(part.queries[mask].tolist(), part.positives[mask].tolist(), strict=True)
            pairs[split] |= set(rows)
            queries[split] |= set(part.queries[mask].tolist())
            texts[split] |= set(part.queries[mask].tolist())
            if part.part != "labels":
                texts[split] |= set(part.positives[mask].tolist())
    assert not queries["train"] & queries["dev"]
    # One similarity is trained for both directions of a citation.
    assert not pairs["train"] & {(second, first) for first, second in pairs["dev"]}
    if by == "query":
        left_out = {
            (first, second)
            for part, masks in zip(parts, all_masks, strict=True)
            for first, second in zip(part.queries, part.positives, strict=True)
            if (first, second) not in pairs["train"] | pairs["dev"]
        }
        assert left_out <= {(second, first) for first, second in pairs["dev"]}
    if by != "query":
        assert not texts["train"] & set(np.flatnonzero(dev_N).tolist())
    if by == "component":
        assert not texts["train"] & texts["dev"]
    if by == "year":
        assert all(YEARS[row] < 2005 for row in texts["train"])


@given(parts=_parts(), more=_parts())
@settings(deadline=None, max_examples=15)
def test_more_pairs_move_no_text_between_splits(
    store: TextStore, parts: list[RawPairs], more: list[RawPairs]
) -> None:
    for by in ("query", "paper"):
        config = _config(by)  # type: ignore[arg-type]
        before = dev_texts(parts, store, YEARS, config, 0.4, 0)
        after = dev_texts([*parts, *more], store, YEARS, config, 0.4, 0)
        assert (after[before]).all()
        rows = {row for part in parts for row in part.queries.tolist()}
        assert all(after[row] == before[row] for row in rows)


def test_a_component_too_large_for_dev_is_trained_with(store: TextStore) -> None:
    chain = np.arange(3, 22)
    parts = [RawPairs(SOURCE, "citations", chain, chain + 1)]
    for seed in range(8):
        assert not dev_texts(parts, store, YEARS, _config("component"), 0.5, seed).any()


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ({"by": "year"}, "dev_from_year and by: year need each other"),
        ({"by": "paper", "dev_from_year": 2000}, "dev_from_year and by: year need each other"),
    ],
)
def test_settings_that_contradict_each_other(tree: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        validate(SplitConfig, tree)
