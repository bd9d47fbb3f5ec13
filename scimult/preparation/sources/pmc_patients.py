"""PMC-Patients: patient summaries with similar patients (PPR) and relevant articles (PAR)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from scimult.data.judgments import read_judgments
from scimult.data.lines import read_jsonl
from scimult.data.records import Record
from scimult.downloads import Remote, address
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import RawSource

URL = "https://huggingface.co/datasets/zhengyun21/PMC-Patients-ReCDS"
PMIDS = "PAR_PMIDs.json"
Part = Literal["PPR", "PAR"]
BRING_ARTICLES = (
    "it is not distributed: write _id (PMID), title and text of the PubMed articles listed in "
    "PAR_PMIDs.json; docs/sources.md has the steps"
)


class PmcPatientsOptions(SourceOptions):
    """Options of ``scimult prepare pmc-patients``.

    ``parts`` are ``PPR`` (patient to similar patient) and ``PAR`` (patient to article), ``splits``
    those of the queries and qrels.
    """

    parts: Annotated[list[Part], Field(min_length=1)] = ["PPR"]
    splits: Annotated[list[Literal["train", "dev", "test"]], Field(min_length=1)] = ["train"]


def _convert(conversion: Conversion, options: PmcPatientsOptions) -> None:
    for part in options.parts:
        fix = BRING_ARTICLES if part == "PAR" else ""
        corpus = conversion.file(f"{part}/corpus.jsonl", fix)
        splits = [
            (
                conversion.file(f"queries/{split}_queries.jsonl"),
                conversion.file(f"{part}/qrels_{split}.tsv"),
            )
            for split in options.splits
        ]
        fill = partial(_convert_part, corpus, splits)
        reads = [corpus, *chain.from_iterable(splits)]
        conversion.write(f"pmc-patients-{part.lower()}", reads, fill, ["links"])


def _convert_part(corpus: Path, splits: Sequence[tuple[Path, Path]], raw: RawSource) -> None:
    """Write the corpus, the patients of the splits (who have no title) and their links."""

    def add_patient(record: Record) -> None:
        raw.counts["queries"] += 1
        identifier = record.identifier("_id")
        if not raw.has_paper(identifier):
            raw.paper(record, identifier, "", record.text("text"))

    raw.write("papers", read_jsonl(corpus, raw.rejects), "_id", "text")
    for queries, qrels in splits:
        raw.each_row(queries, add_patient)
        raw.write("links", read_judgments(qrels, raw.rejects))


def _files(options: PmcPatientsOptions) -> list[Remote]:
    """Return the files on the hub, which do not include the texts of articles."""
    names = [f"queries/{split}_queries.jsonl" for split in options.splits]
    names += [f"{part}/qrels_{split}.tsv" for part in options.parts for split in options.splits]
    names += [f"{part}/{'corpus.jsonl' if part == 'PPR' else PMIDS}" for part in options.parts]
    return [Remote(name, address(f"{URL}/resolve/main", name)) for name in names]


PMC_PATIENTS = PublicSource(
    name="pmc-patients",
    title="patient summaries linked to similar patients and to articles",
    url=URL,
    licence="CC BY-NC-SA 4.0",
    files=(
        "queries/{train,dev,test}_queries.jsonl",
        "PPR/corpus.jsonl, PPR/qrels_{train,dev,test}.tsv",
        "PAR/corpus.jsonl (PubMed texts of PAR_PMIDs.json), PAR/qrels_*.tsv",
    ),
    options=PmcPatientsOptions,
    convert=_convert,
    download=_files,
)
