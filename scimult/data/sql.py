"""Parts of DuckDB's SQL, written without importing it."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

# For all of a connection's cursors: by default the year of a moment is that of this machine's zone.
USE_UTC = "SET GLOBAL TimeZone = 'UTC'"


def table_of(reader: str, files: Sequence[Path], *options: str) -> str:
    """Return the SQL of a table that ``reader`` reads from these files, and from no others.

    By default DuckDB expands patterns in a path (``lib[1]``, ``50*``), and a folder above the file
    that is called ``year=1980`` replaces its column ``year``.
    """
    paths = ", ".join(literal(glob.escape(str(file))) for file in files)
    settings = ", ".join(["hive_partitioning=false", *options])
    return f"{reader}([{paths}], {settings})"


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
