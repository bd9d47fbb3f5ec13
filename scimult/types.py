"""Types shared by every layer: texts, roles, similarities and the encoder protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["paper", "label", "query"]
Role = Literal["query", "candidate"]
Similarity = Literal["dot", "cosine", "l2"]
ViewName = Literal["independent_crop", "inverse_cloze", "title_to_abstract"]
# Strings, as verbs that need no array start in a quarter less time without numpy.
FloatArray: TypeAlias = "NDArray[np.float32]"
IntArray: TypeAlias = "NDArray[np.int64]"
BoolArray: TypeAlias = "NDArray[np.bool_]"
TokenIds: TypeAlias = "NDArray[np.int32] | NDArray[np.int64]"
# Between the fields of a body; tokenizers of the BERT family read it as their special token.
SEPARATOR = " [SEP] "


@dataclass(frozen=True, slots=True)
class Text:
    """One input text.

    ``title`` and ``body`` hold a paper's title and abstract, or a label's name and definition.
    A query is all ``title``.
    """

    kind: Kind
    title: str
    body: str = ""

    @property
    def joined(self) -> str:
        """Title and body joined by a space, as word counts use them."""
        return f"{self.title} {self.body}".strip()


def tokens_encoded_by(encoder: object) -> int | None:
    """Return the number of tokens that an encoder has read so far; None if it counts none."""
    counted: int | None = getattr(encoder, "tokens_encoded", None)
    return counted


class TextEncoder(Protocol):
    """Anything that embeds texts: our models, other libraries' models, stored embeddings."""

    @property
    def name(self) -> str:
        """Name shown in reports."""
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
    """A text encoder that can replace a task it does not know."""

    def task_for(self, task: str, fallback: str) -> str:
        """Return ``task`` if the encoder knows it, else ``fallback``."""
        ...
