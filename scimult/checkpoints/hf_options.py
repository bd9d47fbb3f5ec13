"""Check options of a Hugging Face ``config.json``, for every architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scimult.errors import CheckpointError
from scimult.models.config import Activation

if TYPE_CHECKING:
    from torch import Tensor

HFConfig = dict[str, object]

# Hugging Face has several names and implementations of the same two functions.
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
HF_ACTIVATIONS: dict[Activation, str] = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}

# Our sizes under the names of every family.
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_blocks": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}


def require(hf_config: HFConfig, expected: Mapping[str, object], path: object) -> None:
    """Raise ``CheckpointError`` if an option is set to anything but the expected value."""
    for key, value in expected.items():
        if hf_config.get(key, value) != value:
            raise refusal(key, hf_config[key], repr(value), path)


def activation(hf_config: HFConfig, key: str, path: object) -> Activation:
    """Return our name of the activation under ``key`` (GELU if missing).

    Raises
    ------
    CheckpointError
        If it is not exact or tanh-approximated GELU.
    """
    name = str(hf_config.get(key, "gelu"))
    if name not in _ACTIVATIONS:
        raise refusal(key, name, f"one of {', '.join(_ACTIVATIONS)}", path)
    return _ACTIVATIONS[name]


def integer(hf_config: HFConfig, key: str, path: object) -> int:
    """Return the integer under ``key``; raise ``KeyError`` if it is missing.

    Raises
    ------
    CheckpointError
        If it is not an integer.
    """
    value = hf_config[key]
    if not isinstance(value, int):
        raise refusal(key, value, "an integer", path)
    return value


def refusal(key: str, value: object, accepted: str, path: object) -> CheckpointError:
    """Return the error for an option that our blocks do not support."""
    return CheckpointError(
        f"{key} of this checkpoint is not supported",
        path=path,  # type: ignore[arg-type]
        value=value,
        fix=f"use a checkpoint with {key} {accepted}",
    )


def encoder_only(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights of the encoder inside a model with heads, without ``prefix``.

    A model with a head keeps its encoder below a prefix (``bert.``); an encoder saved alone has
    none.
    """
    inside = {
        key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)
    }
    return inside or dict(weights)
