"""Suggested tags as CSV, JSON lines or a TREC run, in parts that survive a kill."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from scimult.errors import ConfigError
from scimult.files import atomic_file, write_text
from scimult.tagging.tagger import SuggestedTag
from scimult.types import Text
from scimult.unfinished import unfinished

FORMATS = (".jsonl", ".csv", ".trec")
PART = 2048
"""Papers per part."""
Paper = tuple[str, Text]
_CSV_HEADER = "paper,rank,tag,label,score,evidence\n"


def format_of(path: Path) -> str:
    """Return the format of a file by its extension.

    Raises
    ------
    ConfigError
        If the extension is unknown.
    """
    if path.suffix not in FORMATS:
        fix = f"use a name that ends in {', '.join(FORMATS)}"
        raise ConfigError("not a format of tags", value=path.name, fix=fix)
    return path.suffix


def write_tags(
    path: Path,
    papers: Iterable[Paper],
    tag: Callable[[list[Text]], Sequence[Sequence[SuggestedTag]]],
    settings: Mapping[str, Any],
) -> tuple[int, int]:
    """Tag papers part by part, write one file, and return the numbers of papers and tags.

    Finished parts stay in a folder next to the file until all are done, so that the same call
    resumes after a kill. A part is tagged again if its texts change, or ``settings``: everything
    else that the tags depend on.

    Raises
    ------
    ConfigError
        If the file's extension is unknown.
    StorageError
        If another process writes the file, or it cannot be written.
    """
    kind = format_of(path)
    with unfinished(path) as parts:
        files = _tag_parts(parts, papers, tag, settings)
        paper_count = tag_count = 0
        with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as o:
            o.write(_CSV_HEADER if kind == ".csv" else "")
            for row in _rows(files):
                paper_count += 1
                tag_count += len(row["tags"])
                o.write(_LINES[kind](row))
    return paper_count, tag_count


def _tag_parts(
    parts: Path,
    papers: Iterable[Paper],
    tag: Callable[[list[Text]], Sequence[Sequence[SuggestedTag]]],
    settings: Mapping[str, Any],
) -> list[Path]:
    """Write the parts that are missing; return the files of all, in order."""
    files: list[Path] = []
    remaining = iter(papers)
    while part := list(islice(remaining, PART)):
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        digest.update(json.dumps([(name, one.title, one.body) for name, one in part]).encode())
        file = parts / f"{len(files):06d}.{digest.hexdigest()[:16]}.jsonl"
        if not file.is_file():
            tags = tag([text for _, text in part])
            rows = [as_row(n, text.title, own) for (n, text), own in zip(part, tags, strict=True)]
            write_text(file, "".join(map(_jsonl, rows)))
        files.append(file)
    return files


def as_row(name: str, title: str, tags: Sequence[SuggestedTag]) -> dict[str, Any]:
    """Return a paper and its tags as JSON data."""
    return {
        "id": name,
        "title": title,
        "tags": [
            {"id": one.id, "label": one.label, "score": round(one.score, 6)}
            | ({"evidence": one.evidence} if one.evidence else {})
            for one in tags
        ],
    }


def _rows(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _jsonl(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _csv(row: dict[str, Any]) -> str:
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        (row["id"], rank, tag["id"], tag["label"], tag["score"], tag.get("evidence", ""))
        for rank, tag in enumerate(row["tags"], start=1)
    )
    return out.getvalue()


def _trec(row: dict[str, Any]) -> str:
    """Return the lines of a run; equal scores are lowered a little, as trec_eval reorders them."""
    paper = quote(row["id"], safe=_SAFE)
    lines, score = [], np.float32(np.inf)
    for rank, tag in enumerate(row["tags"], start=1):
        score = min(np.float32(tag["score"]), np.nextafter(score, np.float32(-np.inf)))
        lines.append(f"{paper} Q0 {quote(tag['id'], safe=_SAFE)} {rank} {score:.9g} scimult\n")
    return "".join(lines)


_SAFE = "".join(map(chr, range(33, 127))).replace("%", "")
_LINES = {".jsonl": _jsonl, ".csv": _csv, ".trec": _trec}
