"""Every variant as a tiny random encoder, for the shared tests of variants."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from scimult.models import Encoder, EncoderConfig, variant_layouts

# For float64 values of order 1: thousands of roundings to 2**-53, amplified a thousand times.
FLOAT64 = 1e-10
ROUTES = 3
WIDTH = 24
LENGTHS = (9, 3, 30, 17, 17, 2, 24, 8)
ROUTE_OF_ROW = (2, 0, 1, 1, 2, 0, 0, 2)

# name -> (variant, options)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vanilla": ("vanilla", {}),
    "mha_expert": ("mha_expert", {}),
    "ffn_expert": ("ffn_expert", {}),
    "mha_ffn_expert": ("mha_ffn_expert", {"blocks": "last:3"}),
    "own norms": ("mha_ffn_expert", {"own_norm": True}),
    "shared norms": ("mha_ffn_expert", {"own_norm": False}),
    "instruction": ("instruction", {}),
    "experts, instructions": ("mha_ffn_expert", {"instructions": True}),
    "prefix": ("prefix", {}),
    "control codes": ("control_codes", {}),
    "control codes, CLS": ("control_codes", {"embed_at": "cls"}),
    "Pfeiffer adapters": ("adapters", {"width": 5}),
    "Houlsby adapters": ("adapters", {"width": 5, "placement": "houlsby"}),
    "fusion": ("fusion", {"width": 5}),
    "fusion, Houlsby": ("fusion", {"width": 5, "placement": "houlsby"}),
    "LoRA": ("lora", {"rank": 2}),
    "LoRA everywhere": (
        "lora",
        {"rank": 3, "targets": ["query", "key", "value", "output", "intermediate", "projection"]},
    ),
    "PALs": ("pals", {"width": 6, "heads": 2}),
    "PALs of the code": ("pals", {"width": 6, "heads": 2, "bias": True, "activation": "gelu"}),
}
INSTRUCTIONS = [np.array([1, 7, 9, 2]), np.array([1, 30, 31, 32, 33, 2]), np.array([1, 44, 2])]


def tiny_config(case: str, **changes: object) -> EncoderConfig:
    """Return the configuration of a case: four blocks, no dropout."""
    variant, options = CASES[case]
    sizes: dict[str, object] = {
        "vocab_size": 50,
        "hidden_size": WIDTH,
        "num_blocks": 4,
        "num_heads": 3,
        "intermediate_size": 40,
        "max_positions": 32,
        "initializer_range": 0.3,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    layouts = variant_layouts(variant, options, ROUTES, 4)
    return EncoderConfig.model_validate(sizes | layouts | changes)


def tiny_encoder(case: str, *, seed: int = 0, neutral: bool = False, **changes: object) -> Encoder:
    """Return an encoder with random weights everywhere, or initialised as for training."""
    model = Encoder(tiny_config(case, **changes))
    model.initialise(seed)
    if model.config.instructions is not None:
        model.set_instructions(INSTRUCTIONS)
    if not neutral:
        generator = torch.Generator().manual_seed(seed + 1)
        for parameter in model.parameters():
            change = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.data.add_(change)
    return model


def tiny_rows() -> list[np.ndarray]:
    """Return rows of token ids with the lengths ``LENGTHS``."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, 50, size=length) for length in LENGTHS]


def random_weights(*shape: int) -> torch.Tensor:
    """Return factors of the outputs, whose weighted sum is the loss, in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
