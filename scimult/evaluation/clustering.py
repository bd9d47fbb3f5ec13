"""Author name disambiguation: cluster each block's signatures by embedding distance.

Average-linkage clustering is cut at one distance for all blocks. The distance with the best B³
F1 on half of the blocks (those whose names have the smallest SHA-256) is applied to the others,
which are scored. S2AND itself trains a pairwise model on embeddings and metadata;
`write_official_input` writes the embeddings for that project.

Shape legend: N papers, S signatures of a block, D width.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.protocols import Outcome
from scimult.evaluation.task_data import Signatures
from scimult.files import atomic_file
from scimult.types import FloatArray, IntArray

_DISTANCES = 100
"""Number of cuts to try: quantiles of the distances at which clusters merge."""
Tree = NDArray[np.float64]


def author_clustering(
    benchmark: Benchmark, signatures: Signatures, embeddings_ND: FloatArray
) -> Outcome:
    """Cluster each block; B³ precision, recall and F1 (Bagga and Baldwin 1998).

    Raises
    ------
    DataError
        If there are fewer than two blocks, or an embedding is not finite.
    """
    if not np.isfinite(embeddings_ND).all():
        problem = f"an embedding of {signatures.name} is not finite"
        raise DataError(problem, fix="check the model: its weights or activations overflowed")
    blocks = _blocks(signatures)
    trees = {
        name: _tree(embeddings_ND[signatures.paper_rows[rows]]) for name, rows in blocks.items()
    }
    tuning, scored = _halves(signatures, sorted(blocks))
    distances = _candidates([trees[name] for name in tuning])
    best_cut = max(distances, key=lambda cut: _scores(signatures, blocks, trees, tuning, cut)[2])
    precision, recall, f1 = _scores(signatures, blocks, trees, scored, best_cut)
    scores = {"b_cubed_precision": precision, "b_cubed_recall": recall, "b_cubed_f1": f1}
    predicted = [""] * len(signatures.ids)
    for name in scored:
        clusters = _cut(trees[name], len(blocks[name]), best_cut)
        for row, cluster in zip(blocks[name], clusters, strict=True):
            predicted[row] = f"{name}/{cluster}"
    return Outcome(
        scores={name: scores[name] for name in benchmark.metrics},
        per_query={"gold": signatures.persons, "predicted": predicted},
        details={
            "distance": float(best_cut),
            "blocks_tuning": len(tuning),
            "blocks_scored": len(scored),
        },
    )


def b_cubed(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> tuple[float, float, float]:
    """Return B³ precision, recall and their harmonic mean over items in clusters."""
    shared = Counter(zip(gold, predicted, strict=True))
    golds, predictions = Counter(gold), Counter(predicted)
    precision = sum(n * n / predictions[cluster] for (_, cluster), n in shared.items())
    recall = sum(n * n / golds[person] for (person, _), n in shared.items())
    precision, recall = precision / len(gold), recall / len(gold)
    return precision, recall, 2 * precision * recall / (precision + recall)


def write_official_input(path: Path, signatures: Signatures, embeddings_ND: FloatArray) -> None:
    """Write a pickle of the matrix and the paper ids, in the form that the S2AND project loads."""
    ids = [paper.partition("/")[2] for paper in signatures.paper_ids]
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        pickle.dump((np.asarray(embeddings_ND, dtype=np.float32), ids), file, protocol=4)


def _blocks(signatures: Signatures) -> dict[str, IntArray]:
    rows: dict[str, list[int]] = {}
    for row, block in enumerate(signatures.blocks):
        rows.setdefault(block, []).append(row)
    return {block: np.array(members) for block, members in rows.items()}


def _halves(signatures: Signatures, blocks: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the blocks for choosing the distance and those to score."""
    if len(blocks) < 2:
        fix = "add blocks: one half is for choosing the distance, the other is scored"
        raise DataError(f"{signatures.name} has fewer than two blocks", fix=fix)
    order = sorted(blocks, key=lambda block: hashlib.sha256(block.encode()).digest())
    return order[: len(order) // 2], order[len(order) // 2 :]


def _tree(x_SD: FloatArray) -> Tree | None:
    """Return the merges of average linkage; None for a single signature."""
    if len(x_SD) == 1:
        return None
    merges: Tree = linkage(pdist(x_SD.astype(np.float64)), method="average")
    return merges


def _candidates(trees: Sequence[Tree | None]) -> NDArray[np.float64]:
    """Return cuts to try: 0 and quantiles of the merge distances."""
    heights = [tree[:, 2] for tree in trees if tree is not None]
    if not heights:
        return np.zeros(1)
    quantiles = np.quantile(np.concatenate(heights), np.linspace(0, 1, _DISTANCES))
    return np.unique(np.concatenate([[0.0], quantiles]))


def _cut(tree: Tree | None, signatures: int, distance: float) -> list[int]:
    if tree is None:
        return [1] * signatures
    clusters: list[int] = fcluster(tree, distance, criterion="distance").tolist()
    return clusters


def _scores(
    signatures: Signatures,
    blocks: dict[str, IntArray],
    trees: dict[str, Tree | None],
    names: Sequence[str],
    distance: float,
) -> tuple[float, float, float]:
    gold: list[Hashable] = []
    predicted: list[Hashable] = []
    for name in names:
        clusters = _cut(trees[name], len(blocks[name]), distance)
        gold += [(name, signatures.persons[row]) for row in blocks[name]]
        predicted += [(name, cluster) for cluster in clusters]
    return b_cubed(gold, predicted)
