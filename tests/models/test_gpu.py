"""The encoder on a CUDA device against the CPU: padded attention in float32, packed in bfloat16."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from scimult.models import Encoder, EncoderConfig, pack, variant_layouts

pytestmark = pytest.mark.gpu
FAMILIES: dict[str, dict[str, object]] = {
    "bert": {},
    # Rows within the window of 16 on each side, within four windows, and beyond.
    "modernbert": {"token_types": 0, "modern": {"global_blocks": [0, 3], "local_window": 16}},
}
LENGTHS = (9, 3, 130, 17, 17, 1, 200, 8)
ROUTES = (2, 0, 1, 1, 2, 0, 0, 2)


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


def encoder(family: str) -> Encoder:
    sizes: dict[str, object] = {
        "family": family,
        "vocab_size": 100,
        "hidden_size": 128,
        "num_blocks": 4,
        "num_heads": 4,
        "intermediate_size": 256,
        "max_positions": 256,
        "initializer_range": 0.1,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        **variant_layouts("mha_expert", {}, 3, 4),
    }
    model = Encoder(EncoderConfig.model_validate(sizes | FAMILIES[family]))
    model.initialise(0)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # TF32 is off by default; bfloat16 has 8 bits, and hidden states are of order 1.
    [(torch.float32, 1e-4), (torch.bfloat16, 0.1)],
)
def test_device_gives_the_embeddings_and_gradients_of_the_cpu(
    cuda: torch.device, dtype: torch.dtype, tolerance: float, family: str
) -> None:
    rng = np.random.default_rng(0)
    texts = pack([rng.integers(0, 100, size=length) for length in LENGTHS])
    on_cpu = encoder(family)
    on_device = copy.deepcopy(on_cpu).to(cuda, dtype)
    expected = on_cpu(texts, ROUTES)
    embedded = on_device(texts.to(cuda), ROUTES)
    assert (embedded.float().cpu() - expected).abs().max() <= tolerance
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    (expected * weights).sum().backward()
    (embedded.float() * weights.to(cuda)).sum().backward()
    for (name, ours), theirs in zip(on_device.named_parameters(), on_cpu.parameters(), strict=True):
        assert ours.grad is not None, name
        assert theirs.grad is not None, name
        scale = float(theirs.grad.norm()) or 1.0
        difference = float((ours.grad.float().cpu() - theirs.grad).norm())
        assert difference <= tolerance * scale, name
