"""``metadata.arrow``: authors, venue, year, labels and DOI of each paper."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from scimult.data.ragged import Ragged
from scimult.data.text_store import METADATA_FILE, list_array, open_metadata, write_arrow
from scimult.preparation.pair_columns import Columns, selected
from scimult.types import IntArray

NONE = -1
# Upper bound on the authors of a paper, to order the authors of all papers by one number.
_MOST_AUTHORS = 1 << 20
_AUTHORS = f"""
    SELECT paper, ordinal * {_MOST_AUTHORS} + place AS ordinal, author
    FROM (SELECT paper, ordinal, unnest(authors) AS author,
          generate_subscripts(authors, 1) AS place FROM described)
    WHERE author <> ''
    """


def write_metadata(
    folder: Path, connection: duckdb.DuckDBPyConnection, rows: range, labels: Columns
) -> None:
    """Write ``metadata.arrow``: one row per paper, in the order of the text store.

    The connection has ``described``: paper (counted from the first), ordinal (of its record among
    all), authors, venue, year, doi. If a paper has several records, their authors are merged and
    every other field comes from the first record that has it. ``labels`` are rows of papers and of
    their labels.
    """
    count = len(rows)
    papers, codes, authors = _numbered(connection, "author", _AUTHORS, folder)
    authors_of = Ragged.from_pairs(papers, codes, count)
    papers, codes, venues = _numbered(connection, "venue", _first("venue", "venue <> ''"), folder)
    select = f"SELECT paper, year FROM ({_first('year', 'year IS NOT NULL')})"
    years = _spread(*selected(connection, select, folder), count)
    labels_of = Ragged.from_pairs(labels[0] - rows.start, labels[1], count)
    columns = {
        "row": pa.array(np.asarray(rows, dtype=np.int64)),
        "authors": list_array(authors_of, _named(authors_of.values, authors)),
        "venue": _named(_spread(papers, codes, count), venues),
        "year": pa.array(years, pa.int64(), mask=years == NONE),
        "labels": list_array(labels_of),
    }
    dois = connection.sql(_first("doi", "doi <> ''")).to_arrow_table()
    if len(dois):
        indices = np.arange(len(dois), dtype=np.int64)
        indices = _spread(dois.column("paper").to_numpy(), indices, count)
        names = dois.column("doi").combine_chunks().cast(pa.string())
        columns["doi"] = names.take(pa.array(indices, mask=indices == NONE))
    write_arrow(folder / METADATA_FILE, "metadata", columns)


def read_years(folder: Path | str, count: int) -> IntArray:
    """Return the year of each of ``count`` text rows; -1 if unknown."""
    table = open_metadata(Path(folder))
    years = np.full(count, NONE, dtype=np.int64)
    years[table.column("row").to_numpy()] = table.column("year").fill_null(NONE).to_numpy()
    return years


def _first(column: str, is_given: str) -> str:
    """Return a SELECT of each paper's first given value and the ordinal of its record."""
    return (
        f"SELECT paper, arg_min({column}, ordinal) AS {column}, min(ordinal) AS ordinal "
        f"FROM described WHERE {is_given} GROUP BY paper"
    )


def _numbered(
    connection: duckdb.DuckDBPyConnection, name: str, select: str, folder: Path
) -> tuple[IntArray, IntArray, pa.Array]:
    """Give the names in a SELECT of paper, name and ordinal numbers in order of appearance.

    Return paper and number of the name of each row, and the names by number.
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
    columns = selected(connection, pairs, folder)
    return *columns, names.column(0).combine_chunks().cast(pa.string())


def _spread(indices: IntArray, values: IntArray, count: int) -> IntArray:
    """Return an array of length ``count`` with ``values`` at ``indices``, else ``NONE``."""
    spread = np.full(count, NONE, dtype=np.int64)
    spread[indices] = values
    return spread


def _named(codes: IntArray, names: pa.Array) -> pa.DictionaryArray:
    indices = pa.array(codes, pa.int32(), mask=codes == NONE)
    return pa.DictionaryArray.from_arrays(indices, names)
