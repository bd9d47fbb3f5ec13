"""The configuration of distillation from a teacher's embeddings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig

# Zhang et al., 2024, "Jasper and Stella": 200 times the similarity loss, 10 times the cosine loss.
RELATIONAL_SHARE = 20.0


class EmbeddingTeacherConfig(StrictConfig):
    """A loss beside the chosen one: follow a teacher's vector of each text.

    ``cosine`` is 1 - cosine of the text's embedding and its vector; ``relational`` the squared
    difference of the two cosines of each pair of texts in a batch; ``both`` their sum. The loss of
    a pair is the mean over its texts: query, positive, hard negative. ``weight`` times it is
    added to what ``loss.name`` chooses.
    """

    vectors: str = Field(description="folder that scimult teach wrote")
    loss: Literal["cosine", "relational", "both"] = "cosine"
    weight: float = Field(1.0, gt=0)
    relational_weight: float | None = Field(
        None, gt=0, description="of both: that of relational; 20 times weight"
    )
    tasks: list[str] | None = Field(
        None, min_length=1, description="whose texts follow; null: all tasks'"
    )
    projection: bool | None = Field(
        None,
        description="of cosine: a linear map from the model's width to the teacher's, learned and "
        "dropped at export; null: where the widths differ",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Give ``both`` its second weight, so that it is saved."""
        if not isinstance(given, dict) or given.get("loss") != "both":
            return given
        weight = given.get("weight", 1.0)
        if given.get("relational_weight") is not None or not isinstance(weight, (int, float)):
            return given
        return given | {"relational_weight": RELATIONAL_SHARE * weight}

    @model_validator(mode="after")
    def _fits(self) -> EmbeddingTeacherConfig:
        if self.loss != "both" and self.relational_weight is not None:
            raise ValueError(
                "loss.embedding_teacher.relational_weight belongs to loss: both; "
                f"{self.loss} has weight alone"
            )
        if self.loss == "relational" and self.projection:
            raise ValueError(
                "loss.embedding_teacher.projection has nothing to learn from with loss: relational"
            )
        return self

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of cosine and relational; 0 for one that is not used."""
        if self.loss == "both":
            assert self.relational_weight is not None
            return self.weight, self.relational_weight
        return (self.weight, 0.0) if self.loss == "cosine" else (0.0, self.weight)
