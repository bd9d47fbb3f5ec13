"""Embed one text with numpy alone.

Importing torch takes longer than a search, so a process that answers a single query embeds it
here; everything else uses `scimult.models.encoder.Encoder`, against which this is tested.
Blocks of BERT, RoBERTa and XLM-R are covered, shared or with experts.

Shape legend: T tokens, D width, H heads, K width of a head, F width inside the feed-forward layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from scimult.models.config import EncoderConfig
from scimult.types import FloatArray, TokenIds

Weights = Mapping[str, FloatArray]
"""An encoder's weights by parameter name, float32; they may be memory-mapped."""

# Settings that are supported here, and those that only training reads.
_SUPPORTED = frozenset(
    "family vocab_size hidden_size num_blocks num_heads intermediate_size max_positions "
    "position_offset token_types activation norm_eps pooling pooling_position dims experts".split()
)
_FOR_TRAINING = frozenset(("dropout", "attention_dropout", "initializer_range"))
# The normal distribution function is tabulated from -6 to 6 with 2,048 values per unit: by its
# second derivative, linear interpolation is off by at most 0.242 / (8 * 2048 ** 2) = 7e-9.
_END, _STEPS = 6, 1 << 11


def is_covered(config: EncoderConfig) -> bool:
    """Return whether this module supports an encoder: all other settings are at their defaults."""
    return config.family != "modernbert" and all(
        name in _SUPPORTED
        or name in _FOR_TRAINING
        or getattr(config, name) == field.get_default(call_default_factory=True)
        for name, field in EncoderConfig.model_fields.items()
    )


def embedding_of(
    tokens_T: TokenIds, config: EncoderConfig, weights: Weights, route: int = 0
) -> FloatArray:
    """Return the embedding of one text, shape ``(D,)``, as ``Encoder`` computes it in float32.

    Parameters
    ----------
    tokens_T : array of int
        Token ids, special tokens included; at most ``config.max_positions``.
    config : EncoderConfig
        An architecture for which `is_covered` holds.
    weights : mapping of str to array
        Weights of an encoder of this architecture.
    route : int
        The route whose experts are used.
    """
    assert is_covered(config), "numpy does not support this encoder"
    x_TD = _embed(tokens_T, config, weights)
    for number in range(config.num_blocks):
        x_TD = _attend(x_TD, config, weights, number, route)
        x_TD = _feed_forward(x_TD, config, weights, number, route)
    return _pool(x_TD, config)[: config.width]


def _embed(tokens_T: TokenIds, config: EncoderConfig, weights: Weights) -> FloatArray:
    rows_T = np.arange(len(tokens_T)) + config.position_offset
    if config.position_offset:
        # As in `Embeddings`: a padding token inside a text is not counted.
        pads_T = np.asarray(tokens_T) == config.position_offset - 1
        rows_T = np.where(pads_T, config.position_offset - 1, rows_T - pads_T.cumsum())
    x_TD: FloatArray = weights["embeddings.words.weight"][tokens_T]
    x_TD = x_TD + weights["embeddings.positions.weight"][rows_T]
    if config.token_types:
        x_TD = x_TD + weights["embeddings.token_types.weight"][0]
    return _normalise(x_TD, config, weights, "embeddings.norm")


def _attend(
    x_TD: FloatArray, config: EncoderConfig, weights: Weights, number: int, route: int
) -> FloatArray:
    """Apply a block's attention, with residual and LayerNorm."""
    name = f"blocks.{number}.attention"
    expert = route if config.expert_count(number, "attention") > 1 else 0
    heads, (count, width) = config.num_heads, x_TD.shape
    qkv_TE = _linear(x_TD, weights, f"{name}.qkv.experts.{expert}")
    q_HTK, k_HTK, v_HTK = qkv_TE.reshape(count, 3, heads, width // heads).transpose(1, 2, 0, 3)
    scores_HTT = q_HTK @ k_HTK.transpose(0, 2, 1) / np.float32(math.sqrt(width // heads))
    read_HTK = _softmax(scores_HTT) @ v_HTK
    mixed_TD = read_HTK.transpose(1, 0, 2).reshape(count, width)
    h_TD = _linear(mixed_TD, weights, f"{name}.output.experts.{expert}")
    several = config.norm_count(number, "attention") > 1
    norm = f"{name}.norm.experts.{route}" if several else f"{name}.norm"
    return _normalise(x_TD + h_TD, config, weights, norm)


def _feed_forward(
    x_TD: FloatArray, config: EncoderConfig, weights: Weights, number: int, route: int
) -> FloatArray:
    """Apply a block's feed-forward layer, with residual and LayerNorm."""
    experts = config.expert_count(number, "feed_forward")
    name = f"blocks.{number}.feed_forward.experts.{route if experts > 1 else 0}"
    inner_TF = _linear(x_TD, weights, f"{name}.intermediate")
    inner_TF = gelu_tanh(inner_TF) if config.activation == "gelu_tanh" else gelu(inner_TF)
    h_TD = _linear(inner_TF, weights, f"{name}.output")
    own = experts == config.norm_count(number, "feed_forward")
    norm = f"{name}.norm" if own else f"blocks.{number}.feed_forward_norm"
    return _normalise(x_TD + h_TD, config, weights, norm)


def _pool(x_TD: FloatArray, config: EncoderConfig) -> FloatArray:
    if config.pooling == "mean":
        mean_D: FloatArray = x_TD.mean(axis=0)
        return mean_D
    at = config.pooling_position if config.pooling == "position" else 0
    state_D: FloatArray = x_TD[min(at, len(x_TD) - 1) if at >= 0 else max(0, len(x_TD) + at)]
    return state_D


def _linear(x_TD: FloatArray, weights: Weights, name: str) -> FloatArray:
    y_TD: FloatArray = x_TD @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return y_TD


def _normalise(x_TD: FloatArray, config: EncoderConfig, weights: Weights, name: str) -> FloatArray:
    """Apply LayerNorm (Ba et al., 2016)."""
    x_TD = x_TD - x_TD.mean(axis=1, keepdims=True)
    variance_T1 = np.square(x_TD).mean(axis=1, keepdims=True)
    deviation_T1: FloatArray = np.sqrt(variance_T1 + np.float32(config.norm_eps))
    normed_TD: FloatArray = (
        x_TD / deviation_T1 * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    )
    return normed_TD


def _softmax(scores_HTT: FloatArray) -> FloatArray:
    powers_HTT: FloatArray = np.exp(scores_HTT - scores_HTT.max(axis=-1, keepdims=True))
    sums_HT1: FloatArray = powers_HTT.sum(axis=-1, keepdims=True)
    shares_HTT: FloatArray = powers_HTT / sums_HT1
    return shares_HTT


def gelu(x: FloatArray) -> FloatArray:
    """Return ``x Φ(x)`` with the normal distribution function Φ (Hendrycks, Gimpel, 2016)."""
    grid, values = _distribution()
    return x * np.interp(x, grid, values, left=0.0, right=1.0).astype(np.float32)


def gelu_tanh(x: FloatArray) -> FloatArray:
    """Return `gelu` as approximated by the hyperbolic tangent (ibid.)."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    y: FloatArray = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


@cache
def _distribution() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    grid = np.arange(-_END * _STEPS, _END * _STEPS + 1) / _STEPS
    return grid, np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in grid.tolist()])
