"""Losses against those of sentence-transformers on the same embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scimult.losses import (
    InBatchScores,
    foreign_negatives,
    info_nce,
    listwise_kl,
    margin_mse,
    own_teacher_scores,
    similarity_matrix,
    triplet_margin,
)
from scimult.types import Similarity

pytestmark = pytest.mark.long

PAIRS, WIDTH = 7, 5
# Each query's own positive and hard negative.
ROWS, NEGATIVES = torch.arange(PAIRS), torch.arange(PAIRS, 2 * PAIRS)


@pytest.fixture
def embeddings() -> list[Tensor]:
    """Queries, positives and hard negatives."""
    drawn = torch.randn(
        3, PAIRS, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return list(drawn)


def _batch(embeddings: list[Tensor], similarity: Similarity) -> InBatchScores:
    scores = similarity_matrix(embeddings[0], torch.cat(embeddings[1:]), similarity)
    return InBatchScores(scores, ROWS, torch.zeros_like(scores, dtype=torch.bool))


def test_info_nce_is_multiple_negatives_ranking(embeddings: list[Tensor]) -> None:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    theirs = MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings(embeddings, torch.empty(0))
    _assert_equal(info_nce(_batch(embeddings, "cosine"), 1 / 20).mean(), expected)


def test_the_triplet_margin_is_the_triplet_loss(embeddings: list[Tensor]) -> None:
    from sentence_transformers.sentence_transformer.losses import TripletLoss

    theirs = TripletLoss(torch.nn.Identity(), triplet_margin=1.0)
    expected = theirs.compute_loss_from_embeddings(embeddings, torch.empty(0))
    every = _batch(embeddings, "l2")
    others = foreign_negatives(ROWS, ROWS, NEGATIVES, 2 * PAIRS)
    own = InBatchScores(every.scores_BC, every.targets_B, others)
    _assert_equal(triplet_margin(own, 1.0).mean(), expected)


def test_distillation_of_margins_and_of_distributions(embeddings: list[Tensor]) -> None:
    from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss, MarginMSELoss

    teacher = torch.rand(PAIRS, 2, generator=torch.Generator().manual_seed(1)).double()
    scores = own_teacher_scores(*teacher.T, ROWS, ROWS, NEGATIVES, 2 * PAIRS)
    batch = _batch(embeddings, "dot")
    margins = MarginMSELoss(torch.nn.Identity())
    expected = margins.compute_loss_from_embeddings(embeddings, teacher)
    _assert_equal(margin_mse(batch, scores).mean(), expected)
    # Theirs also multiplies by the square of the temperature.
    divergence = DistillKLDivLoss(torch.nn.Identity(), temperature=2.0)
    expected = divergence.compute_loss_from_embeddings(embeddings, teacher)
    _assert_equal(4 * listwise_kl(batch, scores / 2, 2.0).mean(), expected)


def _assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
