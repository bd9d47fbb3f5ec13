"""Every benchmark encoded with every task's route: what experts and control codes are worth.

Table 3 of the SciRepEval paper (Singh et al. 2023) does this with control codes: if routes
specialise, the best score of a benchmark is under the route of its own task.
"""

from __future__ import annotations

from collections.abc import Sequence

from scimult.types import FloatArray, Role, Similarity, Text, TextEncoder


class FixedRoute:
    """A text encoder that serves every task with the route of one.

    Parameters
    ----------
    encoder : TextEncoder
        The encoder that knows tasks.
    route : str
        The task whose route is taken; which side a text is on stays.
    """

    def __init__(self, encoder: TextEncoder, route: str) -> None:
        self.name = f"{encoder.name}-as-{route}"
        self.similarity: Similarity = encoder.similarity
        self._encoder, self._route = encoder, route

    def settings(self) -> dict[str, str]:
        """Return what tells the results of one route from those of another."""
        return {"routed": self._encoder.name, "route": self._route}

    def task_for(self, task: str, fallback: str) -> str:
        """Return the fixed route."""
        return self._route

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        """Encode for the fixed route, whatever ``task`` is."""
        return self._encoder.encode(texts, task=self._route, role=role, show_progress=show_progress)
