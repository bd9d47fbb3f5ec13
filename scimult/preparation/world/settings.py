"""Settings of the generated world, which is a pure function of them."""

from __future__ import annotations

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from scimult.config import StrictConfig


class WorldSettings(StrictConfig):
    """Size and shape of a generated scholarly world.

    The tree of fields has three levels (coarse, middle, fine). ``concepts`` is the number of
    concepts of each field, per level; papers of the last ``held_out_years`` are kept for
    evaluation.
    """

    model_config = ConfigDict(frozen=True)

    seed: int = Field(0, ge=0)
    papers: int = Field(3000, ge=300)
    first_year: int = 2000
    last_year: int = 2019
    yearly_growth: float = Field(1.08, gt=0.5, le=2.0)
    held_out_years: int = Field(2, ge=1)

    coarse_fields: int = Field(6, ge=2)
    middle_fields: int = Field(4, ge=1)
    fine_fields: int = Field(4, ge=1)
    concepts: tuple[int, int, int] = (3, 2, 4)
    forms: tuple[int, int] = (2, 4)

    references: float = Field(8.0, gt=0)
    queries_per_paper: float = Field(1.0, gt=0)
    shown: int = Field(10, ge=4)
    eval_queries: int = Field(200, ge=1)
    rerank_cited: int = Field(5, ge=1)
    rerank_others: int = Field(25, ge=1)

    @model_validator(mode="after")
    def _check(self) -> WorldSettings:
        if self.last_year - self.first_year < 2 * self.held_out_years:
            raise ValueError("last_year - first_year must be at least twice held_out_years")
        if not 2 <= self.forms[0] <= self.forms[1] <= 4:
            raise ValueError("forms must be (least, most) with 2 <= least <= most <= 4")
        if min(self.concepts) < 2:
            raise ValueError("every field needs at least 2 concepts")
        return self


def stream(settings: WorldSettings, part: str) -> np.random.Generator:
    """Return the random generator of one part of the world.

    Each part has its own generator, so that changing one part does not affect the others.
    """
    return np.random.default_rng([settings.seed, *part.encode()])
