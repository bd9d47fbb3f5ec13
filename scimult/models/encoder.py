"""The encoder: embeddings, blocks, pooling, over packed rows.

Shape legend: B rows, T tokens of all rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.models.blocks import Block
from scimult.models.config import EncoderConfig
from scimult.models.modern import ModernBlock, ModernEmbeddings, modern_norm
from scimult.models.packing import PackedTexts, PackingPlan


class Embeddings(nn.Module):
    """Word, position and token-type embeddings (every token has type 0)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.dropout = config.dropout
        self.words = nn.Embedding(config.vocab_size, width)
        self.position_offset = config.position_offset
        self.positions = nn.Embedding(config.max_positions + config.position_offset, width)
        self.token_types = nn.Embedding(config.token_types, width) if config.token_types else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)

    def forward(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        """Return the sum of the embeddings, normalised, shape ``(T, D)``."""
        x_TD = self.words(tokens_T) + self.positions(positions_T + self.position_offset)
        if self.token_types is not None:
            x_TD = x_TD + self.token_types(torch.zeros_like(positions_T[:1]))
        return F.dropout(self.norm(x_TD), self.dropout, self.training)


class Encoder(nn.Module):
    """A BERT-family encoder whose expert blocks route rows by an integer expert id.

    Parameters
    ----------
    config : EncoderConfig
        Sizes, pooling and expert layout.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        modern = config.modern is not None
        self.embeddings = ModernEmbeddings(config) if modern else Embeddings(config)
        block = ModernBlock if modern else Block
        self.blocks = nn.ModuleList(block(config, number) for number in range(config.num_blocks))
        self.final_norm = modern_norm(config) if modern else nn.Identity()

    def forward(self, texts: PackedTexts, experts: int | Sequence[int] = 0) -> Tensor:
        """Return one embedding per row.

        Parameters
        ----------
        texts : PackedTexts
            Token ids of B rows, each starting with ``[CLS]``.
        experts : int or sequence of int
            The expert of all rows, or one per row.

        Returns
        -------
        Tensor
            Shape ``(B, D)``, in the order of the rows.
        """
        device = texts.tokens_T.device
        if not len(texts):
            return torch.zeros(0, self.config.hidden_size, device=device)
        plan = PackingPlan.build(texts.lengths, experts, device)
        self._check(plan)
        x_TD = self._run_blocks(texts, plan)
        return self._pool(x_TD, plan)[plan.restore_B]

    def token_states(self, texts: PackedTexts, experts: int | Sequence[int] = 0) -> Tensor:
        """Return the final hidden state of every token, shape ``(T, D)``, in packed order."""
        plan = PackingPlan.build(texts.lengths, experts, texts.tokens_T.device)
        self._check(plan)
        sorted_TD = self._run_blocks(texts, plan)
        return torch.empty_like(sorted_TD).index_copy(0, plan.order_T, sorted_TD)

    def _run_blocks(self, texts: PackedTexts, plan: PackingPlan) -> Tensor:
        x_TD: Tensor = self.embeddings(texts.tokens_T[plan.order_T], plan.positions_T)
        for block in self.blocks:
            x_TD = block(x_TD, plan)
        normed_TD: Tensor = self.final_norm(x_TD)
        return normed_TD

    def _pool(self, x_TD: Tensor, plan: PackingPlan) -> Tensor:
        if self.config.pooling == "cls":
            return x_TD[plan.starts_B]
        sums_BD = torch.zeros(
            len(plan.starts_B), x_TD.shape[-1], dtype=torch.float32, device=x_TD.device
        ).index_add(0, plan.row_of_token_T, x_TD.float())
        return (sums_BD / plan.lengths_B[:, None]).to(x_TD.dtype)

    def _check(self, plan: PackingPlan) -> None:
        assert plan.longest <= self.config.max_positions, "a row is longer than max_positions"
        count = self.config.experts.count if self.config.experts else None
        highest = plan.expert_slices[-1][0]
        assert count is None or highest < count, f"expert {highest} of {count} does not exist"

    def initialise(self, seed: int) -> None:
        """Draw all weights as BERT does: normal(0, initializer_range), biases 0, norms 1."""
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.data.normal_(0, self.config.initializer_range, generator=generator)
            if isinstance(module, nn.LayerNorm):
                module.weight.data.fill_(1)
            if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
                module.bias.data.zero_()
