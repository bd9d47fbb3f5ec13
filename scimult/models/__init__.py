"""Encoder blocks, experts and their routing, pooling, and embedding of many texts."""

from scimult.models.config import EncoderConfig, ExpertLayout, variant_layout
from scimult.models.embed import embed_tokens
from scimult.models.encoder import Encoder
from scimult.models.packing import PackedTexts, pack

__all__ = [
    "Encoder",
    "EncoderConfig",
    "ExpertLayout",
    "PackedTexts",
    "embed_tokens",
    "pack",
    "variant_layout",
]
