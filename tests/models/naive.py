"""The variants reimplemented naively: one row at a time, plain formulas, from a state dict.

Nothing of ``scimult.models`` is used: padding, packing, sorting and banks do not exist here.
Shape legend: L tokens of the row, I tokens of the instruction, D width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Apply the linear called ``name``, with a bias if it has one."""
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Apply the LayerNorm called ``name``."""
    return F.layer_norm(
        x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-12
    )


def embed(weights: Weights, tokens: Tensor, prefix: str = "", code: int | None = None) -> Tensor:
    """Return the embeddings of a row; ``code`` follows the first token."""
    name = f"{prefix}embeddings"
    words = weights[f"{name}.words.weight"][tokens]
    if code is not None:
        words = torch.cat([words[:1], weights[f"{name}.codes.weight"][code][None], words[1:]])
    places = weights[f"{name}.positions.weight"][: len(words)]
    return norm(weights, f"{name}.norm", words + places + weights[f"{name}.token_types.weight"][0])


def attention(q_LD: Tensor, k_LD: Tensor, v_LD: Tensor, heads: int) -> Tensor:
    """Return multi-head attention of every query over all keys."""
    parts = []
    for q, k, v in zip(
        q_LD.chunk(heads, -1), k_LD.chunk(heads, -1), v_LD.chunk(heads, -1), strict=True
    ):
        parts.append((q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v)
    return torch.cat(parts, -1)


def block_with_mask(weights: Weights, name: str, x_LD: Tensor, allowed_LL: Tensor) -> Tensor:
    """Run one plain block in which token i attends to token j where ``allowed_LL`` is true."""
    q, k, v = linear(weights, f"{name}.attention.qkv.experts.0", x_LD).chunk(3, -1)
    parts = []
    for one in zip(q.chunk(3, -1), k.chunk(3, -1), v.chunk(3, -1), strict=True):
        scores = one[0] @ one[1].T / one[0].shape[-1] ** 0.5
        parts.append(scores.masked_fill(~allowed_LL, float("-inf")).softmax(-1) @ one[2])
    mixed = linear(weights, f"{name}.attention.output.experts.0", torch.cat(parts, -1))
    x_LD = norm(weights, f"{name}.attention.norm", x_LD + mixed)
    feed = f"{name}.feed_forward.experts.0"
    inner = F.gelu(linear(weights, f"{feed}.intermediate", x_LD))
    return norm(weights, f"{feed}.norm", x_LD + linear(weights, f"{feed}.output", inner))


def with_instruction(weights: Weights, tokens: Tensor, instruction: Tensor, blocks: int) -> Tensor:
    """Equation 4 with shared parameters: instruction and text as one masked sequence.

    Instruction tokens see the instruction only; text tokens see both. Returns the text's
    final states.
    """
    x = torch.cat([embed(weights, instruction), embed(weights, tokens)])
    is_text = torch.arange(len(x)) >= len(instruction)
    allowed = is_text[:, None] | ~is_text[None, :]
    for number in range(blocks):
        x = block_with_mask(weights, f"blocks.{number}", x, allowed)
    return x[is_text]


def with_prefix(weights: Weights, tokens: Tensor, instruction: Tensor, blocks: int) -> Tensor:
    """Equation 4 with a separate instruction encoder, block by block."""
    read = embed(weights, instruction, "instruction_encoder.")
    x = embed(weights, tokens)
    for number in range(blocks):
        both = torch.cat([read, x])
        is_text = torch.arange(len(both)) >= len(read)
        # The text encoder computes rows of the instruction, too, which are discarded.
        both = block_with_mask(
            weights, f"blocks.{number}", both, torch.ones(len(both), len(both), dtype=torch.bool)
        )
        x = both[is_text]
        if number + 1 < blocks:
            everything = torch.ones(len(read), len(read), dtype=torch.bool)
            read = block_with_mask(
                weights, f"instruction_encoder.blocks.{number}", read, everything
            )
    return x


def adapter(weights: Weights, name: str, x: Tensor, placement: str, h: Tensor, nm: str) -> Tensor:
    """Return the sub-layer output ``h`` as changed by the adapter ``name``."""
    read = norm(weights, nm, x + h) if placement == "pfeiffer" else h
    return h + linear(weights, f"{name}.up", F.relu(linear(weights, f"{name}.down", read)))


def adapted_sublayer(
    weights: Weights, sub: str, x: Tensor, h: Tensor, route: int, routes: int, placement: str
) -> Tensor:
    """Return LayerNorm of residual and adapted output; fused where a fusion exists."""
    bank = f"{sub}.adapter.bank.experts"
    if f"{bank}.0.up.weight" not in weights:
        return norm(weights, f"{sub}.norm", x + h)
    outputs = [
        adapter(weights, f"{bank}.{other}", x, placement, h, f"{sub}.norm")
        for other in range(routes)
    ]
    fusion = f"{sub}.adapter.fusion.experts.{route}"
    if f"{fusion}.query.weight" not in weights:
        return norm(weights, f"{sub}.norm", x + outputs[route])
    query = linear(weights, f"{fusion}.query", h)
    scores = torch.stack(
        [(query * linear(weights, f"{fusion}.key", z)).sum(-1) for z in outputs], -1
    ).softmax(-1)
    values = torch.stack([z + linear(weights, f"{fusion}.value_change", z) for z in outputs], -1)
    return norm(weights, f"{sub}.norm", x + (values * scores[:, None, :]).sum(-1))


def low_rank(weights: Weights, name: str, x: Tensor, route: int, scale: float) -> Tensor | float:
    """Return the update of the linear ``name``; 0 if it has none."""
    update = f"{name}.experts.{route}"
    if f"{update}.up.weight" not in weights:
        return 0.0
    return linear(weights, f"{update}.up", linear(weights, f"{update}.down", x)) * scale


def routed(
    weights: Weights,
    tokens: Tensor,
    route: int,
    *,
    blocks: int,
    heads: int = 3,
    routes: int = 3,
    placement: str = "pfeiffer",
    scale: float = 1.0,
    pal_heads: int = 2,
    pal_gelu: bool = False,
    code: int | None = None,
) -> Tensor:
    """Run one row through blocks with adapters, low-rank updates or projected attention."""
    x = embed(weights, tokens, code=code)
    for number in range(blocks):
        att, feed = f"blocks.{number}.attention", f"blocks.{number}.feed_forward.experts.0"
        start = x
        q, k, v = linear(weights, f"{att}.qkv.experts.0", x).chunk(3, -1)
        q = q + low_rank(weights, f"{att}.qkv_update.lora.query", x, route, scale)
        k = k + low_rank(weights, f"{att}.qkv_update.lora.key", x, route, scale)
        v = v + low_rank(weights, f"{att}.qkv_update.lora.value", x, route, scale)
        mixed = attention(q, k, v, heads)
        h = linear(weights, f"{att}.output.experts.0", mixed)
        h = h + low_rank(weights, f"{att}.output_update.lora.output", mixed, route, scale)
        x = adapted_sublayer(weights, att, x, h, route, routes, placement)
        inner = linear(weights, f"{feed}.intermediate", x)
        inner = inner + low_rank(weights, f"{feed}.inner_update.lora.intermediate", x, route, scale)
        inner = F.gelu(inner)
        h = linear(weights, f"{feed}.output", inner)
        h = h + low_rank(weights, f"{feed}.output_update.lora.projection", inner, route, scale)
        if f"blocks.{number}.pal.qkv.experts.0.weight" in weights:
            small = linear(weights, f"pal_projections.down.experts.{route}", start)
            pal = linear(weights, f"blocks.{number}.pal.qkv.experts.{route}", small)
            beside = attention(*pal.chunk(3, -1), pal_heads)
            beside = linear(weights, f"pal_projections.up.experts.{route}", beside)
            h = h + (F.gelu(beside) if pal_gelu else beside)
        x = adapted_sublayer(weights, feed, x, h, route, routes, placement)
    return x
