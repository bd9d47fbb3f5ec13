"""The Microsoft Academic recommender user study: pairs of papers with scores from 1 to 5."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from scimult.data.records import Record
from scimult.data.rows import read_rows
from scimult.data.tables import read_delimited
from scimult.downloads import Remote, address
from scimult.preparation.config import Dangling, PairTable
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import RawSource

RESULTS = "user_study_results.tsv"
# The only commit of the file in its owner's repository.
ADDRESS = (
    "https://raw.githubusercontent.com/akanakia/microsoft-academic-paper-recommender-user-study"
    "/a8567dc21ebeedfa136164ac2315bbfff6dd2898"
)
BRING_TEXTS = (
    "the study has only ids: write id (of MAG), title and abstract of its papers from a "
    "collection that has them to papers.jsonl or papers=FILE"
)
COLUMNS = ("PaperId", "RecommendedPaperId", "StudyScore")


class RecommendationOptions(SourceOptions):
    """Options of ``scimult prepare recommendation``.

    ``papers`` is the file below ``--input`` with their texts: ``id`` (MAG id), ``title``,
    ``abstract``; the study itself has ids only. ``score_threshold`` is the smallest score of a
    positive; the study's own analysis uses 3 and 4.
    """

    papers: str = "papers.jsonl"
    score_threshold: Annotated[float, Field(ge=1, le=5)] = 4


def _convert(conversion: Conversion, options: RecommendationOptions) -> None:
    papers = conversion.file(options.papers, BRING_TEXTS)
    study = conversion.file(RESULTS)

    def fill(raw: RawSource) -> None:
        raw.write("papers", read_rows(papers, raw.rejects, columns=("id", "title")))
        rows = read_delimited(study, "\t", raw.rejects, columns=COLUMNS, quoted=False)
        raw.each(rows, lambda row: _link(row, raw))

    usual: dict[PairTable, Dangling] = {"links": "drop"}
    choices: dict[str, Any] = {"dangling": usual, "score_threshold": options.score_threshold}
    conversion.write("recommendation", [papers, study], fill, ["links"], **choices)


def _link(record: Record, raw: RawSource) -> None:
    raw.counts["rows"] += 1
    if not record.text("StudyScore").strip():
        raw.counts["rows without a score"] += 1
        return
    query, paper = record.identifier("PaperId"), record.identifier("RecommendedPaperId")
    raw.link(record, query, paper, record.number("StudyScore"))


def _files(options: RecommendationOptions) -> list[Remote]:
    """Return the study, which does not include the texts of its papers."""
    return [Remote(RESULTS, address(ADDRESS, RESULTS))]


RECOMMENDATION = PublicSource(
    name="recommendation",
    title="Microsoft Academic recommender user study, scores from 1 to 5",
    url="https://github.com/akanakia/microsoft-academic-paper-recommender-user-study",
    licence="none stated",
    files=(RESULTS, "papers.jsonl (texts by MAG id, from elsewhere; papers=FILE)"),
    options=RecommendationOptions,
    convert=_convert,
    download=_files,
)
