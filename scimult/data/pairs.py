"""Pair files: positives and hard negatives of each query."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scimult.data.ragged import Ragged
from scimult.data.text_store import list_array, numbers, open_arrow, ragged, write_arrow
from scimult.types import IntArray, ViewName

Split = Literal["train", "dev"]
# Origin of the pairs: a file of the source, its papers alone, or its citation graph.
PairPart = Literal["labels", "citations", "links", "queries", "views", "neighbours"]
SPLITS: tuple[Split, ...] = ("train", "dev")
RAGGED_COLUMNS = ("positives", "negatives", "unsampled")
RuleBits: TypeAlias = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class PairFile:
    """Groups of one source and split. All integers are rows of the text store.

    In group ``i``, training may combine any of ``positives[i]`` as a positive of query
    ``queries[i]`` with any of ``negatives[i]`` as its hard negative. Classification and search
    have one group per query. Link prediction has one per (query, positive), because its negatives
    depend on the positive (SciMult, section 3.4), as do sources with hard negatives per pair.

    Parameters
    ----------
    source, task, split : str
        Where the pairs come from, the task they train, and ``train`` or ``dev``.
    queries : IntArray
        Query of each group, shape ``(G,)``.
    positives, negatives : Ragged
        ``G`` lists each; a list of ``negatives`` is empty if mining found none.
    unsampled : Ragged, optional
        True positives that down-sampling or the split left out: never drawn, but known.
    view : str, optional
        For self-supervision: each query is its own positive, cut in two ways (``data/views.py``).
    rules : tuple of str
        Mining rules that found the negatives; empty if unknown.
    found_by : RuleBits, optional
        For each of ``negatives.values``: bit ``i`` is set if ``rules[i]`` found it.
    shares : tuple of float
        Relative frequency of each rule among drawn negatives; empty if the negatives of a group
        are drawn uniformly.
    namespace : str
        Namespace of the paper ids. This and ``part`` come from the manifest, not the file.
    part : PairPart, optional
        Origin of the pairs.
    """

    source: str
    task: str
    split: str
    queries: IntArray
    positives: Ragged
    negatives: Ragged
    unsampled: Ragged = field(default_factory=lambda: Ragged.empty(0))
    view: ViewName | None = None
    rules: tuple[str, ...] = ()
    found_by: RuleBits | None = None
    shares: tuple[float, ...] = ()
    namespace: str = ""
    part: PairPart | None = None

    def __post_init__(self) -> None:
        if len(self.unsampled) == 0 and len(self.queries):
            object.__setattr__(self, "unsampled", Ragged.empty(len(self.queries)))
        lengths = {len(self.queries), *(len(getattr(self, name)) for name in RAGGED_COLUMNS)}
        assert len(lengths) == 1, lengths
        assert self.found_by is None or len(self.found_by) == len(self.negatives.values)
        assert len(self.shares) in (0, len(self.rules))
        assert self.found_by is not None or not self.shares

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def name(self) -> str:
        """``source.task``: unique among the files of a split."""
        return f"{self.source}.{self.task}"

    def without_negatives(self) -> PairFile:
        """Return the same pairs without hard negatives."""
        none = Ragged.empty(len(self))
        return replace(self, negatives=none, rules=(), found_by=None, shares=())


class KnownPositives(Mapping[int, IntArray]):
    """Maps a query row to the sorted, unique rows of its known positives."""

    def __init__(self, queries: IntArray, positives: IntArray) -> None:
        self._queries, inverse = np.unique(queries, return_inverse=True)
        self._positives = Ragged.from_pairs(inverse.astype(np.int64), positives, len(self._queries))

    def __getitem__(self, query: int) -> IntArray:
        i = int(np.searchsorted(self._queries, query))
        if i == len(self._queries) or self._queries[i] != query:
            raise KeyError(query)
        return self._positives[i]

    def __iter__(self) -> Iterator[int]:
        return iter(self._queries.tolist())

    def __len__(self) -> int:
        return len(self._queries)


def known_positives(files: Sequence[PairFile]) -> KnownPositives:
    """Return the union of the positives of each query over all groups of ``files``.

    Includes positives left out by down-sampling: they must not serve as negatives either. Citations
    are known in both directions, as in mining: one similarity is trained for both.
    """
    pairs = [np.empty((2, 0), np.int64)]
    for file in files:
        for lists in (file.positives, file.unsampled):
            pairs.append(np.stack([file.queries[lists.owners], lists.values]))
            if file.part in ("citations", "neighbours"):
                pairs.append(pairs[-1][::-1])
    return KnownPositives(*np.concatenate(pairs, axis=1))


def pair_file_name(source: str, task: str, split: str) -> str:
    """Return the path of a pair file, relative to its prepared folder."""
    return f"pairs/{source}.{task}.{split}.arrow"


def positives_hash(pairs: PairFile) -> str:
    """Return a hash of queries and positives: everything but mined data."""
    digest = hashlib.sha256()
    lists = (pairs.positives, pairs.unsampled)
    for array in (pairs.queries, *(a for one in lists for a in (one.offsets, one.values))):
        digest.update(f"{len(array)} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def write_pairs(path: Path | str, pairs: PairFile) -> None:
    """Write a pair file as Arrow IPC. Call it inside ``files.atomic_file`` or ``atomic_folder``."""
    columns = {"query": pa.array(pairs.queries, pa.int64())}
    for name in RAGGED_COLUMNS:
        columns[name] = list_array(getattr(pairs, name))
    if pairs.found_by is not None:
        columns["found_by"] = list_array(pairs.negatives, pa.array(pairs.found_by))
    facts = {
        "source": pairs.source,
        "task": pairs.task,
        "split": pairs.split,
        **({} if pairs.view is None else {"view": pairs.view}),
        **({} if pairs.found_by is None else {"rules": json.dumps(pairs.rules)}),
        **({"shares": json.dumps(pairs.shares)} if pairs.shares else {}),
    }
    write_arrow(Path(path), "pairs", columns, facts)


def read_pairs(path: Path | str) -> PairFile:
    """Memory-map a pair file.

    Raises
    ------
    DataError
        If it is missing, damaged or of another format version.
    """
    table = open_arrow(Path(path), "pairs").combine_chunks()
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    return PairFile(
        source=metadata["source"],
        task=metadata["task"],
        split=metadata["split"],
        queries=numbers(table.column("query")),
        positives=ragged(table.column("positives")),
        negatives=ragged(table.column("negatives")),
        unsampled=ragged(table.column("unsampled")),
        view=cast("ViewName | None", metadata.get("view")),
        rules=tuple(json.loads(metadata.get("rules", "[]"))),
        found_by=_flat(table.column("found_by")) if "found_by" in table.column_names else None,
        shares=tuple(json.loads(metadata.get("shares", "[]"))),
    )


def _flat(column: pa.ChunkedArray) -> RuleBits:
    if column.num_chunks == 0:
        return np.empty(0, np.uint8)
    flat: RuleBits = numbers(column.chunk(0).values)
    return flat
