"""Model variants by name: layout, options, and trained parameters of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scimult.config import StrictConfig, validate
from scimult.errors import ConfigError, one_of
from scimult.models.config import EncoderConfig
from scimult.models.layouts import (
    AdapterLayout,
    AdapterOptions,
    CodeLayout,
    ExpertLayout,
    InstructionLayout,
    LowRankLayout,
    LowRankOptions,
    PalLayout,
    PalOptions,
    Sublayer,
)

Layouts = dict[str, Any]
# From options, routes and blocks of the encoder.
LayoutsOf = Callable[[Any, int, int], Layouts]


class ExpertOptions(StrictConfig):
    """Options of the expert variants; with ``instructions``, each route also reads its own."""

    blocks: str | list[int] = "every:2"
    own_norm: bool | None = None
    instructions: bool = False


class CodeOptions(StrictConfig):
    """Options of ``control_codes``: the token whose state is the embedding."""

    embed_at: Literal["code", "cls"] = "code"


@dataclass(frozen=True)
class Variant:
    """One way to make embeddings depend on the task.

    ``layouts`` maps (options, routes, blocks of the encoder) to fields of ``EncoderConfig``.
    ``trains`` matches the names of trained parameters; ``None`` means all.
    """

    options: type[StrictConfig]
    layouts: LayoutsOf
    trains: re.Pattern[str] | None = None


def variant_layouts(
    variant: str, options: Mapping[str, Any], routes: int, num_blocks: int
) -> Layouts:
    """Return the ``EncoderConfig`` fields of a variant.

    Parameters
    ----------
    variant : str
        A key of ``VARIANTS``.
    options : mapping
        Options of the variant; see the classes above.
    routes : int
        Number of tasks, formats or sides that are told apart.
    num_blocks : int
        Number of blocks of the encoder.

    Raises
    ------
    UnknownNameError
        If the variant is unknown.
    ConfigError
        If an option is unknown, out of range, or names a block that does not exist.
    """
    entry = VARIANTS[one_of("model variant", variant, VARIANTS)]
    checked = validate(entry.options, dict(options), f"model.options of {variant}")
    return entry.layouts(checked, routes, num_blocks)


def _experts(*sublayers: Sublayer) -> Variant:
    def layouts(options: ExpertOptions, routes: int, num_blocks: int) -> Layouts:
        layout = ExpertLayout(
            count=routes,
            sublayers=list(sublayers),
            blocks=_blocks(options.blocks, num_blocks),
            own_norm=options.own_norm,
        )
        read = {"instructions": InstructionLayout(count=routes)} if options.instructions else {}
        return {"experts": layout, **read}

    return Variant(ExpertOptions, layouts)


def _one(field: str, layout: Callable[..., Any], **fixed: Any) -> LayoutsOf:
    """Return a variant's ``layouts`` of one field, whose layout has the variant's options."""

    def layouts(options: StrictConfig, routes: int, num_blocks: int) -> Layouts:
        return {field: layout(count=routes, **options.model_dump(), **fixed)}

    return layouts


def _codes(options: CodeOptions, routes: int, num_blocks: int) -> Layouts:
    position = 1 if options.embed_at == "code" else 0
    return {
        "codes": CodeLayout(count=routes),
        "pooling": "position",
        "pooling_position": position,
    }


VARIANTS: dict[str, Variant] = {
    "vanilla": Variant(StrictConfig, lambda options, routes, num_blocks: {}),
    "mha_expert": _experts("attention"),
    "ffn_expert": _experts("feed_forward"),
    "mha_ffn_expert": _experts("attention", "feed_forward"),
    "instruction": Variant(
        StrictConfig, _one("instructions", InstructionLayout, own_encoder=False)
    ),
    "prefix": Variant(
        StrictConfig,
        _one("instructions", InstructionLayout, own_encoder=True),
        re.compile(r"^instruction_encoder\."),
    ),
    "control_codes": Variant(CodeOptions, _codes),
    "adapters": Variant(
        AdapterOptions,
        _one("adapters", AdapterLayout, fusion=False),
        re.compile(r"\.adapter\."),
    ),
    # The second step: the trained adapters stay frozen.
    "fusion": Variant(
        AdapterOptions,
        _one("adapters", AdapterLayout, fusion=True),
        re.compile(r"\.fusion\."),
    ),
    "lora": Variant(LowRankOptions, _one("lora", LowRankLayout), re.compile(r"\.lora\.")),
    "pals": Variant(PalOptions, _one("pals", PalLayout)),
}


def _blocks(spec: str | list[int], num_blocks: int) -> list[int]:
    """Return the numbers of the blocks with experts.

    ``every:n`` is n-1, 2n-1, ... (``every:2`` is the released ``mod2``); ``first:n``, ``last:n``
    and lists of numbers from 0 are the others.
    """
    if isinstance(spec, list):
        numbers = sorted(set(spec))
    else:
        match = re.fullmatch(r"(every|first|last):([1-9]\d*)", spec)
        if not match:
            raise ConfigError(
                "cannot read the blocks with experts",
                value=spec,
                fix="write every:2, first:3, last:3 or a list of block numbers",
            )
        n = int(match[2])
        numbers = list(
            {
                "every": range(n - 1, num_blocks, n),
                "first": range(n),
                "last": range(num_blocks - n, num_blocks),
            }[match[1]]
        )
    if not numbers or min(numbers) < 0 or max(numbers) >= num_blocks:
        raise ConfigError(
            "the blocks with experts name a block that does not exist",
            value=spec,
            fix=f"use blocks from 0 to {num_blocks - 1}",
        )
    return numbers


def variant_of(encoder: EncoderConfig) -> str:
    """Return the name in ``VARIANTS`` of an encoder's variant."""
    if encoder.experts is not None:
        names = {"attention": "mha", "feed_forward": "ffn"}
        return (
            "_".join(names[part] for part in names if part in encoder.experts.sublayers) + "_expert"
        )
    if encoder.adapters is not None:
        return "fusion" if encoder.adapters.fusion else "adapters"
    if encoder.instructions is not None:
        return "prefix" if encoder.instructions.own_encoder else "instruction"
    if encoder.codes is not None:
        return "control_codes"
    return next(iter(encoder.routed), "vanilla")  # lora or pals
