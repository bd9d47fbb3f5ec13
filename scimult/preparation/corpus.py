"""The corpus that ``scimult prepare`` collects: texts in a store, ids and metadata in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scimult.data.records import Rejects
from scimult.data.sql import literal, table_of
from scimult.data.text_store import TextStoreWriter
from scimult.preparation.file_rows import FileEngine, FileRows
from scimult.preparation.metadata import write_metadata
from scimult.preparation.pair_columns import Columns, selected, unique_pairs
from scimult.preparation.unicode_forms import other_forms
from scimult.progress import warn
from scimult.types import Kind

_FETCHED = 1000
_WRITTEN = 1 << 14
# Read once and then deleted: not worth compressing.
_FORMAT = "(FORMAT parquet, COMPRESSION uncompressed)"
_NONE = [np.empty(0, np.int64)] * 2


@dataclass(frozen=True)
class FileTexts:
    """The texts of one file, in DuckDB.

    ``table`` is a view of its records: line, id, title, body and further fields of the file.
    ``placed`` is a table ``(line, row, new)``: the text row of each line; only the first line of
    each id. ``rows`` are those of the texts that are new in this file; ``merged`` texts were known
    from an earlier file: the earlier text stays.
    """

    path: Path
    table: str
    placed: str
    rows: range
    merged: int


class Corpus:
    """Texts, metadata and label assignments of all papers read so far.

    Each kind of text is one range of rows: read all labels before the first paper, and all papers
    before the first query. ``folder`` is for scratch files.
    """

    def __init__(
        self,
        folder: Path,
        texts: TextStoreWriter,
        rejects: Rejects,
        connection: duckdb.DuckDBPyConnection,
    ) -> None:
        self.texts = texts
        self.rejects = rejects
        self.label_rows: dict[str, range] = {}
        self._folder = folder
        self._engine = FileEngine(connection)
        self._connection = connection
        self._connection.execute("CREATE TABLE known (space VARCHAR, id VARCHAR, row BIGINT)")
        self._labels: list[Columns] = []
        self._papers: list[FileTexts] = []
        self._shards = 0

    def add_texts(
        self, rows: FileRows, space: str, kind: Kind, select: str = "{rows}"
    ) -> FileTexts:
        """Add the texts of a file, or of a SELECT over them; ``space`` is prepended to their ids.

        An id may occur once per file; one known from an earlier file is merged.
        """
        table, placed = f"texts_{self._shards}", f"placed_{self._shards}"
        shard = self.read(table, select, rows)
        start = len(self.texts)
        self._connection.execute(
            f"""
            CREATE TABLE {placed} AS
            SELECT line, first.id, known.row IS NULL AS new, coalesce(known.row, {start} - 1 +
                row_number() OVER (PARTITION BY known.row IS NULL ORDER BY line)) AS row
            FROM (SELECT id, min(line) AS line FROM {table} GROUP BY id) AS first
            LEFT JOIN known ON known.space = {literal(space)} AND known.id = first.id
            """
        )
        self._reject_repeated(rows.path, table, placed, space)
        self._connection.execute(
            f"INSERT INTO known SELECT {literal(space)}, id, row FROM {placed} WHERE new"
        )
        self.warn_of_forms(rows.path, f"SELECT id FROM {placed}", space)
        self._connection.execute(f"ALTER TABLE {placed} DROP COLUMN id")
        self._write_texts(shard, placed, space, kind)
        counts = self.one(f"SELECT count(*) - count(*) FILTER (new) AS merged FROM {placed}")
        texts = FileTexts(
            rows.path, table, placed, range(start, len(self.texts)), int(counts["merged"])
        )
        if kind == "paper":
            self._papers.append(texts)
        return texts

    def _reject_repeated(self, path: Path, table: str, placed: str, space: str) -> None:
        """Reject lines that repeat the id of an earlier line of the file."""
        counts = self.one(
            f"SELECT (SELECT count(*) FROM {table}) AS lines, "
            f"(SELECT count(*) FROM {placed}) AS ids"
        )
        if counts["lines"] == counts["ids"]:
            return
        repeated = self.rows(
            f"SELECT again.line, id, {placed}.line FROM {table} AS again JOIN {placed} USING (id) "
            f"WHERE again.line <> {placed}.line ORDER BY again.line"
        )
        for line, identifier, first in repeated:
            fix = f"remove one of lines {first} and {line}, or give it another id"
            value = space + identifier
            self.rejects.refuse("id occurs twice in one file", path, line, value=value, fix=fix)

    def _write_texts(self, shard: Path, placed: str, space: str, kind: Kind) -> None:
        """Write the new texts of a file in line order."""
        new = self.arrays(f"SELECT line FROM {placed} WHERE new ORDER BY line")["line"]
        last = 0
        # DuckDB's joins keep no order once memory is short.
        with pq.ParquetFile(shard) as file:
            for batch in file.iter_batches(_WRITTEN, columns=["line", "id", "title", "body"]):
                lines = batch.column(0).to_numpy()
                assert np.all(np.diff(lines, prepend=last) > 0), "lines are not in order"
                last = int(lines[-1])
                new_lines = new[
                    np.searchsorted(new, lines[0]) : np.searchsorted(new, last, "right")
                ]
                if len(new_lines) < len(lines):
                    batch = batch.filter(pa.array(np.isin(lines, new_lines)))
                _, ids, titles, bodies = batch.columns
                ids = pc.binary_join_element_wise(space, ids, "")
                self.texts.write(kind, ids, titles, bodies)

    def add_labels(self, papers: FileTexts, namespace: str) -> Columns:
        """Return the ``(paper, label)`` rows of the papers of a file.

        Each undefined label is rejected on its own; the paper stays.
        """
        self._connection.execute(
            f"""
            CREATE OR REPLACE TABLE assigned AS
            SELECT placed.row AS paper, known.row AS label, named.line, named.place, named.id
            FROM (SELECT line, unnest(labels) AS id, generate_subscripts(labels, 1) AS place
                  FROM {papers.table}) AS named
            JOIN {papers.placed} AS placed USING (line)
            LEFT JOIN known ON known.space = {literal(f"{namespace}/label:")}
                AND known.id = named.id
            """
        )
        unknown = "FROM assigned WHERE label IS NULL"
        self.warn_of_forms(papers.path, f"SELECT id {unknown}", f"{namespace}/label:")
        for line, label in self.rows(f"SELECT line, id {unknown} ORDER BY line, place"):
            fix = f"add it to a labels file of {namespace!r}, remove it, or pass --skip-bad"
            problem = "undefined label"
            self.rejects.refuse(problem, papers.path, line, value=label, fix=fix)
        pairs = self.columns("SELECT paper, label FROM assigned WHERE label IS NOT NULL")
        self._labels.append(pairs)
        return pairs

    def warn_of_forms(self, path: Path, ids: str, *spaces: str) -> None:
        """Warn of ids of a file that equal known ones but for their Unicode form.

        ``ids`` is a SELECT of a column ``id``; ``spaces`` are those of the known ids.
        """
        among = ", ".join(map(literal, spaces))
        remark = other_forms(self._connection, ids, f"FROM known WHERE space IN ({among})")
        if remark:
            warn(f"{path}: {remark}")

    def read(self, name: str, select: str, rows: FileRows) -> Path:
        """Run a SELECT over ``{rows}`` of a file; return its Parquet shard, visible as a view."""
        self._shards += 1
        shard = self._folder / f"{self._shards:04}.parquet"
        file = literal(str(shard))
        braced = file.replace("{", "{{").replace("}", "}}")
        self._engine.read(f"COPY ({select}) TO {braced} {_FORMAT}", rows, self.rejects)
        table = table_of("read_parquet", [shard])
        self._connection.execute(f"CREATE OR REPLACE VIEW {name} AS FROM {table}")
        return shard

    def rows(self, select: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a SELECT; run no other statement meanwhile."""
        result = self._connection.execute(select)
        while rows := result.fetchmany(_FETCHED):
            yield from rows

    def one(self, select: str) -> dict[str, Any]:
        """Return the only row of a SELECT."""
        result = self._connection.execute(select)
        names = [str(name) for name, *_ in result.description or ()]
        (row,) = result.fetchall()
        return dict(zip(names, row, strict=True))

    def arrays(self, select: str) -> Mapping[str, Any]:
        """Return the columns of a SELECT as arrays, without nulls."""
        return self._connection.execute(select).fetchnumpy()

    def columns(self, select: str) -> Columns:
        """Return the two integer columns of a SELECT."""
        return selected(self._connection, select, self._folder)

    def unique_pairs(self, columns: Sequence[Columns]) -> Columns:
        """Concatenate column pairs, sort them and drop duplicates."""
        return unique_pairs(columns, self._folder)

    def write_metadata(self, folder: Path) -> None:
        """Write ``metadata.arrow``; see ``metadata.write_metadata``."""
        rows = range(self._papers[0].rows.start, self._papers[-1].rows.stop)
        selects, lines_before = [], 0
        for file in self._papers:
            selects.append(
                f"SELECT row - {rows.start}, line + {lines_before}, authors, venue, year, doi "
                f"FROM {file.table} JOIN {file.placed} USING (line)"
            )
            lines_before += int(self.one(f"SELECT max(line) AS line FROM {file.table}")["line"])
        names = "paper, ordinal, authors, venue, year, doi"
        self._connection.execute(
            f"CREATE VIEW described ({names}) AS {' UNION ALL '.join(selects)}"
        )
        labels = [np.concatenate(column) for column in zip(*self._labels, strict=True)] or _NONE
        write_metadata(folder, self._connection, rows, (labels[0], labels[1]))
