"""Queries that a system answers better or worse than the baseline, with their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scimult.evaluation.metrics import Scores
from scimult.evaluation.reporting.sources import ScoredSet
from scimult.evaluation.resampling import ROUNDING
from scimult.table import Cell, Table, label
from scimult.types import Text

LISTED = 3
"""Candidates shown per ranked list."""

LONGEST = 400
"""Characters shown per abstract."""


@dataclass(frozen=True)
class Listed:
    """One line of a ranked list, or a prediction."""

    rank: int
    text: str
    relevant: bool


@dataclass(frozen=True)
class Side:
    """One system's answer: its score, and the head of its list if that was saved."""

    system: str
    score: float
    listed: list[Listed]


@dataclass(frozen=True)
class Example:
    """One query, its relevant candidates, and the answers of baseline and system."""

    query_id: str
    title: str
    body: str
    relevant: list[str]
    relevant_count: int
    sides: list[Side]


@dataclass(frozen=True)
class PairwiseWins:
    """A system against the baseline on one data set."""

    task: str
    name: str
    metric: str
    system: str
    baseline: str
    wins: int
    ties: int
    losses: int
    won: list[Example]
    lost: list[Example]


def pairwise_wins(scored: ScoredSet, baseline: str, examples: int) -> list[PairwiseWins]:
    """Compare every system with the baseline, query by query; nothing if it has no result.

    ``examples`` is the number of wins, and of losses, to show: those with the largest difference.
    Without texts, there are only counts.
    """
    if baseline not in scored.tables:
        return []
    wins = []
    for system in scored.tables:
        if system == baseline:
            continue
        difference_Q = _scores(scored, system) - _scores(scored, baseline)
        pair = (baseline, system)
        wins.append(
            PairwiseWins(
                task=scored.facts.task,
                name=scored.name,
                metric=scored.column,
                system=system,
                baseline=baseline,
                wins=int((difference_Q > ROUNDING).sum()),
                ties=int((abs(difference_Q) <= ROUNDING).sum()),
                losses=int((difference_Q < -ROUNDING).sum()),
                won=_examples(scored, pair, difference_Q, examples),
                lost=_examples(scored, pair, -difference_Q, examples),
            )
        )
    return wins


def counts(wins: Sequence[PairwiseWins]) -> Table:
    """Return wins, ties and losses as a table."""
    headings = ["task", "set", "per-query score", "system", "wins", "ties", "losses"]
    rows = [
        [
            *map(label, (one.task, one.name, one.metric, one.system)),
            *(Cell(str(n), n) for n in (one.wins, one.ties, one.losses)),
        ]
        for one in wins
    ]
    baseline = wins[0].baseline if wins else ""
    return Table(f"Queries won and lost against {baseline}", headings, 4, rows)


def _scores(scored: ScoredSet, system: str) -> Scores:
    scores_Q: Scores = scored.tables[system].scores([scored.column])[:, 0]
    return scores_Q


def _examples(
    scored: ScoredSet, pair: tuple[str, str], difference_Q: Scores, limit: int
) -> list[Example]:
    """Return the queries with the largest positive differences."""
    if scored.dataset is None:
        return []
    order = np.argsort(-difference_Q, kind="stable")[:limit]
    return [_example(scored, pair, int(row)) for row in order if difference_Q[row] > ROUNDING]


def _example(scored: ScoredSet, pair: tuple[str, str], row: int) -> Example:
    data = scored.dataset
    assert data is not None, "only called with texts"
    judged, grades = data.qrels.rows[row], data.qrels.grades[row]
    # Highest grades first, as in an ideal list.
    order = np.argsort(-grades, kind="stable")
    relevant = [int(judged[i]) for i in order if grades[i] > 0]
    query = data.queries[row]
    return Example(
        query_id=scored.query_ids[row],
        title=query.title,
        body=shortened(query.body),
        relevant=[title_of(data.candidates[column]) for column in relevant[:LISTED]],
        relevant_count=len(relevant),
        sides=[_side(scored, system, row, set(relevant)) for system in pair],
    )


def _side(scored: ScoredSet, system: str, row: int, relevant: set[int]) -> Side:
    score = float(scored.tables[system].column(scored.column)[row])
    return Side(system, score, _listed(scored, system, row, relevant))


def _listed(scored: ScoredSet, system: str, row: int, relevant: set[int]) -> list[Listed]:
    data = scored.dataset
    assert data is not None, "only called with texts"
    if scored.has_one_label:
        label_id = scored.tables[system].column("predicted")[row]
        rows = {name: column for column, name in enumerate(data.candidate_ids)}
        text = title_of(data.candidates[rows[label_id]]) if label_id else "no label"
        return [Listed(1, text, rows.get(label_id) in relevant)]
    if system not in scored.runs:
        return []
    head = scored.runs[system].rows_QK[row, :LISTED]
    return [
        Listed(rank, title_of(data.candidates[column]), int(column) in relevant)
        for rank, column in enumerate(head, start=1)
        if column >= 0
    ]


def title_of(text: Text) -> str:
    """Return a text's title, or the start of its body."""
    return text.title.strip() or shortened(text.body, 100)


def shortened(text: str, limit: int = LONGEST) -> str:
    """Cut a text at a word boundary, with an ellipsis."""
    text = text.strip()
    if len(text) <= limit:
        return text
    return text[:limit].rsplit(maxsplit=1)[0] + " …"
