"""Systems that rank candidates for queries: text encoders, stored embeddings and BM25.

A system makes a ranker for each data set, and protocols request lists from the ranker. So texts
are encoded once per data set, however many lists a protocol needs.

Shape legend: N texts, D width.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.evaluation.results import CostKind
from scimult.evaluation.task_data import Dataset, PaperSet, Signatures, TaskData
from scimult.files import sha256
from scimult.retrieval.analysis import NONE, PATTERNS, WORDS, Analyser
from scimult.retrieval.bm25 import K1, B, BM25Index
from scimult.retrieval.embeddings import (
    IDS_FILE,
    MATRIX_FILE,
    encode,
    read_embeddings,
    read_similarity,
    unit_rows,
)
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.runs import Ranking
from scimult.retrieval.shards import MANIFEST
from scimult.retrieval.store import StoringEncoder
from scimult.types import (
    FloatArray,
    IntArray,
    Role,
    Similarity,
    TaskChooser,
    Text,
    TextEncoder,
    tokens_encoded_by,
)


class Ranker(Protocol):
    """Ranks the candidates of one data set for its queries."""

    def search(self, k: int, exclude_Q: IntArray | None = None) -> Ranking:
        """Return the best ``k`` of all candidates; one row per query may be excluded."""

    def rank_listed(self, lists: Ragged) -> Ranking:
        """Rank each query's candidate rows in ``lists``."""


class System(Protocol):
    """Anything that can be evaluated; ``costs`` has the cost of each data set (``SetResult``).

    Default methods suit a system that encodes nothing.
    """

    name: str
    costs: dict[str, dict[CostKind, float]]

    def describe(self) -> dict[str, Any]:
        """Return the settings needed to run the system again."""

    def ranker(self, dataset: Dataset) -> Ranker:
        """Prepare ranking on one data set."""

    def task_for(self, task: str, fallback: str) -> str | None:
        """Return the task for which texts are encoded; None if nothing is encoded."""
        return None

    def share(self, sets: Iterable[TaskData]) -> None:
        """Let every rank encode a part of the sets' texts, if embeddings are stored."""
        return


@runtime_checkable
class EmbeddingSystem(System, Protocol):
    """A system with paper embeddings, which linear models and clustering need."""

    def paper_embeddings(self, papers: PaperSet | Signatures) -> FloatArray:
        """Return one row per paper, shape ``(N, D)``."""


class DenseSystem(System):
    """A text encoder with exact search; every distinct (text, task, role) is encoded once.

    ``settings`` are the encoder's, for the report, and ``device`` is that of the search.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        settings: dict[str, Any] | None = None,
        *,
        device: str = "cpu",
        show_progress: bool = False,
    ) -> None:
        self.name, self.encoder = encoder.name, encoder
        self.settings, self.device, self.show_progress = settings or {}, device, show_progress
        self._known: dict[tuple[str, Role], dict[Text, FloatArray]] = {}
        self.costs: dict[str, dict[CostKind, float]] = {}

    def describe(self) -> dict[str, Any]:
        """Return kind, similarity and the settings given."""
        return {"kind": "dense", "similarity": self.encoder.similarity, **self.settings}

    def task_for(self, task: str, fallback: str) -> str:
        """Return ``task`` if the encoder knows it, else ``fallback``."""
        if isinstance(self.encoder, TaskChooser):
            return self.encoder.task_for(task, fallback)
        return fallback

    def share(self, sets: Iterable[TaskData]) -> None:
        """Encode all distinct texts into the store, each rank a part; no store: do nothing."""
        if not isinstance(self.encoder, StoringEncoder):
            return
        texts: dict[tuple[str, Role], dict[Text, None]] = {}
        for dataset in sets:
            for some, task, role in dataset.inputs:
                texts.setdefault((task, role), {}).update(dict.fromkeys(some))
        for (task, role), distinct in texts.items():
            self.encoder.encode_on_all_ranks(
                list(distinct), task=task, role=role, show_progress=True
            )

    def ranker(self, dataset: Dataset) -> Ranker:
        """Encode the queries and candidates not encoded before.

        Raises
        ------
        DataError
            If the encoder returns the wrong number of rows, or numbers that are not finite.
        UnknownNameError
            If the encoder does not know the task of the data set.
        """
        with self._counting(dataset.name):
            queries_QD = self.embed(dataset.queries, dataset.task, "query")
            candidates_CD = self.embed(dataset.candidates, dataset.task, "candidate")
        self.costs[dataset.name]["index_bytes"] = candidates_CD.nbytes
        similarity = dataset.similarity or self.encoder.similarity
        index = ExactIndex(dataset.candidate_ids, candidates_CD, similarity, device=self.device)
        return _IndexRanker(index, queries_QD)

    def paper_embeddings(self, papers: PaperSet | Signatures) -> FloatArray:
        """Encode papers as queries of their task, for linear models and clustering."""
        with self._counting(papers.name):
            return self.embed(papers.texts, papers.task, "query")

    @contextmanager
    def _counting(self, name: str) -> Iterator[None]:
        """Record the cost of the encoding inside."""
        known, tokens, start = self._encoded, self._tokens, time.perf_counter()
        yield
        cost: dict[CostKind, float] = {
            "encode_seconds": round(time.perf_counter() - start, 3),
            "texts": self._encoded - known,
        }
        if tokens is not None and self._tokens is not None:
            cost["tokens"] = self._tokens - tokens
        self.costs[name] = cost

    @property
    def _encoded(self) -> int:
        """Number of texts encoded so far; a store leaves out those it already had."""
        all_texts = sum(len(known) for known in self._known.values())
        return int(getattr(self.encoder, "texts_encoded", all_texts))

    @property
    def _tokens(self) -> int | None:
        """Number of tokens encoded so far, if the encoder counts them."""
        return tokens_encoded_by(self.encoder)

    def embed(self, texts: Sequence[Text], task: str, role: Role) -> FloatArray:
        """Return embeddings of shape ``(N, D)``, encoding only new texts."""
        known = self._known.setdefault((task, role), {})
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            show = self.show_progress
            encoded_ND = encode(self.encoder, new, task=task, role=role, show_progress=show)
            known.update(zip(new, encoded_ND, strict=True))
        return np.stack([known[text] for text in texts])


class StoredSystem(System):
    """Embeddings in files, from ``scimult encode`` or third-party tools.

    ``<folder>/<data set>/queries`` and ``candidates`` (for linear models and clustering,
    ``papers``) are embedding folders (`scimult.retrieval.embeddings`), with ids in any order.
    ``similarity`` is by default the one that these folders name, else the dot product.
    ``normalise`` scales embeddings to length 1; by default if the similarity is cosine, so that
    distances and linear models see what the cosine sees.

    Raises
    ------
    DataError
        If none is given, and the folders name different ones.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        similarity: Similarity | None = None,
        *,
        normalise: bool | None = None,
        device: str = "cpu",
    ) -> None:
        self.name, self.folder = name, Path(folder)
        self.similarity: Similarity = similarity or _named_similarity(self.folder)
        self.normalise = self.similarity == "cosine" if normalise is None else normalise
        self.device = device
        self.costs: dict[str, dict[CostKind, float]] = {}

    def describe(self) -> dict[str, Any]:
        """Return kind, folder, similarity and file digests."""
        digests = {
            str(path.relative_to(self.folder)): sha256(path)
            for name in (MATRIX_FILE, IDS_FILE, MANIFEST)
            for path in sorted(self.folder.glob(f"*/*/{name}"))
        }
        return {
            "kind": "stored",
            "folder": str(self.folder),
            "similarity": self.similarity,
            "normalise": self.normalise,
            "sha256": digests,
        }

    def ranker(self, dataset: Dataset) -> Ranker:
        """Look up the rows of the data set's queries and candidates.

        Raises
        ------
        DataError
            If a file is missing or malformed, repeats an id or lacks one, an embedding is not
            finite, or both sides differ in width.
        """
        similarity = dataset.similarity or self.similarity
        scale = self.normalise and similarity != "cosine"  # cosine search scales by itself
        queries_QD = self._rows(dataset.name, "queries", dataset.query_ids, scale)
        candidates_CD = self._rows(dataset.name, "candidates", dataset.candidate_ids, scale)
        widths = queries_QD.shape[1], candidates_CD.shape[1]
        if len(set(widths)) > 1:
            problem, fix = "queries and candidates differ in width", "encode both with one model"
            raise DataError(problem, path=self.folder / dataset.name, value=widths, fix=fix)
        self.costs[dataset.name] = {"index_bytes": candidates_CD.nbytes}
        index = ExactIndex(dataset.candidate_ids, candidates_CD, similarity, device=self.device)
        return _IndexRanker(index, queries_QD)

    def paper_embeddings(self, papers: PaperSet | Signatures) -> FloatArray:
        """Look up the papers' rows in ``<folder>/<data set>/papers``."""
        ids = papers.ids if isinstance(papers, PaperSet) else papers.paper_ids
        return self._rows(papers.name, "papers", ids, self.normalise)

    def _rows(self, dataset: str, side: str, ids: Sequence[str], scale: bool) -> FloatArray:
        rows_ND = read_embeddings(self.folder / dataset / side).rows(ids)
        return unit_rows(rows_ND) if scale else rows_ND


def _named_similarity(folder: Path) -> Similarity:
    similarities = {read_similarity(path) for path in folder.glob("*/*") if path.is_dir()} - {None}
    if len(similarities) > 1:
        fix = "choose one, such as similarity=cosine, or keep other embeddings elsewhere"
        problem = "the embeddings are compared in different ways"
        raise DataError(problem, path=folder, value=sorted(filter(None, similarities)), fix=fix)
    return next(iter(similarities), None) or "dot"


class BM25System(System):
    """BM25 on title and body joined by a space; labels by name and definition."""

    def __init__(
        self, name: str = "BM25", analyser: Analyser = WORDS, *, k1: float = K1, b: float = B
    ) -> None:
        self.name, self.analyser, self.k1, self.b = name, analyser, k1, b
        self.costs: dict[str, dict[CostKind, float]] = {}

    def describe(self) -> dict[str, Any]:
        """Return the index settings."""
        settings = {"kind": "bm25", "variant": "lucene", "k1": self.k1, "b": self.b}
        analysis = {key: value for key, value in asdict(self.analyser).items() if value != NONE}
        return {**settings, **analysis, "tokens": PATTERNS[self.analyser.tokens]}

    def ranker(self, dataset: Dataset) -> Ranker:
        """Index the candidates."""
        texts = [text.joined for text in dataset.candidates]
        index = BM25Index(dataset.candidate_ids, texts, self.analyser, k1=self.k1, b=self.b)
        return _IndexRanker(index, [text.joined for text in dataset.queries])


class _IndexRanker:
    """An index, and one data set's queries in the form that it takes."""

    def __init__(self, index: ExactIndex | BM25Index, queries: Any) -> None:
        self._index, self._queries = index, queries

    def search(self, k: int, exclude_Q: IntArray | None = None) -> Ranking:
        return self._index.search(self._queries, k, exclude_Q=exclude_Q)

    def rank_listed(self, lists: Ragged) -> Ranking:
        return self._index.rank_listed(self._queries, lists)
