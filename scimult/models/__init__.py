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

# Every batch has a new number of tokens, and oneDNN compiles and caches a kernel with its buffers
# for each new shape: 1,024 of them by default, gigabytes per process. Torch caches as many of its
# own, 300 kB each, per kind of product and thread. Both read these at their first product, so they
# are set before anything can compute.
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
