"""Watch the operators that torch runs on a device."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_COPIES = ("_to_copy", "copy_")


class CountOperators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class NoBlockingCopies(TorchDispatchMode):
    """Counts copies from host to device, and fails where the host would wait for one.

    That is: at a copy that is not asked to be ``non_blocking``, and at an operator that gets
    tensors of both, one of which torch would copy by itself. Single numbers go along with the
    call. What reads a number back fails on the meta device anyway.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = func(*args, **kwargs)
        host = [tensor for tensor in given if tensor.device.type == "cpu" and tensor.dim()]
        on_device = [x for x in [*given, result] if isinstance(x, Tensor) and _is_elsewhere(x)]
        if host and on_device:
            shapes = [tuple(tensor.shape) for tensor in host]
            assert name in _COPIES, f"{name} copies {shapes} from the host by itself"
            waits = not (kwargs.get("non_blocking") or True in args[2:])
            assert not waits, f"the host waits for a copy of {shapes}"
            self.copies += 1
        return result


def _is_elsewhere(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"
