"""Activation checkpointing: bit-identical gradients of every variant, and less memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from scimult.models import Encoder, pack
from tests.models.variants import CASES, ROUTE_OF_ROW, tiny_encoder, tiny_rows

MODERN = {
    "family": "modernbert",
    "token_types": 0,
    "modern": {"global_blocks": [0, 3], "local_window": 4},
}
DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1}


def gradients(model: Encoder, recompute: bool) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Return embeddings and gradients of a mixed batch with dropout."""
    model.zero_grad()
    model.train()
    model.checkpoints_activations = recompute
    torch.manual_seed(7)
    embeddings = model(pack(tiny_rows()), list(ROUTE_OF_ROW))
    # Dropout elsewhere between the two passes must not disturb the second.
    torch.rand(3)
    embeddings.square().sum().backward()
    return embeddings, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "changes"), [*((case, {}) for case in CASES), ("mha_ffn_expert", MODERN)]
)
def test_gradients_are_bit_equal_with_dropout(case: str, changes: dict[str, object]) -> None:
    model = tiny_encoder(case, **DROPOUT, **changes)
    plain, expected = gradients(model, recompute=False)
    again, found = gradients(model, recompute=True)
    assert torch.equal(plain, again)
    for name, gradient in expected.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            assert torch.equal(found[name], gradient), name


@contextmanager
def kept_bytes() -> Iterator[dict[int, int]]:
    """Collect the storages that autograd keeps for the backward pass, by address."""
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def test_a_block_keeps_only_its_input() -> None:
    model = tiny_encoder("vanilla", **DROPOUT)
    texts, width = pack(tiny_rows()), model.config.hidden_size
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def activations(recompute: bool) -> int:
        model.checkpoints_activations = recompute
        with kept_bytes() as kept:
            model(texts)
        return sum(size for address, size in kept.items() if address not in weights)

    # Inputs of blocks are held outside autograd, where the hooks do not see them.
    inputs = model.config.num_blocks * len(texts.tokens_T) * width * 4
    assert activations(recompute=True) + inputs < activations(recompute=False) / 4


def test_evaluation_computes_once() -> None:
    model = tiny_encoder("vanilla").eval()
    calls = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    model.checkpoints_activations = True
    model(pack(tiny_rows())).sum().backward()
    assert len(calls) == 1
