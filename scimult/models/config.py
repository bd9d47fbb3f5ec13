"""What an encoder looks like: sizes, pooling, and where its experts sit."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig
from scimult.errors import ConfigError, UnknownNameError

Sublayer = Literal["attention", "feed_forward"]
Pooling = Literal["cls", "mean"]
# The names of Hugging Face's ``model_type``; checkpoints/families.py has one entry for each.
FamilyName = Literal["bert", "roberta", "xlm-roberta", "modernbert"]
Activation = Literal["gelu", "gelu_tanh"]

VARIANTS: dict[str, tuple[Sublayer, ...]] = {
    "vanilla": (),
    "mha_expert": ("attention",),
    "ffn_expert": ("feed_forward",),
    "mha_ffn_expert": ("attention", "feed_forward"),
}


class ExpertLayout(StrictConfig):
    """Which sub-layers of which blocks exist once per task (SciMult, section 3.2)."""

    count: int = Field(ge=1)
    sublayers: list[Sublayer]
    blocks: list[int]


class ModernLayout(StrictConfig):
    """What ModernBERT's blocks have that BERT's have not (Warner et al., 2024, section 2.1).

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
    """Architecture of a BERT-family encoder with optional experts.

    ``pooling`` is part of the architecture because embeddings made with another one
    are not comparable. ``max_positions`` is the longest text in tokens; RoBERTa's table of
    positions has ``position_offset`` rows more, which no token uses.
    """

    family: FamilyName = "bert"

    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    num_blocks: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    max_positions: int = Field(512, ge=1)
    position_offset: int = Field(0, ge=0)
    token_types: int = Field(2, ge=0)
    activation: Activation = "gelu"
    norm_eps: float = Field(1e-12, gt=0)
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    initializer_range: float = Field(0.02, gt=0)
    pooling: Pooling = "cls"
    experts: ExpertLayout | None = None
    modern: ModernLayout | None = None

    @model_validator(mode="after")
    def _fits_family(self) -> EncoderConfig:
        if (self.family == "modernbert") != (self.modern is not None):
            raise ValueError(f"family {self.family} and modern {self.modern} contradict each other")
        if ("roberta" in self.family) != (self.position_offset > 0):
            raise ValueError(
                f"family {self.family} and position_offset {self.position_offset} contradict each "
                "other: RoBERTa and XLM-R have an offset (2), the others have none"
            )
        if self.modern is None:
            return self
        if self.token_types:
            raise ValueError("family modernbert needs token_types 0")
        if self.hidden_size // self.num_heads % 2:
            raise ValueError("rotary positions need an even hidden_size / num_heads")
        if not set(self.modern.global_blocks) <= set(range(self.num_blocks)):
            raise ValueError(
                f"modern.global_blocks {self.modern.global_blocks} names a block that does not "
                f"exist; blocks are 0 to {self.num_blocks - 1}"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> EncoderConfig:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
            )
        if self.experts and not set(self.experts.blocks) <= set(range(self.num_blocks)):
            raise ValueError(
                f"experts.blocks {self.experts.blocks} names a block that does not exist; "
                f"blocks are 0 to {self.num_blocks - 1}"
            )
        return self

    def expert_count(self, block: int, sublayer: Sublayer) -> int:
        """Return how many copies of ``sublayer`` block number ``block`` holds (1 if shared)."""
        layout = self.experts
        if layout and block in layout.blocks and sublayer in layout.sublayers:
            return layout.count
        return 1


def variant_layout(
    variant: str, num_tasks: int, num_blocks: int, blocks: str | list[int] = "every:2"
) -> ExpertLayout | None:
    """Return the expert layout of a named variant, ``None`` for ``vanilla``.

    Parameters
    ----------
    variant : str
        A key of ``VARIANTS``.
    num_tasks : int
        Number of experts.
    num_blocks : int
        Number of blocks of the encoder.
    blocks : str or list of int
        ``every:n`` (blocks n-1, 2n-1, ...; ``every:2`` is the released ``mod2``),
        ``first:n``, ``last:n``, or the block numbers from 0.

    Raises
    ------
    UnknownNameError
        If the variant is unknown.
    ConfigError
        If ``blocks`` is not understood or names a block that does not exist.
    """
    if variant not in VARIANTS:
        raise UnknownNameError("model variant", variant, VARIANTS)
    if not VARIANTS[variant]:
        return None
    chosen = _blocks(blocks, num_blocks)
    if not chosen or min(chosen) < 0 or max(chosen) >= num_blocks:
        raise ConfigError(
            "expert_blocks names a block that does not exist",
            value=blocks,
            fix=f"blocks are 0 to {num_blocks - 1}",
        )
    return ExpertLayout(count=num_tasks, sublayers=list(VARIANTS[variant]), blocks=chosen)


def _blocks(spec: str | list[int], num_blocks: int) -> list[int]:
    if isinstance(spec, list):
        return sorted(set(spec))
    match = re.fullmatch(r"(every|first|last):([1-9]\d*)", spec)
    if not match:
        raise ConfigError(
            "expert_blocks is not understood",
            value=spec,
            fix="write every:2, first:3, last:3 or a list of block numbers",
        )
    n = int(match[2])
    if match[1] == "every":
        return list(range(n - 1, num_blocks, n))
    if n > num_blocks:
        return [num_blocks]
    return list(range(n)) if match[1] == "first" else list(range(num_blocks - n, num_blocks))
