"""Compute the loss of each part of a micro-batch from its embeddings.

Shape legend: B queries of this rank, C candidates of all ranks, U distinct texts of a micro-batch
on this rank, D width, R rows and K columns of a comparison, H hard negatives of this rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from scimult.data.batches import Batch, Part, TargetBatch
from scimult.hardware import send
from scimult.losses import (
    InBatchScores,
    above_margin,
    foreign_negatives,
    head_losses,
    info_nce,
    listwise_kl,
    margin_mse,
    triplet_margin,
)
from scimult.models.heads import apply_head
from scimult.training.comparison import (
    Comparison,
    Pairs,
    positives_to_queries,
    queries_to_candidates,
)
from scimult.training.learned import Values, head_name, temperature_name
from scimult.training.loss_config import (
    ContrastiveLoss,
    DistillationConfig,
    LossConfig,
    TripletConfig,
)
from scimult.training.metrics import query_statistics, target_statistics
from scimult.training.negatives import GroupOf, by_source
from scimult.types import Similarity

_NOTHING: Values = {}


@dataclass(frozen=True)
class PartResult:
    """Result of this rank's pairs, or papers with targets, of one source in a micro-batch.

    Tensors stay on their device: reading one waits for it. ``loss`` is the sum over queries,
    ``masked`` counts columns, and ``statistics_S`` are the sums of `metrics.STATISTICS`.
    """

    source: str
    task: str
    pairs: int
    loss: Tensor
    masked: Tensor
    tokens: int
    statistics_S: Tensor


def distilled(
    losses_B: Tensor, scores: InBatchScores, teacher_BC: Tensor, options: DistillationConfig
) -> Tensor:
    """Return the weighted sum of each query's loss and its distillation loss."""
    distillation = listwise_kl if options.name == "kl" else margin_mse
    teacher_BC = teacher_BC / options.teacher_temperature
    distillation_B = distillation(scores, teacher_BC, options.temperature)
    return options.contrastive_weight * losses_B + options.weight * distillation_B


# The signature of `Objective`.
PartsObjective = Callable[[Sequence[Part], Tensor, Values], list[PartResult]]


@dataclass(frozen=True)
class Objective:
    """Each task's loss: contrastive, over in-batch and hard negatives of all ranks, or a head's.

    With ``options.matryoshka`` also in leading dimensions (Kusupati et al., 2022). ``group_of``
    maps source and task of a part to a key; parts with equal keys share their negatives
    (`negatives.shared_negatives`), whatever the loss of each.
    """

    similarity: Similarity
    options: LossConfig = field(default_factory=LossConfig)
    device: torch.device | str = "cpu"
    group_of: GroupOf = by_source

    def __call__(
        self, parts: Sequence[Part], embeddings_UD: Tensor, learned: Values = _NOTHING
    ) -> list[PartResult]:
        """Return the results of this rank's parts, in order; every rank must call it.

        ``embeddings_UD`` are those of the parts' distinct texts, one part after another.
        """
        first_texts = [0, *accumulate(len(part.rows) for part in parts)]
        groups: dict[Hashable, list[int]] = defaultdict(list)
        results: dict[int, PartResult] = {}
        for number, part in enumerate(parts):
            if isinstance(part, TargetBatch):
                texts_UD = embeddings_UD[first_texts[number] : first_texts[number + 1]]
                results[number] = self._head(part, texts_UD, learned)
            else:
                groups[self.group_of(part.source, part.task)].append(number)
        for numbers in groups.values():
            group = [part for n in numbers if isinstance(part := parts[n], Batch)]
            pairs = Pairs.of(group, [first_texts[number] for number in numbers], self.device)
            compared = self._compare(group, pairs, embeddings_UD, learned)
            results |= zip(numbers, compared, strict=True)
        return [results[number] for number in range(len(parts))]

    def _head(self, part: TargetBatch, texts_UD: Tensor, learned: Values) -> PartResult:
        head = self.options.heads[part.task]
        indices_B, targets_B = send([part.text_B, part.targets_B], self.device)
        inputs_BD = F.dropout(texts_UD[indices_B], head.dropout)
        outputs_BK = apply_head(learned[head_name(part.task)], inputs_BD)
        losses_B = head_losses(head.name, outputs_BK, targets_B)
        return PartResult(
            source=part.source,
            task=part.task,
            pairs=len(targets_B),
            loss=losses_B.sum(),
            masked=torch.zeros((), dtype=torch.long, device=losses_B.device),
            tokens=part.num_tokens,
            statistics_S=target_statistics(head.name, outputs_BK, targets_B, losses_B),
        )

    def _compare(
        self, parts: Sequence[Batch], pairs: Pairs, embeddings_UD: Tensor, learned: Values
    ) -> list[PartResult]:
        losses = [self.options.contrastive(part.task) for part in parts]
        comparison = queries_to_candidates(pairs, embeddings_UD, self.options)
        own = [isinstance(loss, TripletConfig) and loss.negatives == "own" for loss in losses]
        if any(own):
            assert comparison.hard_columns_H is not None
            foreign_BC = foreign_negatives(
                comparison.targets_R,
                pairs.negative_rows_H,
                comparison.hard_columns_H,
                len(comparison.columns_KD),
            )
            foreign_BC = foreign_BC & self._rows_of(parts, own)[..., None]
            comparison = replace(comparison, masked_RK=comparison.masked_RK | foreign_BC)
        scores = comparison.scores(self.similarity)
        losses_B, masked_B = self._losses(parts, comparison, scores, learned)
        symmetric = [loss.name == "symmetric_info_nce" for loss in losses]
        if any(symmetric):
            back = positives_to_queries(pairs, embeddings_UD, self.options)
            back_scores = back.scores(self.similarity)
            back_B, masked_back_B = self._losses(parts, back, back_scores, learned)
            both_B = self._rows_of(parts, symmetric)
            losses_B = torch.where(both_B, (losses_B + back_B) / 2, losses_B)
            masked_B = torch.where(both_B, masked_B + masked_back_B, masked_B)
        if self.options.distillation is not None:
            assert comparison.teacher_RK is not None, "the batch has no teacher scores"
            losses_B = distilled(losses_B, scores, comparison.teacher_RK, self.options.distillation)
        assert comparison.hard_columns_H is not None
        statistics_BS = query_statistics(
            scores, losses_B.detach(), pairs.negative_rows_H, comparison.hard_columns_H
        ).double()
        sizes = [len(part.query_B) for part in parts]
        split = (torch.split(column, sizes) for column in (losses_B, masked_B, statistics_BS))
        return [
            PartResult(
                source=part.source,
                task=part.task,
                pairs=len(losses),
                loss=losses.sum(),
                masked=masked.sum(),
                tokens=part.num_tokens,
                statistics_S=statistics.sum(0),
            )
            for part, losses, masked, statistics in zip(parts, *split, strict=True)
        ]

    def _losses(
        self,
        parts: Sequence[Batch],
        comparison: Comparison,
        scores: InBatchScores,
        learned: Values,
    ) -> tuple[Tensor, Tensor]:
        """Return each row's loss over all Matryoshka cuts, and its number of masked columns."""
        masked_RK = scores.masked_BC
        if self.options.mask_margin is not None:
            masked_RK = masked_RK | above_margin(scores, self.options.mask_margin)
        cuts = [comparison.scores(self.similarity, dims) for dims in self.options.matryoshka]
        losses_R = sum(
            self._by_task(parts, replace(cut, masked_BC=masked_RK), learned)
            for cut in (scores, *cuts)
        )
        assert isinstance(losses_R, Tensor)
        return losses_R / (1 + len(cuts)), masked_RK.sum(1)

    def _rows_of(self, parts: Sequence[Batch], flags: Sequence[bool]) -> Tensor:
        """Return which rows belong to flagged parts, shape ``(B,)`` or one value for all."""
        if all(flags):
            return torch.ones((), dtype=torch.bool, device=self.device)
        rows = [torch.full((len(p.query_B),), c) for p, c in zip(parts, flags, strict=True)]
        return send([torch.cat(rows)], self.device)[0]

    def _by_task(self, parts: Sequence[Batch], scores: InBatchScores, learned: Values) -> Tensor:
        """Return each row's loss by its task; adjacent parts with the same loss go together."""
        first, losses = 0, []
        # Tasks without their own loss share the default one and its temperature.
        for name, run in groupby(parts, lambda part: temperature_name(part.task, self.options)):
            alike = list(run)
            last = first + sum(len(part.query_B) for part in alike)
            subset = InBatchScores(*(column[first:last] for column in vars(scores).values()))
            loss = self.options.contrastive(alike[0].task)
            losses.append(_contrastive(loss, subset, learned.get(name)))
            first = last
        return torch.cat(losses)


def _contrastive(loss: ContrastiveLoss, scores: InBatchScores, learned: Tensor | None) -> Tensor:
    if isinstance(loss, TripletConfig):
        return triplet_margin(scores, loss.margin)
    return info_nce(scores, loss.temperature if learned is None else learned)
