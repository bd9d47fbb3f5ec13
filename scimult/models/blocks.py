"""Transformer blocks whose sub-layers may exist once per task.

Shape legend: T tokens of all rows, D width, H heads, K width of a head,
F width inside the feed-forward layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.models.attention import attend
from scimult.models.config import EncoderConfig
from scimult.models.packing import PackingPlan


class ExpertBank(nn.Module):
    """Parallel copies of one layer; every row passes through exactly one of them.

    A shared layer is a bank of one expert, which all rows use. With several experts the
    tokens arrive sorted by expert and each expert sees its own slice: one that has no
    rows is not run and gets no gradient.
    """

    def __init__(self, make_expert: Callable[[], nn.Module], count: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(make_expert() for _ in range(count))

    def forward(self, x_TD: Tensor, expert_slices: list[tuple[int, slice]]) -> Tensor:
        """Apply each token's expert; ``x_TD`` is sorted as ``expert_slices`` says."""
        if len(self.experts) == 1:
            return self._run(0, x_TD)
        if len(expert_slices) == 1:
            return self._run(expert_slices[0][0], x_TD)
        return torch.cat([self._run(expert, x_TD[tokens]) for expert, tokens in expert_slices])

    def _run(self, expert: int, x_TD: Tensor) -> Tensor:
        output: Tensor = self.experts[expert](x_TD)
        return output


class Attention(nn.Module):
    """Multi-head self-attention, residual and LayerNorm.

    Query, key, value and output linears may be per task; the LayerNorm is always shared,
    as in the released MHAExpert model.
    """

    def __init__(self, config: EncoderConfig, experts: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_heads
        self.attention_dropout = config.attention_dropout
        self.dropout = config.dropout
        self.qkv = ExpertBank(lambda: nn.Linear(width, 3 * width), experts)
        self.output = ExpertBank(lambda: nn.Linear(width, width), experts)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)

    def forward(self, x_TD: Tensor, plan: PackingPlan) -> Tensor:
        """Return the block's attention output, shape ``(T, D)``."""
        width = x_TD.shape[-1]
        qkv_T3HK = self.qkv(x_TD, plan.expert_slices).view(-1, 3, self.heads, width // self.heads)
        context_THK = attend(qkv_T3HK, plan, self.attention_dropout if self.training else 0.0)
        output_TD = self.output(context_THK.reshape(-1, width), plan.expert_slices)
        normed: Tensor = self.norm(x_TD + F.dropout(output_TD, self.dropout, self.training))
        return normed


class FeedForward(nn.Module):
    """Two linears with GELU, residual and its own LayerNorm: the unit that FFN experts copy."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Return the feed-forward output, shape ``(T, D)``."""
        inner_TF = F.gelu(self.intermediate(x_TD), approximate=self.approximate)
        hidden_TD = self.output(inner_TF)
        normed: Tensor = self.norm(x_TD + F.dropout(hidden_TD, self.dropout, self.training))
        return normed


class Block(nn.Module):
    """One post-norm Transformer block: attention, then feed-forward."""

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.attention = Attention(config, config.expert_count(number, "attention"))
        self.feed_forward = ExpertBank(
            lambda: FeedForward(config), config.expert_count(number, "feed_forward")
        )

    def forward(self, x_TD: Tensor, plan: PackingPlan) -> Tensor:
        """Return the block's output, shape ``(T, D)``."""
        output: Tensor = self.feed_forward(self.attention(x_TD, plan), plan.expert_slices)
        return output
