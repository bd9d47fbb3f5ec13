"""Dev scores during training: retrieval on held-out pairs, heads on held-out targets.

Shape legend: Q dev queries, C dev candidates, D width, B dev papers, K outputs of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scimult.data.pairs import KnownPositives, PairFile
from scimult.data.targets import TargetFile
from scimult.data.token_store import TokenStore
from scimult.data.views import stored_views
from scimult.losses import similarity_matrix
from scimult.models import Encoder, embed_tokens
from scimult.models.heads import apply_head
from scimult.training.metrics import FLOAT32_ROUNDING
from scimult.types import IntArray, Similarity, ViewName


@dataclass(frozen=True)
class DevSet:
    """Queries, candidates and their relevance, for one dev file.

    With a ``view``, queries and candidates are views of the same papers.
    """

    name: str
    task: str
    query_ids_Q: IntArray
    candidate_ids_C: IntArray
    relevant_QC: np.ndarray
    ignored_QC: np.ndarray
    view: ViewName | None = None


def build_dev_sets(
    files: Sequence[PairFile],
    known: Mapping[str, KnownPositives],
    *,
    queries: int,
    candidates: int,
    seed: int,
) -> list[DevSet]:
    """Choose up to ``queries`` queries per dev file and a pool of candidates.

    The pool holds all positives of the chosen queries, filled up to ``candidates`` with a random
    choice of their hard negatives and the positives of other dev queries.
    """
    return [
        _build(file, known[file.task], queries, candidates, np.random.default_rng([seed, number]))
        for number, file in enumerate(files)
        if len(file.queries)
    ]


def mrr_name(dev_set: str) -> str:
    """Return the score name of a dev set's mean reciprocal rank, or of the ``mean`` of all."""
    return f"dev/{dev_set}/mrr"


def _build(
    file: PairFile,
    known: KnownPositives,
    queries: int,
    candidates: int,
    rng: np.random.Generator,
) -> DevSet:
    distinct = np.unique(file.queries)
    queries_Q = np.sort(rng.choice(distinct, size=min(queries, len(distinct)), replace=False))
    groups = np.flatnonzero(np.isin(file.queries, queries_Q))
    positives = np.unique(file.positives.take(groups).values)
    others = np.setdiff1d(
        np.union1d(file.negatives.take(groups).values, file.positives.values), positives
    )
    room = max(0, candidates - len(positives))
    pool_C = np.sort(np.concatenate([positives, rng.permutation(others)[:room]]))
    dev_known = [file.positives.take(np.flatnonzero(file.queries == q)).values for q in queries_Q]
    relevant_QC = np.stack([np.isin(pool_C, ids) for ids in dev_known])
    known_QC = np.stack([np.isin(pool_C, np.append(known[int(q)], q)) for q in queries_Q])
    ignored_QC = known_QC & ~relevant_QC
    return DevSet(file.name, file.task, queries_Q, pool_C, relevant_QC, ignored_QC, file.view)


def mean_reciprocal_rank(
    model: Encoder,
    dev: DevSet,
    tokens: TokenStore,
    *,
    routes: Sequence[int],
    similarity: Similarity,
    max_length: int,
) -> float:
    """Return the mean over queries of 1 / rank of the first relevant candidate.

    ``routes`` are those of queries and of candidates. Every rank must call it; each encodes a
    share of the texts.
    """

    def read(row: int, side: int) -> IntArray:
        if dev.view is None:
            return tokens.tokens(row, max_length)
        return stored_views(dev.view, tokens, row, seed=0, epoch=0, max_length=max_length)[side]

    def embed(ids: IntArray, side: int) -> torch.Tensor:
        rows = [read(int(row), side) for row in ids]
        return torch.from_numpy(embed_tokens(model, rows, route=routes[side], sharded=True))

    if len(set(routes)) == 1 and dev.view is None:
        ids = np.unique(np.concatenate([dev.query_ids_Q, dev.candidate_ids_C]))
        embedded = embed(ids, 0)
        q_QD = embedded[np.searchsorted(ids, dev.query_ids_Q)]
        c_CD = embedded[np.searchsorted(ids, dev.candidate_ids_C)]
    else:
        q_QD, c_CD = embed(dev.query_ids_Q, 0), embed(dev.candidate_ids_C, 1)
    scores_QC = similarity_matrix(q_QD, c_CD, similarity).numpy()
    scores_QC[dev.ignored_QC] = -np.inf
    best_Q = np.where(dev.relevant_QC, scores_QC, -np.inf).max(1)
    # Ties and NaN count against the model: constant embeddings must not score 1.
    others_QC = np.where(dev.relevant_QC, -np.inf, scores_QC)
    ranks_Q = 1 + (~(others_QC < best_Q[:, None])).sum(1)
    return float((1 / ranks_Q).mean())


_SCORES = {
    "multi_class": ("accuracy",),
    "multi_label": ("micro_f1",),
    "regression": ("r2", "kendall"),
}


def sample_targets(file: TargetFile, papers: int, seed: int) -> TargetFile:
    """Return the targets of up to ``papers`` papers, drawn at random."""
    indices = np.random.default_rng([seed, 4]).permutation(len(file))[:papers]
    return file.take(np.sort(indices))


def target_score_names(file: TargetFile) -> list[str]:
    """Return the names of a head's scores on dev papers."""
    return [f"dev/{file.name}/{score}" for score in _SCORES[file.kind]]


def target_scores(
    model: Encoder,
    file: TargetFile,
    head_KD1: Tensor,
    tokens: TokenStore,
    *,
    route: int,
    max_length: int,
) -> dict[str, float]:
    """Return a head's scores on dev papers, named as in `target_score_names`.

    Accuracy for one class, micro-averaged F1 for several, and for numbers R2 and Kendall's tau-b,
    which SciRepEval uses. Every rank must call it; each encodes a share of the texts.
    """
    rows = [tokens.tokens(int(row), max_length) for row in file.rows]
    embeddings_BD = torch.from_numpy(embed_tokens(model, rows, route=route, sharded=True))
    outputs_BK = apply_head(head_KD1.detach().cpu(), embeddings_BD).double()
    targets_B = file.targets(file.rows)
    if file.kind == "multi_class":
        scores = [float((outputs_BK.argmax(1) == targets_B).double().mean())]
    elif file.kind == "multi_label":
        predicted_BK, true_BK = outputs_BK > 0, targets_B > 0
        correct = int((predicted_BK & true_BK).sum())
        scores = [2 * correct / int(predicted_BK.sum() + true_BK.sum())]
    else:
        errors = (outputs_BK[:, 0] - targets_B).square().sum()
        spread = (targets_B - targets_B.mean()).square().sum()
        # Half a second to import, which every start of a rank would pay.
        from scipy.stats import kendalltau

        # A model that embeds all papers alike orders them by rounding in float32.
        sizes_BK = apply_head(head_KD1.detach().cpu().abs(), embeddings_BD.abs())
        collapsed = bool(outputs_BK.max() - outputs_BK.min() <= FLOAT32_ROUNDING * sizes_BK.max())
        tau = float(kendalltau(outputs_BK[:, 0].numpy(), targets_B.numpy()).statistic)
        # If all numbers are equal there is no spread but by rounding, and tau is NaN.
        r2 = float(1 - errors / spread) if targets_B.max() > targets_B.min() else 0.0
        scores = [r2, 0.0 if collapsed or np.isnan(tau) else tau]
    return dict(zip(target_score_names(file), scores, strict=True))
