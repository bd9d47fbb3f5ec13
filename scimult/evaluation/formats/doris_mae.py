"""DORIS-MAE's own file: research needs of several sentences (Wang et al. 2023).

``DORIS-MAE_dataset_v1.json`` is one object: ``Corpus`` (a list of abstracts, whose positions are
their ids), ``Query`` (``query_text``, ``candidate_pool``, ``aspects``: aspect to its sub-aspects)
and ``Annotation`` (``aspect_id``, ``abstract_id``, ``score`` from 0 to 2). The grade of an
abstract is the sum of its scores over a query's aspects and sub-aspects. The authors rank abstracts
alone, so titles are not read. ``split`` is ``graded``, or ``relevant``: 1 if the mean score is at
least 1, as in the authors' recall, R-precision and MAP, which leave out queries without such an
abstract.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scimult.errors import ConfigError, DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source
from scimult.evaluation.records import Judgments
from scimult.evaluation.task_data import Dataset
from scimult.files import read_json
from scimult.types import Text

SPLITS = ("graded", "relevant")
KEYS = ("Corpus", "Query", "Annotation")
LEFT_OUT = "a query without a relevant abstract was left out, as its authors do"


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the data set's only file."""
    return [benchmark.texts or "DORIS-MAE_dataset_v1.json"]


def read(source: Source) -> Dataset:
    """Read the queries, each with its pool of abstracts."""
    split, [path] = source.benchmark.split, source.paths
    if split not in SPLITS:
        fix = f"use split: {' or '.join(SPLITS)}"
        raise ConfigError("format 'doris_mae' has no such split", value=split, fix=fix)
    tree = read_json(path)
    absent = [key for key in KEYS if not isinstance(tree, dict) or key not in tree]
    if absent:
        fix = "download it again"
        raise DataError("not the DORIS-MAE data set", path=path, value=absent, fix=fix)
    scores: dict[tuple[str, str], int] = defaultdict(int)
    for entry in tree["Annotation"]:
        scores[str(entry["aspect_id"]), str(entry["abstract_id"])] += int(entry["score"])
    judgments: Judgments = {}
    for index, query in enumerate(tree["Query"]):
        aspects = _aspects(query)
        sums = {
            str(abstract): sum(scores[aspect, str(abstract)] for aspect in aspects)
            for abstract in query["candidate_pool"]
        }
        if split == "relevant":
            sums = {abstract: int(total >= len(aspects)) for abstract, total in sums.items()}
        judgments[str(index)] = sums
    answered = {query: sums for query, sums in judgments.items() if any(sums.values())}
    listed = {abstract for sums in answered.values() for abstract in sums}
    documents = {
        str(index): Text("paper", "", entry["original_abstract"])
        for index, entry in enumerate(tree["Corpus"])
        if str(index) in listed
    }
    return source.ranked_set(
        {query: Text("query", tree["Query"][int(query)]["query_text"]) for query in answered},
        documents,
        answered,
        listed=answered,
        remarks={LEFT_OUT: len(judgments) - len(answered)},
    )


def _aspects(query: Mapping[str, Any]) -> set[str]:
    """Return the ids of a query's aspects and their sub-aspects."""
    aspects = {str(aspect) for aspect in query["aspects"]}
    return aspects | {str(part) for parts in query["aspects"].values() for part in parts}
