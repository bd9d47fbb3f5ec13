"""``metadata.arrow``: what the records of papers say of them besides their texts, made by SQL."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from scimult.data.ragged import Ragged
from scimult.data.text_store import list_array, open_arrow, write_arrow
from scimult.preparation.pair_columns import Columns
from scimult.types import IntArray

FILE_NAME = "metadata.arrow"
VERSION = "1"
NONE = -1
# Orders the authors of all papers; no paper has more.
_MOST_AUTHORS = 1 << 20
_WRITTEN = f"""
    SELECT paper, ordinal * {_MOST_AUTHORS} + place AS ordinal, author
    FROM (SELECT paper, ordinal, unnest(authors) AS author,
          generate_subscripts(authors, 1) AS place FROM described)
    WHERE author <> ''
    """


def write_metadata(
    folder: Path, connection: duckdb.DuckDBPyConnection, rows: range, labels: Columns
) -> None:
    """Write ``metadata.arrow``: one row per paper, in the order of the text store.

    Parameters
    ----------
    folder : Path
        Where to.
    connection : DuckDBPyConnection
        Has ``described``: paper (counted from the first), ordinal (of its record among all),
        authors, venue, year, doi. Of a paper with several records the first that says something
        counts; authors are united.
    rows : range
        Rows of the papers.
    labels : pair of IntArray
        Rows of papers and of their labels.
    """
    count = len(rows)
    papers, codes, authors = _numbered(connection, "author", _WRITTEN)
    of_papers = Ragged.from_pairs(papers, codes, count)
    papers, codes, venues = _numbered(connection, "venue", _first("venue", "venue <> ''"))
    select = f"SELECT paper, year FROM ({_first('year', 'year IS NOT NULL')})"
    years = _spread(*_integer_columns(connection, select), count)
    labels_of = Ragged.from_pairs(labels[0] - rows.start, labels[1], count)
    columns = {
        "row": pa.array(np.asarray(rows, dtype=np.int64)),
        "authors": list_array(of_papers, _named(of_papers.values, authors)),
        "venue": _named(_spread(papers, codes, count), venues),
        "year": pa.array(years, pa.int64(), mask=years == NONE),
        "labels": list_array(labels_of),
    }
    dois = connection.sql(_first("doi", "doi <> ''")).to_arrow_table()
    if len(dois):
        places = np.arange(len(dois), dtype=np.int64)
        places = _spread(dois.column("paper").to_numpy(), places, count)
        names = dois.column("doi").combine_chunks().cast(pa.string())
        columns["doi"] = names.take(pa.array(places, mask=places == NONE))
    write_arrow(folder / FILE_NAME, "metadata", VERSION, columns)


def read_years(folder: Path | str, count: int) -> IntArray:
    """Return the year of each of ``count`` text rows; -1 where there is none."""
    table = open_arrow(Path(folder) / FILE_NAME, "metadata", VERSION)
    years = np.full(count, NONE, dtype=np.int64)
    years[table.column("row").to_numpy()] = table.column("year").fill_null(NONE).to_numpy()
    return years


def _integer_columns(connection: duckdb.DuckDBPyConnection, select: str) -> Columns:
    """Return the two integer columns of a SELECT."""
    first, second = connection.execute(select).fetchnumpy().values()
    return np.asarray(first, np.int64), np.asarray(second, np.int64)


def _first(column: str, is_given: str) -> str:
    """Return a SELECT of the first value that each paper is given, and where it stands."""
    return (
        f"SELECT paper, arg_min({column}, ordinal) AS {column}, min(ordinal) AS ordinal "
        f"FROM described WHERE {is_given} GROUP BY paper"
    )


def _numbered(
    connection: duckdb.DuckDBPyConnection, name: str, select: str
) -> tuple[IntArray, IntArray, pa.Array]:
    """Give the names in a SELECT of paper, name and ordinal numbers as they first appear.

    Returns
    -------
    papers, codes : IntArray
        For each row the number of its name.
    names : pyarrow.Array
        The names by their numbers.
    """
    connection.execute(f"CREATE TABLE {name}_written AS {select}")
    connection.execute(
        f"""
        CREATE TABLE {name}_names AS
        SELECT {name}, row_number() OVER (ORDER BY min(ordinal)) - 1 AS code
        FROM {name}_written GROUP BY {name}
        """
    )
    pairs = f"SELECT paper, code FROM {name}_written JOIN {name}_names USING ({name})"
    names = connection.sql(f"SELECT {name} FROM {name}_names ORDER BY code").to_arrow_table()
    columns = _integer_columns(connection, pairs)
    return *columns, names.column(0).combine_chunks().cast(pa.string())


def _spread(places: IntArray, values: IntArray, count: int) -> IntArray:
    """Return the values at their places among ``count``."""
    spread = np.full(count, NONE, dtype=np.int64)
    spread[places] = values
    return spread


def _named(codes: IntArray, names: pa.Array) -> pa.DictionaryArray:
    indices = pa.array(codes, pa.int32(), mask=codes == NONE)
    return pa.DictionaryArray.from_arrays(indices, names)
