"""SPECTER's training data: ``data.json`` with ``metadata.json``, or triples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from scimult.data.lines import Record, read_lines
from scimult.data.rows import read_rows
from scimult.errors import DataError
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import RawSource
from scimult.preparation.sources.triples import write_triple

GRAPH = "data.json"
METADATA = "metadata.json"
TRIPLE_STEMS = ("train", "validation", "val", "triples", "specter")


class SpecterOptions(SourceOptions):
    """Options of ``scimult prepare specter``.

    Parameters
    ----------
    splits : list of str
        Which of ``train.txt``, ``val.txt`` and ``test.txt`` name the queries to take; empty
        takes all queries of ``data.json``.
    cited_count : float
        A candidate with at least this ``count`` is cited (5 in the released files); one with a
        smaller count is cited by a cited paper, and becomes a hard negative.
    """

    splits: list[Literal["train", "val", "test"]] = []
    cited_count: Annotated[float, Field(gt=0)] = 5


def _convert(conversion: Conversion, options: SpecterOptions) -> None:
    if conversion.optional_file(GRAPH) is not None:
        fill = partial(_convert_graph, conversion, options)
        conversion.write("specter", fill, ["links"], score_threshold=options.cited_count)
    else:
        conversion.write("specter", partial(_convert_triples, conversion), ["links"])


def _convert_triples(conversion: Conversion, raw: RawSource) -> None:
    found = [path for stem in TRIPLE_STEMS for path in conversion.files("", stem)]
    if not found:
        raise DataError(
            f"holds neither {GRAPH} nor triples",
            path=conversion.source,
            fix=f"download {GRAPH} and {METADATA}, or triples as train.jsonl or "
            "train-*.parquet with query, pos and neg",
        )
    for path in found:
        rows = read_rows(path, conversion.rejects, columns=("query", "pos", "neg"))
        conversion.each(rows, lambda record: write_triple(record, raw))


def _convert_graph(conversion: Conversion, options: SpecterOptions, raw: RawSource) -> None:
    """Write every paper of metadata.json and every judged pair of data.json."""

    def add_paper(identifier: str, record: Record) -> None:
        title, abstract = record.text("title", ""), record.text("abstract", "")
        raw.paper(record, identifier, title, abstract)

    wanted = set(_split_ids(conversion, options))

    def add_query(query: str, record: Record) -> None:
        if options.splits and query not in wanted:
            raw.counts["queries of other splits"] += 1
            return
        wanted.discard(query)
        raw.counts["queries"] += 1
        _write_links(record, query, options, raw)

    conversion.each_member(METADATA, add_paper)
    conversion.each_member(GRAPH, add_query)
    raw.counts[f"queries of the splits that {GRAPH} lacks"] = len(wanted)


def _split_ids(conversion: Conversion, options: SpecterOptions) -> Iterator[str]:
    for split in options.splits:
        for _, line in read_lines(conversion.file(f"{split}.txt"), conversion.rejects):
            yield line.strip()


def _write_links(record: Record, query: str, options: SpecterOptions, raw: RawSource) -> None:
    cited = 0
    for paper, entry in record.fields.items():
        if not isinstance(entry, Mapping):
            fix = 'write {"query": {"paper": {"count": 5}}}'
            raise record.error("candidate is not an object with a count", value=entry, fix=fix)
        count = Record(record.path, record.line, dict(entry)).number("count")
        cited += count >= options.cited_count
        raw.link(record, query, paper, count)
    raw.counts["queries without a cited paper"] += not cited


SPECTER = PublicSource(
    name="specter",
    title="citation triples, or data.json with metadata.json",
    url="https://github.com/allenai/specter",
    licence="Apache-2.0 (code); the data set states none of its own",
    files=("data.json + metadata.json [+ train.txt, val.txt, test.txt]", "or train*.jsonl"),
    options=SpecterOptions,
    convert=_convert,
    published={"specter": {"triples": 819_836, "queries": 165_340}},
)
