"""Queries that a system answers better or worse than the baseline, with their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scimult.evaluation.metrics import Scores
from scimult.evaluation.protocols import MACRO_F1
from scimult.evaluation.reporting.sources import ScoredSet
from scimult.evaluation.resampling import ROUNDING
from scimult.table import Cell, Table, label
from scimult.types import Text

LISTED = 3
"""Candidates shown of each ranked list."""

LONGEST = 400
"""Characters shown of an abstract."""


@dataclass(frozen=True)
class Listed:
    """One line of a ranked list, or a prediction."""

    rank: int
    text: str
    relevant: bool


@dataclass(frozen=True)
class Side:
    """What one system answered: its score and the head of its list, if that was kept."""

    system: str
    score: float
    listed: list[Listed]


@dataclass(frozen=True)
class Example:
    """One query, what is right, and the answers of baseline and system."""

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
    """Compare every system with the baseline, query by query.

    Parameters
    ----------
    scored : ScoredSet
        The data set; without texts only counts are returned.
    baseline : str
        The system that others are compared with; without its result there are none.
    examples : int
        How many wins, and how many losses, are shown: those with the greatest difference.
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
    headings = ["task", "set", "score per query", "system", "wins", "ties", "losses"]
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
    """Return the queries with the greatest difference, none where it is not positive."""
    if scored.dataset is None:
        return []
    order = np.argsort(-difference_Q, kind="stable")[:limit]
    return [_example(scored, pair, int(row)) for row in order if difference_Q[row] > ROUNDING]


def _example(scored: ScoredSet, pair: tuple[str, str], row: int) -> Example:
    data = scored.dataset
    assert data is not None, "only called with texts"
    judged = data.qrels.rows[row]
    # The most relevant first: those a good list would begin with.
    grades = data.qrels.grades[row]
    right = [
        int(judged[place]) for place in np.argsort(-grades, kind="stable") if grades[place] > 0
    ]
    query = data.queries[row]
    return Example(
        query_id=scored.query_ids[row],
        title=query.title,
        body=shortened(query.body),
        relevant=[named(data.candidates[column]) for column in right[:LISTED]],
        relevant_count=len(right),
        sides=[_side(scored, system, row, set(right)) for system in pair],
    )


def _side(scored: ScoredSet, system: str, row: int, right: set[int]) -> Side:
    table = scored.tables[system]
    return Side(
        system, float(table.column(scored.column)[row]), _listed(scored, system, row, right)
    )


def _listed(scored: ScoredSet, system: str, row: int, right: set[int]) -> list[Listed]:
    data = scored.dataset
    assert data is not None, "only called with texts"
    if scored.facts.main_metric == MACRO_F1:
        label_id = scored.tables[system].column("predicted")[row]
        rows = {name: column for column, name in enumerate(data.candidate_ids)}
        text = named(data.candidates[rows[label_id]]) if label_id else "no label"
        return [Listed(1, text, rows.get(label_id) in right)]
    if system not in scored.runs:
        return []
    head = scored.runs[system].rows_QK[row, :LISTED]
    return [
        Listed(rank, named(data.candidates[column]), int(column) in right)
        for rank, column in enumerate(head, start=1)
        if column >= 0
    ]


def named(text: Text) -> str:
    """Return what names a text: its title, or the start of its body."""
    return text.title.strip() or shortened(text.body, 100)


def shortened(text: str, limit: int = LONGEST) -> str:
    """Cut a text at a word, with an ellipsis."""
    if len(text) <= limit:
        return text
    return text[:limit].rsplit(maxsplit=1)[0] + " …"
