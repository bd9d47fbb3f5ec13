"""``scimult match-reviewers``: score reviewers for submissions and assign them."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_model
from scimult.cli.common import embed, open_model, rejecting
from scimult.cli.output import echo, print_table
from scimult.errors import ConfigError, DataError
from scimult.files import check_replaceable
from scimult.terminal import listed

if TYPE_CHECKING:
    from scimult.data.records import Rejects
    from scimult.matching.venue import Venue

_MOST_WEIGHT = 1_000_000


def match_reviewers(
    model: opt.Model,
    out: opt.NewFolder,
    venue: Annotated[
        Path | None,
        typer.Option(
            help="OpenReview folder: archives/REVIEWER.jsonl and submissions.jsonl.",
            show_default=False,
        ),
    ] = None,
    papers: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --venue: submissions, in any format that scimult library reads.",
            show_default=False,
        ),
    ] = None,
    publications: Annotated[
        Path | None,
        typer.Option(
            help="With --papers: publications of the reviewers, with a column reviewer.",
            show_default=False,
        ),
    ] = None,
    score: Annotated[
        str,
        typer.Option(
            help="Score of a reviewer: top3 (mean of the best three), max, mean or percentile:75."
        ),
    ] = "top3",
    half_life: Annotated[
        float | None,
        typer.Option(min=0.01, max=1000, help="Years after which a publication counts half."),
    ] = None,
    venue_weights: Annotated[
        Path | None, typer.Option(help="CSV without header: venue (NAME or NAME*), weight.")
    ] = None,
    conflicts: Annotated[
        Path | None, typer.Option(help="CSV without header: submission, reviewer.")
    ] = None,
    reviewers: Annotated[
        int | None, typer.Option(min=1, help="Reviewers to assign to each submission.")
    ] = None,
    max_papers: Annotated[
        int | None, typer.Option(min=1, help="Most submissions per reviewer.")
    ] = None,
    min_papers: Annotated[int, typer.Option(min=0, help="Fewest submissions per reviewer.")] = 0,
    top: Annotated[
        int, typer.Option(min=1, help="Scores to write per submission and per reviewer.")
    ] = 100,
    task: opt.Task = "link_prediction",
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    pooling: opt.Pooling = None,
    no_cache: opt.NoCache = False,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Score reviewers for submissions by their publications, and assign them.

    Publications are encoded once and cached. The assignment has the largest total score that
    loads and conflicts allow.
    """
    if (reviewers is None) != (max_papers is None) or (min_papers and reviewers is None):
        fix = "give --reviewers and --max-papers, or neither and no --min-papers"
        raise ConfigError("an assignment needs --reviewers and --max-papers", fix=fix)
    check_model(model)
    from scimult.inference.collection import Collection
    from scimult.matching.affinity import Rule
    from scimult.matching.match import (
        MATCHED,
        Wanted,
        Weighting,
        check_loads,
        match,
        unused_weights,
    )
    from scimult.matching.venue import read_conflicts
    from scimult.unfinished import unfinished

    check_replaceable(out, MATCHED)
    rule = Rule.parse(score)
    with rejecting(skip_bad) as rejects:
        people = _read(venue, papers, publications, rejects)
        pairs = read_conflicts(conflicts, people, rejects) if conflicts else set()
        venues = {} if venue_weights is None else _venue_weights(venue_weights, rejects)
    wanted = None
    if reviewers is not None and max_papers is not None:
        wanted = Wanted(reviewers, max_papers, min_papers)
        check_loads(people, wanted)
    weighting = Weighting(half_life, datetime.now(timezone.utc).year, venues)
    if unused := unused_weights(people, weighting):
        echo(f"venues without a publication: {', '.join(unused)}", err=True)
    with unfinished(out):
        encoder = open_model(model, device, dtype, pooling, "cosine")
        source = venue or papers
        assert source is not None
        texts = [publication.text for publication in people.publications.values()]
        queries = Collection(source, list(people.submissions), list(people.submissions.values()))
        candidates = Collection(source, list(people.publications), texts)
        queries_SD = embed(encoder, queries, task, "query", no_cache)
        candidates_PD = embed(encoder, candidates, task, "candidate", no_cache)
        summary = match(
            people,
            (queries_SD, candidates_PD),
            out,
            rule=rule,
            weighting=weighting,
            conflicts=pairs,
            wanted=wanted,
            top=top,
            encoder={
                "model": str(model),
                "fingerprint": encoder.fingerprint,
                "task": task,
                "dtype": encoder.dtype,
            },
        )
    _show(summary, out)


def _read(
    venue: Path | None, papers: Path | None, publications: Path | None, rejects: Rejects
) -> Venue:
    from scimult.matching.openreview import read_openreview
    from scimult.matching.venue import read_tables

    if venue is not None and papers is None and publications is None:
        return read_openreview(venue, rejects)
    if venue is None and papers is not None and publications is not None:
        return read_tables(papers, publications, rejects)
    fix = "give --venue, or --papers and --publications"
    raise ConfigError("exactly one source of submissions is needed", fix=fix)


def _venue_weights(path: Path, rejects: Rejects) -> dict[str, float]:
    from scimult.data.records import Record
    from scimult.data.tables import read_delimited

    weights: dict[str, float] = {}

    def parse(row: Record) -> None:
        name, weight = row.text("venue").strip(), row.number("weight")
        if not 0 <= weight <= _MOST_WEIGHT:
            fix = f"write a number from 0 to {_MOST_WEIGHT:,}"
            raise row.error("weight is out of range", value=weight, fix=fix)
        if name in weights:
            raise row.error("venue has two weights", value=name, fix="keep one of them")
        weights[name] = weight

    rows = read_delimited(path, ",", rejects, header=("venue", "weight"))
    for _ in rejects.keep(rows, parse):
        pass
    if not weights:
        raise DataError("no valid weights", path=path, fix="write lines such as ACL*,1.5")
    return weights


def _show(summary: dict[str, Any], out: Path) -> None:
    from scimult.table import Table, texts

    def cell(value: object) -> str:
        if isinstance(value, float):
            return f"{value:.4f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    without = summary["reviewers_without_publications"]
    facts = {**summary, "reviewers_without_publications": len(without)}
    del facts["settings"]
    facts.update(facts.pop("assignment", {}))
    rows = [texts(name.replace("_", " "), cell(value)) for name, value in facts.items()]
    print_table(Table(f"{out}", ["quantity", "value"], 1, rows))
    if without:
        echo(f"not matched, as they have no publications: {listed(without, most=3)}", err=True)
