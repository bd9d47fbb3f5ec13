"""SciDocs' own layout: dictionaries of metadata, qrels, label tables and clicks.

``paper_metadata_*.json`` maps ids to papers; ``<task>/<split>.qrel`` has lines ``query 0 paper
grade``; ``<task>/{train,val,test}.csv`` give a label per paper; ``recomm/<split>.csv`` has a query,
the clicked paper and all papers shown; ``propensity_scores.json`` has the probability of a click
at each position, whatever was shown there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.records import Record
from scimult.data.tables import read_table
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source, Targets
from scimult.evaluation.formats.scirepeval import text_of
from scimult.evaluation.records import Judgments, by_name, read_pairs, read_targets
from scimult.evaluation.task_data import Dataset, PaperSet
from scimult.files import read_json
from scimult.types import Text

PROPENSITIES = "propensity_scores.json"


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the files that the benchmark requires."""
    texts = benchmark.texts or "paper_metadata.json"
    if benchmark.probe:
        return ["train.csv", *(f"{split}.csv" for split in benchmark.splits), texts]
    if benchmark.protocol == "recommendation":
        return [f"{benchmark.split}.csv", PROPENSITIES, texts]
    return [*(f"{split}.qrel" for split in benchmark.splits), texts]


def read(source: Source) -> Dataset | PaperSet:
    """Read papers, then labels, judgments or clicks."""
    paths = source.paths
    papers = read_papers(source, paths[-1])
    if source.benchmark.probe:
        # The original scores a paper without a text as a zero vector.
        train, test = _labels(source, paths[:1], papers), _labels(source, paths[1:-1], papers)
        return source.paper_set(papers, train, test)
    if source.benchmark.protocol == "recommendation":
        return _read_clicks(source, papers)
    judgments = read_pairs(paths[:-1], papers, source.rejects)
    judgments = source.known_documents(judgments, papers)
    queries = {query: papers[query] for query in judgments}
    listed = {paper for judged in judgments.values() for paper in judged}
    documents = {paper: text for paper, text in papers.items() if paper in listed}
    return source.ranked_set(queries, documents, judgments, listed=judgments)


def read_papers(source: Source, path: Path) -> dict[str, Text]:
    """Read papers by id; reject those without text."""
    return by_name(path, lambda record: text_of(record, source.benchmark), source.rejects)


def _labels(source: Source, paths: Sequence[Path], papers: Mapping[str, Text]) -> Targets:
    columns = ["pid|paper_id|id", "class_label|label"]
    records = chain.from_iterable(read_table(path, columns, source.rejects) for path in paths)
    return read_targets(
        records, "pid", papers, lambda row: ([row.identifier("class_label")], 0.0), source.rejects
    )


def _read_clicks(source: Source, papers: Mapping[str, Text]) -> Dataset:
    """Read one query per click; the less likely a click at its position, the higher its weight."""
    propensities, clicks = _propensities(source.paths[1]), _click_table(source)
    queries: dict[str, Text] = {}
    judgments: Judgments = {}
    weights: dict[str, float] = {}

    def parse(record: Record) -> tuple[str, str, list[str], int]:
        query, clicked = record.identifier("query"), record.identifier("clicked")
        candidates = [paper.strip() for paper in record.text("shown").split(",") if paper.strip()]
        if clicked not in candidates:
            raise record.error("clicked paper was not shown", value=clicked, fix="correct the line")
        if len(set(candidates)) < len(candidates):
            raise record.error("a paper is shown twice", value=candidates, fix="correct the line")
        if len(candidates) > len(propensities):
            fix = f"there are {len(propensities)} propensity scores"
            problem = "more papers are shown than positions have scores"
            raise record.error(problem, value=len(candidates), fix=fix)
        for paper in (query, *candidates):
            if paper not in papers:
                fix = "add its text or remove the click"
                raise record.error("paper has no text", value=paper, fix=fix)
        return query, clicked, candidates, record.line

    for query, clicked, candidates, line in source.rejects.keep(clicks, parse):
        click = f"{query}@{line}"
        queries[click] = papers[query]
        judgments[click] = {paper: int(paper == clicked) for paper in candidates}
        weights[click] = 1 / propensities[candidates.index(clicked)]
    documents = {
        paper: papers[paper] for paper in dict.fromkeys(p for j in judgments.values() for p in j)
    }
    dataset = source.ranked_set(queries, documents, judgments, listed=judgments)
    return replace(dataset, weights_Q=np.array([weights[query] for query in dataset.query_ids]))


def _click_table(source: Source) -> list[Record]:
    """Return the rows of a click file, whose three columns are identified by position."""
    path = source.paths[0]
    rows = list(read_table(path, [], source.rejects))
    if rows and len(rows[0].fields) != 3:
        fix = "write query, clicked paper and papers shown (quoted, comma-separated)"
        problem, value = "a click file has three columns", list(rows[0].fields)
        raise DataError(problem, path=path, line=1, value=value, fix=fix)
    columns = ("query", "clicked", "shown")
    return [
        Record(row.path, row.line, dict(zip(columns, row.fields.values(), strict=True)))
        for row in rows
    ]


def _propensities(path: Path) -> list[float]:
    entries: Any = read_json(path)
    scores = entries.get("scores") if isinstance(entries, dict) else None
    if not isinstance(scores, list) or not scores or not all(map(_is_positive, scores)):
        fix = 'write {"scores": [...]}, one positive number per position'
        raise DataError("not propensity scores", path=path, fix=fix)
    return [float(score) for score in scores]


def _is_positive(score: Any) -> bool:
    return isinstance(score, (int, float)) and score > 0
