"""Blocks whose part after attention is compiled by ``torch.compile``, as one function.

Shape legend: T tokens of one route, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from scimult.errors import ConfigError
from scimult.models.banks import ExpertBank
from scimult.models.blocks import Attention, Block, FeedForward, Slices
from scimult.models.config import EncoderConfig
from scimult.models.dropout import apply_dropout
from scimult.models.encoder import Encoder
from scimult.models.modern import ModernAttention, ModernBlock, turn


def compile_blocks(model: Encoder) -> int:
    """Compile everything after attention at its first use, for any number of tokens.

    That is output linear, dropout, residual, LayerNorm and the feed-forward sub-layer: about
    twenty small operations become a few around three products. All blocks and routes share one
    compiled function; ModernBERT's rotations are another. Attention is not compiled: its groups
    have new shapes in every batch, and each combination would be compiled again. With projected
    attention, only the feed-forward sub-layers are compiled. Parameter names do not change.

    Returns
    -------
    int
        How many blocks, or else sub-layers, are compiled.

    Raises
    ------
    ConfigError
        As `check_compiles`.
    """
    check_compiles(model.config)
    options = _compiler_options(model.config.dropout)
    if model.config.pals is not None:
        layers = [module for module in model.modules() if isinstance(module, FeedForward)]
        for layer in layers:
            layer.compile(dynamic=True, options=options)
        return len(layers)
    # One object, so that all blocks share the compiled code.
    compiled = torch.compile(after_attention, dynamic=True, options=options)
    blocks = [module for module in model.modules() if isinstance(module, (Block, ModernBlock))]
    turning = torch.compile(turn, dynamic=True)
    for block in blocks:
        block.rest = _RestOfBlock(block, compiled)
        if isinstance(block, ModernBlock):
            block.attention.turn = turning
    return len(blocks)


def _compiler_options(dropout: float) -> dict[str, Any]:
    # Dropout by torch's own kernel: the same masks as in an uncompiled run.
    options: dict[str, Any] = {"fallback_random": True}
    # With dropout, sums over tokens joined with sums over the width are thirteen times slower in
    # the backward pass (docs/results/h200.md). Older versions of torch have no such option.
    joined = "triton.mix_order_reduction"
    if dropout and joined in torch._inductor.list_options():
        options[joined] = False
    return options


def check_compiles(config: EncoderConfig) -> None:
    """Check that `compile_blocks` supports an architecture.

    Raises
    ------
    ConfigError
        If it has adapters or low-rank updates, which see the routes of a whole batch.
    """
    if config.adapters is not None or config.lora is not None:
        raise ConfigError(
            "engine.compile supports neither adapters nor low-rank updates: every batch, with its "
            "own numbers of tokens by route, would be compiled again",
            fix="leave engine.compile out",
        )


def after_attention(
    attention: Attention | ModernAttention,
    output: nn.Module,
    norm: nn.Module | None,
    feed_forward: nn.Module,
    last_norm: nn.Module | None,
    x_TD: Tensor,
    mixed_TD: Tensor,
) -> Tensor:
    """Return a block's output for tokens of one route, shape ``(T, D)``.

    ``attention`` supplies the dropout probability and the training mode; the modules are the
    route's layers in their order, where pre-norm blocks have neither norm. ``x_TD`` is the block's
    input, ``mixed_TD`` its mixed heads.
    """
    h_TD = apply_dropout(output(mixed_TD), attention.dropout, attention.training)
    joined_TD = x_TD + h_TD if norm is None else norm(x_TD + h_TD)
    output_TD: Tensor = feed_forward(joined_TD)
    return output_TD if last_norm is None else last_norm(output_TD)


class _RestOfBlock:
    """Runs the compiled `after_attention` with a block's layers, route by route."""

    def __init__(self, block: Block | ModernBlock, compiled: Callable[..., Tensor]) -> None:
        self._attention = block.attention
        post_norm = isinstance(block, Block)
        self._parts = (
            block.attention.output,
            block.attention.norm if post_norm else None,
            block.feed_forward,
            block.feed_forward_norm if post_norm else None,
        )
        self._routed = any(
            isinstance(part, ExpertBank) and len(part.experts) > 1 for part in self._parts
        )
        self._compiled = compiled

    def __call__(self, x_TD: Tensor, mixed_TD: Tensor, slices: Slices) -> Tensor:
        if not self._routed or len(slices) == 1:
            return self._run(slices[0][0], x_TD, mixed_TD)
        sizes = [tokens.stop - tokens.start for _, tokens in slices]
        routes = [route for route, _ in slices]
        parts = zip(routes, torch.split(x_TD, sizes), torch.split(mixed_TD, sizes), strict=True)
        return torch.cat([self._run(*part) for part in parts])

    def _run(self, route: int, x_TD: Tensor, mixed_TD: Tensor) -> Tensor:
        layers = (p.of(route) if isinstance(p, ExpertBank) else p for p in self._parts)
        if len(x_TD) > 1:
            return self._compiled(self._attention, *layers, x_TD, mixed_TD)
        # The compiler makes another graph for a size of one.
        pairs = (torch.cat([x, x]) for x in (x_TD, mixed_TD))
        return self._compiled(self._attention, *layers, *pairs)[:1]
