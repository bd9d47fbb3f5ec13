"""Compiled feed-forward sub-layers compute what plain ones do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from scimult.models import pack
from scimult.models.compiled import compile_feed_forwards
from tests.models.variants import tiny_encoder


@pytest.mark.slow  # a C++ compiler, and minutes on a busy machine
@pytest.mark.timeout(900)
def test_outputs_and_gradients_for_any_number_of_tokens() -> None:
    plain, compiled = tiny_encoder("ffn_expert"), tiny_encoder("ffn_expert")
    assert compile_feed_forwards(compiled) > compiled.config.num_blocks
    rng = np.random.default_rng(0)
    graphs = []
    for rows in (3, 5, 2, 7):
        texts = pack([rng.integers(1, 50, int(n)) for n in rng.integers(3, 20, rows)])
        routes = [row % 3 for row in range(rows)]
        for model in (plain, compiled):
            model.zero_grad()
            torch.autograd.backward(model(texts, routes).square().sum())
        ours = dict(compiled.named_parameters())
        for name, parameter in plain.named_parameters():
            gradient = ours[name].grad
            if parameter.grad is None:
                assert gradient is None, name
                continue
            # The compiler fuses and reorders float32 operations.
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[1], "other shapes are compiled again"
