"""Which candidates are no negatives of which queries.

False negatives are known by id: they are masked, not punished. Others are guessed by score.

Shape legend: B queries, C candidates, P known positives of all B queries, flattened,
H hard negatives of this rank's queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scimult.losses.info_nce import InBatchScores

# More than any store has texts, and few enough that rows times it are 64-bit integers.
_IDS = 1 << 40


def false_negatives(
    candidate_ids_C: Tensor, targets_B: Tensor, known_rows_P: Tensor, known_ids_P: Tensor
) -> Tensor:
    """Return which candidates must not count as negatives of which queries.

    A candidate is masked for a query if its id is among the query's known positives,
    except the one column that is this query's positive in the batch. Copies of that
    positive in other columns are therefore masked too.

    Parameters
    ----------
    candidate_ids_C : Tensor of int
        Ids of the candidates of all ranks.
    targets_B : Tensor of int
        Column of each query's positive.
    known_rows_P, known_ids_P : Tensor of int
        Pairs (query row, id of a known positive). The positive in the batch must be
        among them.

    Returns
    -------
    Tensor of bool
        Shape ``(B, C)``.
    """
    mask_BC = known_pairs(candidate_ids_C, len(targets_B), known_rows_P, known_ids_P)
    return mask_BC.scatter(1, targets_B[:, None], False)


def known_pairs(
    candidate_ids_C: Tensor, rows: int, known_rows_P: Tensor, known_ids_P: Tensor
) -> Tensor:
    """Return whose id is among which query's known positives, for ``rows`` queries.

    Returns
    -------
    Tensor of bool
        Shape ``(B, C)`` with B ``rows``.
    """
    rows_B = torch.arange(rows, device=candidate_ids_C.device)
    keys_BC = rows_B[:, None] * _IDS + candidate_ids_C[None, :]
    if not len(known_ids_P):
        return torch.zeros_like(keys_BC, dtype=torch.bool)
    # Unlike `torch.isin`, a search needs no number from the device to know its shapes.
    keys_P = (known_rows_P * _IDS + known_ids_P).sort().values
    places_BC = torch.searchsorted(keys_P, keys_BC).clamp(max=len(keys_P) - 1)
    return keys_P[places_BC] == keys_BC


@torch.no_grad()
def above_margin(batch: InBatchScores, margin: float) -> Tensor:
    """Return which candidates score above their query's positive minus ``margin``.

    They are likely positives that nobody listed (NV-Retriever, Moreira et al., 2024, section
    3, with the model's own scores). A negative margin masks only what scores better than the
    positive by more than that.

    Returns
    -------
    Tensor of bool
        Shape ``(B, C)``; the positive itself is never masked.
    """
    positive_B1 = batch.scores_BC.gather(1, batch.targets_B[:, None])
    likely_BC = batch.scores_BC > positive_B1 - margin
    return likely_BC.scatter(1, batch.targets_B[:, None], False)


def foreign_negatives(
    targets_B: Tensor, rows_H: Tensor, columns_H: Tensor, candidates: int
) -> Tensor:
    """Return what is neither a query's positive nor the hard negative drawn for it.

    Nothing is foreign to a query that has no hard negative: it keeps the easy ones.

    Parameters
    ----------
    targets_B : Tensor of int
        Column of each query's positive.
    rows_H, columns_H : Tensor of int
        Query row and column of each hard negative.
    candidates : int
        Number of columns, C.

    Returns
    -------
    Tensor of bool
        Shape ``(B, C)``.
    """
    own_BC = torch.zeros(len(targets_B), candidates, dtype=torch.bool, device=targets_B.device)
    own_BC[rows_H, columns_H] = True
    has_own_B1 = own_BC.any(1, keepdim=True)
    return (has_own_B1 & ~own_BC).scatter(1, targets_B[:, None], False)
