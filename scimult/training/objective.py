"""From embeddings to a loss: gather the other side of all ranks, compare.

Shape legend: B queries of this rank, S queries of all ranks, C candidates of all ranks,
U distinct texts, D width, R rows and K columns of a comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from scimult import distributed
from scimult.data.batches import Batch
from scimult.losses import (
    InBatchScores,
    above_margin,
    false_negatives,
    foreign_negatives,
    info_nce,
    known_pairs,
    listwise_kl,
    margin_mse,
    own_teacher_scores,
    repeated_candidates,
    similarity_matrix,
    triplet_margin,
)
from scimult.training.config import DistillationConfig, LossConfig
from scimult.training.metrics import Sums, query_statistics
from scimult.types import Similarity

# From scores, and the temperature if it is learned, to one loss per row.
Loss = Callable[[InBatchScores, Tensor | None], Tensor]


@dataclass(frozen=True)
class PartResult:
    """What this rank's pairs of one source gave in a unit.

    Tensors are where they were computed: reading one waits for the device. ``loss`` is the
    sum over queries, ``masked`` counts columns, and ``statistics_S`` are the sums of
    `metrics.query_statistics`.
    """

    source: str
    task: str
    pairs: int
    loss: Tensor
    masked: Tensor
    tokens: int
    statistics_S: Tensor

    @property
    def sums(self) -> Sums:
        """The statistics by task."""
        return {self.task: self.statistics_S.tolist()}


@dataclass(frozen=True)
class _Comparison:
    """Rows of this rank that look for their partner, a column, among those of all ranks."""

    rows_RD: Tensor
    columns_KD: Tensor
    targets_R: Tensor
    masked_RK: Tensor
    teacher_RK: Tensor | None = None
    hard_columns_H: Tensor | None = None

    def scores(self, similarity: Similarity, dims: int | None = None) -> InBatchScores:
        """Return the scores by the first ``dims`` dimensions, or by all."""
        rows_RD, columns_KD = self.rows_RD[:, :dims], self.columns_KD[:, :dims]
        scores_RK = similarity_matrix(rows_RD, columns_KD, similarity)
        return InBatchScores(scores_RK, self.targets_R, self.masked_RK)


def loss_function(options: LossConfig) -> Loss:
    """Return the chosen loss as a function of scores and of a learned temperature."""
    if options.name == "triplet":
        margin = options.margin
        assert margin is not None
        return lambda scores, _: triplet_margin(scores, margin)
    fixed = options.temperature
    assert fixed is not None
    return lambda scores, learned: info_nce(scores, fixed if learned is None else learned)


def distilled(
    losses_B: Tensor, scores: InBatchScores, teacher_BC: Tensor, options: DistillationConfig
) -> Tensor:
    """Return each query's loss with that of following the teacher, both weighted."""
    follow = listwise_kl if options.name == "kl" else margin_mse
    theirs_BC = teacher_BC / options.teacher_temperature
    follow_B = follow(scores, theirs_BC, options.temperature)
    return options.contrastive_weight * losses_B + options.weight * follow_B


@dataclass(frozen=True)
class ContrastiveObjective:
    """A loss over in-batch negatives of all ranks plus hard negatives.

    Parameters
    ----------
    similarity : str
        How queries and candidates are compared.
    loss : callable
        From scores to one loss per row.
    options : LossConfig
        Which candidates are negatives, which directions and dimensions are compared
        (Matryoshka: Kusupati et al., 2022).
    device : device
        Where the embeddings are.
    """

    similarity: Similarity
    loss: Loss
    options: LossConfig = field(default_factory=LossConfig)
    device: torch.device | str = "cpu"

    def __call__(
        self, batch: Batch, embeddings_UD: Tensor, temperature: Tensor | None = None
    ) -> PartResult:
        """Return the loss of this rank's queries; every rank calls it for the same source.

        Parameters
        ----------
        batch : Batch
            This rank's rows.
        embeddings_UD : Tensor
            Embeddings of the batch's distinct texts.
        temperature : Tensor, optional
            The temperature, where it is learned.
        """
        batch = batch.to(self.device)
        comparison = self._queries_to_candidates(batch, embeddings_UD)
        scores = comparison.scores(self.similarity)
        losses_B, masked = self._losses(comparison, scores, temperature)
        if self.options.name == "symmetric_info_nce":
            back = self._positives_to_queries(batch, embeddings_UD)
            back_B, masked_back = self._losses(back, back.scores(self.similarity), temperature)
            losses_B, masked = (losses_B + back_B) / 2, masked + masked_back
        if self.options.distillation is not None:
            assert comparison.teacher_RK is not None, "the batch has no teacher scores"
            losses_B = distilled(losses_B, scores, comparison.teacher_RK, self.options.distillation)
        assert comparison.hard_columns_H is not None
        statistics_BS = query_statistics(
            scores, losses_B.detach(), batch.negative_rows_H, comparison.hard_columns_H
        )
        return PartResult(
            source=batch.source,
            task=batch.task,
            pairs=len(losses_B),
            loss=losses_B.sum(),
            masked=masked,
            tokens=batch.num_tokens,
            statistics_S=statistics_BS.double().sum(0),
        )

    def _losses(
        self, comparison: _Comparison, scores: InBatchScores, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each row over all cuts, and how many columns were masked."""
        masked_RK = scores.masked_BC
        if self.options.mask_margin is not None:
            masked_RK = masked_RK | above_margin(scores, self.options.mask_margin)
        cuts = [comparison.scores(self.similarity, dims) for dims in self.options.matryoshka]
        losses_R = sum(
            self.loss(InBatchScores(cut.scores_BC, cut.targets_B, masked_RK), temperature)
            for cut in (scores, *cuts)
        )
        assert isinstance(losses_R, Tensor)
        return losses_R / (1 + len(cuts)), masked_RK.sum()

    def _queries_to_candidates(self, batch: Batch, embeddings_UD: Tensor) -> _Comparison:
        c_CD, offset = distributed.gather_rows(embeddings_UD[batch.candidate_C])
        ids_C, _ = distributed.gather_rows(batch.candidate_ids_C)
        q_BD = embeddings_UD[batch.query_B]
        targets_B = offset + torch.arange(len(q_BD), device=self.device)
        masked_BC = torch.zeros(len(q_BD), len(c_CD), dtype=torch.bool, device=self.device)
        if self.options.mask_known_positives:
            masked_BC = false_negatives(ids_C, targets_B, batch.known_rows_P, batch.known_ids_P)
        rows_H = batch.negative_rows_H
        columns_H = offset + len(q_BD) + torch.arange(len(rows_H), device=self.device)
        if self.options.repeated_candidates == "once":
            masked_BC |= repeated_candidates(ids_C, targets_B, rows_H, columns_H)
        if self.options.negatives == "own":
            masked_BC |= foreign_negatives(targets_B, rows_H, columns_H, len(c_CD))
        teacher_BC = None
        if batch.teacher_C is not None:
            teacher_B, teacher_H = batch.teacher_C[: len(q_BD)], batch.teacher_C[len(q_BD) :]
            teacher_BC = own_teacher_scores(
                teacher_B, teacher_H, targets_B, rows_H, columns_H, len(c_CD)
            )
        return _Comparison(q_BD, c_CD, targets_B, masked_BC, teacher_BC, columns_H)

    def _positives_to_queries(self, batch: Batch, embeddings_UD: Tensor) -> _Comparison:
        """Return this rank's positives against the queries of all ranks."""
        num_queries = len(batch.query_B)
        q_SD, offset = distributed.gather_rows(embeddings_UD[batch.query_B])
        p_BD = embeddings_UD[batch.candidate_C[:num_queries]]
        targets_B = offset + torch.arange(num_queries, device=self.device)
        masked_BS = torch.zeros(num_queries, len(q_SD), dtype=torch.bool, device=self.device)
        if self.options.mask_known_positives:
            rows_P, _ = distributed.gather_rows(offset + batch.known_rows_P)
            ids_P, _ = distributed.gather_rows(batch.known_ids_P)
            ids_B = batch.candidate_ids_C[:num_queries]
            masked_BS = known_pairs(ids_B, len(q_SD), rows_P, ids_P).T
            masked_BS = masked_BS.scatter(1, targets_B[:, None], False)
        if self.options.repeated_candidates == "once":
            query_ids_S, _ = distributed.gather_rows(batch.query_ids_B)
            none = torch.zeros(0, dtype=torch.long, device=self.device)
            masked_BS |= repeated_candidates(query_ids_S, targets_B, none, none)
        return _Comparison(p_BD, q_SD, targets_B, masked_BS)
