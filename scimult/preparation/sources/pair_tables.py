"""The pair tables of a raw source: citations, references, links and judgments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa

from scimult.data.importers.engine import connected
from scimult.data.records import Record, Rejects
from scimult.data.shards import Shard
from scimult.data.sql import literal, table_of
from scimult.data.text_files import RAW_FORMAT
from scimult.preparation.config import Dangling, PairTable
from scimult.preparation.sources.raw import check_id
from scimult.preparation.unicode_forms import other_forms

# Most references of a dump lead out of it, and they train nothing.
DANGLING: Mapping[PairTable, Dangling] = {"references": "drop"}
_PAIRS = pa.schema(
    [
        ("origin", pa.int32()),
        ("line", pa.int64()),
        ("query", pa.string()),
        ("paper", pa.string()),
        ("score", pa.float64()),
        ("negative", pa.string()),
    ]
)
_COLUMNS = _PAIRS.names  # the property builds a new list
_EDGES = "query AS citing, paper AS cited"
_JUDGED = 'query AS "query-id", paper AS "paper-id", score'
_NO_IDS = "SELECT '' AS id WHERE false"
_NEGATIVE = 'negative AS "negative-id"'


class PairTables:
    """Writer of pair tables; ``finish`` keeps pairs whose papers and queries are known.

    ``folder`` also has ``papers.parquet`` and ``all.queries.parquet``. ``dangling`` says, for each
    table, whether other pairs are errors or dropped and counted. ``best`` is the highest score of
    each written table; 1 if pairs have no score.
    """

    def __init__(
        self,
        folder: Path,
        counts: Counter[str],
        rejects: Rejects,
        dangling: Mapping[PairTable, Dangling],
    ) -> None:
        self.best: dict[PairTable, float] = {}
        self._folder, self._counts, self._rejects = folder, counts, rejects
        self._dangling = {**DANGLING, **dangling}
        self._shards: dict[PairTable, Shard] = {}
        self._with_negatives: set[PairTable] = set()
        self._origins: dict[Path, int] = {}

    def add(
        self,
        table: PairTable,
        record: Record,
        query: str,
        paper: str,
        score: float | None = None,
        negative: str | None = None,
    ) -> None:
        """Write a pair; its papers need not be known yet."""
        if query == paper and table != "judgments":
            self._counts["pairs of a paper with itself"] += 1
            return
        for value in (query, paper, negative):
            if value:
                check_id(record, value)
        if table not in self._shards:
            self._shards[table] = Shard(self._folder / f"all.{table}.parquet", _PAIRS)
        if negative is not None:
            self._with_negatives.add(table)
        origin = self._origins.setdefault(record.path, len(self._origins))
        values = (origin, record.line, query, paper, score, negative)
        self._shards[table].add(dict(zip(_COLUMNS, values, strict=True)))

    def finish(self, threshold: float) -> list[str]:
        """Keep the pairs whose texts are known, and the queries with a positive; return notes.

        A positive has a score of at least ``threshold``.
        """
        self.close()
        notes = []
        with connected(self._folder) as engine:
            for kind, name in (("papers", "papers"), ("queries", "all.queries")):
                path = self._folder / f"{name}.parquet"
                ids = f"SELECT id FROM {table_of('read_parquet', [path])}"
                engine.execute(f"CREATE TABLE {kind} AS {ids if path.exists() else _NO_IDS}")
            notes.append(other_forms(engine, "FROM papers", "FROM papers"))
            for table in self._shards:
                notes.append(self._finish(engine, table, threshold))
            self._keep_answered(engine)
        return list(filter(None, notes))

    def close(self) -> None:
        """Close the files."""
        for shard in self._shards.values():
            shard.close()

    def _finish(self, engine: duckdb.DuckDBPyConnection, table: PairTable, threshold: float) -> str:
        """Write the pairs whose texts are known; drop or reject the others and return a remark."""
        path = self._folder / f"all.{table}.parquet"
        every = table_of("read_parquet", [path], "file_row_number=true")
        queries, rows, good = "papers", every, "pairs WHERE unknown IS NULL"
        if table == "judgments":
            # Judgments of queries without a positive are only counted, whatever papers they name.
            queries, positive = "queries", f"score >= {threshold!r}"
            rows = f"(FROM {every} SEMI JOIN (FROM {every} WHERE {positive}) USING (query))"
            good = f"pairs SEMI JOIN (FROM {good} AND {positive}) AS a USING (query) "
            good += "WHERE unknown IS NULL"
        engine.execute(
            f"""
            CREATE OR REPLACE VIEW pairs AS
            SELECT s.*, CASE WHEN q.id IS NULL THEN s.query WHEN p.id IS NULL THEN s.paper
                WHEN s.negative <> '' AND n.id IS NULL THEN s.negative END AS unknown,
                CASE WHEN q.id IS NULL THEN '{queries}' ELSE 'papers' END AS kind
            FROM {rows} AS s
            LEFT JOIN {queries} AS q ON q.id = s.query LEFT JOIN papers AS p ON p.id = s.paper
            LEFT JOIN papers AS n ON n.id = s.negative
            """
        )
        cursor = engine.execute("SELECT count(*), count(unknown) FROM pairs")
        ((total, lost),) = cursor.fetchall()
        remark = ""
        if lost:
            unknown = "SELECT unknown AS id FROM pairs WHERE unknown IS NOT NULL"
            remark = other_forms(engine, unknown, f"FROM papers UNION ALL FROM {queries}")
            self._refuse(engine, table, lost, total, remark)
        cursor = engine.execute(f"SELECT count(*), max(coalesce(score, 1)) FROM {good}")
        ((count, best),) = cursor.fetchall()
        if count:
            self.best[table] = best
            self._counts[table] += count
            columns = _JUDGED if table in ("links", "judgments") else _EDGES
            columns += f", {_NEGATIVE}" if table in self._with_negatives else ""
            self._copy(engine, f"{columns} FROM {good}", table)
        if table == "judgments":
            left_out = self._shards[table].count - lost - count
            self._counts["judgments of queries without a positive"] += left_out
        path.unlink()
        return remark and f"{table}: {remark}"

    def _keep_answered(self, engine: duckdb.DuckDBPyConnection) -> None:
        """Keep the queries that have judgments; count the others."""
        path, judgments = (self._folder / f"{n}.parquet" for n in ("all.queries", "judgments"))
        if not path.exists():
            return
        answered = _NO_IDS
        if "judgments" in self.best:
            answered = f'SELECT "query-id" AS id FROM {table_of("read_parquet", [judgments])}'
        rows = table_of("read_parquet", [path], "file_row_number=true")
        self._copy(engine, f"id, text FROM {rows} SEMI JOIN ({answered}) USING (id)", "queries")
        cursor = engine.execute(f"SELECT count(*) FROM queries ANTI JOIN ({answered}) USING (id)")
        ((count,),) = cursor.fetchall()
        self._counts["queries"] -= count
        self._counts["queries without a positive"] += count
        path.unlink()

    def _copy(self, engine: duckdb.DuckDBPyConnection, select: str, name: str) -> None:
        """Write the result of a SELECT, in row order."""
        target = literal(str(self._folder / f"{name}.parquet"))
        engine.execute(
            f"COPY (SELECT {select} ORDER BY file_row_number) TO {target} "
            f"(FORMAT parquet, COMPRESSION zstd, KV_METADATA {{'{RAW_FORMAT}': '1'}})"
        )

    def _refuse(
        self,
        engine: duckdb.DuckDBPyConnection,
        table: PairTable,
        lost: int,
        total: int,
        remark: str,
    ) -> None:
        """Drop and count pairs without a text, or reject them, or raise for the first."""
        self._counts[f"{table} without a text"] += lost
        if self._dangling.get(table) == "drop":
            return
        origins = list(self._origins)
        bad = engine.execute(
            "SELECT origin, line, kind, unknown FROM pairs WHERE unknown IS NOT NULL "
            f"ORDER BY file_row_number {'' if self._rejects.skip_bad else 'LIMIT 1'}"
        )
        while row := bad.fetchone():
            origin, line, kind, value = row
            record = Record(origins[origin], line, {})
            if not self._rejects.skip_bad:
                raise record.error(
                    f"{table} that name a paper or query without a text: {lost:,} of {total:,}; "
                    "this is the first",
                    value=value,
                    fix=f"add the texts, or drop and count such pairs with dangling.{table}=drop"
                    + (remark and f" ({remark})"),
                )
            what = {"papers": "paper", "queries": "query"}[kind]
            problem = f"pair names a {what} without a text"
            fix = f"add its text, or drop and count such pairs with dangling.{table}=drop"
            self._rejects.reject(record.error(problem, value=value, fix=fix))
