"""From a batch to its loss: encode once, gather candidates of all ranks, InfoNCE.

Shape legend: B queries of this rank, C candidates of all ranks, U distinct texts, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scimult import distributed
from scimult.data.batches import Batch
from scimult.losses import InBatchScores, false_negatives, info_nce, similarity_matrix
from scimult.losses.info_nce import in_batch_accuracy
from scimult.models import PackedTexts, pack
from scimult.types import Similarity

Forward = Callable[[PackedTexts, int | list[int]], Tensor]


@dataclass(frozen=True)
class UnitResult:
    """Loss of one unit on this rank, scaled so that the mean over ranks is the global mean."""

    loss: Tensor
    accuracy: Tensor
    masked: int
    tokens: int


@dataclass(frozen=True)
class ContrastiveObjective:
    """InfoNCE with in-batch negatives of all ranks plus hard negatives.

    Parameters
    ----------
    similarity : str
        How queries and candidates are compared.
    temperature : float
        Divides the similarities.
    mask_known_positives : bool
        Whether other known positives of a query are kept from being its negatives.
    matryoshka : tuple of int
        Numbers of leading dimensions whose losses are averaged with that of all dimensions
        (Kusupati et al., 2022).
    device : device
        Where the model is.
    """

    similarity: Similarity
    temperature: float
    mask_known_positives: bool = True
    matryoshka: tuple[int, ...] = ()
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
        c_CD, offset = distributed.gather_rows(embeddings_UD[batch.candidate_C])
        candidate_ids_C, _ = distributed.gather_rows(batch.candidate_ids_C)
        q_BD = embeddings_UD[batch.query_B]
        targets_B = offset + torch.arange(len(q_BD), device=self.device)
        masked_BC = torch.zeros(len(q_BD), len(c_CD), dtype=torch.bool, device=self.device)
        if self.mask_known_positives:
            masked_BC = false_negatives(
                candidate_ids_C, targets_B, batch.known_rows_P, batch.known_ids_P
            )
        scores = InBatchScores(similarity_matrix(q_BD, c_CD, self.similarity), targets_B, masked_BC)
        losses_B = info_nce(scores, self.temperature)
        for dims in self.matryoshka:
            cut_BC = similarity_matrix(q_BD[:, :dims], c_CD[:, :dims], self.similarity)
            cut = InBatchScores(cut_BC, targets_B, masked_BC)
            losses_B = losses_B + info_nce(cut, self.temperature)
        losses_B = losses_B / (1 + len(self.matryoshka))
        return UnitResult(
            loss=losses_B.sum() * (distributed.world_size() / rows_of_all),
            accuracy=in_batch_accuracy(scores),
            masked=int(masked_BC.sum()),
            tokens=batch.num_tokens,
        )
