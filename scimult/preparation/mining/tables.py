"""Load the content of a prepared folder into an engine, each table when a plan first needs it.

Files are loaded in slices, each mapped on its own, so that memory holds only one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from scimult.data.pairs import PairFile, PairPart
from scimult.data.prepared import CITATIONS_FILE, SHOWN_FILE, PreparedData, read_triples
from scimult.data.ragged import Ragged
from scimult.data.text_store import METADATA_FILE, open_arrow
from scimult.preparation.mining.engine import Engine
from scimult.types import IntArray

ROWS_PER_SLICE = 1 << 22
_KINDS = {"label": "labels", "author": "authors", "venue": "venue"}


class Tables:
    """Creates the tables of a prepared folder in an engine, each once."""

    def __init__(self, data: PreparedData, engine: Engine) -> None:
        assert len(data.texts) < 1 << 32, "keys are made of 32 bits"
        self._data, self._engine = data, engine
        self._made: set[str] = set()
        self._draws = 0

    def edges(self) -> None:
        """Create ``edges (citing, cited)``: distinct, sorted by citing paper."""
        self._distinct("edges", "citing, cited", self._slices(CITATIONS_FILE, "citations"))

    def shown(self) -> None:
        """Create ``shown (query, paper)`` and ``triples (query, positive, negative)``."""
        self._distinct("shown", "query, paper", self._slices(SHOWN_FILE, "shown"))
        self._load("triples", self._triples())

    def pairs(self, pairs: PairFile) -> str:
        """Create the table of a pair file's positives, ``(number, query, paper)``; return its name.

        ``NAME_unsampled`` has the positives that down-sampling or the split left out.
        """
        name = _identifier(f"pairs_{pairs.name}.{pairs.split}")
        self._load(name, _groups(pairs.queries, pairs.positives))
        self._load(f"{name}_unsampled", _groups(pairs.queries, pairs.unsampled))
        return name

    def known(self, task: str, part: PairPart | None) -> list[str]:
        """Return SELECTs ``(query, paper)`` of the papers that must not become negatives.

        These are the task's positives over all sources and splits; for citations also all that
        the query cites under other tasks, and all papers of which it is a positive itself; for
        labels all labels of the paper. A paper judged for a link stays a negative even if the query
        cites it elsewhere.
        """
        selects: list[str] = []
        # The tables that pair files were made from hold all their positives.
        origins = {"citations": "citations", "neighbours": "citations", "labels": "labels"}
        whole = origins.get(part or "")
        for entry in self._data.manifest.pairs:
            if entry.task == task and (whole is None or entry.part != whole):
                name = self.pairs(self._data.open_pairs(entry))
                selects += [f"SELECT query, paper FROM {name}{end}" for end in ("", "_unsampled")]
        if whole == "citations":
            self.edges()
            selects.append("SELECT citing AS query, cited AS paper FROM edges")
            # One similarity serves both directions: what is trained for one is true of the other.
            selects += [f"SELECT paper AS query, query AS paper FROM ({one})" for one in selects]
        elif whole == "labels":
            self.values("label")
            selects.append("SELECT paper AS query, value AS paper FROM paper_label")
        return selects

    def values(self, kind: str) -> None:
        """Create ``paper_KIND (paper, value)`` of labels, authors or venues."""
        parts = (
            _values(part.column("row").to_numpy(), part.column(_KINDS[kind]).combine_chunks())
            for part in self._slices(METADATA_FILE, "metadata")
        )
        self._distinct(f"paper_{kind}", "paper, value", parts)

    def members(self, kind: str, candidates: str | None = None) -> str:
        """Create ``NAME_members (value, place, paper)``, papers numbered per value; return NAME.

        ``NAME_sizes`` has the number of papers of each value. ``kind`` is ``label``, ``author`` or
        ``venue``; ``candidates`` is the table of the papers to include, by default all.
        """
        self.values(kind)
        name = kind if candidates is None else f"{kind}_{candidates}"
        among = "" if candidates is None else f"WHERE paper IN (SELECT paper FROM {candidates})"
        self._number(f"{name}_members", "value", "paper", f"paper_{kind}", among)
        sizes = f"SELECT value, count(*) AS size FROM {name}_members GROUP BY value"
        self._create(f"{name}_sizes", sizes)
        return name

    def places(self, kind: str) -> None:
        """Create ``KIND_places (paper, place, value)``, values per paper, and ``KIND_counts``."""
        self.values(kind)
        self._number(f"{kind}_places", "paper", "value", f"paper_{kind}", "")
        counts = f"SELECT paper, count(*) AS size FROM {kind}_places GROUP BY paper"
        self._create(f"{kind}_counts", counts)

    def candidates(self, name: str, rows: IntArray) -> str:
        """Create a table ``(place, paper)`` of numbered candidates; return its name."""
        table = _identifier(f"candidates_{name}")
        numbered = pa.table({"place": np.arange(len(rows), dtype=np.int64), "paper": rows})
        self._load(table, [numbered])
        return table

    def draws(self, count: int) -> None:
        """Create ``draws (draw)`` with at least the numbers below ``count``."""
        if count > self._draws:
            self._engine.load("draws", [pa.table({"draw": np.arange(count, dtype=np.int64)})])
            self._draws = count

    def _load(self, name: str, parts: Iterable[pa.Table]) -> None:
        if name not in self._made:
            self._engine.load(name, parts)
            self._made.add(name)

    def _create(self, name: str, select: str) -> None:
        if name not in self._made:
            self._engine.create(name, select, lasting=True)
            self._made.add(name)

    def _distinct(self, name: str, columns: str, parts: Iterable[pa.Table]) -> None:
        """Create a table of distinct rows, sorted by their columns."""
        if name not in self._made:
            self._engine.load("loaded", parts)
            self._create(name, f"SELECT DISTINCT {columns} FROM loaded ORDER BY {columns}")

    def _number(self, name: str, owner: str, value: str, rows: str, among: str) -> None:
        place = f"row_number() OVER (PARTITION BY {owner} ORDER BY {value}) - 1 AS place"
        self._create(name, f"SELECT {owner}, {place}, {value} FROM {rows} {among}")

    def _triples(self) -> Iterator[pa.Table]:
        names = ("query", "positive", "negative")
        columns = read_triples(self._data.folder).T
        yield pa.table(dict(zip(names, columns, strict=True)))

    def _slices(self, name: str, what: str) -> Iterator[pa.Table]:
        """Yield a file in parts; parts that were read do not stay in memory."""
        start, count = 0, 1
        while start < count:
            table = open_arrow(self._data.folder / name, what)
            count = max(len(table), 1)
            yield table.slice(start, ROWS_PER_SLICE)
            start += ROWS_PER_SLICE


def _groups(queries: IntArray, lists: Ragged) -> Iterator[pa.Table]:
    """Yield the lists of groups as rows ``(number, query, paper)``."""
    for start in range(0, max(len(lists), 1), ROWS_PER_SLICE):
        stop = min(start + ROWS_PER_SLICE, len(lists))
        lengths = np.diff(lists.offsets[start : stop + 1])
        numbers = np.repeat(np.arange(start, stop, dtype=np.int64), lengths)
        values = lists.values[lists.offsets[start] : lists.offsets[stop]]
        yield pa.table({"number": numbers, "query": queries[numbers], "paper": values})


def _values(rows: IntArray, column: pa.Array) -> pa.Table:
    """Return lists or single values as rows ``(paper, value)``; strings by their codes."""
    if pa.types.is_large_list(column.type):
        rows = np.repeat(rows, column.value_lengths().to_numpy())
        column = column.flatten()
    if pa.types.is_dictionary(column.type):
        column = column.indices
    given = column.is_valid().to_numpy(zero_copy_only=False)
    values = column.drop_null().to_numpy().astype(np.int64)
    return pa.table({"paper": rows[given], "value": values})


def _identifier(name: str) -> str:
    """Return a valid SQL name for any name of a source; SQL does not tell names by case."""
    return "_" + re.sub("[^a-z0-9]", lambda letter: f"_{ord(letter[0]):x}_", name)
