"""A substitute package ``flash_attn`` over torch's own kernels, for peers that require it.

The real one has no wheels and is compiled for every pair of torch and CUDA. transformers accepts
this one, so that sentence-transformers encodes without padding, at its best.
"""

from __future__ import annotations

from pathlib import Path

_VERSION = "2.8.3"
_MODULE = '''\
"""Substitute for flash-attn: FlashAttention-2 as shipped with torch."""

import torch
import torch.nn.functional as F

__version__ = "{version}"
flash_attn_with_kvcache = None


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    dropout_p=0.0, softmax_scale=None, causal=False, **_,
):
    return torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens_q.int(), cu_seqlens_k.int(), int(max_seqlen_q), int(max_seqlen_k),
        dropout_p, causal, False, scale=softmax_scale,
    )[0]


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **_):
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(
        *heads_first, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale
    ).transpose(1, 2)
'''
_PADDING = """\
from transformers.modeling_flash_attention_utils import _pad_input as pad_input
from transformers.modeling_flash_attention_utils import _unpad_input as unpad_input
"""


def write_substitute(folder: Path) -> None:
    """Write the package and its metadata below ``folder``, which belongs on the path."""
    package, facts = folder / "flash_attn", folder / f"flash_attn-{_VERSION}.dist-info"
    for path in (package, facts):
        path.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(_MODULE.format(version=_VERSION), encoding="utf-8")
    (package / "bert_padding.py").write_text(_PADDING, encoding="utf-8")
    metadata = f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {_VERSION}\n"
    (facts / "METADATA").write_text(metadata, encoding="utf-8")
    (facts / "top_level.txt").write_text("flash_attn\n", encoding="utf-8")
    (facts / "RECORD").write_text("flash_attn/__init__.py,,\n", encoding="utf-8")
