"""False negatives are known by id: they are masked, not punished.

Shape legend: B queries of this rank, C candidates of all ranks, P known positives of all
B queries, flattened.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    rows = torch.arange(len(targets_B), device=targets_B.device)
    span = int(torch.cat([candidate_ids_C, known_ids_P]).max()) + 1 if len(candidate_ids_C) else 1
    keys_BC = rows[:, None] * span + candidate_ids_C[None, :]
    mask_BC = torch.isin(keys_BC, known_rows_P * span + known_ids_P)
    mask_BC[rows, targets_B] = False
    return mask_BC
