"""Losses as pure functions of tensors."""

from scimult.losses.info_nce import InBatchScores, info_nce
from scimult.losses.masks import false_negatives
from scimult.losses.similarity import similarity_matrix

__all__ = ["InBatchScores", "false_negatives", "info_nce", "similarity_matrix"]
