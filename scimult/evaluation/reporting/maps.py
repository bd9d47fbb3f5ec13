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
from scimult.evaluation.protocols import MACRO_F1
from scimult.evaluation.reporting.sources import ScoredSet
from scimult.evaluation.reporting.wins import named
from scimult.retrieval.embeddings import StoredEmbeddings
from scimult.types import FloatArray

Layout = Literal["tsne", "umap"]
MOST_PAPERS = 1000
MOST_FIELDS = 8
OTHER = "other fields"
FEWEST = 10
"""Below this number of papers there is nothing to see."""


@dataclass(frozen=True)
class Point:
    """One paper: its place in [0, 1]², the index of its field, and its name."""

    x: float
    y: float
    field: int
    title: str


@dataclass(frozen=True)
class PaperMap:
    """Papers of one data set as one system places them."""

    system: str
    name: str
    fields: list[str]
    points: list[Point]
    note: str


def can_map() -> bool:
    """Return whether scikit-learn, which has t-SNE, is installed."""
    return find_spec("sklearn") is not None


def check_layout(layout: Layout) -> None:
    """Refuse a layout that cannot be made here.

    Raises
    ------
    ConfigError
        If its library is not installed.
    """
    if layout == "umap" and find_spec("umap") is None:
        raise ConfigError(
            "umap-learn, which makes this layout, is not installed",
            value=layout,
            fix="pip install 'scimult[umap]', or use tsne",
        )


def takes(scored: ScoredSet, stored: StoredEmbeddings) -> bool:
    """Return whether papers of a set have one field each and all of them an embedding."""
    one_field = scored.facts.main_metric == MACRO_F1
    return one_field and set(scored.query_ids) <= set(stored.ids)


def paper_map(
    scored: ScoredSet,
    system: str,
    stored: StoredEmbeddings,
    seed: int,
    layout: Layout = "tsne",
) -> PaperMap:
    """Place a sample of papers in the plane, near each other if their embeddings are.

    Parameters
    ----------
    scored : ScoredSet
        A set of coarse classification; its gold labels are the fields.
    system : str
        Whose embeddings these are.
    stored : StoredEmbeddings
        Embeddings of all papers of the set.
    seed : int
        Of the sample and of the layout.
    layout : {"tsne", "umap"}
        t-SNE (van der Maaten and Hinton 2008) or UMAP (McInnes et al. 2018).

    Raises
    ------
    DataError
        If there are too few papers, or embeddings that are not finite.
    """
    gold = next(iter(scored.tables.values())).column("gold")
    if len(gold) < FEWEST:
        raise DataError(f"a map needs {FEWEST} papers", path=stored.path, value=len(gold))
    generator = np.random.default_rng(seed)
    papers = min(len(gold), MOST_PAPERS)
    rows = np.sort(generator.choice(len(gold), papers, replace=False)).tolist()
    embeddings_ND = stored.rows([scored.query_ids[row] for row in rows])
    if not np.isfinite(embeddings_ND).all():
        raise DataError(
            "embeddings are not finite numbers", path=stored.path, fix="encode the papers again"
        )
    places_N2 = project(embeddings_ND, seed, layout)
    names, fields = _fields([gold[row] for row in rows], scored)
    titles = [scored.query_ids[row] for row in rows]
    if scored.dataset:
        titles = [named(scored.dataset.queries[row]) for row in rows]
    points = [
        Point(round(float(x), 4), round(float(y), 4), field, title)
        for (x, y), field, title in zip(places_N2, fields, titles, strict=True)
    ]
    return PaperMap(
        system,
        scored.name,
        names,
        points,
        f"{papers:,} of {len(gold):,} papers, {_NAMES[layout]} of cosine distances, seed {seed}.",
    )


def project(embeddings_ND: FloatArray, seed: int, layout: Layout = "tsne") -> FloatArray:
    """Return places in the unit square, shape ``(N, 2)``; near each other if embeddings are."""
    rows_ND = np.asarray(embeddings_ND, dtype=np.float32)
    norms_N1 = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    # On the unit sphere Euclidean neighbours are cosine neighbours, and PCA can start.
    unit_ND = rows_ND / np.maximum(norms_N1, 1e-12)
    places_N2 = _LAYOUTS[layout](unit_ND, seed)
    low_2, high_2 = places_N2.min(axis=0), places_N2.max(axis=0)
    scaled_N2: FloatArray = (places_N2 - low_2) / np.maximum(high_2 - low_2, 1e-12)
    return scaled_N2


def _tsne(unit_ND: FloatArray, seed: int) -> FloatArray:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(unit_ND) - 1) / 3)
    places_N2: FloatArray = TSNE(
        perplexity=perplexity, init="pca", random_state=seed
    ).fit_transform(unit_ND)
    return places_N2


def _umap(unit_ND: FloatArray, seed: int) -> FloatArray:
    from umap import UMAP

    # A seed needs one thread; said, so that the library does not warn that it changes it.
    neighbours = min(15, len(unit_ND) - 1)
    places_N2: FloatArray = UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1).fit_transform(
        unit_ND
    )
    return places_N2


_LAYOUTS: dict[Layout, Callable[[FloatArray, int], FloatArray]] = {"tsne": _tsne, "umap": _umap}
_NAMES: dict[Layout, str] = {"tsne": "t-SNE", "umap": "UMAP"}


def _fields(gold: list[str], scored: ScoredSet) -> tuple[list[str], list[int]]:
    """Return the names of the most frequent fields and, for each paper, the index of its own."""
    common = [name for name, _ in sorted(Counter(gold).items(), key=lambda item: (-item[1], item))]
    frequent = common[:MOST_FIELDS]
    index = {name: place for place, name in enumerate(frequent)}
    names = frequent
    if scored.dataset:
        titles = dict(zip(scored.dataset.candidate_ids, scored.dataset.candidates, strict=True))
        names = [titles[name].title for name in frequent]
    if len(common) > len(frequent):
        names = [*names, OTHER]
    return names, [index.get(name, len(frequent)) for name in gold]
