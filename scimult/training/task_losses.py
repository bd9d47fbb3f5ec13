"""Which loss a task has: contrastive over its pairs, or that of a head on its targets."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from scimult.config import StrictConfig


class InfoNCEConfig(StrictConfig):
    """Equation 2 of SciMult; ``symmetric_info_nce`` is its mean with positives against queries."""

    name: Literal["info_nce", "symmetric_info_nce"]
    temperature: float = Field(1.0, gt=0, description="divides the scores")
    learn_temperature: bool = Field(False, description="from temperature as the start")


class TripletConfig(StrictConfig):
    """Equation 2 of SPECTER, against the query's own hard negative or all candidates."""

    name: Literal["triplet"]
    margin: float = Field(1.0, gt=0)
    negatives: Literal["own", "all"] = "own"


class HeadConfig(StrictConfig):
    """A linear head on embeddings, with the loss that SciRepEval (section 4.2) has for its targets.

    ``multi_class`` is cross-entropy, ``multi_label`` binary cross-entropy, the mean over classes,
    and ``regression`` the squared error. ``dropout`` comes before the head; SciRepEval's code has
    0.2, and starts weights with standard deviation 0.02 as here.
    """

    name: Literal["multi_class", "multi_label", "regression"]
    dropout: float = Field(0.0, ge=0, lt=1)


def _named(loss: Any) -> Any:
    """Let a loss without options be written as its name."""
    return {"name": loss} if isinstance(loss, str) else loss


ContrastiveLoss: TypeAlias = InfoNCEConfig | TripletConfig
TaskLoss: TypeAlias = Annotated[
    InfoNCEConfig | TripletConfig | HeadConfig,
    Field(discriminator="name"),
    BeforeValidator(_named),
]
# Formats of SciRepEval that a head's task may have.
FORMAT_OF_HEAD = {
    "multi_class": "classification",
    "multi_label": "classification",
    "regression": "regression",
}
