"""Comparisons of a micro-batch: rows of this rank, columns of all ranks, and masks.

Shape legend: B queries of this rank, S queries of all ranks, C candidates of all ranks,
H hard negatives of this rank's queries, U distinct texts of a micro-batch on this rank, D width,
R rows and K columns of a comparison, W ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scimult import distributed
from scimult.data.batches import Batch
from scimult.hardware import send
from scimult.losses import (
    InBatchScores,
    false_negatives,
    known_pairs,
    own_teacher_scores,
    repeated_candidates,
    similarity_matrix,
)
from scimult.training.loss_config import LossConfig
from scimult.types import Similarity


@dataclass(frozen=True)
class Pairs:
    """Pairs of this rank, in all parts that are compared together.

    As in `Batch`, candidates are the positives of all queries, then the hard negatives;
    ``query_B`` and ``candidate_C`` are indices into the micro-batch's texts. ``queries_W`` and
    ``candidates_W`` are the counts of every rank, if there are several.
    """

    query_B: Tensor
    candidate_C: Tensor
    query_ids_B: Tensor
    candidate_ids_C: Tensor
    negative_rows_H: Tensor
    known_rows_P: Tensor
    known_ids_P: Tensor
    queries_W: list[int]
    candidates_W: list[int]
    teacher_C: Tensor | None = None

    @classmethod
    def of(
        cls, parts: Sequence[Batch], first_texts: Sequence[int], device: torch.device | str
    ) -> Pairs:
        """Concatenate parts whose texts begin at ``first_texts`` in the micro-batch."""
        sizes = [len(part.query_B) for part in parts]
        first_rows = [sum(sizes[:number]) for number in range(len(parts))]

        def candidates(values: Sequence[Tensor]) -> Tensor:
            # All positives first, then all hard negatives.
            split = [
                torch.split(values_C, [size, len(values_C) - size])
                for values_C, size in zip(values, sizes, strict=True)
            ]
            return torch.cat([column for kind in zip(*split, strict=True) for column in kind])

        def shifted(values: Iterable[Tensor], by: Sequence[int]) -> list[Tensor]:
            return [value + first for value, first in zip(values, by, strict=True)]

        columns = {
            "query_B": torch.cat(shifted((part.query_B for part in parts), first_texts)),
            "candidate_C": candidates(shifted((part.candidate_C for part in parts), first_texts)),
            "query_ids_B": torch.cat([part.query_ids_B for part in parts]),
            "candidate_ids_C": candidates([part.candidate_ids_C for part in parts]),
            "negative_rows_H": torch.cat(shifted((p.negative_rows_H for p in parts), first_rows)),
            "known_rows_P": torch.cat(shifted((part.known_rows_P for part in parts), first_rows)),
            "known_ids_P": torch.cat([part.known_ids_P for part in parts]),
        }
        teachers = [part.teacher_C for part in parts if part.teacher_C is not None]
        if teachers:
            columns["teacher_C"] = candidates(teachers)
        sent = send(list(columns.values()), device)
        by_rank = list(zip(*(part.sizes_W for part in parts), strict=True))
        return cls(
            **dict(zip(columns, sent, strict=True)),
            queries_W=[sum(queries for queries, _ in sizes) for sizes in by_rank],
            candidates_W=[sum(map(sum, sizes)) for sizes in by_rank],
        )

    def __len__(self) -> int:
        return len(self.query_B)


@dataclass(frozen=True)
class Comparison:
    """Rows of this rank, each with a partner among the columns of all ranks."""

    rows_RD: Tensor
    columns_KD: Tensor
    targets_R: Tensor
    masked_RK: Tensor
    teacher_RK: Tensor | None = None
    hard_columns_H: Tensor | None = None

    def scores(self, similarity: Similarity, dims: int | None = None) -> InBatchScores:
        """Return the scores in the first ``dims`` dimensions, or in all."""
        rows_RD, columns_KD = self.rows_RD[:, :dims], self.columns_KD[:, :dims]
        scores_RK = similarity_matrix(rows_RD, columns_KD, similarity)
        return InBatchScores(scores_RK, self.targets_R, self.masked_RK)


def queries_to_candidates(pairs: Pairs, embeddings_UD: Tensor, options: LossConfig) -> Comparison:
    """Compare this rank's queries with the candidates of all ranks."""
    device = pairs.query_B.device
    c_CD, offset = distributed.gather_rows(embeddings_UD[pairs.candidate_C], pairs.candidates_W)
    ids_C, _ = distributed.gather_rows(pairs.candidate_ids_C, pairs.candidates_W)
    targets_B = offset + torch.arange(len(pairs), device=device)
    masked_BC = torch.zeros(len(pairs), len(c_CD), dtype=torch.bool, device=device)
    if options.mask_known_positives:
        masked_BC = false_negatives(ids_C, targets_B, pairs.known_rows_P, pairs.known_ids_P)
    rows_H = pairs.negative_rows_H
    columns_H = offset + len(pairs) + torch.arange(len(rows_H), device=device)
    if options.repeated_candidates == "once":
        masked_BC |= repeated_candidates(ids_C, targets_B, rows_H, columns_H)
    teacher_BC = None
    if pairs.teacher_C is not None:
        teacher_B, teacher_H = pairs.teacher_C[: len(pairs)], pairs.teacher_C[len(pairs) :]
        teacher_BC = own_teacher_scores(
            teacher_B, teacher_H, targets_B, rows_H, columns_H, len(c_CD)
        )
    q_BD = embeddings_UD[pairs.query_B]
    return Comparison(q_BD, c_CD, targets_B, masked_BC, teacher_BC, columns_H)


def positives_to_queries(pairs: Pairs, embeddings_UD: Tensor, options: LossConfig) -> Comparison:
    """Compare this rank's positives with the queries of all ranks."""
    device = pairs.query_B.device
    q_SD, offset = distributed.gather_rows(embeddings_UD[pairs.query_B], pairs.queries_W)
    targets_B = offset + torch.arange(len(pairs), device=device)
    masked_BS = torch.zeros(len(pairs), len(q_SD), dtype=torch.bool, device=device)
    if options.mask_known_positives:
        # The plan does not know how many positives the queries of other ranks have.
        sizes = distributed.all_gather_objects(len(pairs.known_ids_P))
        rows_P, _ = distributed.gather_rows(offset + pairs.known_rows_P, sizes)
        ids_P, _ = distributed.gather_rows(pairs.known_ids_P, sizes)
        ids_B = pairs.candidate_ids_C[: len(pairs)]
        masked_BS = known_pairs(ids_B, len(q_SD), rows_P, ids_P).T
        masked_BS = masked_BS.scatter(1, targets_B[:, None], False)
    if options.repeated_candidates == "once":
        ids_S, _ = distributed.gather_rows(pairs.query_ids_B, pairs.queries_W)
        none = torch.zeros(0, dtype=torch.long, device=device)
        masked_BS = masked_BS | repeated_candidates(ids_S, targets_B, none, none)
    p_BD = embeddings_UD[pairs.candidate_C[: len(pairs)]]
    return Comparison(p_BD, q_SD, targets_B, masked_BS)
