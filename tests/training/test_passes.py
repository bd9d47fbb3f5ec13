"""The cost of the embedding cache's chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult.models import Encoder, EncoderConfig, pack
from scimult.training.passes import (
    activation_tokens,
    resolve_chunk_tokens,
    unfused_head_width,
)


def kept_bytes(model: Encoder, texts: int, length: int) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, without weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        # Held until the end, so that no two storages share an address.
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    rows = [np.arange(length, dtype=np.int64) % 50 for _ in range(texts)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(pack(rows), 0).sum()
    return sum(t.untyped_storage().nbytes() for p, t in kept.items() if p not in weights)


def encoder(heads: int, blocks: int = 2, hidden: int = 384) -> Encoder:
    return Encoder(
        EncoderConfig(
            vocab_size=50,
            hidden_size=hidden,
            num_blocks=blocks,
            num_heads=heads,
            intermediate_size=4 * hidden,
            max_positions=512,
            dropout=0.1,
            attention_dropout=0.1,
            # So that the last of few blocks keeps as much as the others.
            pooling="mean",
        )
    )


@pytest.mark.long
@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize(("blocks", "hidden"), [(2, 384), (5, 192)])
def test_a_chunk_by_default_keeps_at_most_two_gigabytes(
    blocks: int, hidden: int, recomputes: bool
) -> None:
    """The default on CPUs, extrapolated from a few texts."""
    cpu = torch.device("cpu")
    model = encoder(12, blocks, hidden)
    model.checkpoints_activations = recomputes
    chunk = resolve_chunk_tokens("auto", model, cpu)
    assert chunk is not None
    weight = int(activation_tokens(np.array([128]), unfused_head_width(model, cpu))[0])
    model.checkpoints_activations = False
    bytes_of_text = kept_bytes(model, 8, 128) / 8
    if recomputes:  # one block as a whole, and the inputs of all
        bytes_of_text = bytes_of_text / blocks + 4 * 128 * hidden * blocks
    assert 0.7 * 2**31 < bytes_of_text * chunk / weight < 1.1 * 2**31


def test_chunks_are_what_was_chosen_and_whole_passes_elsewhere() -> None:
    model = encoder(4)
    assert resolve_chunk_tokens(7, model, torch.device("cpu")) == 7
    assert resolve_chunk_tokens(None, model, torch.device("cpu")) is None
    assert resolve_chunk_tokens("auto", model, torch.device("cuda")) is None
    assert resolve_chunk_tokens(7, model, torch.device("cuda")) == 7


def test_small_chunks_on_a_gpu_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    model, gpu = encoder(4), torch.device("cuda")
    for choice, device in ((16_000, gpu), (None, gpu), ("auto", gpu), (2048, torch.device("cpu"))):
        resolve_chunk_tokens(choice, model, device)
    assert capsys.readouterr().err == ""
    resolve_chunk_tokens(2048, model, gpu)
    assert "batch.chunk_tokens 2,048" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("heads", [4, 12])
def test_texts_of_one_weight_need_the_same_memory(heads: int) -> None:
    model = encoder(heads)
    head_width = unfused_head_width(model, torch.device("cpu"))
    assert head_width == 384 // heads
    long, short = activation_tokens(np.array([512, 48]), head_width)
    texts = round(int(long) / int(short))
    # By tokens only, the long text would need over three times its share with 12 heads.
    assert kept_bytes(model, 1, 512) == pytest.approx(kept_bytes(model, texts, 48), rel=0.1)


def test_fused_attention_keeps_nothing_for_pairs_of_tokens() -> None:
    lengths = np.array([3, 512])
    assert activation_tokens(lengths, None).tolist() == [3, 512]
