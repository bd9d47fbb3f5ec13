"""Computation types by name, and the one that ``auto`` resolves to."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from scimult.errors import ConfigError
from scimult.hardware import multiplies_bfloat16, without_autocast
from scimult.models import Encoder, pack
from scimult.models.blocks import Attention
from scimult.models.modern import ModernAttention
from scimult.products import largest_weight, round_linears

Model = TypeVar("Model", bound=nn.Module)
# Rows of random tokens, and their length, from which int8 takes its ranges.
_ROWS, _LENGTH = 8, 32
AUTO, TF32, INT8 = "auto", "tf32", "int8"
DTYPES = {
    "float32": torch.float32,
    TF32: torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    INT8: torch.float32,
}


def resolve_dtype(dtype: str, device: torch.device) -> str:
    """Return the type that ``auto`` resolves to on a device; any other type unchanged.

    Raises
    ------
    ConfigError
        If the type is ``tf32`` and the device is not a GPU, or ``int8`` and it is not a CPU with
        such products.
    """
    if dtype == TF32 and device.type != "cuda":
        fix = "use float32, bfloat16 or auto"
        raise ConfigError(f"tf32 needs a GPU, not {device}", value=dtype, fix=fix)
    if dtype == INT8 and (device.type != "cpu" or largest_weight() is None):
        fix = "use auto, or a CPU with torch's oneDNN operators"
        raise ConfigError(f"int8 products are not available on {device}", value=dtype, fix=fix)
    if dtype != AUTO:
        return dtype
    return "bfloat16" if multiplies_bfloat16(device) else "float32"


def converted(model: Model, device: torch.device, dtype: torch.dtype) -> Model:
    """Return a model on a device in a type: itself, or a copy if that changes its weights."""
    weights = {id(weight): weight.detach().to(device, dtype) for weight in model.parameters()}
    if all(weights[id(one)].data_ptr() == one.data_ptr() for one in model.parameters()):
        return model
    return _copy(model, {key: nn.Parameter(weight) for key, weight in weights.items()})


def rounded_copy(model: Encoder, largest: int) -> Encoder:
    """Return a copy of a float32 model whose linears multiply bytes; see `round_linears`.

    Tokens attend in bfloat16 where the CPU multiplies it, which costs less than the rounding. The
    copy shares the weights, which stay: the model itself still computes in float32.
    """
    copied = _copy(model, {id(weight): weight for weight in model.parameters()})
    round_linears(copied, largest, _input_ranges(copied))
    if multiplies_bfloat16(torch.device("cpu")):
        for part in copied.modules():
            if isinstance(part, Attention | ModernAttention):
                part.attends_in = torch.bfloat16
    return copied


def _input_ranges(model: Encoder) -> dict[nn.Linear, Tensor]:
    """Return the largest inputs by column of the layers that make queries, keys and values.

    There a few columns are many times as large as the others, in any text: random tokens tell them
    apart. Rounding the other layers costs little, and their columns vary with the text.
    """
    ranges: dict[nn.Linear, Tensor] = {}

    def record(linear: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(linear, nn.Linear)
        largest_D = inputs[0].detach().abs().flatten(0, -2).amax(dim=0)
        ranges[linear] = torch.maximum(largest_D, ranges.get(linear, largest_D))

    parts = [part for part in model.modules() if isinstance(part, Attention | ModernAttention)]
    inner = [one for part in parts for one in part.qkv.modules() if isinstance(one, nn.Linear)]
    hooks = [linear.register_forward_pre_hook(record) for linear in inner]
    config = model.config
    routes = [row % config.num_routes for row in range(max(_ROWS, 2 * config.num_routes))]
    shape = len(routes), min(_LENGTH, config.max_text_length)
    tokens = np.random.default_rng(0).integers(config.vocab_size, size=shape)
    with torch.no_grad(), without_autocast(torch.device("cpu")):
        model(pack(list(tokens)), routes)
    for hook in hooks:
        hook.remove()
    return ranges


def _copy(model: Model, weights: Mapping[int, nn.Parameter]) -> Model:
    """Copy a model with other weights, by the ids of its own."""
    copied = copy.deepcopy(model, dict(weights))
    # Packed linears have a ``forward`` of their own, for other weights.
    for part in copied.modules():
        vars(part).pop("forward", None)
    return copied
