"""The architecture of an encoder: sizes, pooling, and what differs by route."""

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
# Hugging Face's ``model_type`` names; checkpoints/families.py has an entry for each.
FamilyName = Literal["bert", "roberta", "xlm-roberta", "modernbert"]
Activation = Literal["gelu", "gelu_tanh"]

ROUTED = ("experts", "adapters", "lora", "pals", "codes", "instructions")


class ModernLayout(StrictConfig):
    """Options of ModernBERT's blocks (Warner et al., 2024, section 2.1).

    ``global_blocks`` attend to the whole text with rotary base ``global_theta``; the others
    to ``local_window`` tokens on each side with ``local_theta``.
    """

    global_blocks: list[int]
    local_window: int = Field(64, ge=1)
    global_theta: float = Field(160_000.0, gt=1)
    local_theta: float = Field(10_000.0, gt=1)
    attention_bias: bool = False
    feed_forward_bias: bool = False
    norm_bias: bool = False


class EncoderConfig(StrictConfig):
    """Architecture of a BERT-family encoder, with at most one way to tell routes apart.

    Experts may be combined with instructions; all other ways exclude each other.

    ``pooling`` is part of the architecture because embeddings pooled differently are not
    comparable; ``position`` takes the hidden state at ``pooling_position``, counted from the
    end when negative. ``dims`` truncates embeddings to their first dimensions (Matryoshka).
    ``max_positions`` is the longest text in tokens; RoBERTa's position table has
    ``position_offset`` more rows, of which only a padding token inside a text uses one.
    """

    family: FamilyName = "bert"

    # Beyond these bounds torch fails at the product of two sizes, not at the one that is wrong.
    vocab_size: int = Field(ge=1, le=2**31)
    hidden_size: int = Field(ge=1, le=2**20)
    # More would be built, one by one, before the weights show that they are not there.
    num_blocks: int = Field(ge=1, le=1000)
    num_heads: int = Field(ge=1, le=2**20)
    intermediate_size: int = Field(ge=1, le=2**24)
    max_positions: int = Field(512, ge=1, le=2**31)
    position_offset: int = Field(0, ge=0, le=2**31)
    token_types: int = Field(2, ge=0, le=2**31)
    activation: Activation = "gelu"
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
    modern: ModernLayout | None = None

    @model_validator(mode="after")
    def _fits_family(self) -> EncoderConfig:
        if (self.family == "modernbert") != (self.modern is not None):
            raise ValueError("the section modern is for family modernbert, and required there")
        if ("roberta" in self.family) != (self.position_offset > 0):
            raise ValueError(
                f"position_offset {self.position_offset} does not fit family {self.family}: "
                "RoBERTa and XLM-R have an offset (2), the others have none"
            )
        if self.modern is None:
            return self
        if self.token_types:
            raise ValueError("family modernbert needs token_types 0")
        absent = [
            name
            for name in ("adapters", "lora", "pals", "instructions")
            if getattr(self, name) is not None
        ]
        if absent or (self.experts is not None and self.experts.own_norm is not None):
            raise ValueError(
                f"family modernbert does not support {' or '.join(absent) or 'experts.own_norm'}; "
                "use experts with own_norm null, control codes or neither"
            )
        if self.hidden_size // self.num_heads % 2:
            raise ValueError("rotary positions require an even hidden_size / num_heads")
        self._check_blocks("modern.global_blocks", self.modern.global_blocks)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> EncoderConfig:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
            )
        if self.dims is not None and self.dims > self.hidden_size:
            raise ValueError(f"dims {self.dims} is more than the hidden_size {self.hidden_size}")
        if len(self.routed) > 1 and set(self.routed) != {"experts", "instructions"}:
            raise ValueError(f"{' and '.join(self.routed)} are mutually exclusive")
        if self.experts is not None and self.instructions is not None:
            if self.instructions.own_encoder:
                raise ValueError(
                    "experts and a separate instruction encoder are mutually exclusive"
                )
            if self.experts.count != self.instructions.count:
                raise ValueError("experts.count and instructions.count must be equal")
        if self.experts is not None:
            self._check_blocks("experts.blocks", self.experts.blocks)
        return self

    def _check_blocks(self, name: str, blocks: list[int]) -> None:
        if not set(blocks) <= set(range(self.num_blocks)):
            raise ValueError(
                f"{name} {blocks} names a block that does not exist; "
                f"blocks are 0 to {self.num_blocks - 1}"
            )

    @property
    def routed(self) -> list[str]:
        """The fields, of those in `ROUTED`, that are set."""
        return [name for name in ROUTED if getattr(self, name) is not None]

    @property
    def num_routes(self) -> int:
        """Number of routes; 1 if all rows are treated alike."""
        return next((getattr(self, name).count for name in self.routed), 1)

    @property
    def is_routed(self) -> bool:
        """Whether rows of different routes are treated differently."""
        return bool(self.routed)

    @property
    def width(self) -> int:
        """Number of dimensions of an embedding."""
        return self.dims or self.hidden_size

    @property
    def max_text_length(self) -> int:
        """Maximum number of tokens in a text; a control code takes one position."""
        return self.max_positions - (self.codes is not None)

    @property
    def shared_blocks(self) -> int:
        """Number of leading blocks before anything that differs by route."""
        # Instructions, which experts may read, are already context of the first block.
        if set(self.routed) - {"experts"}:
            return 0
        if self.experts is not None and self.experts.sublayers and self.experts.count > 1:
            return min(self.experts.blocks, default=self.num_blocks)
        return self.num_blocks

    def expert_count(self, block: int, sublayer: Sublayer) -> int:
        """Return how many copies of ``sublayer`` a block holds (1 if shared)."""
        layout = self.experts
        if layout and block in layout.blocks and sublayer in layout.sublayers:
            return layout.count
        return 1

    def norm_count(self, block: int, sublayer: Sublayer) -> int:
        """Return how many copies of the LayerNorm after ``sublayer`` a block holds."""
        count = self.expert_count(block, sublayer)
        own = self.experts.own_norm if self.experts else None
        return count if (sublayer == "feed_forward" if own is None else own) else 1
