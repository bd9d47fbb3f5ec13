"""Batches: which texts must not count as negatives of which pairs."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from scimult.data.batches import Batch, BatchBuilder, all_known_positives
from scimult.data.pair_streams import NO_NEGATIVE, Rows
from scimult.data.pairs import KnownPositives
from scimult.data.sampler import PlannedPart
from scimult.data.token_store import TokenStore, build_token_store
from scimult.types import Text
from tests.data.pair_files import pair_file
from tests.prepared_folders import write_texts
from tests.tiny import tiny_tokenizer

TEXTS = 30


def known(*pairs: tuple[int, int]) -> KnownPositives:
    queries, positives = np.array(pairs).T
    return KnownPositives(queries, positives)


def test_known_positives_are_those_of_all_splits_by_task() -> None:
    links = pair_file("links", "link_prediction", [1], [0])
    dev = pair_file("links", "link_prediction", [2], [0])
    clicks = pair_file("clicks", "search", [3], [0])
    data = Mock(pairs={"train": [links, clicks], "dev": [dev]}.get)
    known_by_task = all_known_positives(data)
    of_query = int(links.queries[0])
    assert int(dev.queries[0]) == int(clicks.queries[0]) == of_query
    assert {task: set(known[of_query].tolist()) for task, known in known_by_task.items()} == {
        "link_prediction": {*links.positives.values.tolist(), *dev.positives.values.tolist()},
        "search": set(clicks.positives.values.tolist()),
    }


def test_positives_of_every_task_are_no_negatives_but_the_judged_ones() -> None:
    """As in mining: a drawn hard negative was judged for this task."""
    source = pair_file("links", "link_prediction", [1], [1])
    by_task = {
        "search": known((5, 14), (7, 12)),
        "link_prediction": known((5, 10), (5, 11), (6, 20), (7, 21), (7, 13)),
        "classification": known((5, 12), (5, 13)),
    }
    rows = Rows(
        np.array([5, 5, 6, 7]),
        np.array([10, 11, 20, 21]),
        np.array([12, NO_NEGATIVE, 14, 13]),
        np.zeros(4, dtype=np.int64),
        [0, 4],
    )
    tokens = TokenStore(
        np.zeros(3 * TEXTS, dtype=np.uint16), np.arange(TEXTS + 1) * 3, {"sep_id": 3}
    )
    builder = BatchBuilder([source], tokens, by_task, max_length=8)
    (batch,) = builder.micro_batch([PlannedPart(0, rows)], 0).parts
    no_negatives: list[set[int]] = [set() for _ in range(4)]
    for row, text in zip(batch.known_rows_P.tolist(), batch.known_ids_P.tolist(), strict=True):
        no_negatives[row].add(text)
    assert no_negatives == [
        # 12 is a positive elsewhere and this pair's hard negative here.
        {5, 10, 11, 13, 14},
        {5, 10, 11, 12, 13, 14},
        {6, 20},
        # 13 is a positive of this very task: no hard negative, whoever drew it.
        {7, 21, 13, 12},
    ]


@pytest.mark.parametrize("negatives", [[12, 14, 13], [NO_NEGATIVE] * 3])
def test_every_rank_knows_what_the_others_have(negatives: list[int]) -> None:
    """So ranks gather embeddings without exchanging their numbers first."""
    rows = Rows(
        np.array([5, 5, 6, 7, 5]),
        np.array([10, 11, 20, 21, 12]),
        np.insert(negatives, [1, 3], NO_NEGATIVE),
        np.zeros(5, dtype=np.int64),
        [0, 1, 4, 4, 5],
    )
    tokens = TokenStore(
        np.zeros(3 * TEXTS, dtype=np.uint16), np.arange(TEXTS + 1) * 3, {"sep_id": 3}
    )
    by_task = {"search": known((5, 10), (6, 20), (7, 21))}
    source = pair_file("clicks", "search", [1], [1])
    builder = BatchBuilder([source], tokens, by_task, max_length=8)
    parts = [builder.micro_batch([PlannedPart(0, rows)], rank).parts[0] for rank in range(4)]
    sizes = [(len(part.query_B), len(part.negative_rows_H)) for part in parts]
    counts = [1, 2, 0, 0] if negatives[0] == 12 else [0] * 4
    assert sizes == list(zip([1, 3, 0, 1], counts, strict=True))
    assert all(part.sizes_W == sizes for part in parts)


@pytest.mark.parametrize("by_side", [False, True])
def test_a_text_of_both_sides_is_encoded_once_or_once_a_side(by_side: bool) -> None:
    """Every pair finds its texts again, each on its side where sides differ."""
    rows = Rows(
        np.array([5, 6, 5, 10]),
        np.array([6, 5, 20, 20]),
        np.array([10, NO_NEGATIVE, 7, NO_NEGATIVE]),
        np.zeros(4, dtype=np.int64),
        [0, 4],
    )
    ends = np.append(0, np.cumsum(np.arange(TEXTS) + 1))  # text n has the n + 1 tokens n
    tokens = TokenStore(
        np.repeat(np.arange(TEXTS), np.arange(TEXTS) + 1).astype(np.uint16), ends, {"sep_id": 99}
    )
    source = pair_file("links", "link_prediction", [1], [1])
    by_task = {"link_prediction": known((5, 6), (6, 5), (5, 20), (10, 20))}
    builder = BatchBuilder([source], tokens, by_task, max_length=64, by_side=by_side)
    (batch,) = builder.micro_batch([PlannedPart(0, rows)], 0).parts
    assert isinstance(batch, Batch)
    encoded = list(zip([row[0] for row in batch.rows], batch.sides, strict=True))
    queries = [encoded[row] for row in batch.query_B.tolist()]
    candidates = [encoded[row] for row in batch.candidate_C.tolist()]
    side = int(by_side)
    assert queries == [(text, 0) for text in (5, 6, 5, 10)]
    assert candidates == [(text, side) for text in (6, 5, 20, 20, 10, 7)]
    assert len(encoded) == len({*queries, *candidates}) == (8 if by_side else 5)
    assert batch.query_ids_B.tolist() == [5, 6, 5, 10]
    assert batch.candidate_ids_C.tolist() == [6, 5, 20, 20, 10, 7]
    assert batch.negative_rows_H.tolist() == [0, 2]


def test_drawn_papers_are_read_by_title_alone(tmp_path: Path) -> None:
    """What is read is what the tokenizer makes of the title; labels keep their definitions."""
    papers = [
        Text("paper", f"graph {'tree ' * (n % 3)}paper", "we study a model") for n in range(18)
    ]
    papers += [Text("paper", "graph paper"), Text("paper", "", "we study a model")]
    written = [*papers, *[Text("label", "graph", "a model of data")] * 9, Text("query", "graph")]
    assert len(written) == TEXTS
    texts = write_texts(tmp_path, {str(number): text for number, text in enumerate(written)})
    tokenizer = tiny_tokenizer()
    tokens = build_token_store(texts, tokenizer, tmp_path / "tokens")
    drawn_N = texts.drawn_papers(0.6, seed=1)
    assert 0 < drawn_N[:18].sum() < 18
    assert not drawn_N[20:].any()
    np.testing.assert_array_equal(drawn_N, texts.drawn_papers(0.6, seed=1))
    assert (drawn_N != texts.drawn_papers(0.6, seed=2)).any()
    np.testing.assert_array_equal(texts.drawn_papers(1.0, seed=1)[:20], True)

    everything = np.arange(TEXTS)
    none = np.full(TEXTS, NO_NEGATIVE)
    rows = Rows(everything, everything[::-1].copy(), none, np.zeros_like(none), [0, TEXTS])
    source = pair_file("links", "link_prediction", [1], [1])
    builder = BatchBuilder(
        [source],
        tokens,
        {"link_prediction": known(*((n, n) for n in range(TEXTS)))},
        max_length=9,
        title_only_N=drawn_N,
    )
    (batch,) = builder.micro_batch([PlannedPart(0, rows)], 0).parts
    short = [
        Text(text.kind, text.title) if drawn and text.title else text
        for text, drawn in zip(written, drawn_N, strict=True)
    ]
    for row, expected in zip(batch.rows, tokenizer.encode(short, 9), strict=True):
        np.testing.assert_array_equal(row, expected)
