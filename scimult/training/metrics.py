"""Training metrics by task: loss, in-batch accuracy, margins, hard negatives, scores of heads.

Shape legend: B queries of this rank, C candidates of all ranks, H hard negatives of this
rank's queries, K outputs of a head, S statistics (`STATISTICS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from scimult.losses.contrastive import InBatchScores

# Counts of queries, or of papers with targets, and sums over them; 0 where they do not apply.
_OF_QUERIES = ("ranked", "correct", "compared", "margin", "with_hard", "hard_wins")
_OF_TARGETS = (
    "classified",
    "right",
    "found",
    "named",
    "listed",
    "measured",
    "numbers",
    "squares",
    "errors",
)
# Added by `taught.TaughtObjective`.
_OF_TAUGHT = ("taught", "teacher")
STATISTICS = ("queries", "loss", *_OF_QUERIES, *_OF_TARGETS, *_OF_TAUGHT)
# Reported means: name, sum and count.
_MEANS = (
    ("loss", "loss", "queries"),
    ("accuracy", "correct", "ranked"),
    ("margin", "margin", "compared"),
    ("hard_wins", "hard_wins", "with_hard"),
    ("class_accuracy", "right", "classified"),
    ("teacher", "teacher", "taught"),
)
# These aggregate over steps, but not over tasks.
_OF_ONE_TASK = ("class_accuracy", "micro_f1", "r2")
Sums = dict[str, list[float]]
# Equal numbers have up to this share of their squares as spread.
_ROUNDING = 1e-12
FLOAT32_ROUNDING = 1e-6
"""Of their size, as much of what equal embeddings give differs by rounding in float32."""


@torch.no_grad()
def query_statistics(
    scores: InBatchScores, losses_B: Tensor, hard_rows_H: Tensor, hard_columns_H: Tensor
) -> Tensor:
    """Return the statistics of each query, to be summed over queries.

    ``correct``: the positive scores highest of all unmasked candidates. ``margin``: its score
    minus that of the hardest negative, over the ``compared`` queries, those with a negative.
    ``hard_wins``: the hardest of the query's own hard negatives scores at least as high as the
    positive, over the queries ``with_hard`` negatives that are not masked. Shape ``(B, S)``.
    """
    lowest = float("-inf")
    scores_BC = scores.scores_BC.masked_fill(scores.masked_BC, lowest)
    positive_B = scores_BC.gather(1, scores.targets_B[:, None])[:, 0]
    hardest_B = scores_BC.scatter(1, scores.targets_B[:, None], lowest).amax(1)
    hard_B = torch.full_like(positive_B, lowest).scatter_reduce(
        0, hard_rows_H, scores_BC[hard_rows_H, hard_columns_H], "amax"
    )
    compared_B = hardest_B > lowest
    columns = (
        torch.ones_like(positive_B),
        losses_B,
        torch.ones_like(positive_B),
        scores_BC.argmax(1) == scores.targets_B,
        compared_B,
        torch.where(compared_B, positive_B - hardest_B, 0.0),
        hard_B > lowest,
        (hard_B >= positive_B) & (hard_B > lowest),
    )
    stacked_BS = torch.stack([column.float() for column in columns], dim=1)
    return F.pad(stacked_BS, (0, len(_OF_TARGETS) + len(_OF_TAUGHT)))


@torch.no_grad()
def target_statistics(kind: str, outputs_BK: Tensor, targets_B: Tensor, losses_B: Tensor) -> Tensor:
    """Return the statistics of papers with targets, summed over them.

    For classes, ``right`` counts the ``classified`` papers whose class scores highest. For
    labels, ``named`` counts predictions (probability above 1/2), ``listed`` true labels, and
    ``found`` those that are both. For the numbers of ``measured`` papers there are their sums,
    sums of squares, and sums of squared errors. Shape ``(S,)``, float64.
    """
    papers = torch.full_like(losses_B, 1.0).sum()
    sums: dict[str, Tensor] = {"queries": papers, "loss": losses_B.sum()}
    if kind == "multi_class":
        right_B = outputs_BK.argmax(1) == targets_B
        sums |= {"classified": papers, "right": right_B.sum()}
    elif kind == "multi_label":
        predicted_BK, listed_BK = outputs_BK > 0, targets_B > 0
        right = (predicted_BK & listed_BK).sum()
        sums |= {"found": right, "named": predicted_BK.sum(), "listed": listed_BK.sum()}
    else:
        numbers_B = targets_B.double()
        sums |= {
            "measured": papers,
            "numbers": numbers_B.sum(),
            "squares": numbers_B.square().sum(),
            "errors": (outputs_BK[:, 0].double() - numbers_B).square().sum(),
        }
    zero = torch.zeros_like(papers)
    return torch.stack([sums.get(name, zero).double() for name in STATISTICS])


def add_sums(parts: Sequence[Mapping[str, Sequence[float]]]) -> Sums:
    """Add statistics over micro-batches or ranks, by task in alphabetical order."""
    totals: Sums = {}
    for part in parts:
        for task, sums in part.items():
            before = totals.get(task, [0.0] * len(STATISTICS))
            totals[task] = [a + b for a, b in zip(before, sums, strict=True)]
    return dict(sorted(totals.items()))


def means_by_task(sums: Sums) -> dict[str, dict[str, float]]:
    """Return each task's means; a mean over no queries is omitted."""
    means = {}
    for task, values in sums.items():
        sum_of = dict(zip(STATISTICS, values, strict=True))
        means[task] = {
            name: sum_of[total] / sum_of[count] for name, total, count in _MEANS if sum_of[count]
        }
        if sum_of["named"] + sum_of["listed"]:
            means[task]["micro_f1"] = 2 * sum_of["found"] / (sum_of["named"] + sum_of["listed"])
        if sum_of["measured"]:
            spread = sum_of["squares"] - sum_of["numbers"] ** 2 / sum_of["measured"]
            if spread > _ROUNDING * sum_of["squares"]:
                means[task]["r2"] = 1 - sum_of["errors"] / spread
    return means


def total(sums: Sums) -> dict[str, float]:
    """Return the means over the queries of all tasks."""
    values = [sum(column) for column in zip(*sums.values(), strict=True)]
    means = means_by_task({"": values})[""]
    return {name: mean for name, mean in means.items() if name not in _OF_ONE_TASK}
