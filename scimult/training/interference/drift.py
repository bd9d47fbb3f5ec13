"""Measure how far training moved the embeddings of each task from those of the base.

Shape legend: N texts, D width, E width of the other embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scimult.checkpoints import Pretrained
from scimult.data.batches import Batch, MicroBatch
from scimult.errors import ConfigError, one_of
from scimult.models import embed_tokens
from scimult.retrieval.embeddings import unit_rows
from scimult.training.metrics import FLOAT32_ROUNDING
from scimult.types import FloatArray, TokenIds

# Texts per side of a task; CKA of fewer texts than dimensions is biased upwards.
_MOST_TEXTS = 512


@dataclass(frozen=True)
class Drift:
    """Drift of one side of a task, over a number of texts.

    ``cosine`` is the mean between a text's embeddings by base and model, NaN if widths differ;
    ``cka`` is linear: 1 if the two differ only by rotation and scale, NaN if it is undefined.
    """

    task: str
    role: str
    texts: int
    cosine: float
    cka: float


def linear_cka(x_ND: FloatArray, y_NE: FloatArray) -> float:
    """Return the linear centred kernel alignment of two sets of embeddings of the same texts.

    Kornblith et al., "Similarity of Neural Network Representations Revisited" (2019), equation 4.
    NaN if one of the two is the same for all texts, as it is for one text.
    """
    x, y = (np.asarray(z, dtype=np.float64) - z.mean(0, dtype=np.float64) for z in (x_ND, y_NE))
    for centred, whole in ((x, x_ND), (y, y_NE)):
        if np.linalg.norm(centred) <= FLOAT32_ROUNDING * np.linalg.norm(whole):
            return np.nan
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / norms)


def check_base(
    base: Pretrained, model: Pretrained, tasks: Iterable[str], longest: int, path: Path
) -> None:
    """Refuse a base, from ``path``, that cannot be compared with the model.

    ``longest`` is the most tokens of a text.

    Raises
    ------
    ConfigError, UnknownNameError
        If their tokenizers differ, the base has fewer positions, or it has routes but not for all
        tasks.
    """
    if base.tokenizer.fingerprint != model.tokenizer.fingerprint:
        raise ConfigError(
            "base and model have different tokenizers",
            path=path,
            fix="name the base from which the run started",
        )
    positions = base.config.encoder.max_text_length
    if longest > positions:
        raise ConfigError(
            f"data.max_length exceeds the base's {positions} positions",
            path=path,
            value=longest,
            fix=f"name the base from which the run started, or add data.max_length={positions}",
        )
    if base.config.encoder.is_routed:
        for task in tasks:
            one_of("task of the base", task, base.tasks.names, path=path)


def measure_drift(
    base: Pretrained, model: Pretrained, tasks: Iterable[str], micro_batches: Iterable[MicroBatch]
) -> list[Drift]:
    """Compare base and model on the first texts of the micro-batches, each by its task's route."""
    by_side = _texts(micro_batches)
    drifts = []
    for task in tasks:
        for role in ("query", "candidate"):
            rows = by_side[task, role]
            # A base without routes need not know the tasks of the run.
            base_route = base.route(task, role) if base.config.encoder.is_routed else 0
            before_NE = embed_tokens(base.model, rows, route=base_route)
            after_ND = embed_tokens(model.model, rows, route=model.route(task, role))
            comparable = before_NE.shape == after_ND.shape
            cosines_N = (
                (unit_rows(before_NE) * unit_rows(after_ND)).sum(1) if comparable else np.nan
            )
            cosine = float(np.mean(cosines_N))
            drifts.append(Drift(task, role, len(rows), cosine, linear_cka(before_NE, after_ND)))
    return drifts


def _texts(micro_batches: Iterable[MicroBatch]) -> Mapping[tuple[str, str], list[TokenIds]]:
    """Return the distinct queries and candidates of each task."""
    texts: dict[tuple[str, str], dict[bytes, TokenIds]] = {}
    for micro_batch in micro_batches:
        for part in micro_batch.parts:
            if not isinstance(part, Batch):
                continue
            for role, indices in (("query", part.query_B), ("candidate", part.candidate_C)):
                distinct = texts.setdefault((part.task, role), {})
                for row in (part.rows[index] for index in indices.tolist()):
                    if len(distinct) < _MOST_TEXTS:
                        distinct.setdefault(row.tobytes(), row)
    return {side: list(distinct.values()) for side, distinct in texts.items()}
