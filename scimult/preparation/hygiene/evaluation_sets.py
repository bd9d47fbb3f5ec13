"""Read the texts of evaluation sets: BEIR folders, and papers with labels.

A folder is a set if it has ``corpus.jsonl`` and ``queries.jsonl``, or ``papers.jsonl`` (each
possibly gzipped). Folders are searched recursively; a set is named by its path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scimult.data.judgments import PAPER, SCORE, read_judgments
from scimult.data.lines import read_jsonl
from scimult.data.packed import packed_or_plain
from scimult.data.records import Record, Rejects
from scimult.data.tables import read_table
from scimult.errors import DataError
from scimult.preparation.hygiene.config import EvaluationRole
from scimult.types import Text

NAMES = ("corpus.jsonl", "queries.jsonl", "papers.jsonl", "split.csv")


@dataclass(frozen=True, slots=True)
class EvaluationText:
    """One text of an evaluation set.

    ``query`` texts are classified or searched for, ``answer`` texts are judged relevant, and
    ``candidate`` is everything else, including papers outside the test split.
    """

    role: EvaluationRole
    text: Text
    doi: str


def find_sets(folder: Path) -> dict[str, Path]:
    """Return the evaluation sets at or below ``folder``, by name.

    Raises
    ------
    DataError
        If the folder does not exist or contains no set.
    """
    if not folder.is_dir():
        fix = "correct the path"
        raise DataError("folder of evaluation sets does not exist", path=folder, fix=fix)
    sets = {}
    for path in sorted([folder, *(p for p in folder.rglob("*") if p.is_dir())]):
        has = {name for name in NAMES if packed_or_plain(path / name).is_file()}
        if {"corpus.jsonl", "queries.jsonl"} <= has or "papers.jsonl" in has:
            name = path.relative_to(folder).as_posix() if path != folder else path.name
            # A set may hold another one of its name.
            sets[f"{folder.name}/{name}" if name in sets else name] = path
    if not sets:
        fix = "name a folder of folders with corpus.jsonl and queries.jsonl, or papers.jsonl"
        raise DataError("no evaluation set below this folder", path=folder, fix=fix)
    return sets


def set_files(folder: Path) -> list[Path]:
    """Return the files of a set that ``read_set`` reads."""
    files = [path for name in NAMES if (path := packed_or_plain(folder / name)).is_file()]
    return files + sorted((folder / "qrels").glob("*.tsv*"))


def read_set(folder: Path) -> Iterator[EvaluationText]:
    """Yield the texts of a set."""
    strict = Rejects()
    corpus, queries, papers, split = (packed_or_plain(folder / name) for name in NAMES)
    if corpus.is_file() and queries.is_file():
        answers = _answers(folder, strict)
        for record in read_jsonl(corpus, strict):
            known = record.identifier("_id") in answers
            yield _evaluation_text(record, "answer" if known else "candidate", "text")
        for record in read_jsonl(queries, strict):
            yield _query(record)
    if papers.is_file():
        test = _test_papers(split, strict) if split.is_file() else None
        for record in read_jsonl(papers, strict):
            scored = test is None or record.identifier("id") in test
            yield _evaluation_text(record, "query" if scored else "candidate", "abstract")


def _answers(folder: Path, rejects: Rejects) -> set[str]:
    return {
        record.identifier(PAPER)
        for path in sorted((folder / "qrels").glob("*.tsv*"))
        for record in read_judgments(path, rejects)
        if record.number(SCORE) > 0
    }


def _test_papers(split: Path, rejects: Rejects) -> set[str]:
    rows = read_table(split, ("id", "split"), rejects)
    return {row.identifier("id") for row in rows if row.text("split") == "test"}


def _query(record: Record) -> EvaluationText:
    if record.fields.get("title"):
        return _evaluation_text(record, "query", "abstract")
    return EvaluationText("query", Text("query", record.text("text")), "")


def _evaluation_text(record: Record, role: EvaluationRole, body: str) -> EvaluationText:
    text = Text("paper", record.text("title", ""), record.text(body, ""))
    doi = record.fields.get("doi")
    return EvaluationText(role, text, doi if isinstance(doi, str) else "")
