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


class ExpertLayout(StrictConfig):
    """Which sub-layers of which blocks exist once per route (SciMult, section 3.2).

    ``own_norm`` says whether the LayerNorm after such a sub-layer is per route too; ``None``
    is the released models' choice: shared after attention, per route in the feed-forward.
    """

    count: int = Field(ge=1)
    sublayers: list[Sublayer]
    blocks: list[int]
    own_norm: bool | None = None


class AdapterLayout(StrictConfig):
    """Bottleneck adapters per route in every block.

    ``pfeiffer``: one after the feed-forward sub-layer (Pfeiffer et al., 2021); ``houlsby``:
    one after each of the two (Houlsby et al., 2019). With ``fusion`` each route attends over
    the adapters of all routes (AdapterFusion, Pfeiffer et al., 2021).
    """

    count: int = Field(ge=1)
    placement: Placement = "pfeiffer"
    width: int = Field(48, ge=1)
    fusion: bool = False


class LowRankLayout(StrictConfig):
    """Low-rank updates of linears per route (LoRA, Hu et al., 2022), scaled by alpha / rank."""

    count: int = Field(ge=1)
    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    targets: list[LowRankTarget] = Field(default=["query", "value"], min_length=1)

    @model_validator(mode="after")
    def _targets_once(self) -> LowRankLayout:
        if len(set(self.targets)) != len(self.targets):
            raise ValueError(f"targets {self.targets} lists a linear twice")
        return self


class PalLayout(StrictConfig):
    """Projected attention layers per route (Stickland and Murray, 2019, section 3).

    Their code, which SciRepEval adopted, gives the projections a ``bias`` and applies GELU to
    the output of the upper one (``activation``); the paper's formula has neither.
    """

    count: int = Field(ge=1)
    width: int = Field(204, ge=1)
    heads: int = Field(12, ge=1)
    bias: bool = False
    activation: Literal["gelu"] | None = None

    @model_validator(mode="after")
    def _divides(self) -> PalLayout:
        if self.width % self.heads:
            raise ValueError(f"pals: width {self.width} is not a multiple of heads {self.heads}")
        return self


class CodeLayout(StrictConfig):
    """A learned control code per route, inserted after ``[CLS]`` (SciRepEval, section 4.1)."""

    count: int = Field(ge=1)


class InstructionLayout(StrictConfig):
    """Instructions as context of every block (SciMult, section 3.3, equation 4).

    With ``own_encoder`` a separate encoder reads the instruction (the ``prefix`` variant), else
    the text encoder's own blocks do (``instruction``).
    """

    count: int = Field(ge=1)
    own_encoder: bool = False
