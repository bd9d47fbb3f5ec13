"""SciDocs: papers with MAG or MeSH classes, and judged pairs by citation and reading."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from scimult.data.judgments import PAPER, QUERY, SCORE, read_judgments
from scimult.data.records import Record
from scimult.data.rows import read_rows
from scimult.downloads import Remote, address
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import RawSource

Classes = Literal["mag", "mesh"]
Links = Literal["cite", "cocite", "coread", "coview"]

# s3://ai2-s2-research-public/specter/scidocs in its README, by HTTP.
ADDRESS = "https://ai2-s2-research-public.s3.amazonaws.com/specter/scidocs"


class SciDocsOptions(SourceOptions):
    """Options of ``scimult prepare scidocs``.

    Parameters
    ----------
    links : list of str
        Relations to take.
    link_splits : list of str
        Which of ``val.qrel`` and ``test.qrel`` to take.
    classes : list of str
        Classifications to take; none by default, because they need ``names``.
    class_splits : list of str
        Which of ``train.csv``, ``val.csv`` and ``test.csv`` to take.
    names : mapping
        For each of ``classes`` a table (.tsv, .csv, .jsonl) with ``id``, the number of a class in
        the files, and ``name``; SciDocs itself has only numbers.
    """

    links: list[Links] = ["cite", "cocite", "coread", "coview"]
    link_splits: Annotated[list[Literal["val", "test"]], Field(min_length=1)] = ["val"]
    classes: list[Classes] = []
    class_splits: Annotated[list[Literal["train", "val", "test"]], Field(min_length=1)] = ["train"]
    names: dict[Classes, str] = {}

    @model_validator(mode="after")
    def _check(self) -> SciDocsOptions:
        if not (self.links or self.classes):
            raise ValueError("name at least one of links and classes")
        missing = [name for name in self.classes if name not in self.names]
        if missing:
            raise ValueError(f"class {missing[0]} has only numbers; pass names.{missing[0]}=FILE")
        return self


def _convert(conversion: Conversion, options: SciDocsOptions) -> None:
    for name in options.links:
        pairs = [conversion.file(f"{name}/{split}.qrel") for split in options.link_splits]
        papers = conversion.file("paper_metadata_view_cite_read.json")
        fill = partial(_write_links, pairs, papers)
        conversion.write(f"scidocs-{name}", [*pairs, papers], fill, ["links"])
    for kind in options.classes:
        fix = f"SciDocs has only numbers: write id and name of each class to the file names.{kind}"
        names = conversion.file(options.names[kind], fix)
        rows = [conversion.file(f"{kind}/{split}.csv") for split in options.class_splits]
        papers = conversion.file("paper_metadata_mag_mesh.json")
        reads = [names, *rows, papers]
        fill = partial(_write_classes, kind, names, rows, papers)
        conversion.write(f"scidocs-{kind}", reads, fill, ["labels"], max_pairs_per_label="all")


def _write_links(pairs: Sequence[Path], papers: Path, raw: RawSource) -> None:
    used: set[str] = set()

    def add(record: Record) -> None:
        query, paper = record.identifier(QUERY), record.identifier(PAPER)
        used.update((query, paper))
        raw.link(record, query, paper, record.number(SCORE))

    for path in pairs:
        raw.each(read_judgments(path, raw.rejects), add)
    _write_papers(papers, raw, {paper: [] for paper in used})


def _write_classes(
    kind: Classes,
    names: Path,
    rows: Sequence[Path],
    papers: Path,
    raw: RawSource,
) -> None:
    raw.write("labels", read_rows(names, raw.rejects, columns=("id", "name")))
    labels: dict[str, list[str]] = {}

    def add(record: Record) -> None:
        label = record.identifier("class_label")
        if not raw.has_label(label):
            fix = f"add it to the file names.{kind}"
            raise record.error("class without a name", value=label, fix=fix)
        known = labels.setdefault(record.identifier("pid"), [])
        if label not in known:
            known.append(label)

    for path in rows:
        raw.each_row(path, add, columns=("pid", "class_label"))
    _write_papers(papers, raw, labels)
    missing = sum(not raw.has_paper(paper) for paper in labels)
    raw.counts["classified papers without a text"] = missing


def _write_papers(path: Path, raw: RawSource, labels: dict[str, list[str]]) -> None:
    """Write the papers in ``labels``, with their labels."""

    def add(identifier: str, record: Record) -> None:
        if identifier in labels:
            raw.titled(record, identifier, labels=labels[identifier])

    raw.each_member(path, add)


def _files(options: SciDocsOptions) -> list[Remote]:
    """Return the files in the bucket named in its README, which has no names of classes."""
    names = [f"{name}/{split}.qrel" for name in options.links for split in options.link_splits]
    names += [f"{kind}/{split}.csv" for kind in options.classes for split in options.class_splits]
    names += ["paper_metadata_view_cite_read.json"] if options.links else []
    names += ["paper_metadata_mag_mesh.json"] if options.classes else []
    return [Remote(name, address(ADDRESS, name)) for name in names]


SCIDOCS = PublicSource(
    name="scidocs",
    title="SciDocs: judged pairs by citation and reading, MAG and MeSH classes",
    url="https://github.com/allenai/scidocs",
    licence="CC BY 4.0 (says SciMult); an evaluation suite: do not report it after training on it",
    files=(
        "paper_metadata_view_cite_read.json",
        "{cite,cocite,coread,coview}/{val,test}.qrel",
        "paper_metadata_mag_mesh.json, {mag,mesh}/{train,val,test}.csv (with classes=...)",
    ),
    options=SciDocsOptions,
    convert=_convert,
    download=_files,
)
