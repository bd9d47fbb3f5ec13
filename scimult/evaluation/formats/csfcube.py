"""CSFCube's own files: papers similar to a paper in one facet (Mysore et al. 2021).

``abstracts-csfcube-preds.jsonl`` has papers (``paper_id``, ``title``, ``abstract``: a list of
sentences), ``test-pid2anns-csfcube-FACET.json`` the pool of each query (``cands``) and the grades
from 0 to 3 (``relevance_adju``). ``evaluation_splits.json`` divides the queries into two folds,
whose means are averaged (``average: groups``). ``split`` names the facets.
"""

from __future__ import annotations

from pathlib import Path

from scimult.data.judgments import SCORE, grade_of
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_members
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source
from scimult.evaluation.records import Judgments, by_id, by_name
from scimult.evaluation.task_data import Dataset
from scimult.types import Text

FOLDS = "evaluation_splits.json"
IN_OWN_POOL = "a query paper was in its own pool, and was left out of it"


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the files of judgments, folds and texts."""
    names = [f"test-pid2anns-csfcube-{facet}.json" for facet in benchmark.splits]
    return [*names, FOLDS, benchmark.texts or "abstracts-csfcube-preds.jsonl"]


def read(source: Source) -> Dataset:
    """Read the pools of the facets; a paper queried in two facets is two queries."""
    *pools, folds, texts = source.paths
    documents = by_id(texts, "paper_id", _paper, source.rejects)
    judgments: Judgments = {}
    in_own_pool = 0
    for facet, path in zip(source.benchmark.splits, pools, strict=True):
        for paper, judged in by_name(path, _pool, source.rejects).items():
            in_own_pool += judged.pop(paper, None) is not None
            judgments[f"{paper}_{facet}"] = judged
    judgments = source.known_documents(judgments, documents)
    queries = source.known_queries(judgments, lambda query: documents.get(query.rpartition("_")[0]))
    return source.ranked_set(
        queries,
        documents,
        judgments,
        listed=judgments,
        groups=_folds(folds, judgments, source.rejects),
        remarks={IN_OWN_POOL: in_own_pool},
    )


def _paper(record: Record) -> Text:
    sentences = record.fields.get("abstract") or []
    body = " ".join(map(str, sentences)) if isinstance(sentences, list) else str(sentences)
    return Text("paper", record.text("title", ""), body)


def _pool(record: Record) -> dict[str, int]:
    """Return the grades of a query's candidates."""
    candidates, grades = record.identifiers("cands"), record.fields.get("relevance_adju")
    if not isinstance(grades, list) or len(grades) != len(candidates):
        fix = "write a grade for each of 'cands'"
        raise record.error("field 'relevance_adju' is not their grades", value=grades, fix=fix)
    judged: dict[str, int] = {}
    for candidate, score in zip(candidates, grades, strict=True):
        grade = grade_of(Record(record.path, record.line, {SCORE: score}))
        if judged.setdefault(candidate, grade) != grade:
            fix = "keep one of its grades"
            raise record.error("candidate has two grades", value=candidate, fix=fix)
    return judged


def _folds(path: Path, judgments: Judgments, rejects: Rejects) -> dict[str, str]:
    """Return the fold of each query, from the test halves of both folds of all facets."""
    both = dict(read_members(path, rejects)).get("all", Record(path, 1, {}))
    names = ("fold1_test", "fold2_test")
    folds = {query: fold for fold in names for query in both.identifiers(fold)}
    missing = sorted(judgments.keys() - folds.keys())
    if missing:
        fix = "download the file again"
        raise DataError("a query is in no fold", path=path, value=missing[0], fix=fix)
    return {query: folds[query] for query in judgments}
