"""Encoder blocks, experts and their routing, pooling, and embedding of many texts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from scimult.on_demand import on_demand

if TYPE_CHECKING:
    from scimult.models.config import EncoderConfig
    from scimult.models.embed import embed_tokens, embed_tokens_each, length_batches
    from scimult.models.encoder import Encoder
    from scimult.models.layouts import ExpertLayout
    from scimult.models.packing import PackedTexts, pack
    from scimult.models.variants import VARIANTS, variant_layouts

# Every batch has another number of tokens, and for each new shape oneDNN compiles and keeps
# a kernel with its buffers: by default 1,024 of them, which grows to gigabytes per process.
# Torch keeps as many of its own beside, 300 kB each, for every kind of product in every thread.
# Both read this at their first product, so it stands before anything can compute.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
os.environ.setdefault("LRU_CACHE_CAPACITY", "128")

__all__ = [
    "VARIANTS",
    "Encoder",
    "EncoderConfig",
    "ExpertLayout",
    "PackedTexts",
    "embed_tokens",
    "embed_tokens_each",
    "length_batches",
    "pack",
    "variant_layouts",
]
__getattr__ = on_demand(
    __name__,
    {
        "VARIANTS": "scimult.models.variants",
        "Encoder": "scimult.models.encoder",
        "EncoderConfig": "scimult.models.config",
        "ExpertLayout": "scimult.models.layouts",
        "PackedTexts": "scimult.models.packing",
        "embed_tokens": "scimult.models.embed",
        "embed_tokens_each": "scimult.models.embed",
        "length_batches": "scimult.models.embed",
        "pack": "scimult.models.packing",
        "variant_layouts": "scimult.models.variants",
    },
)
