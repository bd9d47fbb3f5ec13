"""Embedding many texts: ranks and threads share the work, and batches hold similar lengths."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from scimult.checkpoints import load_pretrained
from scimult.inference import SciMult
from scimult.models import embed
from scimult.models.embed import embed_tokens_each, length_batches, usual_tokens
from scimult.types import FloatArray, TokenIds
from tests.ranks import run_ranks
from tests.tiny import save_tiny_model
from tests.torch_threads import torch_threads

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


@pytest.mark.parametrize(
    ("device", "gibibytes", "tokens"),
    [("mps", None, 8192), ("cuda", 24, 65_536), ("cuda", 79, 262_144), ("cuda", 140, 262_144)],
)
def test_batches_suit_the_memory_of_the_device(
    device: str, gibibytes: int | None, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gibibytes is not None:
        facts = SimpleNamespace(total_memory=gibibytes << 30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    assert usual_tokens(torch.device(device), 1_000_000, 1) == tokens


@pytest.mark.parametrize(
    ("tokens", "workers", "budget"),
    [
        (100, 1, 512),
        (4096, 1, 4096),
        (4098, 1, 2049),
        (1_000_000, 1, 4082),
        (700, 2, 512),
        (7001, 2, 3501),
        (8194, 2, 2049),
        # Passes of all threads together have at most 32,768 tokens.
        (1_000_000, 16, 2017),
        (10_000, 16, 625),
    ],
)
def test_passes_on_a_cpu_share_the_tokens(tokens: int, workers: int, budget: int) -> None:
    assert usual_tokens(torch.device("cpu"), tokens, workers) == budget


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_threads_that_share_texts_do_not_change_embeddings(tmp_path: Path, dtype: str) -> None:
    """Their batches are the same, and each is multiplied by one thread."""
    pretrained = load_pretrained(save_tiny_model(tmp_path / "model"))
    model = SciMult(pretrained, name="x", device="cpu", dtype=dtype, max_tokens_per_batch=64)
    papers = ["about graphs " * count for count in range(1, 60)]
    with torch_threads(1):
        one_ND = model.encode(papers, task="search")
    for threads in (2, 3):
        with torch_threads(threads):
            assert np.array_equal(model.encode(papers, task="search"), one_ND)
            assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("budget", "workers"), [(None, 4), (40, 4), (10_000, 3), (65_536, 1)])
def test_a_budget_bounds_the_tokens_of_all_threads(
    tmp_path: Path, budget: int | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "model")).model
    asked = []

    def in_threads(work: Any, items: Any, count: int) -> Any:
        asked.append(count)
        return map(work, items)

    monkeypatch.setattr(embed, "in_threads", in_threads)
    monkeypatch.setattr(embed, "independent_threads", lambda _: 4)
    embed_tokens_each(model, _rows(9), routes=[0], max_tokens_per_batch=budget)
    assert asked == [workers]


def test_a_batch_has_no_more_rows_than_a_kernel_counts() -> None:
    batches = list(length_batches([1] * 70_000, max_tokens=100_000))
    assert [len(rows) for rows in batches] == [65_535, 4_465]
    assert sorted(np.concatenate(batches)) == list(range(70_000))
