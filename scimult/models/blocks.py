"""Transformer blocks whose sub-layers may have one copy, or one modification, per route.

Shape legend: T tokens of all rows, D width, H heads, K width of a head,
F width inside the feed-forward layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scimult.models.adapters import adapters_after
from scimult.models.attention import attend
from scimult.models.banks import ExpertBank
from scimult.models.config import EncoderConfig
from scimult.models.dropout import apply_dropout
from scimult.models.exact_sums import LayerNorm
from scimult.models.linear import Linear
from scimult.models.low_rank import low_rank_updates
from scimult.models.packing import PackingPlan
from scimult.models.pals import Pal, PalProjections
from scimult.products import gelu_between

Slices = list[tuple[int, slice]]
# From a block's input, its mixed heads and the route slices to the block's output.
Rest = Callable[[Tensor, Tensor, Slices], Tensor]


@dataclass(frozen=True)
class InstructionLayer:
    """Token states of the instructions before one block (equation 4), and each route's tokens."""

    states_ID: Tensor
    tokens: dict[int, slice]


def layer_norm(config: EncoderConfig, count: int = 1) -> nn.Module:
    """Return a LayerNorm, or a bank of them."""

    def make() -> LayerNorm:
        return LayerNorm(config.hidden_size, eps=config.norm_eps)

    return make() if count == 1 else ExpertBank(make, count)


def apply_norm(norm: nn.Module, x_TD: Tensor, slices: Slices) -> Tensor:
    """Normalise with a LayerNorm or a bank of them."""
    normed: Tensor = norm(x_TD, slices) if isinstance(norm, ExpertBank) else norm(x_TD)
    return normed


class Attention(nn.Module):
    """Multi-head self-attention, residual and LayerNorm.

    Query, key, value and output linears may be per route; the LayerNorm is shared, as in the
    released MHAExpert model, unless the layout says otherwise. ``attends_in``, if set, is the type
    in which tokens attend, between linears that compute in another.
    """

    attends_in: torch.dtype | None = None

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        width = config.hidden_size
        experts = config.expert_count(number, "attention")
        self.heads = config.num_heads
        self.attention_dropout = config.attention_dropout
        self.dropout = config.dropout
        self.qkv = ExpertBank(lambda: Linear(width, 3 * width), experts)
        self.output = ExpertBank(lambda: Linear(width, width), experts)
        self.norm = layer_norm(config, config.norm_count(number, "attention"))
        self.adapter = adapters_after("attention", width, config.adapters)
        self.qkv_update = low_rank_updates(("query", "key", "value"), width, width, config.lora)
        self.output_update = low_rank_updates(("output",), width, width, config.lora)

    def project(self, x_TD: Tensor, slices: Slices) -> Tensor:
        """Return queries, keys and values, shape ``(T, 3, H, K)``."""
        qkv = self.qkv(x_TD, slices)
        if self.qkv_update is not None:
            qkv = qkv + self.qkv_update(x_TD, slices)
        shaped: Tensor = qkv.view(-1, 3, self.heads, x_TD.shape[-1] // self.heads)
        return shaped if self.attends_in is None else shaped.to(self.attends_in)

    def forward(self, x_TD: Tensor, mixed_TD: Tensor, slices: Slices) -> Tensor:
        """Return the sub-layer's output, shape ``(T, D)``, from its input and its mixed heads."""
        h_TD = self.output(mixed_TD, slices)
        if self.output_update is not None:
            h_TD = h_TD + self.output_update(mixed_TD, slices)
        h_TD = apply_dropout(h_TD, self.dropout, self.training)
        if self.adapter is not None:
            h_TD = self.adapter(x_TD, h_TD, self.norm, slices)
        return apply_norm(self.norm, x_TD + h_TD, slices)

    def mix(
        self, x_TD: Tensor, plan: PackingPlan, instruction: InstructionLayer | None = None
    ) -> Tensor:
        """Return the concatenated heads, before the output linear, shape ``(T, D)``."""
        context = None
        if instruction is not None:
            # With experts the tokens are in route order; without, the order does not matter.
            read_I3HK = self.project(instruction.states_ID, list(instruction.tokens.items()))
            context = {r: read_I3HK[tokens, 1:] for r, tokens in instruction.tokens.items()}
        qkv_T3HK = self.project(x_TD, plan.route_slices)
        dropout = self.attention_dropout if self.training else 0.0
        mixed_THK = attend(qkv_T3HK, plan, dropout, training=self.training, context=context)
        return mixed_THK.reshape(x_TD.shape).to(x_TD.dtype)


class FeedForward(nn.Module):
    """Two linears with GELU, residual and LayerNorm: the unit that FFN experts copy.

    With ``own_norm`` off it returns the sum with the residual, for a LayerNorm that experts share.
    """

    def __init__(self, config: EncoderConfig, *, own_norm: bool = True) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.dropout = config.dropout
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.intermediate = Linear(width, inner)
        self.output = Linear(inner, width)
        self.norm = layer_norm(config) if own_norm else None
        self.adapter = adapters_after("feed_forward", width, config.adapters)
        self.inner_update = low_rank_updates(("intermediate",), width, inner, config.lora)
        self.output_update = low_rank_updates(("projection",), inner, width, config.lora)

    def forward(
        self, x_TD: Tensor, slices: Slices | None = None, pal_TD: Tensor | None = None
    ) -> Tensor:
        """Return the sub-layer's output, shape ``(T, D)``; ``pal_TD`` joins the residual."""
        if self.inner_update is None and self.output_update is None:
            h_TD = gelu_between(self.intermediate, self.output, x_TD, self.approximate)
        else:
            inner_TF = self.intermediate(x_TD)
            if self.inner_update is not None:
                inner_TF = inner_TF + self.inner_update(x_TD, slices or [])
            inner_TF = F.gelu(inner_TF, approximate=self.approximate)
            h_TD = self.output(inner_TF)
            if self.output_update is not None:
                h_TD = h_TD + self.output_update(inner_TF, slices or [])
        h_TD = apply_dropout(h_TD, self.dropout, self.training)
        if self.adapter is not None:
            assert self.norm is not None
            h_TD = self.adapter(x_TD, h_TD, self.norm, slices or [])
        sum_TD: Tensor = x_TD + h_TD if pal_TD is None else x_TD + h_TD + pal_TD
        return sum_TD if self.norm is None else self.norm(sum_TD)


class FeedForwardBank(ExpertBank):
    """The feed-forward sub-layer, shared or per route."""

    def __init__(self, config: EncoderConfig, number: int) -> None:
        experts = config.expert_count(number, "feed_forward")
        own_norm = experts == config.norm_count(number, "feed_forward")
        super().__init__(lambda: FeedForward(config, own_norm=own_norm), experts)

    def forward(self, x_TD: Tensor, route_slices: Slices, *others: Tensor) -> Tensor:
        """Apply the shared sub-layer, to ``pal_TD`` too if given, or each token's expert."""
        if len(self.experts) > 1:
            return super().forward(x_TD, route_slices, *others)
        output: Tensor = self.experts[0](x_TD, route_slices, *others)
        return output


class Block(nn.Module):
    """One post-norm Transformer block: attention, then feed-forward.

    ``rest``, if set, computes everything after attention (`compiled.compile_blocks`).
    """

    rest: Rest | None = None

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.attention = Attention(config, number)
        self.feed_forward = FeedForwardBank(config, number)
        shared = config.norm_count(number, "feed_forward") == 1
        several = config.expert_count(number, "feed_forward") > 1
        self.feed_forward_norm = layer_norm(config) if shared and several else None
        self.pal = Pal(config.pals, config.attention_dropout) if config.pals else None

    def forward(
        self,
        x_TD: Tensor,
        plan: PackingPlan,
        instruction: InstructionLayer | None = None,
        projections: PalProjections | None = None,
        only_B: Tensor | None = None,
    ) -> Tensor:
        """Return the block's output, shape ``(T, D)``, or ``(B, D)`` for these tokens only."""
        added: list[Tensor] = []
        if self.pal is not None:
            assert projections is not None
            added.append(self.pal(x_TD, plan, projections))
        mixed_TD = self.attention.mix(x_TD, plan, instruction)
        x_TD, mixed_TD, *added = chosen(only_B, x_TD, mixed_TD, *added)
        slices = plan.route_slices if only_B is None else plan.row_slices
        if self.rest is not None:
            return self.rest(x_TD, mixed_TD, slices)
        output: Tensor = self.feed_forward(self.attention(x_TD, mixed_TD, slices), slices, *added)
        if self.feed_forward_norm is not None:
            output = self.feed_forward_norm(output)
        return output


def chosen(only_B: Tensor | None, *tensors: Tensor) -> list[Tensor]:
    """Return the rows ``only_B``, which are distinct, of each tensor, or all rows."""
    # Unlike that of `x[only_B]`, its gradient looks for no repeated row.
    return list(tensors) if only_B is None else [x.index_select(0, only_B) for x in tensors]


def run_block(block: nn.Module, x_TD: Tensor, *arguments: Any, recompute: bool) -> Tensor:
    """Run a block; with ``recompute``, keep only its input and run it again for gradients.

    The second run draws the same dropout. Tensors within ``arguments`` get gradients too.
    """
    output: Tensor = (
        checkpoint(block, x_TD, *arguments, use_reentrant=False)
        if recompute
        else block(x_TD, *arguments)
    )
    return output
