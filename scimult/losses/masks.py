"""Masks of candidates that must not count as negatives, or not twice.

Known false negatives are masked by id, likely ones by score. Masks of all queries and
candidates are the largest tensors of a big batch: nothing of that size here takes more than
one byte per element.

Masks have shape ``(B, C)`` and are true for what must not count.

Shape legend: B queries, C candidates, P known positives of all B queries, flattened,
H hard negatives of this rank's queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scimult.losses.contrastive import InBatchScores


def false_negatives(
    candidate_ids_C: Tensor, targets_B: Tensor, known_rows_P: Tensor, known_ids_P: Tensor
) -> Tensor:
    """Return the candidates that are known positives of a query, except its own positive.

    Only the one column of the query's positive in the batch, ``targets_B``, stays unmasked: copies
    of it in other columns are masked too. ``known_rows_P`` and ``known_ids_P`` are pairs (query
    row, id of a known positive), including the positive in the batch.
    """
    mask_BC = known_pairs(candidate_ids_C, len(targets_B), known_rows_P, known_ids_P)
    return mask_BC.scatter_(1, targets_B[:, None], False)


def known_pairs(
    candidate_ids_C: Tensor, rows: int, known_rows_P: Tensor, known_ids_P: Tensor
) -> Tensor:
    """Return which candidates are known positives of each of ``rows`` queries."""
    columns = len(candidate_ids_C)
    if not columns:
        return torch.zeros(rows, 0, dtype=torch.bool, device=candidate_ids_C.device)
    # Unlike `torch.isin`, a search does not wait for the device to learn its shapes.
    sorted_C, order_C = candidate_ids_C.sort(stable=True)
    indices_P = torch.searchsorted(sorted_C, known_ids_P).clamp(max=columns - 1)
    hit_P = sorted_C[indices_P] == known_ids_P
    # An id's first column stands for its copies; absent ids go to a spare column.
    firsts_P = torch.where(hit_P, order_C[indices_P], columns)
    known_BC = torch.zeros(rows, columns + 1, dtype=torch.bool, device=candidate_ids_C.device)
    _mark(known_BC, known_rows_P, firsts_P)
    return known_BC.index_select(1, first_columns(candidate_ids_C))


def first_columns(candidate_ids_C: Tensor) -> Tensor:
    """Return, for each candidate, the first column with the same id; shape ``(C,)``."""
    sorted_C, order_C = candidate_ids_C.sort(stable=True)
    starts_C = torch.ones_like(sorted_C, dtype=torch.bool)
    starts_C[1:] = sorted_C[1:] != sorted_C[:-1]
    indices_C = torch.arange(len(sorted_C), device=sorted_C.device)
    start_C = torch.where(starts_C, indices_C, 0).cummax(0).values
    return torch.empty_like(order_C).scatter_(0, order_C, order_C[start_C])


def repeated_candidates(
    candidate_ids_C: Tensor, targets_B: Tensor, rows_H: Tensor, columns_H: Tensor
) -> Tensor:
    """Return, for each query, all columns but one of every id.

    The remaining column is the query's positive, else the hard negative drawn for it, else the
    first. Without this mask, a label that is the positive of 85 queries of a batch counts 85
    times in the loss of every other query, like a score higher by log 85. A query has at most one
    hard negative, in its row ``rows_H`` and column ``columns_H``.
    """
    first_C = first_columns(candidate_ids_C)
    columns_C = torch.arange(len(first_C), device=first_C.device)
    masked_BC = (first_C != columns_C).repeat(len(targets_B), 1)
    _mark(masked_BC, rows_H, first_C[columns_H])
    masked_BC[rows_H, columns_H] = first_C[columns_H] == first_C[targets_B[rows_H]]
    masked_BC.scatter_(1, first_C[targets_B][:, None], True)
    return masked_BC.scatter_(1, targets_B[:, None], False)


@torch.no_grad()
def above_margin(batch: InBatchScores, margin: float) -> Tensor:
    """Return the candidates that score above their query's positive minus ``margin``.

    They are likely unlisted positives (NV-Retriever, Moreira et al., 2024, section 3, with the
    model's own scores). A negative margin masks only what beats the positive by more than that.
    The positive itself is never masked.
    """
    positive_B1 = batch.scores_BC.gather(1, batch.targets_B[:, None])
    likely_BC = batch.scores_BC > positive_B1 - margin
    return likely_BC.scatter(1, batch.targets_B[:, None], False)


def foreign_negatives(
    targets_B: Tensor, rows_H: Tensor, columns_H: Tensor, candidates: int
) -> Tensor:
    """Return the candidates that are neither a query's positive nor its hard negative.

    A query without a hard negative has none: it keeps the easy ones. ``candidates`` is C.
    """
    own_BC = torch.zeros(len(targets_B), candidates, dtype=torch.bool, device=targets_B.device)
    _mark(own_BC, rows_H, columns_H)
    has_own_B1 = own_BC.any(1, keepdim=True)
    return (has_own_B1 & ~own_BC).scatter(1, targets_B[:, None], False)


def _mark(mask_BC: Tensor, rows_N: Tensor, columns_N: Tensor) -> None:
    """Set elements; unlike ``mask[rows, columns] = True`` this waits for no copy from the host."""
    true = torch.ones((), dtype=torch.bool, device=mask_BC.device)
    mask_BC.index_put_((rows_N, columns_N), true)
