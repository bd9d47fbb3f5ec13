"""Types that every layer shares: texts, roles, similarities and the encoder protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Kind = Literal["paper", "label", "query"]
Role = Literal["query", "candidate"]
Similarity = Literal["dot", "cosine", "l2"]
FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
TokenIds = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Text:
    """One text of the bi-encoder.

    ``title`` and ``body`` hold title and abstract of a paper, name and definition of a
    label, or the whole text of a query (whose ``body`` is empty).
    """

    kind: Kind
    title: str
    body: str = ""

    @property
    def joined(self) -> str:
        """Title and body joined by a space: the text whose words are counted."""
        return f"{self.title} {self.body}".strip()


class TextEncoder(Protocol):
    """Anything that turns texts into vectors: our models, other libraries', stored embeddings."""

    @property
    def name(self) -> str:
        """Name that reports show."""
        ...

    @property
    def similarity(self) -> Similarity:
        """How two embeddings are compared."""
        ...

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        """Return float32 embeddings of shape ``(len(texts), width)``, in the order given.

        Raises
        ------
        UnknownNameError
            If the encoder does not know ``task``.
        """
        ...


@runtime_checkable
class TaskChooser(Protocol):
    """A text encoder that can say how it would serve a task that it may not know."""

    def task_for(self, task: str, fallback: str) -> str:
        """Return the task to encode for: ``task`` if the encoder knows it, else ``fallback``."""
        ...
