"""From planned rows to a batch of packed tokens with ids for the loss.

Shape legend: B queries of this rank, C candidates of this rank, P known positives of all
B queries, flattened, U distinct texts of this rank, H its hard negatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scimult.data.pairs import KnownPositives, PairFile, known_positives
from scimult.data.prepared import PreparedData
from scimult.data.sampler import NO_NEGATIVE, PlannedRows
from scimult.data.token_store import TokenStore
from scimult.data.tokenization import cut
from scimult.data.views import view_pair
from scimult.types import IntArray

# Views are cut from all that the token store has of a text.
STORED_LENGTH = 1 << 20


@dataclass(frozen=True)
class Batch:
    """What one rank encodes and compares in one unit.

    Each distinct text is encoded once: ``query_B`` and ``candidate_C`` say which encoded
    text stands in each row. ``sides`` says of each encoded text whether it is a query (0) or
    a candidate (1), where the two are encoded apart; else it is all 0. Candidates are the B
    positives, in order, then the hard negatives that exist; ``negative_rows_H`` says for
    which query row each was drawn. ``known_rows_P`` and ``known_ids_P`` pair each query row
    with the text rows that must not count as its negatives: its known positives and itself.
    """

    source: str
    task: str
    rows: list[IntArray]
    sides: list[int]
    query_B: Tensor
    candidate_C: Tensor
    query_ids_B: Tensor
    candidate_ids_C: Tensor
    negative_rows_H: Tensor
    known_rows_P: Tensor
    known_ids_P: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its index tensors on ``device``; token rows stay on the host."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)

    @property
    def num_tokens(self) -> int:
        """Real tokens that this rank encodes."""
        return sum(len(row) for row in self.rows)


class BatchBuilder:
    """Turns planned rows of text ids into batches.

    Parameters
    ----------
    sources : sequence of PairFile
        The training sources in sampler order.
    tokens : TokenStore
        Token ids of every text.
    known : mapping of task to KnownPositives
        Known positives of every query, over all splits: a dev pair is no negative either.
    max_length : int
        Longer texts are cut.
    hard_negatives : bool
        Whether hard negatives take part.
    by_side : bool
        Encode a text that is both query and candidate once for each side.
    seed : int
        Decides, with epoch and row, how the texts of self-supervised sources are cut.
    """

    def __init__(
        self,
        sources: Sequence[PairFile],
        tokens: TokenStore,
        known: Mapping[str, KnownPositives],
        *,
        max_length: int,
        hard_negatives: bool = True,
        by_side: bool = False,
        seed: int = 0,
    ) -> None:
        self._sources = list(sources)
        self._tokens = tokens
        self._known = known
        self._max_length = max_length
        self._hard_negatives = hard_negatives
        self._by_side = by_side
        self._seed = seed

    def build(self, planned: PlannedRows) -> Batch:
        """Return the batch of these rows."""
        source = self._sources[planned.source]
        negative_rows = np.flatnonzero(planned.negatives_R != NO_NEGATIVE)
        if not self._hard_negatives:
            negative_rows = negative_rows[:0]
        negatives = planned.negatives_R[negative_rows]
        candidates = np.concatenate([planned.positives_R, negatives])
        num_queries = len(planned.queries_R)
        # A text's key is (side, id): without sides, all are on side 0.
        keys = np.concatenate([planned.queries_R, candidates])
        if self._by_side or source.view is not None:
            keys[num_queries:] += len(self._tokens)
        distinct_U, first_U, places = np.unique(keys, return_index=True, return_inverse=True)
        sides_U, ids_U = np.divmod(distinct_U, len(self._tokens))
        known = [
            np.append(self._known[source.task][int(query)], query) for query in planned.queries_R
        ]
        return Batch(
            source=source.source,
            task=source.task,
            rows=self._rows(source, ids_U, sides_U, planned.epochs_R[first_U % num_queries]),
            sides=sides_U.tolist(),
            query_B=torch.from_numpy(places[:num_queries]),
            candidate_C=torch.from_numpy(places[num_queries:]),
            query_ids_B=torch.from_numpy(np.array(planned.queries_R)),
            candidate_ids_C=torch.from_numpy(candidates),
            negative_rows_H=torch.from_numpy(negative_rows),
            known_rows_P=torch.from_numpy(
                np.repeat(np.arange(num_queries), [len(ids) for ids in known])
            ),
            known_ids_P=torch.from_numpy(np.concatenate(known)),
        )

    def _rows(
        self, source: PairFile, ids_U: IntArray, sides_U: IntArray, epochs_U: IntArray
    ) -> list[IntArray]:
        """Return the tokens of each distinct text, or of its view in a self-supervised source."""
        if source.view is None:
            return [self._tokens.tokens(int(row), self._max_length) for row in ids_U]
        rows = []
        for row, side, epoch in zip(ids_U, sides_U, epochs_U, strict=True):
            whole = self._tokens.tokens(int(row), STORED_LENGTH)
            views = view_pair(source.view, whole, seed=self._seed, epoch=int(epoch), row=int(row))
            rows.append(cut(views[int(side)], self._max_length, int(whole[-1])))
        return rows


def all_known_positives(data: PreparedData) -> dict[str, KnownPositives]:
    """Return, by task, the known positives of every query over sources and splits."""
    files = [*data.pairs("train"), *data.pairs("dev")]
    tasks = {file.task for file in files}
    return {task: known_positives([f for f in files if f.task == task]) for task in tasks}
