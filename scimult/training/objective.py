"""From a batch to its loss: encode once, gather the other side of all ranks, compare.

Shape legend: B queries of this rank, S queries of all ranks, C candidates of all ranks,
U distinct texts, D width, R rows and K columns of a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from scimult import distributed
from scimult.data.batches import Batch
from scimult.losses import (
    InBatchScores,
    Temperature,
    above_margin,
    false_negatives,
    foreign_negatives,
    info_nce,
    known_pairs,
    similarity_matrix,
    triplet_margin,
)
from scimult.losses.info_nce import in_batch_accuracy
from scimult.models import PackedTexts, pack
from scimult.training.config import LossConfig
from scimult.training.metrics import Sums, query_statistics, sums_by_task
from scimult.types import Similarity

Forward = Callable[[PackedTexts, int | list[int]], Tensor]
Loss = Callable[[InBatchScores], Tensor]


@dataclass(frozen=True)
class UnitResult:
    """Loss of one unit on this rank, scaled so that the mean over ranks is the global mean.

    ``sums`` are those of its queries: see `metrics.query_statistics`.
    """

    loss: Tensor
    accuracy: Tensor
    masked: int
    tokens: int
    sums: Sums = field(default_factory=dict)


@dataclass(frozen=True)
class _Comparison:
    """Rows of this rank that look for their partner, a column, among those of all ranks."""

    rows_RD: Tensor
    columns_KD: Tensor
    targets_R: Tensor
    masked_RK: Tensor

    def scores(self, similarity: Similarity, dims: int | None = None) -> InBatchScores:
        """Return the scores by the first ``dims`` dimensions, or by all."""
        rows_RD, columns_KD = self.rows_RD[:, :dims], self.columns_KD[:, :dims]
        scores_RK = similarity_matrix(rows_RD, columns_KD, similarity)
        return InBatchScores(scores_RK, self.targets_R, self.masked_RK)


def loss_function(options: LossConfig, learned: Temperature | None = None) -> Loss:
    """Return the chosen loss as a function of scores alone.

    ``learned`` takes the place of the fixed temperature.
    """
    if options.name == "triplet":
        assert options.margin is not None
        return partial(triplet_margin, margin=options.margin)
    assert options.temperature is not None
    if learned is None:
        return partial(info_nce, temperature=options.temperature)
    return lambda scores: info_nce(scores, learned())


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
        Where the model is.
    """

    similarity: Similarity
    loss: Loss
    options: LossConfig = field(default_factory=LossConfig)
    device: torch.device | str = "cpu"

    def __call__(
        self, forward: Forward, batch: Batch, routes: Sequence[int], rows_of_all: int
    ) -> UnitResult:
        """Encode the batch and return its loss.

        Parameters
        ----------
        forward : callable
            Embeds packed texts, by one route or one per row.
        batch : Batch
            This rank's rows.
        routes : sequence of int
            The routes of the batch's queries and of its candidates.
        rows_of_all : int
            Queries of the unit over all ranks, by which the loss is averaged.
        """
        batch = batch.to(self.device)
        rows = pack(batch.rows).to(self.device)
        route = routes[0] if len(set(routes)) == 1 else [routes[side] for side in batch.sides]
        embeddings_UD = forward(rows, route).float()
        comparison = self._queries_to_candidates(batch, embeddings_UD)
        scores = comparison.scores(self.similarity)
        losses_B, masked = self._losses(comparison, scores)
        if self.options.name == "symmetric_info_nce":
            back = self._positives_to_queries(batch, embeddings_UD)
            back_B, masked_back = self._losses(back, back.scores(self.similarity))
            losses_B, masked = (losses_B + back_B) / 2, masked + masked_back
        hard_rows_H = batch.negative_rows_H
        first_hard = comparison.targets_R[:1] + len(losses_B)
        hard_columns_H = first_hard + torch.arange(len(hard_rows_H), device=self.device)
        statistics_BS = query_statistics(scores, losses_B.detach(), hard_rows_H, hard_columns_H)
        return UnitResult(
            loss=losses_B.sum() * (distributed.world_size() / rows_of_all),
            accuracy=in_batch_accuracy(scores),
            masked=masked,
            tokens=batch.num_tokens,
            sums=sums_by_task(statistics_BS, batch.task),
        )

    def _losses(self, comparison: _Comparison, scores: InBatchScores) -> tuple[Tensor, int]:
        """Return the loss of each row over all cuts, and how many columns were masked."""
        masked_RK = scores.masked_BC
        if self.options.mask_margin is not None:
            masked_RK = masked_RK | above_margin(scores, self.options.mask_margin)
        cuts = [comparison.scores(self.similarity, dims) for dims in self.options.matryoshka]
        losses_R = sum(
            self.loss(InBatchScores(cut.scores_BC, cut.targets_B, masked_RK))
            for cut in (scores, *cuts)
        )
        assert isinstance(losses_R, Tensor)
        return losses_R / (1 + len(cuts)), int(masked_RK.sum())

    def _queries_to_candidates(self, batch: Batch, embeddings_UD: Tensor) -> _Comparison:
        c_CD, offset = distributed.gather_rows(embeddings_UD[batch.candidate_C])
        ids_C, _ = distributed.gather_rows(batch.candidate_ids_C)
        q_BD = embeddings_UD[batch.query_B]
        targets_B = offset + torch.arange(len(q_BD), device=self.device)
        masked_BC = torch.zeros(len(q_BD), len(c_CD), dtype=torch.bool, device=self.device)
        if self.options.mask_known_positives:
            masked_BC = false_negatives(ids_C, targets_B, batch.known_rows_P, batch.known_ids_P)
        if self.options.negatives == "own":
            rows_H = batch.negative_rows_H
            columns_H = offset + len(q_BD) + torch.arange(len(rows_H), device=self.device)
            masked_BC |= foreign_negatives(targets_B, rows_H, columns_H, len(c_CD))
        return _Comparison(q_BD, c_CD, targets_B, masked_BC)

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
        return _Comparison(p_BD, q_SD, targets_B, masked_BS)
