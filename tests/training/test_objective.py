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

# Queries are texts 0 to 3 and again 1; hard negatives are 20 of query 1, 11 of query 2 and 20
# again of the last. Query 0 knows 12 too, and text 20 is a positive of query 3.
QUERIES, POSITIVES = [0, 1, 2, 3, 1], [10, 11, 12, 10, 13]
NEGATIVES, NEGATIVE_ROWS = [20, 11, 20], [1, 2, 4]
KNOWN = {0: [10, 12, 0], 1: [11, 13, 1], 2: [12, 2], 3: [10, 20, 3]}
CANDIDATES = POSITIVES + NEGATIVES
TEXTS = [0, 1, 2, 3, 10, 11, 12, 13, 20]
PAIRS = len(QUERIES)


def batch() -> Batch:
    known = [(row, text) for row, query in enumerate(QUERIES) for text in KNOWN[query]]
    return Batch(
        source="s",
        task="t",
        rows=[np.array([1, 2]) for _ in TEXTS],
        sides=[0] * len(TEXTS),
        query_B=torch.tensor([TEXTS.index(text) for text in QUERIES]),
        candidate_C=torch.tensor([TEXTS.index(text) for text in CANDIDATES]),
        query_ids_B=torch.tensor(QUERIES),
        candidate_ids_C=torch.tensor(CANDIDATES),
        negative_rows_H=torch.tensor(NEGATIVE_ROWS),
        known_rows_P=torch.tensor([row for row, _ in known]),
        known_ids_P=torch.tensor([text for _, text in known]),
    )


def run(options: dict[str, Any], similarity: Similarity = "dot") -> tuple[PartResult, Tensor]:
    section = validate(LossConfig, options)
    embeddings = torch.randn(len(TEXTS), 6, generator=torch.Generator().manual_seed(0))
    objective = ContrastiveObjective(similarity, loss_function(section), section)
    return objective(batch(), embeddings), embeddings.double()


def cross_entropy(scores: list[float], target: float, temperature: float) -> float:
    total = sum(math.exp(score / temperature) for score in scores)
    return math.log(total) - target / temperature


def negatives(row: int, repeated: str, known: bool = True) -> list[int]:
    """Return the texts that count as negatives of a pair's query: each column, or each text."""
    texts = [text for column, text in enumerate(CANDIDATES) if column != row]
    texts = [text for text in texts if not known or text not in KNOWN[QUERIES[row]]]
    return texts if repeated == "each" else sorted({*texts} - {POSITIVES[row]})


def queries_against(row: int, repeated: str, known: bool = True) -> list[int]:
    """Return the queries that count as negatives of a pair's positive, likewise."""
    texts = [query for column, query in enumerate(QUERIES) if column != row]
    texts = [query for query in texts if not known or POSITIVES[row] not in KNOWN[query]]
    return texts if repeated == "each" else sorted({*texts} - {QUERIES[row]})


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("repeated", ["once", "each"])
@pytest.mark.parametrize("margin", [None, 0.5])
@pytest.mark.parametrize("name", ["info_nce", "symmetric_info_nce"])
def test_info_nce_one_way_and_both_ways(
    name: str, margin: float | None, repeated: str, known: bool
) -> None:
    options = {"name": name, "temperature": 0.7, "mask_margin": margin}
    options |= {"repeated_candidates": repeated, "mask_known_positives": known}
    result, embeddings = run(options)

    def dot(one: int, other: int) -> float:
        return float(embeddings[TEXTS.index(one)] @ embeddings[TEXTS.index(other)])

    there, back, masked = 0.0, 0.0, 0
    for row, (query, own) in enumerate(zip(QUERIES, POSITIVES, strict=True)):
        positive = dot(query, own)
        bound = math.inf if margin is None else positive - margin
        scores = [dot(query, text) for text in negatives(row, repeated, known)]
        kept = [positive, *(score for score in scores if score <= bound)]
        there += cross_entropy(kept, positive, 0.7) / PAIRS
        masked += len(CANDIDATES) - len(kept)
        scores = [dot(own, text) for text in queries_against(row, repeated, known)]
        kept = [positive, *(score for score in scores if score <= bound)]
        back += cross_entropy(kept, positive, 0.7) / PAIRS
        masked += (PAIRS - len(kept)) * (name != "info_nce")
    expected = there if name == "info_nce" else (there + back) / 2
    # Float32 against float64; losses are below 10.
    assert float(result.loss) / PAIRS == pytest.approx(expected, abs=1e-5)
    assert result.masked == masked


@pytest.mark.parametrize("repeated", ["once", "each"])
@pytest.mark.parametrize("which", ["own", "all"])
def test_triplet_takes_own_negatives_or_all(which: str, repeated: str) -> None:
    options = {"name": "triplet", "negatives": which, "margin": 2.0}
    result, embeddings = run(options | {"repeated_candidates": repeated}, "l2")
    own_negative = dict(zip(NEGATIVE_ROWS, NEGATIVES, strict=True))
    expected = 0.0
    for row, (query, own) in enumerate(zip(QUERIES, POSITIVES, strict=True)):
        others = negatives(row, repeated)
        if which == "own" and row in own_negative:
            others = [own_negative[row]]

        def distance(text: int, query: int = query) -> float:
            return float((embeddings[TEXTS.index(query)] - embeddings[TEXTS.index(text)]).norm())

        hinges = [max(distance(own) - distance(text) + 2.0, 0.0) for text in others]
        expected += sum(hinges) / len(hinges) / PAIRS
    assert float(result.loss) / PAIRS == pytest.approx(expected, abs=1e-5)


def test_matryoshka_is_the_mean_over_cuts() -> None:
    whole, embeddings = run({"matryoshka": [2]})
    plain, _ = run({})
    cut = 0.0
    for row, (query, own) in enumerate(zip(QUERIES, POSITIVES, strict=True)):
        texts = [own, *negatives(row, "once")]
        scores = embeddings[[TEXTS.index(t) for t in texts], :2] @ embeddings[query, :2]
        cut += cross_entropy(scores.tolist(), float(scores[0]), 1.0) / PAIRS
    assert float(whole.loss) / PAIRS == pytest.approx(
        (float(plain.loss) / PAIRS + cut) / 2, abs=1e-5
    )


LABELS, LABELLED = 18, 1536


@pytest.mark.parametrize(("repeated", "ahead"), [("once", 0.0), ("once", 3.0), ("each", 0.0)])
def test_a_label_weighs_the_same_however_often_it_is_a_positive(
    repeated: str, ahead: float
) -> None:
    """Coarse labels as in SciMult's data: the loss is that of a classifier over the labels."""
    label_B = torch.from_numpy(np.random.default_rng(0).integers(0, LABELS, LABELLED))
    rows_B, none = torch.arange(LABELLED), torch.zeros(0, dtype=torch.long)
    columns_B = LABELLED + label_B
    texts = LABELLED + LABELS
    coarse = Batch(
        "coarse",
        "classification",
        [np.zeros(3, int)] * texts,
        [0] * texts,
        rows_B,
        columns_B,
        rows_B,
        columns_B,
        none,
        rows_B,
        columns_B,
    )
    section = validate(LossConfig, {"repeated_candidates": repeated})
    objective = ContrastiveObjective("dot", loss_function(section), section)
    embeddings = torch.cat([ahead * torch.eye(LABELS)[label_B], torch.eye(LABELS)])
    loss = float(objective(coarse, embeddings).loss) / LABELLED
    of_a_classifier = math.log(1 + (LABELS - 1) * math.exp(-ahead))
    if repeated == "once":
        # Float32 sums of 1,536 losses below 3.
        assert loss == pytest.approx(of_a_classifier, rel=1e-5)
    else:
        copies = torch.bincount(label_B).double()
        other = LABELLED - copies
        assert loss == pytest.approx(float(((other + 1).log() * copies).sum() / LABELLED), rel=1e-5)
        assert loss > of_a_classifier + 4


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
