"""Reading benchmarks: BEIR folders and papers with labels, checked before anything is scored.

Bad records end the work, or with ``--skip-bad`` are counted and named; either way no query,
document or judgment disappears silently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scimult.data.lines import Rejects
from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.evaluation.records import (
    Judgments,
    by_id,
    label_with_names,
    labelled_paper,
    paper,
    query_paper,
    read_pairs,
    read_split,
    request,
)
from scimult.evaluation.suites import Benchmark
from scimult.retrieval.runs import Qrels
from scimult.types import IntArray, Text


@dataclass(frozen=True)
class Dataset:
    """Queries, candidates and judgments of one benchmark.

    Attributes
    ----------
    name, task : str
        Name of the benchmark and task of the encoder.
    query_ids, queries : list
        Ids and texts of the Q queries (papers to be labelled are queries too).
    candidate_ids, candidates : list
        Ids and texts of the C candidates (documents, papers or labels).
    qrels : Qrels
        Judgments of every query over these candidates.
    lists : Ragged, optional
        The candidate rows that each query ranks; None where it ranks all.
    label_names : list of list of str
        All names of each label; empty unless candidates are labels.
    files : list of Path
        Everything that was read.
    """

    name: str
    task: str
    query_ids: list[str]
    queries: list[Text]
    candidate_ids: list[str]
    candidates: list[Text]
    qrels: Qrels
    lists: Ragged | None = None
    label_names: list[list[str]] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of queries, candidates and relevant pairs."""
        return {
            "queries": len(self.query_ids),
            "candidates": len(self.candidate_ids),
            "relevant": int(self.qrels.relevant_Q.sum()),
        }

    @property
    def own_rows(self) -> IntArray:
        """For each query, the row of the candidate with the same id; -1 if there is none."""
        rows = {name: row for row, name in enumerate(self.candidate_ids)}
        return np.array([rows.get(name, -1) for name in self.query_ids], dtype=np.int64)


def read_dataset(
    name: str, benchmark: Benchmark, root: Path, how_to_get: str, rejects: Rejects
) -> Dataset:
    """Read the files of a benchmark below ``root``.

    Raises
    ------
    DataError
        If a file is missing (the message says how to get it), the counts are not those of the
        edition that the benchmark means, or, through ``rejects``, a record is bad.
    """
    missing = missing_files(benchmark, root)
    if missing:
        names = ", ".join(str(path) for path in missing)
        raise DataError(f"data of {name} is not there: {names}", fix=how_to_get)
    read = _read_labelled if benchmark.is_classification else _read_retrieval
    dataset = read(name, benchmark, root, rejects)
    _check_counts(dataset, benchmark)
    return dataset


def missing_files(benchmark: Benchmark, root: Path) -> list[Path]:
    """Return the files that a benchmark needs and that are neither there nor as ``.gz``."""
    return [path for path in _needed(benchmark, root) if not path.exists()]


def _needed(benchmark: Benchmark, root: Path) -> list[Path]:
    if benchmark.is_classification:
        names = ["papers.jsonl", *([benchmark.labels] if benchmark.labels else [])]
    else:
        names = ["corpus.jsonl", "queries.jsonl", f"qrels/{benchmark.split}.tsv"]
    if benchmark.protocol == "rerank":
        names.append("candidates.tsv")
    return [_packed_or_plain(root / benchmark.folder / name) for name in names]


def _packed_or_plain(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    return packed if packed.exists() and not path.exists() else path


def _read_retrieval(name: str, benchmark: Benchmark, root: Path, rejects: Rejects) -> Dataset:
    """Read a folder in BEIR layout, with ``candidates.tsv`` for reranking."""
    paths = _needed(benchmark, root)
    corpus = by_id(paths[0], "_id", lambda record: paper(record, "text"), rejects)
    is_search = benchmark.protocol == "search"
    queries = by_id(paths[1], "_id", request if is_search else query_paper, rejects)
    judgments = read_pairs(paths[2], queries, corpus, rejects)
    listed = read_pairs(paths[3], queries, corpus, rejects) if len(paths) > 3 else None
    kept = _scorable(queries, judgments, paths[2], rejects)
    if listed is not None:
        kept = _listed(kept, judgments, listed, paths[3], rejects)
    rows = {document: row for row, document in enumerate(corpus)}
    return Dataset(
        name=name,
        task=benchmark.task,
        query_ids=kept,
        queries=[queries[query] for query in kept],
        candidate_ids=list(corpus),
        candidates=list(corpus.values()),
        qrels=_qrels([judgments[query] for query in kept], rows),
        lists=None if listed is None else _lists([listed[query] for query in kept], rows),
        files=paths,
    )


def _read_labelled(name: str, benchmark: Benchmark, root: Path, rejects: Rejects) -> Dataset:
    """Read ``papers.jsonl`` with label ids, ``split.csv`` if there is one, and the label file."""
    paths = _needed(benchmark, root)
    papers = by_id(paths[0], "id", labelled_paper, rejects)
    names = [label for _, labels in papers.values() for label in labels]
    labels = {label: [label] for label in sorted(set(names))}
    texts = {label: Text("label", label) for label in labels}
    if benchmark.labels:
        found = by_id(paths[1], "id", label_with_names, rejects)
        labels = {label: synonyms for label, (_, synonyms) in found.items()}
        texts = {label: text for label, (text, _) in found.items()}
    split = _packed_or_plain(root / benchmark.folder / "split.csv")
    if split.exists():
        paths = [*paths, split]
        members = read_split(split, benchmark.split, papers, rejects)
        papers = {paper: papers[paper] for paper in members}
    judgments = {
        paper: dict.fromkeys(_known_labels(paper, given, labels, paths, rejects), 1)
        for paper, (_, given) in papers.items()
    }
    kept = _scorable(papers, judgments, paths[0], rejects)
    if benchmark.protocol == "classification_coarse":
        kept = _single_label(kept, judgments, paths[0], rejects)
    rows = {label: row for row, label in enumerate(labels)}
    return Dataset(
        name=name,
        task=benchmark.task,
        query_ids=kept,
        queries=[papers[paper][0] for paper in kept],
        candidate_ids=list(labels),
        candidates=[texts[label] for label in labels],
        qrels=_qrels([judgments[paper] for paper in kept], rows),
        label_names=list(labels.values()),
        files=paths,
    )


def _known_labels(
    paper: str,
    given: Sequence[str],
    labels: Collection[str],
    paths: Sequence[Path],
    rejects: Rejects,
) -> list[str]:
    for label in given:
        if label not in labels:
            rejects.reject(
                DataError(
                    "paper has a label that the label file does not name",
                    path=paths[0],
                    value=(paper, label),
                    fix=f"add it to {paths[1]}",
                )
            )
    return [label for label in given if label in labels]


def _keep(
    queries: Iterable[str],
    problem_of: Callable[[str], str | None],
    path: Path,
    rejects: Rejects,
    fix: str,
) -> list[str]:
    """Return the queries without a problem; the others are rejected with it."""
    kept = []
    for query in queries:
        problem = problem_of(query)
        if problem is None:
            kept.append(query)
        else:
            rejects.reject(DataError(problem, path=path, value=query, fix=fix))
    if not kept:
        raise DataError("no query can be scored", path=path, fix="check that the ids agree")
    return kept


def _scorable(
    queries: Iterable[str], judgments: Judgments, path: Path, rejects: Rejects
) -> list[str]:
    """Return the queries that have a relevant candidate; the others cannot be scored."""

    def problem_of(query: str) -> str | None:
        if any(score > 0 for score in judgments[query].values()):
            return None
        return "nothing is relevant" if judgments[query] else "query has no judgment"

    return _keep(queries, problem_of, path, rejects, "judge it or leave the query out")


def _single_label(
    papers: Sequence[str], judgments: Judgments, path: Path, rejects: Rejects
) -> list[str]:
    def problem_of(paper: str) -> str | None:
        several = len(judgments[paper]) > 1
        return "paper has several labels, coarse classification takes one" if several else None

    fix = "keep one label or use the protocol classification_fine"
    return _keep(papers, problem_of, path, rejects, fix)


def _listed(
    queries: Sequence[str], judgments: Judgments, listed: Judgments, path: Path, rejects: Rejects
) -> list[str]:
    """Return the queries whose candidates include everything relevant to them."""

    def problem_of(query: str) -> str | None:
        relevant = {document for document, score in judgments[query].items() if score > 0}
        if relevant <= listed[query].keys():
            return None
        return "a relevant one is not listed" if listed[query] else "query has no candidates"

    return _keep(queries, problem_of, path, rejects, "list it as a candidate of the query")


def _qrels(judgments: Sequence[Mapping[str, int]], rows: Mapping[str, int]) -> Qrels:
    grades = Ragged.from_lists(judged.values() for judged in judgments)
    return Qrels(_lists(judgments, rows), grades, candidates=len(rows))


def _lists(listed: Sequence[Mapping[str, int]], rows: Mapping[str, int]) -> Ragged:
    return Ragged.from_lists([rows[document] for document in documents] for documents in listed)


def _check_counts(dataset: Dataset, benchmark: Benchmark) -> None:
    if benchmark.expected is None:
        return
    expected = benchmark.expected.model_dump()
    if dataset.counts != expected:
        raise DataError(
            f"{dataset.name} is another edition of the data: expected {expected}",
            path=dataset.files[0].parent,
            value=dataset.counts,
            fix=f"get the data again, or pass benchmarks.{dataset.name}.expected=null",
        )
