"""Several encoders as one: the mean, or the concatenation, of their embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from scimult.errors import ConfigError, one_of
from scimult.inference.texts import rows_of
from scimult.retrieval.embeddings import unit_rows
from scimult.tasks import ALL
from scimult.types import (
    FloatArray,
    Role,
    Similarity,
    TaskChooser,
    Text,
    TextEncoder,
    tokens_encoded_by,
)

Combination = Literal["mean", "concatenation"]


class Ensemble:
    """A ``TextEncoder`` made of others (SciRepEval, section 6: adapters with control codes).

    Parameters
    ----------
    members : sequence of TextEncoder
        At least two, of the same similarity; for ``mean`` also of the same width.
    name : str
        Display name in reports.
    combine : {"mean", "concatenation"}
        How to combine the embeddings.
    normalise : bool, optional
        Whether to scale the result to length 1; default: if the similarity is cosine.

    Raises
    ------
    ConfigError
        If there are fewer than two members, or they compare embeddings differently.
    UnknownNameError
        If there is no such combination.
    """

    def __init__(
        self,
        members: Sequence[TextEncoder],
        *,
        name: str,
        combine: Combination = "mean",
        normalise: bool | None = None,
    ) -> None:
        if len(members) < 2:
            raise ConfigError("an ensemble needs at least two members", value=len(members))
        one_of("combination", combine, get_args(Combination))
        similarities = {member.name: member.similarity for member in members}
        if len({member.similarity for member in members}) > 1:
            problem = "members of an ensemble compare embeddings differently"
            raise ConfigError(problem, value=similarities, fix="give all the same similarity")
        self.name, self._members, self._combine = name, list(members), combine
        self._unit_vectors = self.similarity == "cosine" if normalise is None else normalise

    def __repr__(self) -> str:
        members = ", ".join(repr(member.name) for member in self._members)
        lengths = ", unit vectors" if self._unit_vectors else ""
        return f"Ensemble({self.name!r}: {self._combine} of {members}; {self.similarity}{lengths})"

    @property
    def similarity(self) -> Similarity:
        """How two embeddings are compared."""
        return self._members[0].similarity

    @property
    def tokens_encoded(self) -> int | None:
        """Tokens of the texts so far, once per member, if all members count them."""
        counts = [tokens_encoded_by(member) for member in self._members]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def task_for(self, task: str, fallback: str) -> str:
        """Return ``task`` if all members know it, else ``fallback``."""
        tasks = {
            member.task_for(task, fallback) if isinstance(member, TaskChooser) else fallback
            for member in self._members
        }
        return task if tasks == {task} else fallback

    def encode(
        self,
        texts: Sequence[Text],
        *,
        task: str,
        role: Role = "query",
        show_progress: bool = False,
    ) -> FloatArray:
        """Return the members' combined embeddings as `SciMult.encode` does, float32.

        Raises
        ------
        UnknownNameError
            If a member does not know ``task``.
        ConfigError
            If the mean is requested and widths differ, or ``task`` is ``all``.
        """
        if task == ALL:
            raise ConfigError("an ensemble encodes for one task", value=task, fix="name the task")
        # Every member reads all texts; a generator would be empty after the first.
        if isinstance(texts, Iterator):
            rows: Any = rows_of(texts)
            texts = list(texts if rows is None else rows)
        parts = [
            member.encode(texts, task=task, role=role, show_progress=show_progress)
            for member in self._members
        ]
        widths = [part.shape[1] for part in parts]
        if self._combine == "mean" and len(set(widths)) > 1:
            problem = f"members have {widths} dimensions: no mean"
            raise ConfigError(problem, fix="combine by concatenation")
        combined_ND: FloatArray = (
            np.mean(parts, axis=0, dtype=np.float32)
            if self._combine == "mean"
            else np.concatenate(parts, axis=1)
        )
        return unit_rows(combined_ND) if self._unit_vectors else combined_ND
