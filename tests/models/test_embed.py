"""Embedding many texts: ranks share the work, and batches hold similar lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.checkpoints import load_pretrained
from scimult.models.embed import embed_tokens_each, length_batches
from scimult.types import FloatArray, TokenIds
from tests.ranks import run_ranks
from tests.tiny import save_tiny_model

BUDGET = 40


def _rows(count: int) -> list[TokenIds]:
    draw = np.random.default_rng(count)
    return [draw.integers(5, 30, draw.integers(3, 20)) for _ in range(count)]


def _embedded(folder: str, count: int, sharded: bool) -> tuple[FloatArray, int]:
    """Return the embeddings for two routes, and how many forward passes made them."""
    model = load_pretrained(folder).model
    passes: list[None] = []
    model.blocks[0].register_forward_pre_hook(lambda *_: passes.append(None))
    embedded_RND = embed_tokens_each(
        model, _rows(count), routes=[0, 2], max_tokens_per_batch=BUDGET, sharded=sharded
    )
    return embedded_RND, len(passes)


def _on_a_rank(folder: str, counts: list[int]) -> list[tuple[FloatArray, int]]:
    return [_embedded(folder, count, True) for count in counts]


@pytest.mark.ranks
def test_three_ranks_share_the_work_and_each_gets_all(tmp_path: Path) -> None:
    """Every rank makes as many passes, or parameters that ZeRO shards could not be gathered."""
    folder, counts = str(save_tiny_model(tmp_path / "model")), [1, 2, 7, 31]
    by_rank = run_ranks(_on_a_rank, 3, tmp_path, folder, counts)
    for number, count in enumerate(counts):
        alone_RND, passes = _embedded(folder, count, False)
        batches = len(list(length_batches([len(row) for row in _rows(count)], BUDGET)))
        for found_RND, passes_of_rank in (results[number] for results in by_rank):
            assert passes_of_rank == passes // batches * -(-batches // 3)
            np.testing.assert_array_equal(found_RND, alone_RND)


@pytest.mark.parametrize("budget", [1, 19, BUDGET, 10_000])
def test_batches_hold_every_text_once_and_keep_to_the_budget(budget: int) -> None:
    """The longest come first; a batch ends where the next text has no room."""
    lengths = [len(row) for row in _rows(200)]
    batches = list(length_batches(lengths, budget))
    rows = np.concatenate(batches)
    assert sorted(rows.tolist()) == list(range(200))
    assert (np.diff(np.array(lengths)[rows]) <= 0).all()
    totals = [sum(lengths[row] for row in batch) for batch in batches]
    assert all(
        total <= budget or len(batch) == 1 for total, batch in zip(totals, batches, strict=True)
    )
    firsts = [lengths[batch[0]] for batch in batches[1:]]
    assert all(total + first > budget for total, first in zip(totals, firsts, strict=False))
