"""Types of the computation by name, and the one that ``auto`` stands for."""

from __future__ import annotations

import torch

from scimult.errors import ConfigError
from scimult.hardware import multiplies_bfloat16

AUTO, TF32 = "auto", "tf32"
DTYPES = {
    "float32": torch.float32,
    TF32: torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def resolve_dtype(dtype: str, device: torch.device) -> str:
    """Return the type that ``auto`` stands for on a device; any other one as it is.

    Raises
    ------
    ConfigError
        If it is ``tf32`` and the device is no GPU.
    """
    if dtype == TF32 and device.type != "cuda":
        fix = "use float32, bfloat16 or auto"
        raise ConfigError(f"only GPUs have products in tf32, not {device}", value=dtype, fix=fix)
    if dtype != AUTO:
        return dtype
    return "bfloat16" if multiplies_bfloat16(device) else "float32"
