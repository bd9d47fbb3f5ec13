"""unarXive citing sentences: context to cited paper, and papers cited together."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field

from scimult.data.lines import Record, read_jsonl
from scimult.data.rows import read_delimited
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import Makes, RawSource, distinct, text_id

COLLECTION = "collection.tsv"
CONTEXTS = "contexts.jsonl"
NOT_UNARXIVE = (
    "download what the multi-objective paper made of unarXive (scimult prepare --list says "
    "where); the papers of unarXive itself, arXiv_src_*.jsonl, are not read"
)
COLUMNS = ("id", "title", "abstract", "category")


class UnarxiveOptions(SourceOptions):
    """Options of ``scimult prepare unarxive``.

    Parameters
    ----------
    objectives : list of str
        ``context2doc``: citing sentence to each paper that it cites. ``doc2doc``: every two
        papers that one sentence cites.
    """

    objectives: Annotated[list[Literal["context2doc", "doc2doc"]], Field(min_length=1)] = [
        "context2doc",
        "doc2doc",
    ]


def _convert(conversion: Conversion, options: UnarxiveOptions) -> None:
    for objective in options.objectives:
        fill = partial(_convert_objective, conversion, objective)
        makes: Makes = "judgments" if objective == "context2doc" else "links"
        conversion.write(f"unarxive-{objective}", fill, [makes])


def _convert_objective(conversion: Conversion, objective: str, raw: RawSource) -> None:
    _write_collection(conversion, raw)
    rows = read_jsonl(conversion.file(CONTEXTS, NOT_UNARXIVE), conversion.rejects)
    write = _write_context if objective == "context2doc" else _write_together
    conversion.each(rows, partial(write, raw=raw))


def _write_collection(conversion: Conversion, raw: RawSource) -> None:
    def add(record: Record) -> None:
        title, abstract = record.text("title"), record.text("abstract")
        raw.paper(record, record.identifier("id"), title, abstract)

    path = conversion.file(COLLECTION, NOT_UNARXIVE)
    conversion.each(read_delimited(path, "\t", conversion.rejects, header=COLUMNS), add)


def _cited(record: Record, raw: RawSource) -> list[str]:
    raw.counts["contexts"] += 1
    return distinct(record.strings("cited_ids"))


def _write_context(record: Record, raw: RawSource) -> None:
    text = record.text("text")
    cited = _cited(record, raw)
    known = [paper for paper in cited if raw.has_paper(paper)]
    query = text_id(text.strip())
    if known and not raw.has_query(query):
        raw.query(record, query, text)
    for paper in cited:
        raw.judgment(record, query, paper, 1)


def _write_together(record: Record, raw: RawSource) -> None:
    for first, second in combinations(_cited(record, raw), 2):
        raw.link(record, first, second, 1)


UNARXIVE = PublicSource(
    name="unarxive",
    title="unarXive citing sentences (context2doc) and papers cited together (doc2doc)",
    url="https://github.com/zetaalphavector/multi-obj-repr-learning (from unarXive)",
    licence="of the arXiv papers; unarXive's permissively licensed subset is CC BY-SA 4.0",
    files=(CONTEXTS, COLLECTION),
    options=UnarxiveOptions,
    convert=_convert,
)
