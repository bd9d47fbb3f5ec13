"""Convert configs and weights of a Hugging Face ModernBERT to and from ours.

Its joined query-key-value and feed-forward layers are in our order; only names differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scimult.checkpoints.hf_options import (
    HF_ACTIVATIONS,
    SIZES,
    HFConfig,
    activation,
    encoder_only,
    integer,
    refusal,
)
from scimult.models.config import EncoderConfig, ModernLayout, Pooling

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "model."
_OUTER = {
    "embeddings.words": "embeddings.tok_embeddings",
    "embeddings.norm": "embeddings.norm",
    "final_norm": "final_norm",
}
_BLOCK = {
    "attention.norm": "attn_norm",
    "attention.qkv.experts.0": "attn.Wqkv",
    "attention.output.experts.0": "attn.Wo",
    "feed_forward.experts.0.norm": "mlp_norm",
    "feed_forward.experts.0.intermediate": "mlp.Wi",
    "feed_forward.experts.0.output": "mlp.Wo",
}
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def modernbert_config(hf_config: HFConfig, pooling: Pooling, path: object) -> EncoderConfig:
    """Translate the ``config.json`` of a ModernBERT checkpoint, with old or new keys.

    Raises
    ------
    CheckpointError
        If it uses an option that our blocks do not support.
    """
    dropout = hf_config.get("mlp_dropout", 0.0)
    if hf_config.get("embedding_dropout", 0.0) != dropout:
        accepted = f"{dropout!r} like mlp_dropout"
        raise refusal("embedding_dropout", hf_config["embedding_dropout"], accepted, path)
    return EncoderConfig.model_validate(
        {
            "family": "modernbert",
            **{ours: hf_config[theirs] for ours, theirs in SIZES.items()},
            "max_positions": hf_config["max_position_embeddings"],
            "token_types": 0,
            "activation": activation(hf_config, "hidden_activation", path),
            "norm_eps": hf_config.get("norm_eps", 1e-5),
            "dropout": dropout,
            "attention_dropout": hf_config.get("attention_dropout", 0.0),
            "initializer_range": hf_config.get("initializer_range", 0.02),
            "pooling": pooling,
            "modern": {
                "global_blocks": _global_blocks(hf_config, path),
                # A window of 128 tokens is 64 on each side, without the token itself.
                "local_window": integer(
                    {"local_attention": 128} | hf_config, "local_attention", path
                )
                // 2,
                "global_theta": _theta(hf_config, _GLOBAL, "global_rope_theta", 160_000.0, path),
                "local_theta": _theta(hf_config, _LOCAL, "local_rope_theta", 10_000.0, path),
                "attention_bias": hf_config.get("attention_bias", False),
                "feed_forward_bias": hf_config.get("mlp_bias", False),
                "norm_bias": hf_config.get("norm_bias", False),
            },
        }
    )


def to_modernbert_config(config: EncoderConfig) -> HFConfig:
    """Return the ``config.json`` of the equivalent ``transformers.ModernBertModel``.

    It has the keys of transformers 5 and those of older versions, which would otherwise silently
    use their defaults.
    """
    modern = config.modern
    assert modern is not None, "family is not modernbert"
    kinds = [
        _GLOBAL if block in modern.global_blocks else _LOCAL for block in range(config.num_blocks)
    ]
    hf_config: HFConfig = {
        "model_type": "modernbert",
        "architectures": ["ModernBertModel"],
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "max_position_embeddings": config.max_positions,
        "hidden_activation": HF_ACTIVATIONS[config.activation],
        "norm_eps": config.norm_eps,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "layer_types": kinds,
        "local_attention": 2 * modern.local_window,
        "rope_parameters": {
            _GLOBAL: {"rope_type": "default", "rope_theta": modern.global_theta},
            _LOCAL: {"rope_type": "default", "rope_theta": modern.local_theta},
        },
        "global_rope_theta": modern.global_theta,
        "local_rope_theta": modern.local_theta,
        "attention_bias": modern.attention_bias,
        "mlp_bias": modern.feed_forward_bias,
        "norm_bias": modern.norm_bias,
        # The defaults are ids in the published vocabulary, which ours may lack.
        **{f"{name}_token_id": None for name in ("bos", "eos", "cls", "sep", "pad")},
    }
    if (every := _period(modern, config.num_blocks)) is not None:
        hf_config["global_attn_every_n_layers"] = every
    return hf_config


def from_modernbert(weights: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Rename ModernBERT weights to ours; unknown keys stay, so that loading reports them.

    Accepts the encoder alone or inside a model with heads (prefix ``model.``).
    """
    names = {theirs: ours for ours, theirs in _pairs(config.num_blocks)}
    return {names.get(key, key): value for key, value in encoder_only(weights, PREFIX).items()}


def to_modernbert(weights: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Rename a vanilla encoder's weights to those of ``transformers.ModernBertModel``."""
    return {theirs: weights[ours] for ours, theirs in _pairs(config.num_blocks) if ours in weights}


def _pairs(num_blocks: int) -> list[tuple[str, str]]:
    """Return our and their name of every weight and bias, in any setting."""
    modules = list(_OUTER.items())
    for block in range(num_blocks):
        modules += [(f"blocks.{block}.{a}", f"layers.{block}.{b}") for a, b in _BLOCK.items()]
    return [(f"{a}.{kind}", f"{b}.{kind}") for a, b in modules for kind in ("weight", "bias")]


def _global_blocks(hf_config: HFConfig, path: object) -> list[int]:
    kinds = hf_config.get("layer_types")
    blocks = integer(hf_config, "num_hidden_layers", path)
    if kinds is None:
        every = integer(
            {"global_attn_every_n_layers": 3} | hf_config, "global_attn_every_n_layers", path
        )
        if every < 1:
            raise refusal("global_attn_every_n_layers", every, "1 or more", path)
        return list(range(0, blocks, every))
    known = isinstance(kinds, list) and all(kind in (_GLOBAL, _LOCAL) for kind in kinds)
    if not isinstance(kinds, list) or len(kinds) != blocks or not known:
        raise refusal("layer_types", kinds, f"{_GLOBAL} or {_LOCAL} for each block", path)
    return [block for block, kind in enumerate(kinds) if kind == _GLOBAL]


def _theta(hf_config: HFConfig, kind: str, old_key: str, default: float, path: object) -> object:
    """Return the rotary base of one kind of block; raise for scaled or partial rotations."""
    if hf_config.get("rope_scaling") is not None:
        raise refusal("rope_scaling", hf_config["rope_scaling"], "null", path)
    rotary = hf_config.get("rope_parameters") or {}
    own = rotary.get(kind) or {} if isinstance(rotary, dict) else None
    plain = {"rope_type": "default", "rope_theta": 0}
    if not isinstance(own, dict) or plain | own | {"rope_theta": 0} != plain:
        accepted = "of rope_type 'default' with rope_theta alone"
        raise refusal(f"rope_parameters.{kind}", own, accepted, path)
    return own.get("rope_theta", hf_config.get(old_key, default))


def _period(modern: ModernLayout, num_blocks: int) -> int | None:
    """Return n if blocks 0, n, 2n, ... are the global ones."""
    for every in range(1, num_blocks + 1):
        if sorted(modern.global_blocks) == list(range(0, num_blocks, every)):
            return every
    return None
