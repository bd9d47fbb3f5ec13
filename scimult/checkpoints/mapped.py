"""Memory-map the weights of a safetensors file as arrays, without torch.

The safetensors library copies every array and has no bfloat16 for NumPy. The format is the length
of a JSON header in eight bytes, the header, and the numbers.
"""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.errors import CheckpointError
from scimult.types import FloatArray

_HEAD = 8
# NumPy has no bfloat16: read as uint16, the upper halves of float32 numbers.
_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8", "I32": "<i4"}


def map_weights(path: Path) -> dict[str, FloatArray]:
    """Return the arrays of a file by name, as float32; stored float32 is not read yet.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is damaged, or has numbers of an unsupported type.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = _HEAD + int.from_bytes(mapped[:_HEAD], "little")
        header = json.loads(mapped[_HEAD:start])
        header.pop("__metadata__", None)
        return {name: _array(mapped, start, facts) for name, facts in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        fix = "copy or download it again"
        raise CheckpointError(f"cannot map the weights: {error}", path=path, fix=fix) from error


def _array(mapped: mmap.mmap, start: int, facts: dict[str, Any]) -> FloatArray:
    first, last = facts["data_offsets"]
    dtype, shape = np.dtype(_TYPES[facts["dtype"]]), facts["shape"]
    count = math.prod(shape)
    if first < 0 or last - first != count * dtype.itemsize:
        raise ValueError(f"{last - first} bytes for shape {shape}")
    stored: NDArray[Any] = np.frombuffer(mapped, dtype, count, start + first).reshape(shape)
    if facts["dtype"] == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)
