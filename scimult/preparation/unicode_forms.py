"""Ids that differ only in how Unicode writes them: é as one character (NFC) or as two (NFD)."""

from __future__ import annotations

import duckdb


def other_forms(connection: duckdb.DuckDBPyConnection, ids: str, known: str) -> str:
    """Return a remark on ids that equal another known id but for their form; empty if none does.

    ``ids`` and ``known`` are SELECTs of a column ``id``. Ids are compared and kept as they are
    written, as the files that the results are joined with have them so.
    """
    is_wide = "strlen(id) > length(id)"  # more bytes than characters: ASCII has one form
    result = connection.execute(
        f"""
        SELECT count(DISTINCT a.id), min(a.id)
        FROM (SELECT id, nfc_normalize(id) AS form FROM ({ids}) WHERE {is_wide}) AS a
        JOIN (SELECT id, nfc_normalize(id) AS form FROM ({known}) WHERE {is_wide}) AS b
        ON a.form = b.form AND a.id <> b.id
        """
    )
    ((count, example),) = result.fetchall()
    if not count:
        return ""
    return (
        f"ids that differ from another only in Unicode form, and so are not the same: {count:,}, "
        f"such as {example!a}; write all files in one form, as uconv -x any-nfc does"
    )
