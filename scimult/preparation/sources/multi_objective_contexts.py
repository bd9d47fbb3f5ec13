"""The multi-objective paper's citing sentences from unarXive, in two files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from scimult.data.records import Record
from scimult.data.tables import read_delimited
from scimult.downloads import Remote, address
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import Makes, RawSource, distinct

COLLECTION = "collection.tsv"
CONTEXTS = "contexts.jsonl"
# s3://zav-public/multi-obj-repr-learning/training-data in its download_data.sh, by HTTP.
ADDRESS = "https://zav-public.s3.amazonaws.com/multi-obj-repr-learning/training-data/unarxiv-q2d"
NOT_HERE = (
    "download the multi-objective paper's files (scimult prepare --list has the address); for "
    "unarXive itself, arXiv_src_*.jsonl, use scimult prepare unarxive"
)
Writer = Callable[[Record, str, Sequence[str], RawSource], None]
COLUMNS = ("id", "title", "abstract", "category")


class ContextsOptions(SourceOptions):
    """Options of ``scimult prepare multi-objective-contexts``.

    Parameters
    ----------
    objectives : list of str
        ``context2doc``: citing sentence to each paper that it cites. ``doc2doc``: every two
        papers cited in the same sentence.
    """

    objectives: Annotated[list[Literal["context2doc", "doc2doc"]], Field(min_length=1)] = [
        "context2doc",
        "doc2doc",
    ]


def _convert(conversion: Conversion, options: ContextsOptions) -> None:
    collection, contexts = (conversion.file(name, NOT_HERE) for name in (COLLECTION, CONTEXTS))
    for objective in options.objectives:
        fill = partial(_convert_objective, collection, contexts, objective)
        makes: Makes = "judgments" if objective == "context2doc" else "links"
        conversion.write(f"unarxive-{objective}", [collection, contexts], fill, [makes])


def _convert_objective(collection: Path, contexts: Path, objective: str, raw: RawSource) -> None:
    def add_context(record: Record) -> None:
        text = record.text("text") if objective == "context2doc" else ""
        raw.counts["contexts"] += 1
        WRITERS[objective](record, text, distinct(record.strings("cited_ids")), raw)

    raw.write("papers", read_delimited(collection, "\t", raw.rejects, header=COLUMNS))
    raw.each_row(contexts, add_context)


def _write_context(record: Record, text: str, cited: Sequence[str], raw: RawSource) -> None:
    """Write a citing sentence as a query for each paper that it cites."""
    query = raw.question(record, text)
    for paper in cited:
        raw.judgment(record, query, paper, 1)


def _write_together(record: Record, text: str, cited: Sequence[str], raw: RawSource) -> None:
    """Link every two papers cited in the same sentence."""
    for first, second in combinations(cited, 2):
        raw.link(record, first, second, 1)


WRITERS: Mapping[str, Writer] = {"context2doc": _write_context, "doc2doc": _write_together}


def _files(options: ContextsOptions) -> list[Remote]:
    return [Remote(name, address(ADDRESS, name)) for name in (CONTEXTS, COLLECTION)]


MULTI_OBJECTIVE_CONTEXTS = PublicSource(
    name="multi-objective-contexts",
    title="citing sentences of unarXive (context2doc) and papers cited together (doc2doc)",
    url="https://github.com/zetaalphavector/multi-obj-repr-learning (from unarXive)",
    licence="of the arXiv papers; unarXive's permissively licensed subset is CC BY-SA 4.0",
    files=(CONTEXTS, COLLECTION),
    options=ContextsOptions,
    convert=_convert,
    download=_files,
)
