"""SPECTER's training data: ``data.json`` with ``metadata.json``, or triples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from scimult.data.lines import read_lines
from scimult.data.records import Record
from scimult.errors import DataError
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion, named_files
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
        Take only the queries listed in these of ``train.txt``, ``val.txt`` and ``test.txt``;
        empty takes all queries of ``data.json``.
    cited_count : float
        A candidate with at least this ``count`` is cited (5 in the released files); one with a
        smaller count is cited by a cited paper, and becomes a hard negative.
    """

    splits: list[Literal["train", "val", "test"]] = []
    cited_count: Annotated[float, Field(gt=0)] = 5


def _convert(conversion: Conversion, options: SpecterOptions) -> None:
    graph = conversion.optional_file(GRAPH)
    if graph is not None:
        splits = [conversion.file(f"{split}.txt") for split in options.splits]
        metadata = conversion.file(METADATA)
        fill = partial(_convert_graph, options, metadata, graph, splits)
        reads, threshold = [metadata, graph, *splits], options.cited_count
        conversion.write("specter", reads, fill, ["links"], score_threshold=threshold)
        return
    triples = [path for stem in TRIPLE_STEMS for path in named_files(conversion.source, stem)]
    if not triples:
        raise DataError(
            f"holds neither {GRAPH} nor triples",
            path=conversion.source,
            fix=f"download {GRAPH} and {METADATA}, or triples as train.jsonl or "
            "train-*.parquet with query, pos and neg",
        )
    conversion.write("specter", triples, partial(_convert_triples, triples), ["links"])


def _convert_triples(paths: Sequence[Path], raw: RawSource) -> None:
    for path in paths:
        columns = ("query", "pos", "neg")
        raw.each_row(path, lambda record: write_triple(record, raw), columns=columns)


def _convert_graph(
    options: SpecterOptions,
    metadata: Path,
    graph: Path,
    splits: Sequence[Path],
    raw: RawSource,
) -> None:
    """Write every paper of metadata.json and every judged pair of data.json."""
    lines = (read_lines(path, raw.rejects) for path in splits)
    wanted = {line.strip() for _, line in chain.from_iterable(lines)}

    def add_query(query: str, record: Record) -> None:
        if options.splits and query not in wanted:
            raw.counts["queries of other splits"] += 1
            return
        wanted.discard(query)
        raw.counts["queries"] += 1
        _write_links(record, query, options, raw)

    raw.each_member(metadata, lambda identifier, record: raw.titled(record, identifier))
    raw.each_member(graph, add_query)
    raw.counts[f"queries of the splits that {GRAPH} lacks"] = len(wanted)


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
    # SciMult, Table A1, which counts queries of triples: data.json has more.
    published={"specter": {"triples": 819_836}},
)
