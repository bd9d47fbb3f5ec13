"""Encode every benchmark with every task's route: what experts and control codes are worth.

Table 3 of the SciRepEval paper (Singh et al. 2023) does this with control codes: if routes
specialise, a benchmark scores best with the route of its own task.
"""

from __future__ import annotations

from collections.abc import Sequence

from scimult.evaluation.results import Result
from scimult.table import Table, percents, texts
from scimult.types import FloatArray, Role, Similarity, Text, TextEncoder, tokens_encoded_by


class FixedRoute:
    """A multi-task encoder that serves every task with one task's route, and keeps sides."""

    def __init__(self, encoder: TextEncoder, route: str) -> None:
        self.name = f"{encoder.name}-as-{route}"
        self.similarity: Similarity = encoder.similarity
        self._encoder, self._route = encoder, route

    @property
    def tokens_encoded(self) -> int | None:
        """Tokens of the texts so far, if the encoder counts them."""
        return tokens_encoded_by(self._encoder)

    def settings(self) -> dict[str, str]:
        """Return what distinguishes the results of routes."""
        return {"routed": self._encoder.name, "route": self._route}

    def task_for(self, task: str, fallback: str) -> str:
        """Return the fixed route."""
        return self._route

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        """Encode for the fixed route, whatever ``task`` is."""
        return self._encoder.encode(texts, task=self._route, role=role, show_progress=show_progress)


def cross_tables(results: Sequence[Result]) -> list[Table]:
    """Return one table per model evaluated by route: main scores of sets by route."""
    models: dict[str, list[Result]] = {}
    for result in results:
        if "routed" in result.settings:
            models.setdefault(str(result.settings["routed"]), []).append(result)
    return [_cross_table(model, by_route) for model, by_route in models.items()]


def _cross_table(model: str, results: Sequence[Result]) -> Table:
    routes = [str(result.settings["route"]) for result in results]
    rows = []
    for name in dict.fromkeys(name for result in results for name in result.sets):
        facts = next(result.sets[name] for result in results if name in result.sets)
        scores = [
            result.sets[name].main_score if name in result.sets else None for result in results
        ]
        rows.append([*texts(facts.task, name, facts.main_metric), *percents(scores)])
    notes = [
        "Columns: the task whose route (experts, control code, instruction) encoded all texts. The "
        "best of each row is bold; if routes specialise, it is in the column of the row's task."
    ]
    return Table(f"{model}, by route", ["task", "set", "metric", *routes], 3, rows, notes)
