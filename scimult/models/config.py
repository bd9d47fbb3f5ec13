"""What an encoder looks like: sizes, pooling, and what it does differently by route."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig
from scimult.models.layouts import (
    AdapterLayout,
    CodeLayout,
    ExpertLayout,
    InstructionLayout,
    LowRankLayout,
    PalLayout,
    Sublayer,
)

Pooling = Literal["cls", "mean", "position"]

ROUTED = ("experts", "adapters", "lora", "pals", "codes", "instructions")


class EncoderConfig(StrictConfig):
    """Architecture of a BERT-family encoder, and at most one way to tell routes apart.

    ``pooling`` is part of the architecture because embeddings made with another one are not
    comparable; ``position`` takes the hidden state at ``pooling_position``, counted from the
    end when negative. ``dims`` cuts embeddings to their first dimensions (Matryoshka).
    """

    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    num_blocks: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    max_positions: int = Field(512, ge=1)
    token_types: int = Field(2, ge=0)
    norm_eps: float = Field(1e-12, gt=0)
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    initializer_range: float = Field(0.02, gt=0)
    pooling: Pooling = "cls"
    pooling_position: int = 0
    dims: int | None = Field(None, ge=1)
    experts: ExpertLayout | None = None
    adapters: AdapterLayout | None = None
    lora: LowRankLayout | None = None
    pals: PalLayout | None = None
    codes: CodeLayout | None = None
    instructions: InstructionLayout | None = None

    @model_validator(mode="after")
    def _consistent(self) -> EncoderConfig:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
            )
        if self.dims is not None and self.dims > self.hidden_size:
            raise ValueError(f"dims {self.dims} is more than the hidden_size {self.hidden_size}")
        chosen = [name for name in ROUTED if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} exclude each other")
        if self.experts and not set(self.experts.blocks) <= set(range(self.num_blocks)):
            raise ValueError(
                f"experts.blocks {self.experts.blocks} names a block that does not exist; "
                f"blocks are 0 to {self.num_blocks - 1}"
            )
        return self

    @property
    def num_routes(self) -> int:
        """How many routes the model tells apart; 1 if all rows are treated alike."""
        layouts = (getattr(self, name) for name in ROUTED)
        return next((layout.count for layout in layouts if layout is not None), 1)

    @property
    def is_routed(self) -> bool:
        """Whether rows of different routes are treated differently."""
        return any(getattr(self, name) is not None for name in ROUTED)

    @property
    def width(self) -> int:
        """Number of dimensions of an embedding."""
        return self.dims or self.hidden_size

    @property
    def max_text_length(self) -> int:
        """Most tokens that a text may have; a control code takes one position."""
        return self.max_positions - (self.codes is not None)

    def expert_count(self, block: int, sublayer: Sublayer) -> int:
        """Return how many copies of ``sublayer`` block number ``block`` holds (1 if shared)."""
        layout = self.experts
        if layout and block in layout.blocks and sublayer in layout.sublayers:
            return layout.count
        return 1

    def norm_count(self, block: int, sublayer: Sublayer) -> int:
        """Return how many copies of the LayerNorm after ``sublayer`` the block holds."""
        count = self.expert_count(block, sublayer)
        own = self.experts.own_norm if self.experts else None
        return count if (sublayer == "feed_forward" if own is None else own) else 1
