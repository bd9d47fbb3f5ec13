"""Write weight files, read them safely, and load them strictly into a module."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from scimult.checkpoints.pickles import load_pickle
from scimult.disk_space import naming_failed_writes
from scimult.errors import CheckpointError
from scimult.files import read_json
from scimult.models import Encoder, EncoderConfig
from scimult.terminal import listed

WEIGHTS_FILE = "model.safetensors"


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Write ``model.safetensors`` in float32.

    Raises
    ------
    CheckpointError
        If a weight is infinite or not a number.
    OSError
        If the disk is full or the folder cannot be written.
    """
    check_finite(weights)
    tensors = {key: value.detach().float().contiguous() for key, value in weights.items()}
    write_tensors(folder / WEIGHTS_FILE, tensors)


def check_finite(weights: Mapping[str, Tensor], kind: str = "a weight") -> None:
    """Check that a model computes something.

    Raises
    ------
    CheckpointError
        If a weight is infinite or not a number, with its name.
    """
    bad = [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]
    if bad:
        fix = "check the model it comes from: its training failed, or its file is damaged"
        raise CheckpointError(f"{kind} is not finite", value=bad[0], fix=fix)


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors and their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file.

    Raises
    ------
    StorageError
        If the disk is full or the folder cannot be written.
    """
    with naming_failed_writes(path):
        path.touch()
        mode = path.stat().st_mode
        save_file(tensors, path, metadata={"format": "pt"})
        # safetensors creates files that only their owner can read.
        path.chmod(mode)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises
    ------
    CheckpointError
        If it does not exist or is damaged.
    UnicodeEncodeError
        If its path is not UTF-8.
    """
    str(path).encode()  # safetensors takes no other path, and would call the file damaged
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        problem, fix = f"file is damaged or not safetensors: {error}", "copy or download it again"
        if path.exists() and not os.access(path, os.R_OK):  # to safetensors, it does not exist
            problem, fix = "file may not be read", "check its permissions"
        raise CheckpointError(problem, path=path, fix=fix) from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read ``model.safetensors`` or ``pytorch_model.bin`` of a folder, without running code.

    Hugging Face's shards of either are read, too.

    Raises
    ------
    CheckpointError
        If there is none, if a file is damaged or absent, or if a pickle holds anything but tensors.
    """
    weights: dict[str, Tensor] = {}
    for file in weights_files(folder):
        weights |= read_weights_file(file)
    if not weights:
        raise CheckpointError(
            "no weights here", path=folder, fix="expected model.safetensors or pytorch_model.bin"
        )
    return weights


def weights_files(folder: Path) -> list[Path]:
    """Return the files that hold a model's weights: one or the shards of an index, or none.

    Raises
    ------
    CheckpointError
        If an index is damaged.
    """
    for name in (WEIGHTS_FILE, "pytorch_model.bin"):
        if (folder / name).exists():
            return [folder / name]
        if (index := folder / f"{name}.index.json").is_file():
            return _shards(index)
    return []


def _shards(index: Path) -> list[Path]:
    """Return the shards of an index, which names the file of every tensor."""
    content = read_json(index)
    files = content.get("weight_map") if isinstance(content, dict) else None
    # A name from outside must not lead out of the folder.
    if not isinstance(files, dict) or not all(
        isinstance(file, str) and file == Path(file).name for file in files.values()
    ):
        fix = "copy or download the folder again"
        raise CheckpointError("names no files of this folder by weight", path=index, fix=fix)
    shards = [index.parent / file for file in sorted(set(files.values()))]
    if absent := [shard.name for shard in shards if not os.path.isfile(shard)]:
        problem, fix = "a file that it names is not here", "copy or download the folder again"
        raise CheckpointError(problem, path=index, value=absent[0], fix=fix)
    return shards


def read_weights_file(path: Path) -> dict[str, Tensor]:
    """Read a file of tensors by name, safetensors or pickled, without running code.

    Raises
    ------
    CheckpointError
        If it is damaged, or if the pickle holds anything but tensors.
    """
    if path.suffix == ".safetensors":
        return read_tensors(path)
    weights = load_pickle(path)
    named = weights if isinstance(weights, dict) else {}
    odd = [key for key, value in named.items() if not (isinstance(key, str) and is_dense(value))]
    if odd or not isinstance(weights, dict):
        raise CheckpointError(
            "file holds more than dense tensors by name",
            path=path,
            value=listed(sorted(map(str, odd)), most=4) if odd else type(weights).__name__,
            fix="save the model's state_dict, or import a SciMult file with import --released",
        )
    return weights


def is_dense(value: object) -> bool:
    """Return whether a value is a tensor that stores its numbers one by one."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not (value.is_quantized or value.is_meta)
    )


def empty_model(config: EncoderConfig) -> Encoder:
    """Return an encoder on the meta device, for `load_strictly` with ``assign``."""
    with torch.device("meta"), _SkipInit():
        return Encoder(config)


class _SkipInit(TorchFunctionMode):
    """Skips weight initialisation, for which torch would import its compiler on "meta"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def load_strictly(
    model: nn.Module, weights: dict[str, Tensor], path: Path | str, *, assign: bool = False
) -> None:
    """Copy ``weights`` into ``model``; keys and shapes must match exactly, in any float type.

    With ``assign`` the tensors themselves become the model's, in float32: memory-mapped ones stay
    so, and the model may be on the meta device.

    Raises
    ------
    CheckpointError
        Listing missing, extra and mis-shaped keys, and those of integers, such as quantised ones.
    """
    expected = model.state_dict()
    missing = sorted(expected.keys() - weights.keys())
    extra = sorted(weights.keys() - expected.keys())
    shared = sorted(expected.keys() & weights.keys())
    shapes = [
        f"{key} {tuple(weights[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in shared
        if weights[key].shape != expected[key].shape
    ]
    types = [
        f"{key} {weights[key].dtype}" for key in shared if not weights[key].is_floating_point()
    ]
    problems = {"missing": missing, "unexpected": extra, "shape": shapes, "type": types}
    if any(problems.values()):
        details = [f"{what}: {listed(keys, most=4)}" for what, keys in problems.items() if keys]
        raise CheckpointError(
            "checkpoint does not fit the model: " + "; ".join(details),
            path=path,
            fix="use a checkpoint whose architecture, size and expert layout match the config",
        )
    if assign:
        weights = {key: weight.float() for key, weight in weights.items()}
    model.load_state_dict(weights, assign=assign)
