"""unarXive 2022, as distributed: arXiv papers with their full text and references.

Layout: https://github.com/IllDepence/unarXive. Paragraphs have ``{{cite:ID}}`` for citations;
``bib_entries`` gives the arXiv id of ``ID``, if known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from scimult.data.importers.paper import make_paper
from scimult.data.importers.read import shaped
from scimult.data.importers.shapes import cited_arxiv_ids
from scimult.data.lines import read_jsonl
from scimult.data.records import Record
from scimult.downloads import Archive, Remote, address
from scimult.preparation.config import Dangling, PairTable
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.multi_objective_contexts import (
    COLLECTION,
    CONTEXTS,
    WRITERS,
    Writer,
)
from scimult.preparation.sources.raw import Makes, RawSource, distinct

Objective = Literal["citations", "context2doc", "doc2doc"]
# The permissively licensed subset linked from unarXive's README.
SUBSET = "unarXive_230324_open_subset.tar.xz"
ADDRESS = "https://zenodo.org/records/7752615/files"
_CITED = re.compile(r"\{\{cite:([^{}]+)\}\}")
# Of a list of markers what separates them, too.
_MARKERS = re.compile(r"\{\{\w+:[^{}]*\}\}(?:[\s,;]*\{\{\w+:[^{}]*\}\})*")
_EMPTY_BRACKETS = re.compile(r"[(\[][\s,;]*[)\]]")
_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\bal\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bcf\.)(?<!\bFig\.)(?<!\bEq\.)(?<!\bRef\.)"
    r"\s+(?=[A-Z])"
)
_MAKES: Mapping[Objective, Makes] = {
    "citations": "citations",
    "context2doc": "judgments",
    "doc2doc": "links",
}


class UnarxiveOptions(SourceOptions):
    """Options of ``scimult prepare unarxive``.

    Parameters
    ----------
    files : str
        Files below ``--input``.
    objectives : list of str
        ``citations``: paper to each paper that it cites. ``context2doc``: citing sentence to each
        paper that it cites. ``doc2doc``: every two papers cited in the same sentence.
    min_words : int
        Citing sentences with fewer words are counted and left out.
    """

    files: str = "**/arXiv_src_*.jsonl*"
    objectives: Annotated[list[Objective], Field(min_length=1)] = ["citations", "context2doc"]
    min_words: int = Field(default=8, ge=1)


def _convert(conversion: Conversion, options: UnarxiveOptions) -> None:
    fix = (
        "download unarXive 2022 into this folder: its files are named arXiv_src_*.jsonl; for "
        f"{CONTEXTS} and {COLLECTION}, use scimult prepare multi-objective-contexts"
    )
    paths = conversion.matching([options.files], fix)
    # Most references lead to papers that arXiv, or this part of it, does not have.
    usual: dict[PairTable, Dangling] = {"citations": "drop", "links": "drop", "judgments": "drop"}
    # Citations and papers cited together train the same task, so they need two sources.
    by_source: dict[str, list[Objective]] = {"unarxive": [], "unarxive-doc2doc": []}
    for objective in dict.fromkeys(options.objectives):
        by_source["unarxive-doc2doc" if objective == "doc2doc" else "unarxive"].append(objective)
    for name, objectives in by_source.items():
        if objectives:
            fill = partial(_fill, options, objectives, paths)
            makes = [_MAKES[objective] for objective in objectives]
            conversion.write(name, paths, fill, makes, dangling=usual, namespace="unarxive")


def _fill(
    options: UnarxiveOptions,
    objectives: Sequence[Objective],
    paths: Sequence[Path],
    raw: RawSource,
) -> None:
    writers = [WRITERS[objective] for objective in objectives if objective in WRITERS]

    def add(record: Record) -> None:
        _paper(record, "citations" in objectives, raw)
        for write in writers:
            _sentences(record, write, options.min_words, raw)

    for path in paths:
        raw.each(read_jsonl(path, raw.rejects), add)


def _paper(record: Record, cites: bool, raw: RawSource) -> None:
    paper = make_paper(shaped(record, "arxiv"))
    raw.imported(record, paper)
    if cites:
        for cited in paper.references:
            raw.edge("citations", record, paper.id, cited)


def _sentences(record: Record, write: Writer, min_words: int, raw: RawSource) -> None:
    try:
        sentences = list(citing_sentences(record.fields))
    except (AttributeError, TypeError) as error:
        fix = 'write "body_text": [{"text": "..."}]'
        raise record.error("paragraphs are not objects", value=str(error), fix=fix) from error
    for text, cited in sentences:
        raw.counts["citing sentences"] += 1
        if len(text.split()) < min_words:
            raw.counts["citing sentences that are too short"] += 1
        else:
            write(record, text, cited, raw)


def citing_sentences(paper: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield each sentence that cites arXiv papers, without markers, and the ids it cites."""
    known = cited_arxiv_ids(paper)
    for paragraph in paper.get("body_text") or ():
        for sentence in _SENTENCE_END.split(paragraph.get("text") or ""):
            cited = distinct(one for key in _CITED.findall(sentence) for one in known.get(key, ()))
            if cited:
                text = _EMPTY_BRACKETS.sub(" ", _MARKERS.sub(" ", sentence))
                yield re.sub(r"\s+([.,;:])", r"\1", " ".join(text.split())), cited


def _files(options: UnarxiveOptions) -> list[Remote]:
    """Return the permissively licensed subset, one file per month."""
    return [Archive(SUBSET, address(ADDRESS, SUBSET), wanted=("*arXiv_src_*.jsonl*",))]


UNARXIVE = PublicSource(
    name="unarxive",
    title="arXiv papers with citations and citing sentences, as unarXive 2022 is distributed",
    url="https://github.com/IllDepence/unarXive",
    licence="of the arXiv papers; unarXive's permissively licensed subset is CC BY-SA 4.0",
    files=("**/arXiv_src_*.jsonl",),
    options=UnarxiveOptions,
    convert=_convert,
    download=_files,
)
