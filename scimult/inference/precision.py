"""Computation types by name, and the one that ``auto`` resolves to."""

from __future__ import annotations

import torch

from scimult.errors import ConfigError
from scimult.hardware import multiplies_bfloat16
from scimult.products import largest_weight

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
