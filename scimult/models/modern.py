"""ModernBERT's layers: rotary positions, pre-norm blocks, gated feed-forward.

Warner et al., "Smarter, Better, Faster, Longer" (2024), section 2.1. Rotary positions: Su et
al., "RoFormer" (2021), section 3.2, in the form that pairs feature i with i + K/2.

Shape legend: T tokens of all rows, D width, H heads, K width of a head, R = K/2 rotations,
F width inside the feed-forward layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.models.attention import attend
from scimult.models.banks import ExpertBank
from scimult.models.blocks import Rest, Slices, chosen
from scimult.models.config import EncoderConfig, ModernLayout
from scimult.models.dropout import apply_dropout
from scimult.models.embeddings import code_embedding, with_codes
from scimult.models.exact_sums import Embedding, LayerNorm
from scimult.models.linear import Linear
from scimult.models.packing import PackingPlan

# From queries, keys and values, and cosine and sine of their tokens' angles: see `turn`.
Turn = Callable[[Tensor, Tensor, Tensor], Tensor]


class ModernEmbeddings(nn.Module):
    """Word embeddings, normalised; positions come in through attention."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.words = Embedding(config.vocab_size, config.hidden_size)
        self.norm = modern_norm(config)
        self.codes = code_embedding(config)

    def forward(self, tokens_T: Tensor, plan: PackingPlan) -> Tensor:
        """Return the embeddings, shape ``(T, D)``; see `embeddings.Embeddings`."""
        x_TD = with_codes(self.words(tokens_T), self.codes, plan)
        return apply_dropout(self.norm(x_TD), self.dropout, self.training)


class ModernAttention(nn.Module):
    """LayerNorm, rotary multi-head self-attention, residual.

    Query, key, value and output linears may be per route; the LayerNorm is always shared. The
    first block has none, because the embeddings are already normalised. ``attends_in`` is that of
    `blocks.Attention`.
    """

    attends_in: torch.dtype | None = None

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        width, modern = config.hidden_size, _layout(config)
        experts = config.expert_count(number, "attention")
        is_global = number in modern.global_blocks
        self.heads = config.num_heads
        self.dropout = config.attention_dropout
        self.theta = modern.global_theta if is_global else modern.local_theta
        self.window = None if is_global else modern.local_window
        bias = modern.attention_bias
        self.norm = modern_norm(config) if number else nn.Identity()
        self.qkv = ExpertBank(lambda: Linear(width, 3 * width, bias=bias), experts)
        self.output = ExpertBank(lambda: Linear(width, width, bias=bias), experts)
        self.turn: Turn = turn

    def forward(self, x_TD: Tensor, mixed_TD: Tensor, slices: Slices) -> Tensor:
        """Return the input plus the attention output, shape ``(T, D)``."""
        output_TD = self.output(mixed_TD, slices)
        return x_TD + apply_dropout(output_TD, self.dropout, self.training)

    def mix(self, x_TD: Tensor, plan: PackingPlan) -> Tensor:
        """Return the concatenated heads, before the output linear, shape ``(T, D)``."""
        width = x_TD.shape[-1]
        qkv_TD3 = self.qkv(self.norm(x_TD), plan.route_slices)
        qkv_T3HK = qkv_TD3.view(-1, 3, self.heads, width // self.heads)
        qkv_T3HK = self.turn(qkv_T3HK, *rotations(plan, width // self.heads // 2, self.theta))
        dropout = self.dropout if self.training else 0.0
        qkv_T3HK = qkv_T3HK.to(self.attends_in or qkv_T3HK.dtype)
        mixed_THK = attend(qkv_T3HK, plan, dropout, training=self.training, window=self.window)
        return mixed_THK.reshape(-1, width).to(x_TD.dtype)


class GatedFeedForward(nn.Module):
    """LayerNorm, GeGLU (Shazeer, 2020), residual: the unit that FFN experts copy.

    The first half of ``intermediate`` goes through GELU, the second half is its gate.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, inner, bias = (
            config.hidden_size,
            config.intermediate_size,
            _layout(config).feed_forward_bias,
        )
        self.dropout = config.dropout
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.norm = modern_norm(config)
        self.intermediate = Linear(width, 2 * inner, bias=bias)
        self.output = Linear(inner, width, bias=bias)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Return the input plus the feed-forward output, shape ``(T, D)``."""
        inner_TF, gate_TF = self.intermediate(self.norm(x_TD)).chunk(2, dim=-1)
        gated_TF = F.gelu(inner_TF, approximate=self.approximate) * gate_TF
        hidden_TD: Tensor = self.output(apply_dropout(gated_TF, self.dropout, self.training))
        return x_TD + hidden_TD


class ModernBlock(nn.Module):
    """One pre-norm Transformer block: attention, then feed-forward; ``rest`` as in `Block`."""

    rest: Rest | None = None

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.attention = ModernAttention(config, number)
        self.feed_forward = ExpertBank(
            lambda: GatedFeedForward(config), config.expert_count(number, "feed_forward")
        )

    def forward(
        self,
        x_TD: Tensor,
        plan: PackingPlan,
        instruction: None = None,
        projections: None = None,
        only_B: Tensor | None = None,
    ) -> Tensor:
        """Return what a `Block` does, whose other arguments must be None."""
        x_TD, mixed_TD = chosen(only_B, x_TD, self.attention.mix(x_TD, plan))
        slices = plan.route_slices if only_B is None else plan.row_slices
        if self.rest is not None:
            return self.rest(x_TD, mixed_TD, slices)
        output: Tensor = self.feed_forward(self.attention(x_TD, mixed_TD, slices), slices)
        return output


def modern_norm(config: EncoderConfig) -> LayerNorm:
    """Return a LayerNorm of the encoder's width, without bias by default."""
    bias = _layout(config).norm_bias
    return LayerNorm(config.hidden_size, eps=config.norm_eps, bias=bias)


def turn(qkv_T3HK: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotate queries and keys by each token's angles; values stay.

    Features i and i + K/2 span a plane, rotated by ``position * theta ** (-2 i / K)``
    (`rotations`), so that the product of a query and a key depends on the distance of their tokens.
    """
    cos_T11R, sin_T11R = cos_TR[:, None, None], sin_TR[:, None, None]
    wide = torch.promote_types(qkv_T3HK.dtype, torch.float32)
    first_T2HR, second_T2HR = qkv_T3HK[:, :2].to(wide).chunk(2, dim=-1)
    turned_T2HK = torch.cat(
        [
            first_T2HR * cos_T11R - second_T2HR * sin_T11R,
            second_T2HR * cos_T11R + first_T2HR * sin_T11R,
        ],
        dim=-1,
    )
    return torch.cat([turned_T2HK.to(qkv_T3HK.dtype), qkv_T3HK[:, 2:]], dim=1)


def rotations(plan: PackingPlan, half: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each token's angles, float32, shape ``(T, R)``.

    ``theta`` is the base of the R = ``half`` frequencies; the plan caches the result for later
    blocks. Frequencies are rounded to float32 before they are multiplied by the position, as in
    the code that ModernBERT was trained with: at position 8,000 a last bit is a visible angle.
    """
    if theta not in plan.rotations:
        exponents_R = torch.arange(half, dtype=torch.float32, device=plan.positions_T.device) * 2
        frequencies_R = 1.0 / theta ** (exponents_R / (2 * half))
        angles_TR = plan.positions_T.float()[:, None] * frequencies_R
        plan.rotations[theta] = angles_TR.cos(), angles_TR.sin()
    return plan.rotations[theta]


def _layout(config: EncoderConfig) -> ModernLayout:
    assert config.modern is not None, "family is not modernbert"
    return config.modern
