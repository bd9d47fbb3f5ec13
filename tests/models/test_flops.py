"""Operations of every variant against torch's counter of executed ones, forward and backward."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from scimult.models import VARIANTS, Encoder, pack
from scimult.models.flops import EncoderFlops, _pairs
from tests.models.variants import CASES, ROUTES, tiny_encoder

MODERN = {
    "family": "modernbert",
    "token_types": 0,
    "hidden_size": 24,
    "modern": {"global_blocks": [0, 3], "local_window": 4},
}
# Other families and lengths have the same products: only these layouts differ.
LAYOUTS = [
    *((case, {}) for case in CASES),
    ("vanilla", {"pooling": "mean"}),
    ("vanilla", MODERN),
    ("mha_ffn_expert", MODERN),
    ("mha_ffn_expert", {**MODERN, "pooling": "mean"}),
]


def counted(model: Encoder, lengths: list[int], routes: list[int]) -> tuple[int, int]:
    """Return the operations that torch counts, forward only and with the backward pass."""
    texts = pack([np.arange(length) % 50 for length in lengths])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        output = model(texts, routes)
        forward = counter.get_total_flops()
        output.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.long
@pytest.mark.parametrize("frozen", [False, True], ids=["all trained", "partly frozen"])
@pytest.mark.parametrize(("case", "changes"), LAYOUTS)
def test_counts_equal_torchs(case: str, changes: dict[str, object], frozen: bool) -> None:
    model = tiny_encoder(case, **changes)
    if model.config.instructions is not None:
        model.set_instructions([np.array([1, token, 9, 2]) for token in range(ROUTES)])
    # The variant's trained parameters; if that is everything, all but the lowest ones.
    trains = VARIANTS[CASES[case][0]].trains or re.compile(r"blocks\.([23]|1\.feed)")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or trains.search(name) is not None)
    training, forward = EncoderFlops(model, training=True), EncoderFlops(model, training=False)
    # Rows of one length are not padded, and up to 5 tokens a window of 4 is the whole row. A CPU
    # multiplies a route's only row twice.
    for lengths, routes in (([1] * 2, [0] * 2), ([5] * 2, [1] * 2), ([4] * 6, [2, 0, 1, 2, 0, 1])):
        expected = counted(model, lengths, routes)
        assert (forward.of(lengths, routes), training.of(lengths, routes)) == expected, lengths


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 50))
def test_windows_count_the_pairs_that_see_each_other(lengths: list[int], window: int) -> None:
    naive = [
        sum(abs(query - key) <= window for query in range(length) for key in range(length))
        for length in lengths
    ]
    assert _pairs(np.array(lengths), window).tolist() == naive


def test_a_batch_costs_the_sum_of_its_texts() -> None:
    flops = EncoderFlops(tiny_encoder("mha_expert"), training=True)
    lengths, routes = [3, 17, 8, 17], [0, 2, 2, 1]
    alone = sum(flops.of([length], route) for length, route in zip(lengths, routes, strict=True))
    assert flops.of(lengths, routes) == alone


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_bert_base_is_six_operations_per_weight_and_token_and_attention(pooling: str) -> None:
    """Kaplan et al. (2020), section 2.1: 6 N per token, where N excludes the embeddings.

    Of the last block, which has 12 D**2 weights, only queries, keys and values are for all tokens
    if one is pooled.
    """
    with torch.device("meta"):
        config = tiny_encoder("vanilla").config.model_copy(
            update={
                "hidden_size": 768,
                "num_blocks": 12,
                "num_heads": 12,
                "intermediate_size": 3072,
                "max_positions": 512,
                "pooling": pooling,
            }
        )
        model = Encoder(config)
    weights = 12 * 12 * 768**2
    expected = 6 * weights * 512 + 12 * 12 * 768 * 512**2
    expected -= 6 * 9 * 768**2 * 511 * (pooling == "cls")
    assert EncoderFlops(model, training=True).of([512], 0) == expected
