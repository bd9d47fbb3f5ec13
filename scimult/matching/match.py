"""Score all reviewers for all submissions, assign them, and write both with evidence to a folder.

Shape legend: S submissions, R reviewers, P publications, D width.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.data.ragged import Ragged
from scimult.disk_space import create_matrix
from scimult.errors import DataError
from scimult.files import FolderKind, atomic_folder, holds_only, write_json, write_text
from scimult.heap import keep_freed_memory
from scimult.matching.affinity import BLOCK, Rule, affinities, best_pairs, recency
from scimult.matching.venue import Venue
from scimult.progress import bar
from scimult.retrieval.embeddings import unit_rows
from scimult.types import FloatArray, IntArray

if TYPE_CHECKING:
    from scimult.matching.assignment import Assignment, Loads

SCORES, ASSIGNMENT, MATCHES, SUMMARY = (
    "scores.csv",
    "assignment.csv",
    "matches.jsonl",
    "summary.json",
)
MATCHED = FolderKind(
    "a folder that match-reviewers wrote",
    lambda folder: (
        (folder / SUMMARY).is_file() and holds_only(folder, (SCORES, ASSIGNMENT, MATCHES, SUMMARY))
    ),
)
_EVIDENCE = 3


@dataclass(frozen=True)
class Weighting:
    """Factors of the similarities of publications.

    A publication loses half of its weight in ``half_life`` years before ``now``. ``venues`` have
    the weight of their publications: ``NAME*`` matches all that begin so, the longest match wins,
    and venues without one weigh 1.
    """

    half_life: float | None = None
    now: int = 0
    venues: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """Reviewers per submission, and bounds on submissions per reviewer."""

    reviewers: int
    most: int
    least: int = 0


def check_loads(venue: Venue, wanted: Wanted) -> None:
    """Check what needs no scores of a wanted assignment, before hours of encoding.

    Raises
    ------
    DataError
        If the loads cannot be met.
    """
    from scimult.matching.assignment import check_sums

    check_sums(_loads(len(venue.submissions), sum(map(bool, venue.reviewers.values())), wanted))


def match(
    venue: Venue,
    vectors: tuple[FloatArray, FloatArray],
    out: Path,
    *,
    rule: Rule,
    weighting: Weighting,
    conflicts: Iterable[tuple[str, str]] = (),
    wanted: Wanted | None = None,
    top: int = 100,
    encoder: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Score, assign if requested, and write the folder ``out``; return its summary.

    The folder gets ``scores.csv`` and ``assignment.csv`` (submission, reviewer, score, without a
    header, in OpenReview's format), ``matches.jsonl`` with the publications behind each match, and
    ``summary.json``.

    Parameters
    ----------
    vectors : pair of array
        Of submissions and publications in the order of ``venue``, shapes ``(S, D)`` and
        ``(P, D)``; they are compared by cosine.
    conflicts : iterable of pair of str
        Submission and reviewer; authors are always in conflict with their own submission.
    wanted : Wanted, optional
        Loads of the assignment; None: no assignment.
    top : int
        Write scores for this many reviewers per submission and submissions per reviewer.
    encoder : mapping, optional
        Description of the vectors' encoder, for the summary.

    Raises
    ------
    DataError
        If no reviewer has a publication, or the assignment is impossible.
    StorageError
        If ``out`` cannot be written.
    """
    keep_freed_memory()
    reviewers = [name for name, papers in venue.reviewers.items() if papers]
    if not reviewers:
        raise DataError("no reviewer has a publication", fix="add the reviewers' publications")
    row_of = {name: row for row, name in enumerate(venue.publications)}
    publications_of = Ragged.from_lists([row_of[n] for n in venue.reviewers[r]] for r in reviewers)
    submissions_SD, publications_PD = (unit_rows(x_ND) for x_ND in vectors)
    with atomic_folder(out, MATCHED) as temporary, TemporaryDirectory(dir=temporary) as scratch:
        shape = len(submissions_SD), len(reviewers)
        scores_SR = create_matrix(Path(scratch) / "scores.npy", np.float32, shape)
        weights = _weights(venue, publications_of, weighting)
        with bar("scoring", total=len(scores_SR), unit="paper") as meter:
            blocks = affinities(submissions_SD, publications_PD, publications_of, rule, weights)
            for start, block in blocks:
                scores_SR[start : start + BLOCK] = block
                meter.update(len(block))
        excluded = _exclude(scores_SR, venue, reviewers, conflicts)
        names = list(venue.submissions)
        pairs = best_pairs(scores_SR, top, top)
        _write_pairs(
            temporary / SCORES, *np.divmod(pairs, len(reviewers)), scores_SR, names, reviewers
        )
        summary = _summary(venue, scores_SR, excluded)
        summary["settings"] = {
            "encoder": dict(encoder or {}),
            "score": asdict(rule),
            "weights": asdict(weighting),
            "assignment": None if wanted is None else asdict(wanted),
            "top": top,
        }
        if wanted is None:
            pairs = best_pairs(scores_SR, min(top, 10), 0)
            matches = np.divmod(pairs, len(reviewers))
        else:
            from scimult.matching.assignment import assign

            loads = _loads(len(names), len(reviewers), wanted)
            assigned = assign(scores_SR, loads, names, reviewers)
            matches = assigned.submissions, assigned.reviewers
            _write_pairs(temporary / ASSIGNMENT, *matches, scores_SR, names, reviewers)
            summary["assignment"] = _assignment_summary(assigned, wanted, len(reviewers))
        similar = submissions_SD, publications_PD, publications_of
        _write_matches(temporary / MATCHES, matches, scores_SR, similar, venue, reviewers)
        write_json(temporary / SUMMARY, summary)
        del scores_SR
    return summary


def _weights(venue: Venue, publications_of: Ragged, weighting: Weighting) -> FloatArray | None:
    """Return the weight of each entry of ``publications_of``; None if all weigh 1."""
    publications = list(venue.publications.values())
    weights_P = np.ones(len(publications), dtype=np.float32)
    if weighting.half_life is not None:
        years = [publication.year for publication in publications]
        weights_P *= recency(years, weighting.now, weighting.half_life)
    if weighting.venues:
        names = {p.venue: _weighing(p.venue, weighting.venues) for p in publications}
        weight_of = {venue: weighting.venues[name] for venue, name in names.items() if name}
        weights_P *= np.array([weight_of.get(p.venue, 1.0) for p in publications], np.float32)
    return None if (weights_P == 1).all() else weights_P[publications_of.values]


def unused_weights(venue: Venue, weighting: Weighting) -> list[str]:
    """Return the names in ``weighting`` that give no publication its weight.

    Raises
    ------
    DataError
        If weights are to halve with years, and no publication has a year.
    """
    publications = venue.publications.values()
    if weighting.half_life is not None and all(one.year is None for one in publications):
        fix = "add the years, or leave out --half-life"
        raise DataError("no publication has a year", fix=fix)
    used = {_weighing(name, weighting.venues) for name in {one.venue for one in publications}}
    return [name for name in weighting.venues if name not in used]


def _weighing(venue: str, weights: Mapping[str, float]) -> str | None:
    """Return the name in ``weights`` that stands for a venue: itself, or its longest start."""
    if venue in weights:
        return venue
    starts = [
        name for name in weights if name.endswith("*") and venue.startswith(name.removesuffix("*"))
    ]
    return max(starts, key=len, default=None)


def _exclude(
    scores_SR: FloatArray,
    venue: Venue,
    reviewers: Sequence[str],
    conflicts: Iterable[tuple[str, str]],
) -> int:
    """Set the scores of conflicts to NaN; return the number of conflicts."""
    own = {(name, author) for name, authors in venue.authors.items() for author in authors}
    own |= {
        (name, reviewer)
        for reviewer in reviewers
        for name in venue.reviewers[reviewer]
        if name in venue.submissions
    }
    row_of = {name: row for row, name in enumerate(venue.submissions)}
    column_of = {name: column for column, name in enumerate(reviewers)}
    pairs = [
        (row_of[name], column_of[reviewer])
        for name, reviewer in {*own, *conflicts}
        if reviewer in column_of
    ]
    for row, column in pairs:
        scores_SR[row, column] = np.nan
    return len(pairs)


def _loads(submissions: int, reviewers: int, wanted: Wanted) -> Loads:
    from scimult.matching.assignment import Loads  # needs scipy, which scores alone do not

    return Loads(
        np.full(submissions, wanted.reviewers, dtype=np.int64),
        np.full(reviewers, wanted.most, dtype=np.int64),
        np.full(reviewers, wanted.least, dtype=np.int64),
    )


def _write_pairs(
    path: Path,
    submissions: IntArray,
    reviewers_C: IntArray,
    scores_SR: FloatArray,
    names: Sequence[str],
    reviewers: Sequence[str],
) -> None:
    """Write rows of submission, reviewer and score, by submission, best first."""
    scores = np.asarray(scores_SR[submissions, reviewers_C])
    order = np.lexsort((reviewers_C, -scores, submissions))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for i in order:
        rows.writerow([names[submissions[i]], reviewers[reviewers_C[i]], f"{scores[i]:.6f}"])
    write_text(path, text.getvalue())


def _write_matches(
    path: Path,
    pairs: tuple[IntArray, IntArray],
    scores_SR: FloatArray,
    similar: tuple[FloatArray, FloatArray, Ragged],
    venue: Venue,
    reviewers: Sequence[str],
) -> None:
    """Write each submission's matches, with the publications closest to it."""
    submissions_SD, publications_PD, publications_of = similar
    ids, publications = list(venue.publications), list(venue.publications.values())
    matches: dict[int, list[dict[str, Any]]] = {}
    for row, column in zip(*pairs, strict=True):
        rows = publications_of[column]
        cosines = publications_PD[rows] @ submissions_SD[row]
        best = np.argsort(-cosines, kind="stable")[:_EVIDENCE]
        because = [
            {
                "id": ids[rows[i]],
                "title": publications[rows[i]].text.title,
                "cosine": round(float(cosines[i]), 4),
            }
            for i in best
        ]
        score = round(float(scores_SR[row, column]), 6)
        match = {"reviewer": reviewers[column], "score": score, "because": because}
        matches.setdefault(int(row), []).append(match)
    lines = []
    for row, (name, text) in enumerate(venue.submissions.items()):
        ordered = sorted(
            matches.get(row, []), key=lambda match: (-match["score"], match["reviewer"])
        )
        lines.append({"id": name, "title": text.title, "reviewers": ordered})
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _summary(venue: Venue, scores_SR: FloatArray, excluded: int) -> dict[str, Any]:
    silent = [name for name, papers in venue.reviewers.items() if not papers]
    return {
        "submissions": len(venue.submissions),
        "reviewers": scores_SR.shape[1],
        "publications": len(venue.publications),
        "conflicts": excluded,
        "reviewers_without_publications": silent,
        **{name.replace(" ", "_"): count for name, count in venue.counts.items() if count},
    }


def _assignment_summary(assigned: Assignment, wanted: Wanted, reviewers: int) -> dict[str, Any]:
    """Return what a chair checks first: totals, the worst match, the spread of loads."""
    loads = np.bincount(assigned.reviewers, minlength=reviewers)
    by_paper = assigned.scores.reshape(-1, wanted.reviewers).sum(axis=1)
    return {
        "reviewers_of_a_submission": wanted.reviewers,
        "total_score": float(assigned.scores.sum(dtype=np.float64)),
        "mean_score": float(assigned.scores.mean(dtype=np.float64)),
        "lowest_score": float(assigned.scores.min()),
        "lowest_mean_of_a_submission": float(by_paper.min() / wanted.reviewers),
        "reviewers_with_nothing": int((loads == 0).sum()),
        "reviewers_with_the_most": int((loads == wanted.most).sum()),
        "rounds": assigned.rounds,
    }
