"""A second device with numbers, on the host: tensors say ``meta`` and compute on the CPU.

An operation that mixes both devices is an error, as with a GPU; indices may come from the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

FAR = torch.device("meta")
_MAY_MIX = ("aten::copy", "aten::_to_copy", "aten::index.", "aten::_index_put")


class _FarTensor(Tensor):
    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> _FarTensor:
        far: _FarTensor = Tensor._make_wrapper_subclass(
            cls, near.shape, strides=near.stride(), dtype=near.dtype, device=FAR
        )
        far.near = near
        return far

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class FarDevice(TorchDispatchMode):
    """Creates tensors for `FAR` that compute."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    far = [x for x in tensors if isinstance(x, _FarTensor)]
    near = [x for x in tensors if not isinstance(x, _FarTensor) and x.ndim]
    if far and near and not func.name().startswith(_MAY_MIX):
        raise RuntimeError(f"{func.name()} mixes devices")
    device = kwargs.get("device")
    stays_far = bool(far) if device is None else torch.device(device) == FAR
    here = {} if device is None else {"device": torch.device("cpu")}
    output = func(*tree_map(_near, args), **tree_map(_near, {**kwargs, **here}))
    same = {id(x.near): x for x in far}

    def back(x: Any) -> Any:
        if not stays_far or not isinstance(x, Tensor):
            return x
        return same[id(x)] if id(x) in same else _FarTensor(x)

    return tree_map(back, output)


def _near(x: Any) -> Any:
    return x.near if isinstance(x, _FarTensor) else x
