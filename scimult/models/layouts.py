"""One small config per method of making embeddings depend on the task.

Every layout has ``count``, the number of routes. A route is an integer that the caller assigns
to each row; which task, format or side it stands for is not known here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig

Sublayer = Literal["attention", "feed_forward"]
Placement = Literal["pfeiffer", "houlsby"]
LowRankTarget = Literal["query", "key", "value", "output", "intermediate", "projection"]


class Layout(StrictConfig):
    """What every layout has."""

    count: int = Field(ge=1)


class ExpertLayout(Layout):
    """Which sub-layers of which blocks exist once per route (SciMult, section 3.2).

    ``own_norm`` says whether the LayerNorm after such a sub-layer is per route too; ``None``
    is the released models' choice: shared after attention, per route in the feed-forward.
    """

    sublayers: list[Sublayer]
    blocks: list[int]
    own_norm: bool | None = None


class AdapterOptions(StrictConfig):
    """Where bottleneck adapters are, and how wide.

    ``pfeiffer``: one after the feed-forward sub-layer (Pfeiffer et al., 2021); ``houlsby``:
    one after each of the two (Houlsby et al., 2019).
    """

    placement: Placement = "pfeiffer"
    width: int = Field(48, ge=1)


class AdapterLayout(AdapterOptions, Layout):
    """Bottleneck adapters per route in every block.

    With ``fusion`` each route attends over the adapters of all routes (AdapterFusion, Pfeiffer et
    al., 2021).
    """

    fusion: bool = False


class LowRankOptions(StrictConfig):
    """Rank and targets of low-rank updates (LoRA, Hu et al., 2022), scaled by alpha / rank."""

    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    targets: list[LowRankTarget] = Field(default=["query", "value"], min_length=1)

    @model_validator(mode="after")
    def _targets_once(self) -> LowRankOptions:
        if len(set(self.targets)) != len(self.targets):
            raise ValueError(f"targets {self.targets} lists a linear twice")
        return self


class LowRankLayout(LowRankOptions, Layout):
    """Low-rank updates of linears per route."""


class PalOptions(StrictConfig):
    """Sizes of projected attention layers (Stickland and Murray, 2019, section 3).

    Their code, which SciRepEval adopted, gives the projections a ``bias`` and applies GELU to
    the output of the upper one (``activation``); the paper's formula has neither.
    """

    width: int = Field(204, ge=1)
    heads: int = Field(12, ge=1)
    bias: bool = False
    activation: Literal["gelu"] | None = None

    @model_validator(mode="after")
    def _divides(self) -> PalOptions:
        if self.width % self.heads:
            raise ValueError(f"pals: width {self.width} is not a multiple of heads {self.heads}")
        return self


class PalLayout(PalOptions, Layout):
    """Projected attention layers per route."""


class CodeLayout(Layout):
    """A learned control code per route, inserted after ``[CLS]`` (SciRepEval, section 4.1)."""


class InstructionLayout(Layout):
    """Instructions as context of every block (SciMult, section 3.3, equation 4).

    With ``own_encoder`` a separate encoder reads the instruction (the ``prefix`` variant), else
    the text encoder's own blocks do (``instruction``).
    """

    own_encoder: bool = False
