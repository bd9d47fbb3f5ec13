"""Follow a teacher's vectors in addition to another objective.

Shape legend: U distinct texts of this rank in parts that follow, K texts of all ranks that they
are compared with, D width of the model, E width of the teacher, B queries of this rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from scimult import distributed
from scimult.data.batches import Batch, Part
from scimult.hardware import send
from scimult.losses import cosine_distance, mean_over_pairs, relational_distance
from scimult.training.learned import PROJECTION, Values
from scimult.training.loss_config import EmbeddingTeacherConfig
from scimult.training.metrics import STATISTICS
from scimult.training.negatives import GroupOf
from scimult.training.objective import PartResult, PartsObjective


@dataclass(frozen=True)
class TaughtObjective:
    """An objective plus the loss of following a teacher's vectors.

    ``matryoshka`` lists numbers of leading dimensions whose relations are averaged with those of
    the whole embedding. Cosines use the whole: a teacher's vector has no leading part. Relations
    are between texts that `Objective` compares by the same ``group_of``.
    """

    objective: PartsObjective
    options: EmbeddingTeacherConfig
    matryoshka: Sequence[int]
    device: torch.device | str
    group_of: GroupOf

    def __call__(
        self, parts: Sequence[Part], embeddings_UD: Tensor, learned: Values
    ) -> list[PartResult]:
        """Return the results of this rank's parts, in order; every rank must call it."""
        results = self.objective(parts, embeddings_UD, learned)
        first_texts = [0, *accumulate(len(part.rows) for part in parts)]
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for number, part in enumerate(parts):
            if isinstance(part, Batch) and part.vectors_UE is not None:
                groups[self.group_of(part.source, part.task)].append(number)
        if not groups and PROJECTION in learned:
            # The backward pass needs a gradient of every value of the micro-batch's tasks.
            unused = 0.0 * learned[PROJECTION].sum()
            results[0] = replace(results[0], loss=results[0].loss + unused)
        for numbers in groups.values():
            group = [part for n in numbers if isinstance(part := parts[n], Batch)]
            texts = _Texts.of(group, self.device)
            student_UD = torch.cat(
                [embeddings_UD[first_texts[n] : first_texts[n + 1]] for n in numbers]
            )
            losses_U = self._losses(texts, student_UD, learned)
            for number, loss_B in zip(numbers, texts.of_queries(losses_U), strict=True):
                results[number] = _with_teacher(results[number], loss_B)
        return results

    def _losses(self, texts: _Texts, student_UD: Tensor, learned: Values) -> Tensor:
        """Return the weighted loss of each text."""
        cosine, relational = self.options.weights
        losses_U = student_UD.new_zeros(len(student_UD))
        if cosine:
            weight_ED = learned.get(PROJECTION)
            mapped_UE = student_UD if weight_ED is None else student_UD @ weight_ED.T
            losses_U = losses_U + cosine * cosine_distance(mapped_UE, texts.vectors_UE)
        if relational:
            student_KD = texts.of_all_ranks(student_UD)
            teacher_KE = texts.of_all_ranks(texts.vectors_UE)
            cuts = [
                relational_distance(
                    student_UD[:, :dims], student_KD[:, :dims], texts.vectors_UE, teacher_KE
                )
                for dims in (None, *self.matryoshka)
            ]
            losses_U = losses_U + relational * torch.stack(cuts).mean(0)
        return losses_U


@dataclass(frozen=True)
class _Texts:
    """Texts of parts whose relations count together.

    ``indices`` has ``query_B``, ``candidate_C`` and ``negative_rows_H`` of each part as in
    `Batch`, but indexing the texts of all these parts; ``sizes_W`` is the number of queries and
    candidates of each rank, if there are several.
    """

    vectors_UE: Tensor
    indices: list[tuple[Tensor, Tensor, Tensor]]
    sizes_W: list[int]

    @classmethod
    def of(cls, parts: Sequence[Batch], device: torch.device | str) -> _Texts:
        """Concatenate the texts of parts."""
        firsts = [0, *accumulate(len(part.rows) for part in parts)]
        columns: list[Tensor] = []
        for part, first in zip(parts, firsts, strict=False):
            assert part.vectors_UE is not None
            columns += [part.vectors_UE, part.query_B + first, part.candidate_C + first]
            columns.append(part.negative_rows_H)
        sent = send(columns, device)
        by_part = [sent[start : start + 4] for start in range(0, len(sent), 4)]
        by_rank = zip(*(part.sizes_W for part in parts), strict=True)
        return cls(
            torch.cat([vectors_UE for vectors_UE, *_ in by_part]),
            [(query_B, candidate_C, rows_H) for _, query_B, candidate_C, rows_H in by_part],
            [sum(2 * queries + hard for queries, hard in sizes) for sizes in by_rank],
        )

    def of_all_ranks(self, values_UX: Tensor) -> Tensor:
        """Return the values of every query and candidate of all ranks, repetitions included.

        This way a text's relations do not depend on how pairs are distributed over ranks.
        """
        local = torch.cat([torch.cat([query_B, cand_C]) for query_B, cand_C, _ in self.indices])
        return distributed.gather_rows(values_UX[local], self.sizes_W)[0]

    def of_queries(self, losses_U: Tensor) -> list[Tensor]:
        """Return each query's loss, part by part."""
        return [mean_over_pairs(losses_U, *indices) for indices in self.indices]


def _with_teacher(result: PartResult, loss_B: Tensor) -> PartResult:
    """Add the teacher loss to a part's result."""
    total = loss_B.sum()
    added_S = torch.zeros_like(result.statistics_S)
    reported = total.detach().to(added_S)
    added_S[STATISTICS.index("loss")] = reported
    added_S[STATISTICS.index("teacher")] = reported
    added_S[STATISTICS.index("taught")] = len(loss_B)
    return replace(result, loss=result.loss + total, statistics_S=result.statistics_S + added_S)
