"""Following a teacher's vectors beside another objective.

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
    """An objective, and beside it the loss of following a teacher's vectors.

    Parameters
    ----------
    objective : callable
        The other objective.
    options : EmbeddingTeacherConfig
        Which losses, how much they weigh.
    matryoshka : sequence of int
        Numbers of leading dimensions whose relations are averaged with those of the whole
        embedding. The cosine is that of the whole: a vector of a teacher has no leading part.
    device : device
        Where the embeddings are.
    group_of : callable
        As `Objective` has it: relations are those of texts that it compares.
    """

    objective: PartsObjective
    options: EmbeddingTeacherConfig
    matryoshka: Sequence[int]
    device: torch.device | str
    group_of: GroupOf

    def __call__(
        self, parts: Sequence[Part], embeddings_UD: Tensor, learned: Values
    ) -> list[PartResult]:
        """Return the loss of this rank's queries, part by part; every rank calls it alike."""
        results = self.objective(parts, embeddings_UD, learned)
        first_texts = [0, *accumulate(len(part.rows) for part in parts)]
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for number, part in enumerate(parts):
            if isinstance(part, Batch) and part.vectors_UE is not None:
                groups[self.group_of(part.source, part.task)].append(number)
        if not groups and PROJECTION in learned:
            # Backward asks every value that the tasks have for a gradient.
            unused = 0.0 * learned[PROJECTION].sum()
            results[0] = replace(results[0], loss=results[0].loss + unused)
        for numbers in groups.values():
            together = [part for n in numbers if isinstance(part := parts[n], Batch)]
            texts = _Texts.of(together, self.device)
            of_parts = [
                embeddings_UD[first_texts[n] : first_texts[n] + len(parts[n].rows)] for n in numbers
            ]
            losses_U = self._losses(texts, torch.cat(of_parts), learned)
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

    ``query_B``, ``candidate_C`` and ``negative_rows_H`` of each part are as in `Batch`, with
    places among the texts of all of these parts; ``sizes_W`` are the queries and candidates of
    each rank, where there are several.
    """

    vectors_UE: Tensor
    places: list[tuple[Tensor, Tensor, Tensor]]
    sizes_W: list[int]

    @classmethod
    def of(cls, parts: Sequence[Batch], device: torch.device | str) -> _Texts:
        """Join the texts of parts."""
        firsts = [0, *accumulate(len(part.rows) for part in parts)]
        columns: list[Tensor] = []
        for part, first in zip(parts, firsts, strict=False):
            assert part.vectors_UE is not None
            columns += [part.vectors_UE, part.query_B + first, part.candidate_C + first]
            columns.append(part.negative_rows_H)
        sent = send(columns, device)
        of_parts = [sent[start : start + 4] for start in range(0, len(sent), 4)]
        of_ranks = zip(*(part.sizes_W for part in parts), strict=True)
        return cls(
            torch.cat([vectors_UE for vectors_UE, *_ in of_parts]),
            [(query_B, candidate_C, rows_H) for _, query_B, candidate_C, rows_H in of_parts],
            [sum(2 * queries + hard for queries, hard in sizes) for sizes in of_ranks],
        )

    def of_all_ranks(self, values_UX: Tensor) -> Tensor:
        """Return the values of every query and candidate of all ranks, as often as it stands there.

        So the relations of a text are the same ones however the pairs are dealt to ranks.
        """
        here = torch.cat([torch.cat([query_B, cand_C]) for query_B, cand_C, _ in self.places])
        return distributed.gather_rows(values_UX[here], self.sizes_W)[0]

    def of_queries(self, losses_U: Tensor) -> list[Tensor]:
        """Return the loss of each query, part by part."""
        return [mean_over_pairs(losses_U, *places) for places in self.places]


def _with_teacher(result: PartResult, loss_B: Tensor) -> PartResult:
    """Add the loss of following the teacher to what a part gave."""
    total = loss_B.sum()
    added_S = torch.zeros_like(result.statistics_S)
    noted = total.detach().to(added_S)
    added_S[STATISTICS.index("loss")] = noted
    added_S[STATISTICS.index("teacher")] = noted
    added_S[STATISTICS.index("taught")] = len(loss_B)
    return replace(result, loss=result.loss + total, statistics_S=result.statistics_S + added_S)
