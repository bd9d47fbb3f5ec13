"""InPars: queries generated for documents by a language model."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from scimult.data.importers.paper import text_id
from scimult.data.lines import read_jsonl
from scimult.data.records import Record
from scimult.data.rows import read_rows
from scimult.downloads import Remote, address
from scimult.errors import ConfigError
from scimult.preparation.config import Name
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import RawSource
from scimult.progress import progress

QUERY_FIELDS = ("query", "question")
ADDRESS = "https://huggingface.co/datasets/inpars/generated-data/resolve/main"


class InParsOptions(SourceOptions):
    """Options of ``scimult prepare inpars``.

    Parameters
    ----------
    name : str
        Name of the source.
    files : list of str
        Files below ``--input`` with query (or question), doc_id and doc_text (or text).
    corpus : str, optional
        A BEIR ``corpus.jsonl`` below ``--input`` with the documents and their titles, which
        ``doc_id`` refers to.
    keep_top : int, optional
        Keep the queries with the highest mean ``log_probs`` (InPars: 10,000); default: all.
    """

    name: Name = "inpars"
    files: Annotated[list[str], Field(min_length=1)] = ["queries.jsonl"]
    corpus: str | None = None
    keep_top: Annotated[int, Field(ge=1)] | None = None


def _convert(conversion: Conversion, options: InParsOptions) -> None:
    corpus = [] if options.corpus is None else [conversion.file(options.corpus)]
    paths = [conversion.file(name) for name in options.files]

    def fill(raw: RawSource) -> None:
        for path in corpus:
            raw.write("papers", read_jsonl(path, raw.rejects), "_id", "text")
        rows = _rows(paths, raw)
        if options.keep_top is not None:
            rows = _best(rows, options.keep_top, raw)
        texts: dict[str, str] = {}
        raw.each(rows, lambda row: _write(row, options, texts, raw))

    conversion.write(options.name, [*corpus, *paths], fill, ["judgments"])


def _rows(paths: Sequence[Path], raw: RawSource) -> Iterator[Record]:
    for path in progress(paths, "InPars", unit="file"):
        for record in read_rows(path, raw.rejects):
            raw.counts["rows"] += 1
            yield record


def _best(rows: Iterator[Record], count: int, raw: RawSource) -> Iterator[Record]:
    """Yield the rows whose queries are most likely under the language model, in file order."""

    def scored(row: Record) -> tuple[float, Record]:
        mean = _mean_log_probability(row)
        raw.counts["rows below keep_top"] += 1
        return mean, row

    best = heapq.nlargest(count, raw.rejects.keep(rows, scored), key=lambda pair: pair[0])
    raw.counts["rows below keep_top"] -= len(best)
    yield from sorted((row for _, row in best), key=lambda row: (str(row.path), row.line))


def _mean_log_probability(record: Record) -> float:
    values = record.fields.get("log_probs")
    if not isinstance(values, list) or not values:
        fix = "generate the queries with log_probs, or leave out keep_top"
        raise record.error("row has no list of log_probs", value=values, fix=fix)
    numbers = [Record(record.path, record.line, {"log_probs": v}) for v in values]
    return sum(number.number("log_probs") for number in numbers) / len(values)


def _write(record: Record, options: InParsOptions, texts: dict[str, str], raw: RawSource) -> None:
    """Write a query and its document; ``texts`` has a hash of each document's text, by its id."""
    name = next((name for name in QUERY_FIELDS if name in record.fields), QUERY_FIELDS[0])
    question = record.text(name)
    if options.corpus is None:
        text = record.text("doc_text" if "doc_text" in record.fields else "text")
        has_id = record.fields.get("doc_id") not in (None, "")
        document = record.identifier("doc_id") if has_id else text_id(text)
        if not raw.has_paper(document):
            raw.paper(record, document, "", text)
            texts[document] = text_id(text)
        elif texts[document] != text_id(text):
            # BEIR's sets number their documents alike.
            fix = "convert the files of each document collection by themselves, with a name=NAME"
            raise record.error("doc_id has two texts", value=document, fix=fix)
    else:
        document = record.identifier("doc_id")
        if not raw.has_paper(document):
            fix = f"add the document to {options.corpus}"
            raise record.error("document is not in the corpus", value=document, fix=fix)
    raw.judgment(record, raw.question(record, question), document, 1)


def _files(options: InParsOptions) -> list[Remote]:
    """Return files on the hub, which has a folder per BEIR set."""
    for name in options.files:
        if "/" not in name:
            fix = "name files with their set, such as files=[scifact/queries.jsonl]"
            raise ConfigError("the hub has no such file", value=name, fix=fix)
    return [Remote(name, address(ADDRESS, name)) for name in options.files]


INPARS = PublicSource(
    name="inpars",
    title="InPars synthetic queries",
    url="https://github.com/zetaalphavector/InPars",
    licence="Apache-2.0 (code); documents have their own terms",
    files=("queries.jsonl (files=[...])", "corpus.jsonl (with corpus=corpus.jsonl)"),
    options=InParsOptions,
    convert=_convert,
    download=_files,
)
