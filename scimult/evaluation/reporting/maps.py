"""Maps of papers: embeddings in two dimensions, coloured by field.

Shape legend: N papers, D width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np

from scimult.errors import ConfigError, DataError
from scimult.evaluation.reporting.sources import ScoredSet
from scimult.evaluation.reporting.wins import title_of
from scimult.retrieval.embeddings import StoredEmbeddings, unit_rows
from scimult.types import FloatArray

Layout = Literal["tsne", "umap"]
MOST_PAPERS = 1000
MOST_FIELDS = 8
OTHER = "other fields"
FEWEST = 10
"""A map of fewer papers shows nothing."""


@dataclass(frozen=True)
class Point:
    """One paper: its position in [0, 1]², the index of its field, and its title."""

    x: float
    y: float
    field: int
    title: str


@dataclass(frozen=True)
class PaperMap:
    """Papers of one data set, laid out by one system's embeddings."""

    system: str
    name: str
    fields: list[str]
    points: list[Point]
    note: str


def can_map() -> bool:
    """Return whether scikit-learn, which provides t-SNE, is installed."""
    return find_spec("sklearn") is not None


def check_layout(layout: Layout) -> None:
    """Refuse a layout whose library is not installed.

    Raises
    ------
    ConfigError
        If the library is not installed.
    """
    if layout == "umap" and find_spec("umap") is None:
        raise ConfigError(
            "umap-learn, which this layout needs, is not installed",
            value=layout,
            fix="pip install 'scimult[umap]', or use tsne",
        )


def takes(scored: ScoredSet, stored: StoredEmbeddings) -> bool:
    """Return whether there are enough papers, with one field each, and all have embeddings."""
    enough = len(scored.query_ids) >= FEWEST and scored.has_one_label
    return enough and set(scored.query_ids) <= set(stored.ids)


def paper_map(
    scored: ScoredSet, system: str, stored: StoredEmbeddings, seed: int, layout: Layout = "tsne"
) -> PaperMap:
    """Lay out a sample of papers in the plane, similar embeddings close together.

    The gold labels of ``scored``, a set with such a map (`takes`), are the fields; ``stored`` are
    the system's embeddings of all its papers. Layouts are t-SNE (van der Maaten and Hinton 2008)
    and UMAP (McInnes et al. 2018).

    Raises
    ------
    DataError
        If embeddings are not finite or all in one direction.
    """
    gold = next(iter(scored.tables.values())).column("gold")
    rng = np.random.default_rng(seed)
    papers = min(len(gold), MOST_PAPERS)
    rows = np.sort(rng.choice(len(gold), papers, replace=False)).tolist()
    embeddings_ND = stored.rows([scored.query_ids[row] for row in rows])
    if not np.isfinite(embeddings_ND).all():
        fix = "encode the papers again"
        raise DataError("embeddings are not finite", path=stored.path, fix=fix)
    unit_ND = unit_rows(embeddings_ND)
    if not np.ptp(unit_ND, axis=0).any():
        # t-SNE divides by their spread, and crashes.
        problem = "all embeddings have the same direction, so there is nothing to map"
        fix = "check the model that encoded the papers, or leave its map out"
        raise DataError(problem, path=stored.path, fix=fix)
    positions_N2 = project(unit_ND, seed, layout)
    names, fields = _fields([gold[row] for row in rows], scored)
    titles = [scored.query_ids[row] for row in rows]
    if scored.dataset:
        titles = [title_of(scored.dataset.queries[row]) for row in rows]
    points = [
        Point(round(float(x), 4), round(float(y), 4), field, title)
        for (x, y), field, title in zip(positions_N2, fields, titles, strict=True)
    ]
    return PaperMap(
        system,
        scored.name,
        names,
        points,
        f"{papers:,} of {len(gold):,} papers, {_NAMES[layout]} of cosine distances, seed {seed}.",
    )


def project(unit_ND: FloatArray, seed: int, layout: Layout = "tsne") -> FloatArray:
    """Return positions in the unit square, shape ``(N, 2)``, similar embeddings close together.

    Embeddings have length 1: then Euclidean neighbours are cosine neighbours, and PCA can
    initialise.
    """
    positions_N2 = _LAYOUTS[layout](unit_ND, seed)
    low_2, high_2 = positions_N2.min(axis=0), positions_N2.max(axis=0)
    scaled_N2: FloatArray = (positions_N2 - low_2) / np.maximum(high_2 - low_2, 1e-12)
    return scaled_N2


def _tsne(unit_ND: FloatArray, seed: int) -> FloatArray:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(unit_ND) - 1) / 3)
    layout = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    positions_N2: FloatArray = layout.fit_transform(unit_ND)
    return positions_N2


def _umap(unit_ND: FloatArray, seed: int) -> FloatArray:
    from umap import UMAP

    # A seed implies one thread; n_jobs=1 avoids the library's warning that it changes it.
    neighbours = min(15, len(unit_ND) - 1)
    layout = UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1)
    positions_N2: FloatArray = layout.fit_transform(unit_ND)
    return positions_N2


_LAYOUTS: dict[Layout, Callable[[FloatArray, int], FloatArray]] = {"tsne": _tsne, "umap": _umap}
_NAMES: dict[Layout, str] = {"tsne": "t-SNE", "umap": "UMAP"}


def _fields(gold: list[str], scored: ScoredSet) -> tuple[list[str], list[int]]:
    """Return the names of the most frequent fields, and the index of each paper's field."""
    common = [name for name, _ in sorted(Counter(gold).items(), key=lambda item: (-item[1], item))]
    frequent = common[:MOST_FIELDS]
    index = {name: i for i, name in enumerate(frequent)}
    names = [scored.titles.get(name, name) for name in frequent]
    if len(common) > len(frequent):
        names = [*names, OTHER]
    return names, [index.get(name, len(frequent)) for name in gold]
