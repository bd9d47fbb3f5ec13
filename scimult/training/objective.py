"""From a unit's embeddings to a loss for each of its parts.

Shape legend: B queries of this rank, C candidates of all ranks, U distinct texts of a unit
on this rank, D width, R rows and K columns of a comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from scimult.data.batches import Batch
from scimult.losses import (
    InBatchScores,
    above_margin,
    info_nce,
    listwise_kl,
    margin_mse,
    triplet_margin,
)
from scimult.training.comparison import (
    Comparison,
    Pairs,
    positives_to_queries,
    queries_to_candidates,
)
from scimult.training.config import DistillationConfig, LossConfig
from scimult.training.learned import TEMPERATURE, Values
from scimult.training.metrics import Sums, query_statistics
from scimult.training.negatives import GroupOf, by_source
from scimult.types import Similarity

_NOTHING: Values = {}
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
    group_of : callable
        From source and task of a part to a key; parts of one key share their negatives
        (`negatives.shared_negatives`).
    """

    similarity: Similarity
    loss: Loss
    options: LossConfig = field(default_factory=LossConfig)
    device: torch.device | str = "cpu"
    group_of: GroupOf = by_source

    def __call__(
        self, parts: Sequence[Batch], embeddings_UD: Tensor, learned: Values = _NOTHING
    ) -> list[PartResult]:
        """Return the loss of this rank's queries, part by part; every rank calls it alike.

        Parameters
        ----------
        parts : sequence of Batch
            This rank's rows of every part of a unit.
        embeddings_UD : Tensor
            Embeddings of the parts' distinct texts, one part after another.
        learned : mapping of name to Tensor, optional
            The values of what is learned beside the encoder.
        """
        temperature = learned.get(TEMPERATURE)
        first_texts = [0, *accumulate(len(part.rows) for part in parts)]
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for number, part in enumerate(parts):
            groups[self.group_of(part.source, part.task)].append(number)
        results: dict[int, PartResult] = {}
        for numbers in groups.values():
            together = [parts[number] for number in numbers]
            pairs = Pairs.of(together, [first_texts[number] for number in numbers], self.device)
            compared = self._compare(together, pairs, embeddings_UD, temperature)
            results |= zip(numbers, compared, strict=True)
        return [results[number] for number in range(len(parts))]

    def _compare(
        self,
        parts: Sequence[Batch],
        pairs: Pairs,
        embeddings_UD: Tensor,
        temperature: Tensor | None,
    ) -> list[PartResult]:
        comparison = queries_to_candidates(pairs, embeddings_UD, self.options)
        scores = comparison.scores(self.similarity)
        losses_B, masked_B = self._losses(comparison, scores, temperature)
        if self.options.name == "symmetric_info_nce":
            back = positives_to_queries(pairs, embeddings_UD, self.options)
            back_B, masked_back_B = self._losses(back, back.scores(self.similarity), temperature)
            losses_B, masked_B = (losses_B + back_B) / 2, masked_B + masked_back_B
        if self.options.distillation is not None:
            assert comparison.teacher_RK is not None, "the batch has no teacher scores"
            losses_B = distilled(losses_B, scores, comparison.teacher_RK, self.options.distillation)
        assert comparison.hard_columns_H is not None
        statistics_BS = query_statistics(
            scores, losses_B.detach(), pairs.negative_rows_H, comparison.hard_columns_H
        ).double()
        sizes = [len(part.query_B) for part in parts]
        of_parts = (torch.split(column, sizes) for column in (losses_B, masked_B, statistics_BS))
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
            for part, losses, masked, statistics in zip(parts, *of_parts, strict=True)
        ]

    def _losses(
        self, comparison: Comparison, scores: InBatchScores, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return of each row the loss over all cuts, and how many columns were masked."""
        masked_RK = scores.masked_BC
        if self.options.mask_margin is not None:
            masked_RK = masked_RK | above_margin(scores, self.options.mask_margin)
        cuts = [comparison.scores(self.similarity, dims) for dims in self.options.matryoshka]
        losses_R = sum(
            self.loss(InBatchScores(cut.scores_BC, cut.targets_B, masked_RK), temperature)
            for cut in (scores, *cuts)
        )
        assert isinstance(losses_R, Tensor)
        return losses_R / (1 + len(cuts)), masked_RK.sum(1)
