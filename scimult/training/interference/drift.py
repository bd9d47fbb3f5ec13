"""How far training moved the embeddings of each task from those of the base.

Shape legend: N texts, D width, E width of the other embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from scimult.checkpoints import Pretrained
from scimult.data.batches import Batch, MicroBatch
from scimult.errors import ConfigError
from scimult.models import embed_tokens
from scimult.retrieval.embeddings import unit_rows
from scimult.types import FloatArray, TokenIds

# Texts of each side of a task; a CKA of fewer texts than dimensions is biased upwards.
_MOST_TEXTS = 512


@dataclass(frozen=True)
class Drift:
    """What one side of a task has moved.

    Attributes
    ----------
    task, role : str
        Whose texts, by the route of the model.
    texts : int
        How many of them.
    cosine : float
        Mean cosine of a text's embeddings by base and model; NaN where widths differ.
    cka : float
        Linear CKA: 1 where the two differ by a rotation and a scale alone.
    """

    task: str
    role: str
    texts: int
    cosine: float
    cka: float


def linear_cka(x_ND: FloatArray, y_NE: FloatArray) -> float:
    """Return the linear centred kernel alignment of two sets of embeddings of the same texts.

    Kornblith et al., "Similarity of Neural Network Representations Revisited" (2019), equation 4.
    """
    x, y = (np.asarray(z, dtype=np.float64) - z.mean(0, dtype=np.float64) for z in (x_ND, y_NE))
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / norms)


def measure_drift(
    base: Pretrained, model: Pretrained, tasks: Iterable[str], micro_batches: Iterable[MicroBatch]
) -> list[Drift]:
    """Embed the first texts of the micro-batches with both, each task's by its own routes.

    Raises
    ------
    ConfigError
        If base and model read other tokens.
    """
    if base.tokenizer.fingerprint != model.tokenizer.fingerprint:
        raise ConfigError(
            "base and model have different tokenizers",
            fix="name the base that the run started from",
        )
    by_side = _texts(micro_batches)
    drifts = []
    for task in tasks:
        for role in ("query", "candidate"):
            rows = by_side[task, role]
            # A base without experts need not know the tasks of the run.
            routed = base.config.encoder.is_routed
            theirs_ND = embed_tokens(
                base.model, rows, route=base.route(task, role) if routed else 0
            )
            ours_ND = embed_tokens(model.model, rows, route=model.route(task, role))
            same = theirs_ND.shape == ours_ND.shape
            cosines_N = (unit_rows(theirs_ND) * unit_rows(ours_ND)).sum(1) if same else np.nan
            cosine = float(np.mean(cosines_N))
            drifts.append(Drift(task, role, len(rows), cosine, linear_cka(theirs_ND, ours_ND)))
    return drifts


def _texts(micro_batches: Iterable[MicroBatch]) -> Mapping[tuple[str, str], list[TokenIds]]:
    """Return the distinct queries and candidates of each task."""
    texts: dict[tuple[str, str], dict[bytes, TokenIds]] = {}
    for micro_batch in micro_batches:
        for part in micro_batch.parts:
            if not isinstance(part, Batch):
                continue
            for role, places in (("query", part.query_B), ("candidate", part.candidate_C)):
                known = texts.setdefault((part.task, role), {})
                for row in (part.rows[place] for place in places.tolist()):
                    if len(known) < _MOST_TEXTS:
                        known.setdefault(row.tobytes(), row)
    return {side: list(known.values()) for side, known in texts.items()}
