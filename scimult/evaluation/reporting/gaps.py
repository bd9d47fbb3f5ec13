"""Sections that a report cannot show, with reasons and fixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scimult.evaluation.mteb_suite import NAME as MTEB
from scimult.evaluation.per_query import has_per_query
from scimult.evaluation.reporting.costs import missing_costs
from scimult.evaluation.reporting.leaderboard import Tested
from scimult.evaluation.reporting.maps import FEWEST, can_map
from scimult.evaluation.reporting.parts import Options, SetPart
from scimult.evaluation.reporting.sources import Missing
from scimult.evaluation.results import Result

NEEDS_QUERIES = "Intervals, tests, wins and losses, recall curves, label frequency, maps"
TEXTS = "Texts of won and lost queries"
GIVE_DATA = "pass --data FOLDER, the folder that scimult evaluate read"
SAVE_RUNS = "evaluate with --save-runs"


def without_queries(out: Path, results: Sequence[Result], order: Sequence[str]) -> list[Missing]:
    """Name the systems and sets without per-query scores."""
    absent = [
        f"{result.system} on {name}"
        for result in results
        for name in order
        if name in result.sets
        if result.sets[name].protocol != MTEB and not has_per_query(out, result.system, name)
    ]
    why = f"no per-query scores of {', '.join(absent)}"
    return [Missing(NEEDS_QUERIES, why, "evaluate these systems again")] if absent else []


def without_samples(names: Sequence[str], protocols: Mapping[str, str]) -> list[Missing]:
    """Name the sets whose main metric lacks per-query scores."""
    others = [name for name in names if protocols[name] != MTEB]
    gaps = []
    if others:
        why = f"not every system has the main metric per query: {', '.join(others)}"
        fix = "evaluate results of an earlier version again; B³ is defined only for whole sets"
        gaps.append(Missing(NEEDS_QUERIES, why, fix))
    if len(others) < len(names):
        why = "MTEB keeps no per-query scores"
        fix = "evaluate those sets that are in our suites with scimult evaluate"
        gaps.append(Missing(NEEDS_QUERIES, why, fix))
    return gaps


def missing_sections(
    results: Sequence[Result], tested: Tested | None, parts: Sequence[SetPart], options: Options
) -> list[Missing]:
    """Name every section, or part of one, that the results and options do not allow."""
    missing = []
    if tested and tested.comparison is None:
        fix = "evaluate another system into the same folder"
        why = "no other system shares a data set with the baseline"
        missing.append(Missing("Significance marks, wins and losses", why, fix))
    if not options.examples and any(part.wins for part in parts):
        missing.append(Missing(TEXTS, "--examples 0 asks for none", "leave out --examples"))
    textless = [part for part in parts if not part.has_texts and not part.is_fitted]
    listless = [part for part in parts if not part.has_lists and part.is_ranked]
    flat = [part for part in parts if part.curves is None and part.is_ranked]
    shared = [part for part in parts if part.has_shares]
    fitted = [part for part in parts if part.is_fitted and not part.has_shares]
    fine = [part for part in textless if part.protocol == "classification_fine"]
    whole = "none: the score is one of all papers, in which each has a share"
    ranked = "none: only sets with candidates are shown with texts"
    gaps = [
        ("Wins and losses", "papers have no score of their own", shared, whole),
        (TEXTS, "no texts", textless, GIVE_DATA),
        (TEXTS, "linear models", fitted, ranked),
        ("Label frequency", "no labels of the papers", fine, GIVE_DATA),
    ]
    # Lists may be there: they are read with the data.
    for has_texts, fix in ((False, f"{GIVE_DATA} (with --save-runs)"), (True, SAVE_RUNS)):
        lists = "not every system has ranked lists" if has_texts else "no data for ranked lists"
        none, no_curves = ([p for p in s if p.has_texts is has_texts] for s in (listless, flat))
        gaps.append(("What each system ranked first", lists, none, fix))
        gaps.append(("Recall curves", f"{lists}, nor recall at two cut-offs", no_curves, fix))
    for section, why, sets, fix in gaps:
        if sets:
            missing.append(Missing(section, f"{why}: {', '.join(p.name for p in sets)}", fix))
    systems = [result.system for result in results]
    return [*missing, *_without_map(parts, systems, options), *missing_costs(results)]


def _without_map(
    parts: Sequence[SetPart], systems: Sequence[str], options: Options
) -> list[Missing]:
    section = "Map of papers"
    if not can_map():
        return [Missing(section, "scikit-learn is not installed", "pip install scikit-learn")]
    given = [name for name in options.maps if name in systems]
    if not given:
        fix = "encode the papers of a set with one field each, and pass --map NAME=FOLDER"
        return [Missing(section, "no embeddings were passed", fix)]
    mapped = {entry.system for part in parts for entry in part.maps}
    kind = f"a set of at least {FEWEST} papers with one field each"
    why = f"the embeddings of {{}} do not cover all papers of {kind}"
    fix = "run scimult encode on the papers.jsonl of such a set"
    return [Missing(section, why.format(name), fix) for name in given if name not in mapped]
