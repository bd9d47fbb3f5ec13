"""Small benchmark files, and an encoder without a model, for tests of the evaluation."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.suites import Suite
from scimult.types import FloatArray, Role, Similarity, Text
from tests.raw_corpus import write_jsonl

CORPUS = [
    {"_id": "d1", "title": "Drawing large graphs", "text": "Layouts of graphs with many nodes."},
    {"_id": "d2", "title": "Folding proteins", "text": "A simulation of folding in water."},
    {"_id": "d3", "title": "Sparse matrices", "text": ""},
    {"_id": "d4", "title": "", "text": "Drawing proteins as graphs."},
    {"_id": "d5", "title": "Ordering sparse matrices", "text": "Graphs and matrices."},
]
REQUESTS = [
    {"_id": "q1", "text": "drawing graphs"},
    {"_id": "q2", "text": "sparse matrices"},
    {"_id": "q3", "text": "water"},
]
QUERY_PAPERS = [
    {"_id": "d1", "title": "Drawing large graphs", "abstract": "Layouts of graphs."},
    {"_id": "x1", "title": "Reordering matrices", "abstract": ""},
    {"_id": "d4", "text": "Drawing proteins as graphs."},
]
LABELS = [
    {"id": "l1", "name": "Graph drawing", "definition": "Layouts of graphs"},
    {"id": "l2", "name": "Proteins", "synonyms": ["Folding of proteins", "peptides"]},
    {"id": "l3", "name": "Sparse matrices", "definition": "Matrices with few entries"},
    {"id": "l4", "name": "Water"},
]
PAPERS = [
    {"id": "p1", "title": "On graph drawing", "abstract": "Nodes.", "labels": ["l1"]},
    {"id": "p2", "title": "Peptides", "abstract": "Folding in water.", "labels": ["l2", "l4"]},
    {"id": "p3", "title": "Matrices", "abstract": "", "labels": ["l3", "l1"]},
    {"id": "p4", "title": "Held for training", "abstract": "", "labels": ["l1"]},
]


class WordEncoder:
    """Sums a random vector per word; knows three tasks and counts encoded texts."""

    def __init__(self, similarity: Similarity = "dot", width: int = 16) -> None:
        self.name, self.width = "words", width
        self.similarity: Similarity = similarity
        self.encoded: list[tuple[Text, str, Role]] = []

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        assert task in ("classification", "link_prediction", "search")
        self.encoded += [(text, task, role) for text in texts]
        return np.stack([self._vector(f"{text.title} {text.body}") for text in texts])

    def _vector(self, text: str) -> FloatArray:
        total = np.zeros(self.width, np.float32)
        for word in text.lower().split():
            seed = zlib.crc32(word.strip(".").encode())
            total += np.random.default_rng(seed).normal(size=self.width).astype(np.float32)
        return total


def write_rows(path: Path, rows: Iterable[Sequence[Any]], separator: str = "\t") -> None:
    """Write rows of a table; the first is the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(separator.join(map(str, row)) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


HEADER = ("query-id", "corpus-id", "score")


def write_search(folder: Path) -> Benchmark:
    """Write a search set and return its benchmark."""
    write_jsonl(folder / "search/corpus.jsonl", CORPUS)
    write_jsonl(folder / "search/queries.jsonl", REQUESTS)
    judged = [("q1", "d1", 2), ("q1", "d4", 1), ("q2", "d3", 1), ("q2", "d1", 0), ("q3", "d2", 1)]
    write_rows(folder / "search/qrels/test.tsv", [HEADER, *judged])
    return benchmark("search", "search", "search", ["ndcg@10", "recall@2"])


def write_links(folder: Path) -> Benchmark:
    """Write a link prediction set whose queries are partly candidates."""
    write_jsonl(folder / "links/corpus.jsonl", CORPUS)
    write_jsonl(folder / "links/queries.jsonl", QUERY_PAPERS)
    judged = [("d1", "d4", 1), ("x1", "d3", 1), ("x1", "d5", 1), ("d4", "d1", 1), ("d4", "d2", 1)]
    write_rows(folder / "links/qrels/test.tsv", [HEADER, *judged])
    return benchmark("links", "link_prediction", "link_retrieval", ["recall@1", "recall@3"])


def write_rerank(folder: Path) -> Benchmark:
    """Write a reranking set with two or three candidates per query."""
    write_links(folder)
    (folder / "links").rename(folder / "rerank")
    listed = [("d1", "d4"), ("d1", "d2"), ("x1", "d3"), ("x1", "d5"), ("x1", "d1")]
    listed += [("d4", "d1"), ("d4", "d2"), ("d4", "d3")]
    write_rows(folder / "rerank/candidates.tsv", [HEADER, *((*pair, 0) for pair in listed)])
    return benchmark("rerank", "link_prediction", "rerank", ["map", "ndcg", "ndcg@5"])


def write_fields(folder: Path) -> Benchmark:
    """Write a fine classification set with a label file and a split."""
    write_jsonl(folder / "fields/papers.jsonl", PAPERS)
    write_jsonl(folder / "fields/labels.jsonl", LABELS)
    split = [("id", "split"), ("p1", "test"), ("p2", "test"), ("p3", "test"), ("p4", "train")]
    write_rows(folder / "fields/split.csv", split, ",")
    metrics = ["recall@1", "recall@2"]
    made = benchmark("fields", "classification", "classification_fine", metrics)
    return made.model_copy(update={"labels": "labels.jsonl", "name_matching": "words"})


def write_coarse(folder: Path) -> Benchmark:
    """Write a coarse classification set whose labels are names in the papers."""
    papers = [
        {"id": "p1", "title": "drawing a graph", "labels": ["graph"]},
        {"id": "p2", "title": "a graph of folding", "labels": ["folding"]},
        {"id": "p3", "title": "folding again", "labels": ["folding"]},
        {"id": "p4", "title": "nothing", "labels": ["water"]},
    ]
    write_jsonl(folder / "coarse/papers.jsonl", papers)
    return benchmark("coarse", "classification", "classification_coarse", ["macro_f1"])


def benchmark(
    folder: str, task: str, protocol: str, metrics: list[str], **options: Any
) -> Benchmark:
    """Return a benchmark without expected counts."""
    needed = {"task": task, "protocol": protocol, "folder": folder, "metrics": metrics}
    return Benchmark(**needed, source="made for a test", licence="none", **options)


EVERY_KIND = (write_fields, write_coarse, write_rerank, write_links, write_search)


def made_suite(*made: Benchmark, name: str = "own", description: str = "Mine") -> Suite:
    """Return a suite of benchmarks, which are called like their folders."""
    benchmarks = {entry.folder: entry for entry in made}
    return Suite(name=name, description=description, how_to_get="ask me", benchmarks=benchmarks)
