"""The schema of a saved encoder's ``config.json``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig
from scimult.models.config import EncoderConfig, Pooling
from scimult.tasks import Routing, Task, TaskSet, route_names, route_of
from scimult.types import Role, Similarity

FORMAT = "scimult-encoder"
SHORTEST = 3


class ModelSettings(StrictConfig):
    """What a library or tagger keeps of the settings its model was opened with.

    They are the options of `scimult.inference.SciMult.from_pretrained`.
    """

    pooling: Pooling | None = None
    similarity: Similarity | None = None
    normalise: bool | None = None
    dims: int | None = None
    name: str | None = None
    tokenizer: str | None = None


class PretrainedConfig(StrictConfig):
    """``config.json`` of a saved encoder.

    ``normalise`` decides whether embeddings are scaled to length 1. By default (None) they are if
    compared by cosine, so that linear models, clusters and distances agree with the cosine.
    """

    format: str = FORMAT
    version: Literal[1] = 1
    encoder: EncoderConfig
    tasks: list[Task]
    routing: Routing = "task"
    similarity: Similarity = "dot"
    normalise: bool | None = None
    max_length: int = Field(512, ge=SHORTEST)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @property
    def routes(self) -> list[str]:
        """Names of the encoder's routes, in order."""
        return route_names(TaskSet(self.tasks), self.routing)

    def route(self, task: str, role: Role = "query") -> int:
        """Return the route of one side of ``task``; 0 for a model without routes.

        Raises
        ------
        UnknownNameError
            If the model does not know the task.
        """
        route = route_of(TaskSet(self.tasks), self.routing, task, role)
        return route if self.encoder.is_routed else 0

    @property
    def unit_vectors(self) -> bool:
        """Whether embeddings have length 1."""
        return self.similarity == "cosine" if self.normalise is None else self.normalise

    @model_validator(mode="after")
    def _one_layer_per_route(self) -> PretrainedConfig:
        routes, count = self.routes, self.encoder.num_routes
        if self.encoder.is_routed and len(routes) != count:
            raise ValueError(
                f"the encoder has {count} routes, the tasks have {len(routes)}: {routes}"
            )
        return self

    @model_validator(mode="after")
    def _has_positions(self) -> PretrainedConfig:
        most = self.encoder.max_text_length
        if self.max_length > most:
            raise ValueError(f"max_length {self.max_length} is more than the encoder's {most}")
        return self
