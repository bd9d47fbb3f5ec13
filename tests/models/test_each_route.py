"""Embeddings for several routes in one pass: bit-identical to separate passes, and cheaper."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from scimult.heap import HeapGaps, heap_gaps
from scimult.models import Encoder, EncoderConfig, embed_tokens_each, length_batches, pack
from scimult.models.config import ModernLayout
from tests.models.variants import (
    CASES,
    FLOAT64,
    LENGTHS,
    WIDTH,
    random_weights,
    tiny_config,
    tiny_encoder,
    tiny_rows,
)

ORDER = [2, 0, 1]
# Rows with padding in attention, rows without, and a single row.
ROWS = {
    "padded": tiny_rows(),
    "equal lengths": [np.arange(start, start + 9) for start in range(8)],
    "one": tiny_rows()[:1],
}


def _assert_equal(model: Encoder, rows: list[np.ndarray], **options: Any) -> None:
    found_RND = embed_tokens_each(model, rows, routes=ORDER, **options)
    assert found_RND.shape == (len(ORDER), len(rows), model.config.width)
    for route, found_ND in zip(ORDER, found_RND, strict=True):
        alone_1ND = embed_tokens_each(model, rows, routes=[route], **options)
        assert np.array_equal(found_ND, alone_1ND[0])


@pytest.mark.long
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("case", CASES)
def test_equal_to_separate_passes(case: str, pooling: str) -> None:
    chosen = {} if case.startswith("control codes") else {"pooling": pooling}
    model = tiny_encoder(case, **chosen)
    for rows in ROWS.values():
        _assert_equal(model, rows)
    if pooling == "cls":
        return
    _assert_equal(model, tiny_rows() * 3, max_tokens_per_batch=60)
    _assert_equal(tiny_encoder(case, dims=7, **chosen), tiny_rows())
    _assert_equal(model.to(torch.bfloat16), tiny_rows())


@pytest.mark.parametrize("blocks", ["last:1", "last:2", "first:1", [1], "every:2"])
def test_equal_wherever_the_experts_are(blocks: str | list[int]) -> None:
    for case in ("mha_expert", "ffn_expert"):
        layout = tiny_config(case).experts
        assert layout is not None
        chosen = {"last:1": [3], "last:2": [2, 3], "first:1": [0], "every:2": [1, 3]}
        numbers = blocks if isinstance(blocks, list) else chosen[blocks]
        experts = layout.model_copy(update={"blocks": numbers})
        model = tiny_encoder(case, experts=experts)
        assert model.config.shared_blocks == numbers[0]
        _assert_equal(model, tiny_rows())


def test_equal_for_modernbert() -> None:
    sizes = tiny_config("ffn_expert").model_dump(exclude={"token_types", "family", "modern"})
    layout = ModernLayout(global_blocks=[0, 3], local_window=4)
    config = EncoderConfig(**sizes, family="modernbert", token_types=0, modern=layout)
    model = Encoder(config)
    model.initialise(0)
    _assert_equal(model, tiny_rows())


@pytest.mark.parametrize(
    ("case", "passes"),
    # Experts sit in blocks 1 and 3 of 4, in blocks 1 to 3, everywhere, and nowhere.
    [
        ("ffn_expert", [1, 3, 3, 3]),
        ("mha_ffn_expert", [1, 3, 3, 3]),
        ("LoRA", [3, 3, 3, 3]),
        ("vanilla", [1, 1, 1, 1]),
    ],
)
def test_shared_blocks_run_once(case: str, passes: list[int]) -> None:
    model = tiny_encoder(case)
    ran = [0] * 4
    for number, block in enumerate(model.blocks):

        def count(*_: object, number: int = number) -> None:
            ran[number] += 1

        block.register_forward_hook(count)
    model.forward_each(pack(tiny_rows()), ORDER)
    assert ran == passes


@pytest.mark.parametrize("case", ["vanilla", "ffn_expert", "mha_expert"])
def test_gradients_add_up(case: str) -> None:
    together = tiny_encoder(case).double()
    apart = copy.deepcopy(together)
    weights = random_weights(len(ORDER), len(LENGTHS), WIDTH)
    (torch.stack(together.forward_each(pack(tiny_rows()), ORDER)) * weights).sum().backward()
    for route, weights_BD in zip(ORDER, weights, strict=True):
        (apart(pack(tiny_rows()), route) * weights_BD).sum().backward()
    for (name, one), other in zip(together.named_parameters(), apart.parameters(), strict=True):
        scale = max(1.0, float(other.grad.abs().max()))
        assert (one.grad - other.grad).abs().max() <= FLOAT64 * scale, name


def test_no_rows() -> None:
    each = tiny_encoder("ffn_expert").forward_each(pack([]), ORDER)
    assert [x_BD.shape for x_BD in each] == [(0, WIDTH)] * 3


def test_gaps_of_the_heap_are_looked_at_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[HeapGaps] = []
    monkeypatch.setattr(HeapGaps, "after_step", lambda gaps: looked.append(gaps))
    rows = tiny_rows()
    lengths = [len(row) for row in rows]
    embed_tokens_each(tiny_encoder("vanilla"), rows, routes=[0], max_tokens_per_batch=20)
    assert len(looked) == len(list(length_batches(lengths, 20))) > 1
    assert set(looked) == {heap_gaps()}
