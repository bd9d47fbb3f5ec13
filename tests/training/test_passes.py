"""What the chunks of the embedding cache weigh."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult.models import Encoder, EncoderConfig, pack
from scimult.training.passes import activation_tokens, unfused_head_width


def kept_bytes(model: Encoder, texts: int, length: int) -> int:
    """Return the size of what a forward pass keeps for the way back, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        # Held until the end, so that no two storages have one address.
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    rows = [np.arange(length, dtype=np.int64) % 50 for _ in range(texts)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(pack(rows), 0).sum()
    return sum(t.untyped_storage().nbytes() for p, t in kept.items() if p not in weights)


@pytest.mark.parametrize("heads", [4, 12])
def test_texts_of_one_weight_need_the_same_memory(heads: int) -> None:
    model = Encoder(
        EncoderConfig(
            vocab_size=50,
            hidden_size=384,
            num_blocks=2,
            num_heads=heads,
            intermediate_size=1536,
            max_positions=512,
            dropout=0.1,
            attention_dropout=0.1,
        )
    )
    head_width = unfused_head_width(model, torch.device("cpu"))
    assert head_width == 384 // heads
    long, short = activation_tokens(np.array([512, 48]), head_width)
    texts = round(int(long) / int(short))
    # By tokens alone, the long text would need over three times its share with 12 heads.
    assert kept_bytes(model, 1, 512) == pytest.approx(kept_bytes(model, texts, 48), rel=0.1)


def test_fused_attention_keeps_nothing_for_pairs_of_tokens() -> None:
    lengths = np.array([3, 512])
    assert activation_tokens(lengths, None).tolist() == [3, 512]
