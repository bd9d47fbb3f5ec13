"""Read pickled checkpoints lazily and without running their code.

PyTorch's restricted unpickler builds only tensors, plain containers and classes on an allow-list.
Ours maps the names of OmegaConf's classes to empty stubs, so that files with such objects open
without OmegaConf, and none of its code runs.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scimult.errors import CheckpointError


class _Stub:
    """Replaces a class named in a pickle: keeps the state, has no behaviour."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def _stub(name: str) -> tuple[type[_Stub], str]:
    return type(name.rpartition(".")[2], (_Stub,), {}), name


_NODES = "Any Boolean Bytes Enum Float Integer Path String Union"
# Names in pickled OmegaConf configurations of versions 2.0 to 2.4.
OMEGACONF: tuple[tuple[type, str], ...] = (
    *(
        _stub(f"omegaconf.{name}")
        for name in (
            "dictconfig.DictConfig",
            "listconfig.ListConfig",
            "base.Metadata",
            "base.ContainerMetadata",
            "base.UnionNode",
            *(f"nodes.{kind}Node" for kind in _NODES.split()),
        )
    ),
    _stub("typing.Any"),
    _stub("typing.Union"),
    _stub("collections.defaultdict"),
    *((kind, f"builtins.{kind.__name__}") for kind in (bool, dict, float, int, list, str)),
)


def load_pickle(path: Path, allowed: tuple[tuple[type, str], ...] = ()) -> Any:
    """Read a ``torch.save`` file with memory-mapped tensors.

    A tensor's bytes are read on first use (PyTorch's format before version 1.6 cannot be mapped
    and is read whole). ``allowed`` are classes in addition to tensors and plain containers, with
    their full names in the file.

    Raises
    ------
    CheckpointError
        If the file does not exist, is damaged, or refers to anything else.
    """
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "file does not exist"
        raise CheckpointError(problem, path=path, fix="give the pickled file")
    try:
        with torch.serialization.safe_globals(list(allowed)):
            return torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    # Unpickling arbitrary bytes can fail in any of these ways.
    except (
        pickle.UnpicklingError,
        struct.error,
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        AssertionError,
    ) as error:
        reference = re.search(r"GLOBAL ([\w.]+)", str(error))
        if reference is not None:
            raise CheckpointError(
                "refused: the file holds more than tensors and refers to a function or class "
                "that could run code",
                path=path,
                value=reference[1],
                fix="convert it to safetensors where you trust it",
            ) from error
        raise CheckpointError(
            f"file is damaged or holds more than tensors{_detail(error)}",
            path=path,
            fix="copy or download it again",
        ) from error


def check_sums(path: Path) -> None:
    """Check the checksums within a ``torch.save`` file, which torch ignores; reads all of it.

    PyTorch's format before version 1.6 has none.

    Raises
    ------
    CheckpointError
        If one differs.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            problem = f"file is damaged: {damaged} has another checksum"
            raise CheckpointError(problem, path=path, fix="copy or download it again")


def plain(value: object) -> Any:
    """Convert stubs of OmegaConf objects to dicts, lists and values."""
    if isinstance(value, _Stub):
        content = value.__dict__.get("_content", value.__dict__.get("_val"))
        return plain(content)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str)) else None


def tensor_bytes(value: object) -> int:
    """Return the total size of the tensors inside nested containers without reading them."""
    return sum(tensor.nbytes for tensor in _tensors(value))


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _detail(error: Exception) -> str:
    """Return the reason, unless it is torch's, which advises to load unsafely."""
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return ""
    return f": {str(error).partition(chr(10))[0] or type(error).__name__}"
