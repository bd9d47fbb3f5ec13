"""BEIR folders: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from scimult.data.lines import Record, Rejects, read_jsonl
from scimult.preparation.config import Name
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.judged import answered_queries, read_qrels, write_judgments
from scimult.preparation.sources.raw import RawSource


class BeirOptions(SourceOptions):
    """Options of ``scimult prepare beir``.

    Parameters
    ----------
    name : str
        Name of the source.
    splits : list of str
        Which ``qrels/SPLIT.tsv`` to take.
    score_threshold : float
        A document with at least this score is a positive; others that are judged become hard
        negatives.
    """

    name: Name = "beir"
    splits: Annotated[list[str], Field(min_length=1)] = ["train"]
    score_threshold: Annotated[float, Field(gt=0)] = 1


def _convert(conversion: Conversion, options: BeirOptions) -> None:
    threshold = options.score_threshold

    def fill(raw: RawSource) -> None:
        rejects = conversion.rejects
        qrels = [_qrels(conversion, split) for split in options.splits]
        answered = answered_queries(read_qrels(qrels, Rejects(skip_bad=True)), threshold)
        write_queries(conversion.file("queries.jsonl"), answered, raw, rejects)
        write_corpus(conversion.file("corpus.jsonl"), raw, rejects)
        write_judgments(read_qrels(qrels, rejects), answered, raw, rejects)

    conversion.write(options.name, fill, ["judgments"], score_threshold=threshold)


def _qrels(conversion: Conversion, split: str) -> Path:
    """Return the file of a split's judgments.

    Raises
    ------
    DataError
        If it is not there; the message names the splits that are.
    """
    name = f"qrels/{split}.tsv"
    found = conversion.optional_file(name)
    if found is not None:
        return found
    there = [path.name.partition(".tsv")[0] for path in conversion.files("", "qrels")]
    fix = f"choose from those that are there: splits=[{', '.join(there)}]" if there else ""
    return conversion.file(name, fix)


def write_queries(path: Path, answered: set[str], raw: RawSource, rejects: Rejects) -> None:
    """Write the answered queries of ``queries.jsonl``; the others are counted."""

    def add(record: Record) -> None:
        identifier = record.identifier("_id")
        if identifier in answered:
            raw.query(record, identifier, record.text("text"))
        else:
            raw.counts["queries without a positive"] += 1

    for _ in rejects.keep(read_jsonl(path, rejects), add):
        pass


def write_corpus(path: Path, raw: RawSource, rejects: Rejects) -> None:
    """Write the documents of ``corpus.jsonl`` as papers."""

    def add(record: Record) -> None:
        title, text = record.text("title", ""), record.text("text", "")
        raw.paper(record, record.identifier("_id"), title, text)

    for _ in rejects.keep(read_jsonl(path, rejects), add):
        pass


BEIR = PublicSource(
    name="beir",
    title="any data set in BEIR's layout, such as SciFact, NFCorpus, TREC-COVID",
    url="https://github.com/beir-cellar/beir",
    licence="of each data set",
    files=("corpus.jsonl", "queries.jsonl", "qrels/SPLIT.tsv"),
    options=BeirOptions,
    convert=_convert,
)
