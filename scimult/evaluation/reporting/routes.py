"""Scores of every benchmark by the route that encoded it, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scimult.evaluation.results import Result
from scimult.table import Table, label, percent


def cross_tables(results: Sequence[Result]) -> list[Table]:
    """Return, for each model that was evaluated by route, main scores of sets by route."""
    models: dict[str, list[Result]] = {}
    for result in results:
        if "routed" in result.settings:
            models.setdefault(str(result.settings["routed"]), []).append(result)
    return [_cross_table(model, found) for model, found in models.items()]


def _cross_table(model: str, results: Sequence[Result]) -> Table:
    routes = [str(result.settings["route"]) for result in results]
    rows = []
    for name in dict.fromkeys(name for result in results for name in result.sets):
        facts = next(result.sets[name] for result in results if name in result.sets)
        scores = [_main(result, name) for result in results]
        known = [f"{100 * score:.2f}" for score in scores if score is not None]
        best = max(known, key=float)
        cells = [
            percent(score, bold=score is not None and f"{100 * score:.2f}" == best)
            for score in scores
        ]
        rows.append([label(facts.task), label(name), label(facts.main_metric), *cells])
    notes = [
        "Columns: the task whose route (experts, control code, instruction) encoded all texts. The "
        "best of a row is bold; if routes specialise, it is under the task of the row."
    ]
    return Table(f"{model}, by route", ["task", "set", "metric", *routes], 3, rows, notes)


def _main(result: Result, name: str) -> float | None:
    entry: Any = result.sets.get(name)
    return None if entry is None else float(entry.scores[entry.main_metric])
