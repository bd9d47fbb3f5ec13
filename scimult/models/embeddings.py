"""Word, position and token-type embeddings, and control codes among the words.

Shape legend: B rows, T tokens of all rows, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.models.config import EncoderConfig
from scimult.models.packing import PackingPlan

# The control code stands after the first token, [CLS].
CODE_PLACE = 1


class Embeddings(nn.Module):
    """Word, position and token-type embeddings (every token has type 0)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.dropout = config.dropout
        self.words = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.max_positions, width)
        self.token_types = nn.Embedding(config.token_types, width) if config.token_types else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.codes = nn.Embedding(config.codes.count, width) if config.codes else None

    def forward(self, tokens_T: Tensor, plan: PackingPlan) -> Tensor:
        """Return the sum of the embeddings, normalised, shape ``(T, D)``.

        ``tokens_T`` is sorted as ``plan`` says. With control codes, the token at
        ``CODE_PLACE`` of each row is a filler that the row's code replaces.
        """
        positions_T = plan.positions_T
        x_TD = self.words(tokens_T)
        if self.codes is not None:
            x_TD = x_TD.index_copy(0, plan.starts_B + CODE_PLACE, self.codes(plan.routes_B))
        x_TD = x_TD + self.positions(positions_T)
        if self.token_types is not None:
            x_TD = x_TD + self.token_types(torch.zeros_like(positions_T[:1]))
        return F.dropout(self.norm(x_TD), self.dropout, self.training)
