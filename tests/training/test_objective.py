"""The objective on embeddings given by hand, against loops over queries and candidates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult.config import validate
from scimult.data.batches import Batch
from scimult.training.config import LossConfig
from scimult.training.objective import ContrastiveObjective, PartResult, loss_function
from scimult.types import Similarity

# Queries are texts 0 to 3, positives 10, 11, 12 and again 10, hard negatives 20 of query 1
# and 11 of query 2. Query 0 knows 12 too, and text 20 is a positive of query 3.
POSITIVES, NEGATIVES, NEGATIVE_ROWS = [10, 11, 12, 10], [20, 11], [1, 2]
KNOWN = [[10, 12, 0], [11, 1], [12, 2], [10, 20, 3]]
CANDIDATES = POSITIVES + NEGATIVES
TEXTS = [0, 1, 2, 3, 10, 11, 12, 20]


def batch() -> Batch:
    return Batch(
        source="s",
        task="t",
        rows=[np.array([1, 2]) for _ in TEXTS],
        sides=[0] * len(TEXTS),
        query_B=torch.arange(4),
        candidate_C=torch.tensor([TEXTS.index(text) for text in CANDIDATES]),
        query_ids_B=torch.arange(4),
        candidate_ids_C=torch.tensor(CANDIDATES),
        negative_rows_H=torch.tensor(NEGATIVE_ROWS),
        known_rows_P=torch.tensor([row for row, ids in enumerate(KNOWN) for _ in ids]),
        known_ids_P=torch.tensor([text for ids in KNOWN for text in ids]),
    )


def run(options: dict[str, Any], similarity: Similarity = "dot") -> tuple[PartResult, Tensor]:
    section = validate(LossConfig, options)
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(len(TEXTS), 6, generator=generator, dtype=torch.float64)
    objective = ContrastiveObjective(similarity, loss_function(section), section)
    return objective(batch(), embeddings), embeddings


def cross_entropy(scores: list[float], target: float, temperature: float) -> float:
    total = sum(math.exp(score / temperature) for score in scores)
    return math.log(total) - target / temperature


@pytest.mark.parametrize("margin", [None, 0.5])
@pytest.mark.parametrize("name", ["info_nce", "symmetric_info_nce"])
def test_info_nce_one_way_and_both_ways(name: str, margin: float | None) -> None:
    result, embeddings = run({"name": name, "temperature": 0.7, "mask_margin": margin})
    there, back, masked = 0.0, 0.0, 0
    for row, own in enumerate(POSITIVES):
        query = embeddings[TEXTS.index(row)]
        positive = float(query @ embeddings[TEXTS.index(own)])
        bound = math.inf if margin is None else positive - margin
        kept = [positive]
        for column, text in enumerate(CANDIDATES):
            score = float(query @ embeddings[TEXTS.index(text)])
            if column != row and text not in KNOWN[row] and score <= bound:
                kept.append(score)
        there += cross_entropy(kept, positive, 0.7) / 4
        masked += len(CANDIDATES) - len(kept)
        kept_back = [positive]
        for other in range(4):
            score = float(embeddings[TEXTS.index(own)] @ embeddings[TEXTS.index(other)])
            if other != row and own not in KNOWN[other] and score <= bound:
                kept_back.append(score)
        back += cross_entropy(kept_back, positive, 0.7) / 4
        masked += (4 - len(kept_back)) * (name != "info_nce")
    expected = there if name == "info_nce" else (there + back) / 2
    assert float(result.loss) / 4 == pytest.approx(expected, abs=1e-10)
    assert result.masked == masked


@pytest.mark.parametrize("negatives", ["own", "all"])
def test_triplet_takes_own_negatives_or_all(negatives: str) -> None:
    result, embeddings = run({"name": "triplet", "negatives": negatives, "margin": 2.0}, "l2")
    own_negative = dict(zip(NEGATIVE_ROWS, NEGATIVES, strict=True))
    expected = 0.0
    for row, own in enumerate(POSITIVES):
        others = [text for text in CANDIDATES if text not in KNOWN[row]]
        if negatives == "own" and row in own_negative:
            others = [own_negative[row]]

        def distance(text: int, row: int = row) -> float:
            return float((embeddings[TEXTS.index(row)] - embeddings[TEXTS.index(text)]).norm())

        hinges = [max(distance(own) - distance(text) + 2.0, 0.0) for text in others]
        expected += sum(hinges) / len(hinges) / 4
    assert float(result.loss) / 4 == pytest.approx(expected, abs=1e-10)


def test_matryoshka_is_the_mean_over_cuts() -> None:
    whole, embeddings = run({"matryoshka": [2]})
    plain, _ = run({})
    scores = embeddings[:4, :2] @ embeddings[[TEXTS.index(t) for t in CANDIDATES], :2].T
    cut = 0.0
    for row in range(4):
        columns = [c for c, t in enumerate(CANDIDATES) if c == row or t not in KNOWN[row]]
        cut += cross_entropy(scores[row, columns].tolist(), float(scores[row, row]), 1.0) / 4
    assert float(whole.loss) / 4 == pytest.approx((float(plain.loss) / 4 + cut) / 2, abs=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"name": "symmetric_info_nce", "mask_margin": 0.1, "matryoshka": [2, 4]},
        {"name": "triplet", "negatives": "own"},
        {"distillation": {"name": "kl"}},
        {"distillation": {"name": "margin_mse"}},
    ],
)
def test_the_device_is_never_waited_for(options: dict[str, Any]) -> None:
    # The meta device has no numbers: reading one raises, as it would make the host wait on a GPU.
    section = validate(LossConfig, options)
    objective = ContrastiveObjective("l2", loss_function(section), section, torch.device("meta"))
    embeddings = torch.randn(len(TEXTS), 6, device="meta", requires_grad=True)
    teacher_C = torch.arange(float(len(CANDIDATES)))
    result = objective(replace(batch(), teacher_C=teacher_C), embeddings)
    result.loss.backward()
    assert embeddings.grad is not None
    assert {result.loss.device, result.masked.device, result.statistics_S.device} == {
        torch.device("meta")
    }
