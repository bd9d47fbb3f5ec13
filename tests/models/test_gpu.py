"""The encoder on a CUDA device against the CPU: padded attention in float32, packed in bfloat16.

Nothing else runs torch's packed kernel; `test_packed_attention.py` shows what can be without.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult.models import Encoder, EncoderConfig, PackedTexts, pack, variant_layouts
from scimult.models.compiled import compile_blocks
from scimult.models.packed_attention import reads_packed_rows

pytestmark = pytest.mark.gpu
# name -> (variant, options, changes)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, object]]] = {
    "bert": ("mha_expert", {}, {}),
    # Rows within the window of 16 on each side, within four windows, and beyond.
    "modernbert": (
        "mha_expert",
        {},
        {
            "family": "modernbert",
            "token_types": 0,
            "modern": {"global_blocks": [0, 3], "local_window": 16},
        },
    ),
    # Heads of 17, as in PALs of BERT-base; the kernel takes multiples of 8.
    "pals": ("pals", {"width": 34, "heads": 2}, {}),
    # Heads of 26 in the blocks themselves, as in TinyBERT.
    "width 26": ("mha_expert", {}, {"hidden_size": 104}),
}
LENGTHS = (9, 3, 130, 17, 17, 1, 200, 8)
ROUTES = (2, 0, 1, 1, 2, 0, 0, 2)


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


def encoder(case: str, **more: object) -> Encoder:
    variant, options, changes = CASES[case]
    sizes: dict[str, object] = {
        "vocab_size": 100,
        "hidden_size": 128,
        "num_blocks": 4,
        "num_heads": 4,
        "intermediate_size": 256,
        "max_positions": 256,
        "initializer_range": 0.1,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    layouts = variant_layouts(variant, options, 3, 4)
    model = Encoder(EncoderConfig.model_validate(sizes | layouts | changes | more))
    model.initialise(0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "pal" in name:  # else they would begin as nothing
            parameter.data.normal_(0, 0.1, generator=generator)
    return model


def texts() -> PackedTexts:
    rng = np.random.default_rng(0)
    return pack([rng.integers(0, 100, size=length) for length in LENGTHS])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # TF32 is off by default; bfloat16 has 8 bits, and hidden states are of order 1.
    [(torch.float32, 1e-4), (torch.bfloat16, 0.1)],
)
def test_device_gives_the_embeddings_and_gradients_of_the_cpu(
    cuda: torch.device, dtype: torch.dtype, tolerance: float, case: str
) -> None:
    on_cpu = encoder(case)
    on_device = copy.deepcopy(on_cpu).to(cuda, dtype)
    expected = on_cpu(texts(), ROUTES)
    embedded = on_device(texts().to(cuda), ROUTES)
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


@pytest.mark.parametrize("recompute", [False, True])
def test_attention_dropout_follows_the_seed_both_ways(cuda: torch.device, recompute: bool) -> None:
    if not reads_packed_rows(cuda, torch.bfloat16, 32):
        pytest.skip("a card without the packed kernel")
    model = encoder("bert", attention_dropout=0.3).to(cuda, torch.bfloat16)
    model.checkpoints_activations = recompute
    where = texts().to(cuda)

    def embedded_and_gradient(seed: int) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        torch.manual_seed(seed)
        embedded = model(where, ROUTES)
        embedded.float().square().sum().backward()
        # Those of the last block: before it, only the kernel sums atomically.
        gradient = model.blocks[-1].attention.output.experts[0].weight.grad
        assert gradient is not None
        return embedded.detach(), gradient.clone()

    once, again, other = (embedded_and_gradient(seed) for seed in (5, 5, 6))
    assert torch.equal(once[0], again[0])
    assert torch.equal(once[1], again[1])
    assert not torch.equal(once[0], other[0])
    model.eval()
    assert torch.equal(model(where, ROUTES), model(where, ROUTES))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_host_waits_for_nothing(cuda: torch.device, dtype: torch.dtype, case: str) -> None:
    model = encoder(case, dropout=0.1, attention_dropout=0.1).to(cuda, dtype)

    def step() -> None:
        model(texts().to(cuda), ROUTES).float().sum().backward()

    step()  # what is loaded at first use may wait
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("case", ["bert", "modernbert"])
def test_a_compiled_first_pass_draws_the_masks_of_the_second(cuda: torch.device, case: str) -> None:
    """Of an embedding cache: without gradients it is another graph."""
    model = encoder(case, dropout=0.3, attention_dropout=0.3).to(cuda, torch.bfloat16)
    compile_blocks(model)
    where = texts().to(cuda)
    torch.manual_seed(1)
    with torch.no_grad():
        first = model(where, ROUTES).float()
    torch.manual_seed(1)
    second = model(where, ROUTES).float()
    assert (first - second).abs().max() <= 0.1
    assert (model(where, ROUTES).float() - second).abs().max() > 0.5
