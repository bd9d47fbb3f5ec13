"""Paper files of any known format as papers of a library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scimult.data.importers import ImportedPaper, read_papers
from scimult.data.lines import Rejects
from scimult.errors import DataError
from scimult.library.records import Paper
from scimult.types import Text

_LISTS = ("authors", "references", "labels")


def read_files(
    files: Sequence[Path | str],
    rejects: Rejects,
    *,
    format: str | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> Iterator[Paper]:
    """Yield the papers of files, each id once.

    Parameters
    ----------
    files, format, columns
        As of :func:`scimult.data.importers.read_papers`.
    rejects : Rejects
        Takes bad records and ids that come again.

    Raises
    ------
    DataError
        If a file is missing or of no known format; and, through ``rejects``, at a bad record.
    """
    seen: set[str] = set()
    for paper in read_papers(files, format=format, columns=columns, rejects=rejects):
        if paper.id in seen:
            fix = "keep one of them, or leave the others out with --skip-bad"
            path, line = paper.place
            rejects.reject(
                DataError("id is given twice", path=path, line=line, value=paper.id, fix=fix)
            )
            continue
        seen.add(paper.id)
        yield _paper(paper)


def _paper(paper: ImportedPaper) -> Paper:
    columns = {name: getattr(paper, name) or None for name in (*_LISTS, "venue", "year", "doi")}
    text = Text("paper", paper.title, paper.abstract)
    return Paper(paper.id, text, {**columns, **paper.extra})
