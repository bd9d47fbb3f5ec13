"""Turn planned rows into batches of tokens, with ids for the loss.

Shape legend: B queries of this rank, C candidates of this rank, P known positives of all
B queries, flattened, U distinct texts of this rank, H its hard negatives, W ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from scimult.data.negatives import NO_NEGATIVE
from scimult.data.pair_streams import Rows
from scimult.data.pairs import KnownPositives, PairFile, known_positives
from scimult.data.prepared import PreparedData
from scimult.data.sampler import PlannedPart
from scimult.data.targets import TargetFile
from scimult.data.teacher import TeacherScores
from scimult.data.token_store import TokenStore
from scimult.data.tokenization import title_tokens
from scimult.data.views import stored_views
from scimult.types import BoolArray, FloatArray, IntArray, ViewName

# Maps rows of the text store to a teacher's vectors, one per row.
Vectors = Callable[[IntArray], FloatArray]


@dataclass(frozen=True)
class _Encoded:
    """The texts of one source that one rank encodes, each distinct text once."""

    source: str
    task: str
    rows: list[IntArray]
    sides: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens that this rank encodes, without padding."""
        return sum(len(row) for row in self.rows)


@dataclass(frozen=True)
class Batch(_Encoded):
    """Pairs of one source: one rank's share of one part of a micro-batch.

    Each distinct text is encoded once: ``query_B`` and ``candidate_C`` are indices into the
    encoded texts. ``sides`` marks each encoded text as query (0) or candidate (1) where the two
    are encoded separately; otherwise it is all 0. Candidates are the B positives, in order, then
    the existing hard negatives; ``negative_rows_H`` is the query row of each. ``known_rows_P``
    and ``known_ids_P`` pair each query row with the text rows that must not count as its
    negatives: its known positives, of any task, and itself.
    ``teacher_C`` is a teacher's score of each candidate for its own query, NaN if unknown; set if
    the loss needs it. ``vectors_UE`` are a teacher's vectors of the encoded texts, set if the loss
    follows them. ``sizes_W`` are every rank's numbers of queries and hard negatives in the part.
    """

    query_B: Tensor
    candidate_C: Tensor
    query_ids_B: Tensor
    candidate_ids_C: Tensor
    negative_rows_H: Tensor
    known_rows_P: Tensor
    known_ids_P: Tensor
    teacher_C: Tensor | None = None
    vectors_UE: Tensor | None = None
    sizes_W: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class TargetBatch(_Encoded):
    """Papers of one source with targets for a head: a rank's share of a part of a micro-batch.

    As in `Batch`, each distinct text is encoded once, and ``text_B`` are indices into the encoded
    texts. ``targets_B`` is what `TargetFile.targets` returns.
    """

    text_B: Tensor
    text_ids_B: Tensor
    targets_B: Tensor


Part = Batch | TargetBatch


@dataclass(frozen=True)
class MicroBatch:
    """One rank's work in one forward-backward.

    ``parts`` are of the same sources on every rank, and may be empty on some; ``pairs`` counts
    the pairs of all ranks and parts, ``pairs_of`` those of each task. A paper with a target counts
    as a pair.
    """

    parts: Sequence[Part]
    pairs: int
    pairs_of: Mapping[str, int] = field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        """Task of each part."""
        return [part.task for part in self.parts]


@dataclass(frozen=True)
class BatchBuilder:
    """Turns planned rows of text ids into batches.

    ``sources`` are in sampler order. ``known`` are the known positives of every query by task, over
    all splits: dev pairs are no negatives either. A positive of any task is no negative, except the
    hard negative drawn for its query: mining knows what was judged
    (`mining.rules.RuleBuilder.known`).

    ``by_side`` encodes a text that is both query and candidate once for each side. ``vectors_of``
    maps a source of pairs to the vectors that its texts follow, or to None. Of texts in
    ``title_only_N`` only the title is read; views are cut from whole texts all the same. ``seed``
    decides, with epoch and row, how the texts of self-supervised sources are cut.
    """

    sources: Sequence[PairFile | TargetFile]
    tokens: TokenStore
    known: Mapping[str, KnownPositives]
    _: KW_ONLY
    max_length: int
    by_side: bool = False
    teacher: TeacherScores | None = None
    vectors_of: Callable[[PairFile], Vectors | None] = lambda source: None
    title_only_N: BoolArray | None = None
    seed: int = 0

    def micro_batch(self, planned: Sequence[PlannedPart], rank: int) -> MicroBatch:
        """Return the part of a micro-batch that ``rank`` works on."""
        parts: list[Part] = []
        pairs_of: dict[str, int] = defaultdict(int)
        for part in planned:
            source, rows = self.sources[part.source], part.rows.shard(rank)
            if isinstance(source, TargetFile):
                parts.append(self._targets(source, rows))
            else:
                parts.append(self._batch(source, rows, self._sizes(part.rows)))
            pairs_of[source.task] += len(part.rows)
        return MicroBatch(parts, sum(pairs_of.values()), pairs_of)

    def _targets(self, source: TargetFile, planned: Rows) -> TargetBatch:
        distinct_U, indices = np.unique(planned.queries_R, return_inverse=True)
        return TargetBatch(
            source=source.source,
            task=source.task,
            rows=self._texts(distinct_U),
            sides=[0] * len(distinct_U),
            text_B=torch.from_numpy(indices),
            text_ids_B=torch.from_numpy(np.array(planned.queries_R)),
            targets_B=source.targets(planned.queries_R),
        )

    def _sizes(self, planned: Rows) -> list[tuple[int, int]]:
        """Return the number of queries and hard negatives of each rank."""
        has_negative_R = planned.negatives_R != NO_NEGATIVE
        return [
            (last - first, int(has_negative_R[first:last].sum()))
            for first, last in pairwise(planned.bounds)
        ]

    def _batch(self, source: PairFile, planned: Rows, sizes_W: Sequence[tuple[int, int]]) -> Batch:
        negative_rows = np.flatnonzero(planned.negatives_R != NO_NEGATIVE)
        negatives = planned.negatives_R[negative_rows]
        candidates = np.concatenate([planned.positives_R, negatives])
        num_queries = len(planned.queries_R)
        # A text's key is side * len(tokens) + id; without sides, all are on side 0.
        keys = np.concatenate([planned.queries_R, candidates])
        if self.by_side or source.view is not None:
            keys[num_queries:] += len(self.tokens)
        distinct_U, first_U, indices = np.unique(keys, return_index=True, return_inverse=True)
        sides_U, ids_U = np.divmod(distinct_U, len(self.tokens))
        if source.view is None:
            rows = self._texts(ids_U)
        else:  # without negatives, the keys are those of queries and positives
            epochs_U = np.tile(planned.epochs_R, 2)[first_U]
            rows = self._views(source.view, ids_U, sides_U, epochs_U)
        vectors = self.vectors_of(source)
        known = [
            self._not_negatives(source.task, int(query), int(negative))
            for query, negative in zip(planned.queries_R, planned.negatives_R, strict=True)
        ]
        return Batch(
            source=source.source,
            task=source.task,
            rows=rows,
            sides=sides_U.tolist(),
            query_B=torch.from_numpy(indices[:num_queries]),
            candidate_C=torch.from_numpy(indices[num_queries:]),
            query_ids_B=torch.from_numpy(np.array(planned.queries_R)),
            candidate_ids_C=torch.from_numpy(candidates),
            negative_rows_H=torch.from_numpy(negative_rows),
            known_rows_P=torch.from_numpy(
                np.repeat(np.arange(num_queries), np.array(list(map(len, known)), dtype=np.int64))
            ),
            known_ids_P=torch.from_numpy(np.concatenate([planned.queries_R[:0], *known])),
            teacher_C=self._teacher_scores(planned.queries_R, negative_rows, candidates),
            vectors_UE=None if vectors is None else torch.from_numpy(vectors(ids_U)),
            sizes_W=sizes_W,
        )

    def _not_negatives(self, task: str, query: int, hard_negative: int) -> IntArray:
        """Return the text rows that must not count as negatives of a query, itself included."""
        lists = [self.known[task][query]]
        for other, known in self.known.items():
            if other != task and (ids := known.get(query)) is not None:
                lists.append(ids[ids != hard_negative])
        return np.concatenate([*lists, [query]])

    def _texts(self, ids_U: IntArray) -> list[IntArray]:
        """Return the tokens of each text, or of its title."""
        rows = [self.tokens.tokens(int(row), self.max_length) for row in ids_U]
        if self.title_only_N is not None:
            for index in np.flatnonzero(self.title_only_N[ids_U]):
                rows[index] = title_tokens(rows[index])
        return rows

    def _views(
        self, view: ViewName, ids_U: IntArray, sides_U: IntArray, epochs_U: IntArray
    ) -> list[IntArray]:
        """Return the tokens of each text's view for its side."""
        rows = []
        for row, side, epoch in zip(ids_U, sides_U, epochs_U, strict=True):
            views = stored_views(
                view,
                self.tokens,
                int(row),
                seed=self.seed,
                epoch=int(epoch),
                max_length=self.max_length,
            )
            rows.append(views[int(side)])
        return rows

    def _teacher_scores(
        self, queries_B: IntArray, negative_rows_H: IntArray, candidates_C: IntArray
    ) -> Tensor | None:
        if self.teacher is None:
            return None
        queries_C = np.concatenate([queries_B, queries_B[negative_rows_H]])
        return torch.from_numpy(self.teacher(queries_C, candidates_C))


def all_known_positives(data: PreparedData) -> dict[str, KnownPositives]:
    """Return every query's known positives over all sources and splits, by task."""
    files = [*data.pairs("train"), *data.pairs("dev")]
    tasks = {file.task for file in files}
    return {task: known_positives([f for f in files if f.task == task]) for task in tasks}
