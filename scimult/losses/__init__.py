"""Losses as pure functions of tensors."""

from scimult.losses.distillation import listwise_kl, margin_mse, own_teacher_scores
from scimult.losses.embeddings import cosine_distance, mean_over_pairs, relational_distance
from scimult.losses.info_nce import InBatchScores, info_nce
from scimult.losses.masks import (
    above_margin,
    false_negatives,
    foreign_negatives,
    known_pairs,
    repeated_candidates,
)
from scimult.losses.projection import Projection, fitted_projection
from scimult.losses.similarity import Temperature, similarity_matrix
from scimult.losses.supervised import head_losses
from scimult.losses.triplet import triplet_margin
from scimult.losses.weighting import LogVariance, TaskWeights, gradnorm_loss, uncertainty_weighted

__all__ = [
    "InBatchScores",
    "LogVariance",
    "Projection",
    "TaskWeights",
    "Temperature",
    "above_margin",
    "cosine_distance",
    "false_negatives",
    "fitted_projection",
    "foreign_negatives",
    "gradnorm_loss",
    "head_losses",
    "info_nce",
    "known_pairs",
    "listwise_kl",
    "margin_mse",
    "mean_over_pairs",
    "own_teacher_scores",
    "relational_distance",
    "repeated_candidates",
    "similarity_matrix",
    "triplet_margin",
    "uncertainty_weighted",
]
