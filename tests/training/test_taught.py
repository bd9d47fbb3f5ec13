"""The loss of following a teacher's vectors, against its definition written out as loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult.data.batches import Batch, Part
from scimult.training.learned import PROJECTION
from scimult.training.loss_config import EmbeddingTeacherConfig
from scimult.training.metrics import STATISTICS
from scimult.training.objective import PartResult
from scimult.training.taught import TaughtObjective
from scimult.types import FloatArray

WIDTH, TEACHER = 6, 4
# Of each part: encoded texts; queries and candidates among them; the query of each hard negative.
PAIRS: list[tuple[int, list[int], list[int], list[int]]] = [
    (5, [0, 1], [2, 3, 4], [1]),
    (3, [0], [1, 2], [0]),
    (2, [1], [0], []),
]


def _batch(part: int, rng: np.random.Generator, *, follows: bool) -> Batch:
    texts, queries, candidates, rows = PAIRS[part]
    none = torch.zeros(0, dtype=torch.long)
    return Batch(
        source=f"source{part}",
        task="search",
        rows=[np.array([1, 2])] * texts,
        sides=[0] * texts,
        query_B=torch.tensor(queries),
        candidate_C=torch.tensor(candidates),
        query_ids_B=torch.tensor(queries),
        candidate_ids_C=torch.tensor(candidates),
        negative_rows_H=torch.tensor(rows, dtype=torch.long),
        known_rows_P=none,
        known_ids_P=none,
        vectors_UE=torch.from_numpy(rng.normal(size=(texts, TEACHER))) if follows else None,
    )


def _other_losses(parts: Sequence[Part], *_: Any) -> list[PartResult]:
    """Return a loss of 1 for each part."""
    none = torch.zeros(len(STATISTICS), dtype=torch.float64)
    one, count = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0)
    return [PartResult(part.source, part.task, 1, one, count, 1, none) for part in parts]


def _cosine(one: FloatArray, other: FloatArray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("groups", ["together", "apart"])
@pytest.mark.parametrize(
    "options",
    [
        {"loss": "cosine", "weight": 2.0},
        {"loss": "relational", "weight": 3.0},
        {"loss": "both", "weight": 0.5, "relational_weight": 4.0},
    ],
)
def test_each_pair_adds_the_mean_loss_of_its_texts(options: dict[str, Any], groups: str) -> None:
    """Relations are with all queries and candidates of the group; the last part follows nothing."""
    rng = np.random.default_rng(0)
    parts = [_batch(part, rng, follows=part < 2) for part in range(3)]
    texts = [PAIRS[part][0] for part in range(3)]
    x_UD, weight_ED = rng.normal(size=(sum(texts), WIDTH)), rng.normal(size=(TEACHER, WIDTH))
    section = EmbeddingTeacherConfig(vectors="v", **options)
    objective = TaughtObjective(
        _other_losses, section, [2], "cpu", lambda source, _: source if groups == "apart" else ""
    )
    learned: dict[str, Tensor] = {PROJECTION: torch.from_numpy(weight_ED)}
    results = objective(parts, torch.from_numpy(x_UD), learned)

    students = np.split(x_UD, np.cumsum(texts)[:-1])
    teachers = [part.vectors_UE.numpy() for part in parts if part.vectors_UE is not None]
    cosine, relational = section.weights
    for part, teacher_UE in enumerate(teachers):
        compared = [
            (students[other][text], teachers[other][text])
            for other in (range(2) if groups == "together" else [part])
            for text in (*PAIRS[other][1], *PAIRS[other][2])
        ]
        of_text = []
        for student, teacher in zip(students[part], teacher_UE, strict=True):
            cuts = [
                np.mean(
                    [(_cosine(student[:n], s[:n]) - _cosine(teacher, t)) ** 2 for s, t in compared]
                )
                for n in (WIDTH, 2)
            ]
            follows = 1 - _cosine(weight_ED @ student, teacher)
            of_text.append(cosine * follows + relational * np.mean(cuts))
        _, queries, candidates, rows = PAIRS[part]
        expected = 0.0
        for row, query in enumerate(queries):
            negatives = [candidates[len(queries) + h] for h, own in enumerate(rows) if own == row]
            expected += np.mean([of_text[text] for text in (query, candidates[row], *negatives)])
        assert float(results[part].loss) == pytest.approx(1 + expected, rel=1e-6)
        shown = dict(zip(STATISTICS, results[part].statistics_S.tolist(), strict=True))
        assert shown["teacher"] == shown["loss"] == pytest.approx(expected, rel=1e-6)
        assert shown["taught"] == len(queries)
    assert float(results[2].loss) == 1


def test_where_nothing_follows_the_projection_still_has_a_gradient() -> None:
    """DeepSpeed waits for a gradient of each parameter, also where it is zero."""
    weight = torch.ones(TEACHER, WIDTH, dtype=torch.float64, requires_grad=True)
    section = EmbeddingTeacherConfig(vectors="v")
    objective = TaughtObjective(_other_losses, section, [], "cpu", lambda *_: "")
    part = _batch(2, np.random.default_rng(0), follows=False)
    (result,) = objective([part], torch.ones(2, WIDTH).double(), {PROJECTION: weight})
    assert float(result.loss.detach()) == 1
    result.loss.backward()
    assert weight.grad is not None
    assert not weight.grad.any()
