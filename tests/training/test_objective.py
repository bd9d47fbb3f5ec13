"""The objective on hand-made embeddings, against loops over queries and candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult.config import validate
from scimult.data.batches import Batch
from scimult.training.config import NegativesAcross
from scimult.training.loss_config import LossConfig, LossName
from scimult.training.negatives import shared_negatives
from scimult.training.objective import Objective, PartResult
from scimult.types import Similarity
from tests.operators import NoBlockingCopies

# Queries are texts 0 to 3 and again 1; hard negatives are 20 of query 1, 11 of query 2 and 20
# again of the last. Query 0 knows 12 too, and text 20 is a positive of query 3.
QUERIES, POSITIVES = [0, 1, 2, 3, 1], [10, 11, 12, 10, 13]
NEGATIVES, NEGATIVE_ROWS = [20, 11, 20], [1, 2, 4]
KNOWN = {0: [10, 12, 0], 1: [11, 13, 1], 2: [12, 2], 3: [10, 20, 3]}
CANDIDATES = POSITIVES + NEGATIVES
TEXTS = [0, 1, 2, 3, 10, 11, 12, 13, 20]
PAIRS = len(QUERIES)


def batch(
    rows: Sequence[int] = range(PAIRS),
    texts: Sequence[int] = TEXTS,
    source: str = "s",
    task: str = "t",
) -> Batch:
    """Return the batch of some pairs; it encodes ``texts``."""
    hard = [place for place, row in enumerate(NEGATIVE_ROWS) if row in rows]
    candidates = [POSITIVES[row] for row in rows] + [NEGATIVES[place] for place in hard]
    queries = [QUERIES[row] for row in rows]
    known = [(row, text) for row, query in enumerate(queries) for text in KNOWN[query]]
    return Batch(
        source=source,
        task=task,
        rows=[np.array([1, 2]) for _ in texts],
        sides=[0] * len(texts),
        query_B=torch.tensor([texts.index(text) for text in queries]),
        candidate_C=torch.tensor([texts.index(text) for text in candidates]),
        query_ids_B=torch.tensor(queries),
        candidate_ids_C=torch.tensor(candidates),
        negative_rows_H=torch.tensor([rows.index(NEGATIVE_ROWS[place]) for place in hard]).long(),
        known_rows_P=torch.tensor([row for row, _ in known]),
        known_ids_P=torch.tensor([text for _, text in known]),
    )


def run(options: dict[str, Any], similarity: Similarity = "dot") -> tuple[PartResult, Tensor]:
    section = validate(LossConfig, options)
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(len(TEXTS), 6, generator=generator, dtype=torch.float64)
    objective = Objective(similarity, section)
    (result,) = objective([batch()], embeddings)
    return result, embeddings


def cross_entropy(scores: list[float], target: float, temperature: float) -> float:
    total = sum(math.exp(score / temperature) for score in scores)
    return math.log(total) - target / temperature


ALL = range(PAIRS)
# The text of each candidate column.
OWNERS = [*ALL, *NEGATIVE_ROWS]


def negatives(
    row: int, repeated: str, known: bool = True, together: Sequence[int] = ALL
) -> list[int]:
    """Return the texts that count as negatives of a pair's query: each column, or each text."""
    texts = [
        text
        for column, (owner, text) in enumerate(zip(OWNERS, CANDIDATES, strict=True))
        if column != row and owner in together
    ]
    texts = [text for text in texts if not known or text not in KNOWN[QUERIES[row]]]
    return texts if repeated == "each" else sorted({*texts} - {POSITIVES[row]})


def queries_against(
    row: int, repeated: str, known: bool = True, together: Sequence[int] = ALL
) -> list[int]:
    """Return the queries that count as negatives of a pair's positive, likewise."""
    texts = [QUERIES[other] for other in together if other != row]
    texts = [query for query in texts if not known or POSITIVES[row] not in KNOWN[query]]
    return texts if repeated == "each" else sorted({*texts} - {QUERIES[row]})


@pytest.mark.parametrize("name", get_args(LossName))
def test_a_loss_for_all_tasks_has_the_defaults_of_one_by_task(name: str) -> None:
    section = validate(LossConfig, {"name": name, "by_task": {"t": name}})
    assert section.default == section.by_task["t"]


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
    assert float(result.loss) / PAIRS == pytest.approx(expected, abs=1e-10)
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
    assert float(result.loss) / PAIRS == pytest.approx(expected, abs=1e-10)


def test_matryoshka_is_the_mean_over_cuts() -> None:
    whole, embeddings = run({"matryoshka": [2]})
    plain, _ = run({})
    cut = 0.0
    for row, (query, own) in enumerate(zip(QUERIES, POSITIVES, strict=True)):
        texts = [own, *negatives(row, "once")]
        scores = embeddings[[TEXTS.index(t) for t in texts], :2] @ embeddings[query, :2]
        cut += cross_entropy(scores.tolist(), float(scores[0]), 1.0) / PAIRS
    assert float(whole.loss) / PAIRS == pytest.approx(
        (float(plain.loss) / PAIRS + cut) / 2, abs=1e-10
    )


# Parts of a micro-batch: the pairs of each, its source and its task.
PARTS = [([0, 2], "a", "t"), ([1, 3], "b", "t"), ([4], "c", "u")]


@pytest.mark.parametrize("repeated", ["once", "each"])
@pytest.mark.parametrize("name", ["info_nce", "symmetric_info_nce"])
@pytest.mark.parametrize(
    ("across", "route_of", "groups"),
    [
        ("source", {"t": 0, "u": 0}, [[0, 2], [1, 3], [4]]),
        ("task", {"t": 0, "u": 0}, [[0, 1, 2, 3], [4]]),
        ("batch", {"t": 0, "u": 0}, [[0, 1, 2, 3, 4]]),
        # Separate experts, so another space.
        ("batch", {"t": 0, "u": 1}, [[0, 1, 2, 3], [4]]),
    ],
)
def test_parts_share_their_negatives(
    across: NegativesAcross,
    route_of: dict[str, int],
    groups: list[list[int]],
    name: str,
    repeated: str,
) -> None:
    """Every part has the loss and gradient that it has in the union of its group's parts."""
    section = validate(LossConfig, {"name": name, "repeated_candidates": repeated})
    objective = Objective(
        "dot",
        section,
        group_of=shared_negatives(across, lambda task: [route_of[task]] * 2),
    )
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(len(TEXTS), 6, generator=generator, dtype=torch.float64)
    ours, naive = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    # Every part encodes its own texts, in its own order.
    orders = [np.random.default_rng(n).permutation(TEXTS).tolist() for n in range(len(PARTS))]
    parts = [
        batch(rows, texts, source, task)
        for (rows, source, task), texts in zip(PARTS, orders, strict=True)
    ]
    results = objective(parts, ours[[TEXTS.index(text) for texts in orders for text in texts]])

    def loss(one: int, others: list[int]) -> Tensor:
        """Return the cross entropy of a text's first partner among all."""
        scores = naive[[TEXTS.index(other) for other in others]] @ naive[TEXTS.index(one)]
        return scores.logsumexp(0) - scores[0]

    total = torch.zeros((), dtype=torch.float64)
    for (rows, source, task), result in zip(PARTS, results, strict=True):
        expected = torch.zeros((), dtype=torch.float64)
        for row in rows:
            (group,) = (group for group in groups if row in group)
            own, query = POSITIVES[row], QUERIES[row]
            there = loss(query, [own, *negatives(row, repeated, together=group)])
            back = loss(own, [query, *queries_against(row, repeated, together=group)])
            expected = expected + (there if name == "info_nce" else (there + back) / 2)
        assert (result.source, result.task, result.pairs) == (source, task, len(rows))
        assert float(result.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-10)
        assert result.statistics_S[:2].tolist() == pytest.approx(
            [len(rows), float(expected.detach())]
        )
        total = total + expected
    torch.stack([result.loss for result in results]).sum().backward()
    total.backward()
    assert ours.grad is not None
    assert naive.grad is not None
    torch.testing.assert_close(ours.grad, naive.grad, rtol=0, atol=1e-10)


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
    objective = Objective("dot", section)
    unit_LL = torch.eye(LABELS, dtype=torch.float64)
    embeddings = torch.cat([ahead * unit_LL[label_B], unit_LL])
    loss = float(objective([coarse], embeddings)[0].loss) / LABELLED
    of_a_classifier = math.log(1 + (LABELS - 1) * math.exp(-ahead))
    if repeated == "once":
        assert loss == pytest.approx(of_a_classifier, abs=1e-10)
    else:
        copies = torch.bincount(label_B).double()
        other = LABELLED - copies
        expected = float(((other + 1).log() * copies).sum() / LABELLED)
        assert loss == pytest.approx(expected, abs=1e-10)
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
    # Reading a number raises on the meta device, where on a GPU the host would wait.
    section = validate(LossConfig, options)
    objective = Objective("l2", section, torch.device("meta"))
    embeddings = torch.randn(len(TEXTS), 6, device="meta", requires_grad=True)
    teacher_C = torch.arange(float(len(CANDIDATES)))
    with NoBlockingCopies() as watched:
        (result,) = objective([replace(batch(), teacher_C=teacher_C)], embeddings)
        result.loss.backward()
    assert watched.copies == 1
    assert embeddings.grad is not None
    assert {result.loss.device, result.masked.device, result.statistics_S.device} == {
        torch.device("meta")
    }
