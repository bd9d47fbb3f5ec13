"""Word, position and token-type embeddings, and control codes.

Shape legend: B rows, T tokens of all rows, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scimult.models.config import EncoderConfig
from scimult.models.dropout import apply_dropout
from scimult.models.exact_sums import Embedding, LayerNorm
from scimult.models.packing import PackingPlan

# The control code follows the first token, [CLS].
CODE_POSITION = 1


def code_embedding(config: EncoderConfig) -> Embedding | None:
    """Return the model's control codes, if it has any."""
    return Embedding(config.codes.count, config.hidden_size) if config.codes else None


def with_codes(words_TD: Tensor, codes: Embedding | None, plan: PackingPlan) -> Tensor:
    """Replace each row's filler token by its control code."""
    if codes is None:
        return words_TD
    return words_TD.index_copy(0, plan.starts_B + CODE_POSITION, codes(plan.routes_B))


class Embeddings(nn.Module):
    """Sum of word, position and token-type embeddings (every token has type 0), normalised."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.dropout = config.dropout
        self.words = Embedding(config.vocab_size, width)
        self.position_offset = config.position_offset
        self.positions = Embedding(config.max_positions + config.position_offset, width)
        self.token_types = Embedding(config.token_types, width) if config.token_types else None
        self.norm = LayerNorm(width, eps=config.norm_eps)
        self.codes = code_embedding(config)

    def forward(self, tokens_T: Tensor, plan: PackingPlan) -> Tensor:
        """Return the embeddings, shape ``(T, D)``, of tokens in the plan's order.

        With control codes, the token at ``CODE_POSITION`` of each row is a filler that the
        row's code replaces.
        """
        positions_T = plan.positions_T
        x_TD = with_codes(self.words(tokens_T), self.codes, plan)
        x_TD = x_TD + self.positions(self._position_rows(tokens_T, plan))
        if self.token_types is not None:
            x_TD = x_TD + self.token_types(torch.zeros_like(positions_T[:1]))
        return apply_dropout(self.norm(x_TD), self.dropout, self.training)

    def _position_rows(self, tokens_T: Tensor, plan: PackingPlan) -> Tensor:
        """Return the row of the position table of every token.

        RoBERTa's first row is that of the padding id, which a text can hold, too: such a token has
        that row, and those after it count on from the token before (transformers derives positions
        from ids).
        """
        if not self.position_offset:
            return plan.positions_T
        pads_T = tokens_T == self.position_offset - 1
        if self.codes is not None:
            pads_T = pads_T & (plan.positions_T != CODE_POSITION)
        seen_T = pads_T.cumsum(0)
        before_B = (seen_T - pads_T.long())[plan.starts_B]
        rows_T = plan.positions_T + self.position_offset - (seen_T - before_B[plan.row_of_token_T])
        return rows_T.masked_fill(pads_T, self.position_offset - 1)
