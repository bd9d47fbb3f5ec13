"""DPR's training files: a question with positive and hard negative passages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scimult.data.importers.paper import text_id
from scimult.data.records import Record
from scimult.downloads import Remote, address
from scimult.errors import ConfigError
from scimult.preparation.config import Name
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import RawSource
from scimult.preparation.sources.triples import inner_list
from scimult.progress import progress

PASSAGE_IDS = ("passage_id", "psg_id", "id")
# From dpr/data/download_data.py in its repository.
ADDRESS = "https://dl.fbaipublicfiles.com/dpr/data/retriever"
RELEASED = tuple(
    f"biencoder-{name}.json"
    for name in (
        *("nq-train", "nq-dev", "nq-adv-hn-train", "trivia-train", "trivia-dev", "squad1-train"),
        *("squad1-dev", "webquestions-train", "webquestions-dev", "curatedtrec-train"),
        "curatedtrec-dev",
    )
)


class DprOptions(SourceOptions):
    """Options of ``scimult prepare dpr``.

    ``files`` below ``--input`` are JSON arrays or JSON lines, also ``.gz``. ``negatives`` are the
    lists that become hard negatives; the batch provides easy ones anyway.
    """

    name: Name = "dpr"
    files: Annotated[list[str], Field(min_length=1)] = ["train.json"]
    negatives: list[Literal["hard_negative_ctxs", "negative_ctxs"]] = ["hard_negative_ctxs"]


def _convert(conversion: Conversion, options: DprOptions) -> None:
    paths = [conversion.file(name) for name in options.files]

    def fill(raw: RawSource) -> None:
        for path in progress(paths, "DPR", unit="file"):
            raw.each_row(path, lambda row: _write(row, options, raw))

    conversion.write(options.name, paths, fill, ["judgments"])


def _write(record: Record, options: DprOptions, raw: RawSource) -> None:
    """Write one question; questions without a positive passage are counted and left out."""
    raw.counts["questions"] += 1
    positives = _passages(record, "positive_ctxs", raw)
    if not positives:
        raw.counts["questions without a positive"] += 1
        return
    query = raw.question(record, record.text("question"))
    for passage in positives:
        raw.judgment(record, query, passage, 1)
    for name in options.negatives:
        for passage in _passages(record, name, raw):
            raw.judgment(record, query, passage, 0)


def _passages(record: Record, name: str, raw: RawSource) -> list[str]:
    """Write the passages of a list and return their ids; a missing list of negatives is empty."""
    if name != "positive_ctxs" and record.fields.get(name) is None:
        return []
    return list(raw.rejects.keep(inner_list(record, name), lambda passage: _passage(passage, raw)))


def _passage(record: Record, raw: RawSource) -> str:
    title, text = record.text("title", ""), record.text("text")
    known = (name for name in PASSAGE_IDS if record.fields.get(name) not in (None, ""))
    name = next(known, None)
    identifier = text_id(title, text) if name is None else record.identifier(name)
    raw.paper(record, identifier, title, text)
    return identifier


def _files(options: DprOptions) -> list[Remote]:
    """Return files listed in DPR's download_data.py, gzipped as they are there."""
    for name in options.files:
        if name.removesuffix(".gz") not in RELEASED:
            fix = f"choose from {', '.join(RELEASED)}"
            raise ConfigError("DPR has no such file", value=name, fix=fix)
    names = [f"{name.removesuffix('.gz')}.gz" for name in options.files]
    return [Remote(name, address(ADDRESS, name)) for name in names]


DPR = PublicSource(
    name="dpr",
    title="DPR JSON: question, positive_ctxs, hard_negative_ctxs",
    url="https://github.com/facebookresearch/DPR",
    licence="CC BY-NC 4.0 (DPR's own files)",
    files=("train.json (files=[...])",),
    options=DprOptions,
    convert=_convert,
    download=_files,
)
