"""Run the same plans on Spark, local or on a cluster (extra ``spark``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sqlglot import exp, parse_one
from sqlglot.dialects.spark import Spark

from scimult.preparation.mining.hashing import SQL_FUNCTIONS
from scimult.types import IntArray

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def to_spark(select: str) -> str:
    """Return a SELECT in Spark's dialect."""
    return str(parse_one(select, read="duckdb").transform(_of_spark).sql(dialect=Spark))


class SparkEngine:
    """Runs plans on a Spark session (4.0 or later).

    ``folder`` holds tables as Parquet; all of the session's machines must see it.
    """

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self._session, self._folder = session, folder
        for name, body in SQL_FUNCTIONS.items():
            session.sql(
                f"CREATE OR REPLACE TEMPORARY FUNCTION {name}(x BIGINT) RETURNS BIGINT "
                f"RETURN {to_spark(body)}"
            )

    def load(self, name: str, parts: Iterable[pa.Table]) -> None:
        """Create a table from parts."""
        table = Path(mkdtemp(prefix="table.", dir=self._folder))
        for number, part in enumerate(parts):
            pq.write_table(part, table / f"{number}.parquet")
        self._session.read.parquet(str(table)).createOrReplaceTempView(name)

    def create(self, name: str, select: str, *, lasting: bool = False) -> None:
        """Create or replace a table from a SELECT."""
        table = mkdtemp(prefix="table.", dir=self._folder)
        self._session.sql(to_spark(select)).write.mode("overwrite").parquet(table)
        self._session.read.parquet(table).createOrReplaceTempView(name)

    def fetch(self, select: str) -> Mapping[str, IntArray]:
        """Return the columns of a result."""
        table = self._session.sql(to_spark(select)).toArrow()
        return {name: table.column(name).to_numpy().astype(np.int64) for name in table.column_names}


def _of_spark(node: Any) -> Any:
    """Translate what sqlglot does not: bracketed ``xor`` and ``arg_min`` of ``n`` values."""
    if isinstance(node, exp.BitwiseXor) and not isinstance(node.parent, exp.Paren):
        return exp.Paren(this=node.copy())
    if not isinstance(node, exp.ArgMin) or node.args.get("count") is None:
        return node
    key, value, count = (node.args[name].sql(Spark) for name in ("expression", "this", "count"))
    pairs = f"struct({key} AS k, {value} AS v)"
    return parse_one(f"slice(array_sort(collect_list({pairs})), 1, {count}).v", read=Spark)
