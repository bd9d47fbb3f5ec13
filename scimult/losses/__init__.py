"""Losses as pure functions of tensors."""

from scimult.losses.contrastive import (
    InBatchScores,
    Temperature,
    info_nce,
    similarity_matrix,
    triplet_margin,
)
from scimult.losses.distillation import listwise_kl, margin_mse, own_teacher_scores
from scimult.losses.embeddings import (
    Projection,
    cosine_distance,
    fitted_projection,
    mean_over_pairs,
    relational_distance,
)
from scimult.losses.masks import (
    above_margin,
    false_negatives,
    foreign_negatives,
    known_pairs,
    repeated_candidates,
)
from scimult.losses.supervised import head_losses
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
