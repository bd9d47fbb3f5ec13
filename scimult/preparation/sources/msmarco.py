"""MS MARCO passages: collection, queries, and triples as ids, as texts or as mined negatives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from scimult.data.importers.paper import text_id
from scimult.data.lines import read_jsonl
from scimult.data.records import Record
from scimult.data.tables import read_delimited
from scimult.downloads import Archive, Remote, address
from scimult.errors import DataError
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import RawSource, Written

COLLECTION = "collection.tsv"
QUERIES = "queries.train.tsv"
# File names of each kind of triples, in order of preference.
TRIPLES = {
    "mined": ("msmarco-hard-negatives.jsonl",),
    "ids": ("qidpidtriples.train.full.2.tsv", "qidpidtriples.train.full.tsv"),
    "texts": ("triples.train.small.tsv", "triples.train.full.tsv"),
}
# From microsoft.github.io/msmarco, and from sentence-transformers on the hub for mined negatives.
ADDRESS = "https://msmarco.z22.web.core.windows.net/msmarcoranking"
MINED = "https://huggingface.co/datasets/sentence-transformers/msmarco-hard-negatives/resolve/main"
Triple = tuple[Record, str, list[str], list[str]]


class MsMarcoOptions(SourceOptions):
    """Options of ``scimult prepare msmarco``.

    Parameters
    ----------
    triples : str, optional
        ``ids`` (qidpidtriples), ``texts`` (triples.train) or ``mined`` (one line per query with
        negatives of several systems); default: the first that exists of mined, ids, texts.
    max_negatives : int
        Maximum number of distinct negatives per query: the first are kept, others counted.
    """

    triples: Literal["ids", "texts", "mined"] | None = None
    max_negatives: Annotated[int, Field(ge=0)] = 32


def _convert(conversion: Conversion, options: MsMarcoOptions) -> None:
    kinds = [options.triples] if options.triples else list(TRIPLES)
    for kind in kinds:
        for name in TRIPLES[kind]:
            triples = conversion.optional_file(name)
            if triples is not None:
                needed = () if kind == "texts" else (QUERIES, COLLECTION)
                texts = [conversion.file(file) for file in needed]
                fill = partial(_write, options, kind, triples, texts)
                conversion.write("msmarco", [triples, *texts], fill, ["judgments"])
                return
    names = ", ".join(name for kind in kinds for name in TRIPLES[kind])
    raise DataError("holds no triples", path=conversion.source, fix=f"download one of {names}")


def _write(
    options: MsMarcoOptions,
    kind: str,
    path: Path,
    texts: Sequence[Path],
    raw: RawSource,
) -> None:
    if kind == "texts":
        rows = _rows(path, ("query", "positive", "negative"), raw)
        triples = raw.rejects.keep(rows, lambda row: _text_triple(row, raw))
    elif kind == "ids":
        triples = raw.rejects.keep(_rows(path, ("qid", "pos", "neg"), raw), _id_triple)
    else:
        triples = raw.rejects.keep(read_jsonl(path, raw.rejects), _mined_triple)
    _write_triples(triples, raw, options.max_negatives)
    # All queries and passages: mining and evaluation need unjudged ones too.
    kinds: tuple[Written, ...] = ("queries", "papers")
    for what, texts_of in zip(kinds, texts, strict=False):
        raw.write(what, _rows(texts_of, ("id", "text"), raw), body="text")


def _write_triples(triples: Iterable[Triple], raw: RawSource, max_negatives: int) -> None:
    """Write each distinct judgment once."""
    positives: dict[str, set[str]] = defaultdict(set)
    negatives: dict[str, set[str]] = defaultdict(set)
    for record, query, positive, negative in triples:
        raw.counts["triples"] += 1
        if not positive:
            raw.counts["triples without a positive"] += 1
            continue
        for paper in positive:
            if paper not in positives[query]:
                positives[query].add(paper)
                raw.judgment(record, query, paper, 1)
        for paper in negative:
            if paper in negatives[query]:
                continue
            if len(negatives[query]) == max_negatives:
                raw.counts["negatives above max_negatives"] += 1
                continue
            negatives[query].add(paper)
            raw.judgment(record, query, paper, 0)


def _rows(path: Path, header: Sequence[str], raw: RawSource) -> Iterator[Record]:
    return read_delimited(path, "\t", raw.rejects, header=header, quoted=False)


def _id_triple(record: Record) -> Triple:
    query, positive, negative = (record.identifier(name) for name in ("qid", "pos", "neg"))
    return record, query, [positive], [negative]


def _mined_triple(record: Record) -> Triple:
    """Return a line of mined negatives, taken from all systems in turn, best first."""
    systems = record.fields.get("neg")
    if not isinstance(systems, dict):
        fix = 'write "neg": {"system": [ids]}'
        raise record.error("field 'neg' is not an object", value=systems, fix=fix)
    lists = [_ids(record, ids) for ids in systems.values()]
    negatives = [one for rank in zip_longest(*lists) for one in rank if one is not None]
    positives = _ids(record, record.fields.get("pos"))
    return record, record.identifier("qid"), positives, negatives


def _ids(record: Record, values: object) -> list[str]:
    if not isinstance(values, list):
        raise record.error("ids are not a list", value=values, fix="write a list of passage ids")
    return [Record(record.path, record.line, {"id": value}).identifier("id") for value in values]


def _text_triple(record: Record, raw: RawSource) -> Triple:
    """Write the three texts with ids derived from them, and return the ids."""
    query, positive, negative = (record.text(name) for name in ("query", "positive", "negative"))
    raw.query(record, text_id(query), query)
    for passage in (positive, negative):
        raw.paper(record, text_id(passage), "", passage)
    return record, text_id(query), [text_id(positive)], [text_id(negative)]


def _files(options: MsMarcoOptions) -> list[Remote]:
    """Return the files of one kind of triples; the default is mined negatives."""
    kind = options.triples or "mined"
    name = TRIPLES[kind][0]
    if kind == "texts":
        return [_archive("triples.train.small.tar.gz", name)]
    base = MINED if kind == "mined" else ADDRESS
    return [
        Remote(f"{name}.gz", address(base, f"{name}.gz")),
        _archive("collection.tar.gz", COLLECTION),
        _archive("queries.tar.gz", QUERIES),
    ]


def _archive(name: str, file: str) -> Archive:
    return Archive(name, address(ADDRESS, name), wanted=(file,))


MSMARCO = PublicSource(
    name="msmarco",
    title="MS MARCO passages with triples or mined hard negatives",
    url="https://microsoft.github.io/msmarco/Datasets",
    licence="non-commercial research, see its page",
    files=(
        "collection.tsv + queries.train.tsv + msmarco-hard-negatives.jsonl",
        "or + qidpidtriples.train.full.2.tsv",
        "or triples.train.small.tsv alone",
    ),
    options=MsMarcoOptions,
    convert=_convert,
    download=_files,
)
