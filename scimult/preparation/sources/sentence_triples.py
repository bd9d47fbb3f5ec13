"""Pairs and triples in sentence-transformers' layouts: anchor, positives, negatives."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from scimult.data.importers.paper import text_id
from scimult.data.lines import read_jsonl
from scimult.data.packed import unpacked_name
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_rows
from scimult.downloads import Remote, address
from scimult.errors import ConfigError
from scimult.preparation.config import Name
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import Makes, RawSource, distinct, split_text
from scimult.progress import progress

URL = "https://huggingface.co/datasets/sentence-transformers/embedding-training-data"
# Names of columns, or positions in arrays.
ANCHOR = re.compile(r"anchor|query|question|sentence1|0")
POSITIVE = re.compile(r"(positive|pos|answer|sentence2)(_\d+)?|1")
NEGATIVE = re.compile(r"(negative|neg|hard_negative)s?(_\d+)?|[2-9]|[1-9]\d+")
SET = "set"


class Example(NamedTuple):
    """The texts of one row."""

    anchor: str
    positives: list[str]
    negatives: list[str]


def _as_written(separator: object) -> object:
    """Return ``[SEP]`` for the list that YAML makes of it on the command line."""
    match separator:
        case [str(name)]:
            return f"[{name}]"
    return separator


class SentenceTripleOptions(SourceOptions):
    """Options of ``scimult prepare sentence-triples``.

    Parameters
    ----------
    name : str
        Name of the source.
    files : list of str
        Files below ``--input``.
    anchor : str
        ``query`` (trains search) or ``paper`` (trains link prediction).
    separator : str, optional
        Splits a paper's string into title and abstract, for example ``[SEP]``; by default the
        whole string is the abstract.
    ignore : list of str
        Columns to ignore.
    """

    name: Name = "sentence-triples"
    files: Annotated[list[str], Field(min_length=1)] = ["train.jsonl"]
    anchor: Literal["query", "paper"] = "query"
    separator: Annotated[str, Field(min_length=1), BeforeValidator(_as_written)] | None = None
    ignore: list[str] = []


def _convert(conversion: Conversion, options: SentenceTripleOptions) -> None:
    paths = [conversion.file(name) for name in options.files]

    def fill(raw: RawSource) -> None:
        for path in progress(paths, "triples", unit="file"):
            rows = _rows(path, raw.rejects)
            raw.each(rows, lambda row: _write(row, options, raw))

    makes: Makes = "judgments" if options.anchor == "query" else "links"
    conversion.write(options.name, paths, fill, [makes])


def _rows(path: Path, rejects: Rejects) -> Iterator[Record]:
    if unpacked_name(path).endswith(".jsonl"):
        return read_jsonl(path, rejects, arrays=True)
    return read_rows(path, rejects)


def _write(record: Record, options: SentenceTripleOptions, raw: RawSource) -> None:
    example = _parse(record, options.ignore)
    raw.counts["rows"] += 1
    papers = {
        text: _paper(record, text, options, raw) for text in example.positives + example.negatives
    }
    if options.anchor == "query":
        anchor, write = raw.question(record, example.anchor), raw.judgment
    else:
        anchor, write = _paper(record, example.anchor, options, raw), raw.link
    if len(example.positives) == 1 and example.negatives:
        # Negatives of a triple belong to its only positive.
        for text in example.negatives:
            write(record, anchor, papers[example.positives[0]], 1, papers[text])
        return
    for text in example.positives:
        write(record, anchor, papers[text], 1, "")
    for text in example.negatives:
        write(record, anchor, papers[text], 0, "")


def _parse(record: Record, ignore: Collection[str]) -> Example:
    """Return the texts of a row."""
    if list(record.fields) == [SET]:
        anchor, *others = record.strings(SET) or [""]
        return _checked(record, [anchor], others, [])
    anchors: list[str] = []
    positives: list[str] = []
    negatives: list[str] = []
    for name in (name for name in record.fields if name not in ignore):
        for pattern, texts in ((ANCHOR, anchors), (POSITIVE, positives), (NEGATIVE, negatives)):
            if pattern.fullmatch(name):
                texts.extend(_texts(record, name))
                break
        else:  # it might reverse the meaning, such as a score
            fix = f"pass 'ignore=[{name}]', or rename it to anchor, positive or negative"
            raise record.error("unknown column", value=name, fix=fix)
    return _checked(record, anchors, positives, negatives)


def _checked(
    record: Record, anchors: list[str], positives: list[str], negatives: list[str]
) -> Example:
    if len(anchors) != 1 or not positives:
        raise record.error(
            "row needs one anchor and at least one positive",
            value=sorted(record.fields),
            fix='write ["anchor", "positive"] or {"query": "...", "pos": ["..."]}',
        )
    return Example(anchors[0], distinct(positives), distinct(negatives))


def _texts(record: Record, name: str) -> list[str]:
    value = record.fields[name]
    return record.strings(name) if isinstance(value, list) else [record.text(name)]


def _paper(record: Record, text: str, options: SentenceTripleOptions, raw: RawSource) -> str:
    paper = split_text(text, options.separator)
    identifier = text_id(paper.title, paper.body)
    if not raw.has_paper(identifier):
        raw.paper(record, identifier, paper.title, paper.body)
    return identifier


def _files(options: SentenceTripleOptions) -> list[Remote]:
    """Return files of sentence-transformers' collection on the hub, gzipped as they are there."""
    if options.files == ["train.jsonl"]:
        fix = "name some, such as files=[specter_train_triples.jsonl]"
        raise ConfigError("a download needs names of files on the hub", value="files", fix=fix)
    names = [f"{name.removesuffix('.gz')}.gz" for name in options.files]
    return [Remote(name, address(f"{URL}/resolve/main", name)) for name in names]


SENTENCE_TRIPLES = PublicSource(
    name="sentence-triples",
    title="sentence-transformers pairs and triples: anchor, positive, negative",
    url=URL,
    licence="of each file",
    files=("train.jsonl (files=[...]; .csv, .tsv, .parquet, .gz too)",),
    options=SentenceTripleOptions,
    convert=_convert,
    download=_files,
)
