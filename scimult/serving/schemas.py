"""What requests may say and answers hold; unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from scimult.serving.refusals import PROBLEM
from scimult.types import Role

MOST_TEXTS, MOST_RESULTS, MOST_DEPTH, MOST_IDS = 256, 1000, 10_000, 10_000
"""Texts of a request, results of a page, results before and on it, ids of a list."""
MOST_CHARACTERS, MOST_EVIDENCE = 100_000, 100
"""Characters of a text, and papers of a page whose sentences are compared."""

Words = Annotated[str, StringConstraints(max_length=MOST_CHARACTERS)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Ids = Annotated[list[Name], Field(max_length=MOST_IDS)]
K = Annotated[int, Field(ge=1, le=MOST_RESULTS)]
Offset = Annotated[int, Field(ge=0, le=MOST_DEPTH)]
Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Scalar = Number | float | bool | Annotated[str, StringConstraints(max_length=1000)]


class Strict(BaseModel):
    """Refuses what it does not know, and converts nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PaperIn(Strict):
    """A paper that need not be in the library."""

    title: Words = ""
    abstract: Words = ""


class LabelIn(Strict):
    """A label, with its id where that is not its name."""

    name: Words
    definition: Words = ""
    id: Name | None = None


class CandidateIn(PaperIn):
    """A paper that may match, and who wrote it."""

    id: Name
    reviewer: Name | None = Field(None, description="Scores are then of reviewers, not of papers.")


class Range(Strict):
    """From a value to another, both included; open where one is left out."""

    from_: Scalar | None = Field(None, alias="from")
    to: Scalar | None = None


Where = Annotated[
    dict[Name, Scalar | Range | list[Scalar] | None],
    Field(
        max_length=50,
        description="By column: a value, null (absent), a list (any of these) or "
        '{"from": 2019, "to": 2022}.',
        examples=[{"year": {"from": 2019}}],
    ),
]


class Encode(Strict):
    """Texts to be vectors."""

    texts: list[Words | PaperIn | LabelIn] = Field(min_length=1, max_length=MOST_TEXTS)
    task: str = "search"
    role: Role = "query"
    format: Literal["float", "base64"] = Field(
        "float", description="base64: the bytes of little-endian float32 numbers, row by row."
    )


class Encoded(BaseModel):
    """Vectors, in the order of the texts."""

    model: str
    task: str
    role: Role
    similarity: str
    width: int
    vectors: list[list[float]] | str


class Listing(Strict):
    """What searches share: the page, filters and what is told of each paper."""

    k: K | None = Field(None, description="10 by default; with min_score all, 1,000 at most.")
    offset: Offset = 0
    min_score: float | None = Field(None, description="Everything with this score or more.")
    where: Where | None = None
    only: Ids | None = None
    exclude: Ids = []
    method: Literal["auto", "exact", "approximate"] = "auto"
    percentile: bool = Field(False, description="How much of the library scores lower.")
    evidence: bool = Field(
        False, description="The sentence of each paper that fits best; for 100 papers at most."
    )


class Search(Listing):
    """Words, ids of papers, several of both, or an own vector."""

    text: Words = ""
    ids: Ids = []
    vector: Annotated[list[float], Field(max_length=65_536)] | None = None
    task: str = "search"
    words: Annotated[float, Field(ge=0, le=1)] | Literal["rank", "tuned"] | None = Field(
        None, description="Share of BM25 beside the vectors; rank; or tuned, as the library has it."
    )


class Recommend(Listing):
    """Papers of the library, or a draft that is not in it."""

    ids: Ids = []
    title: Words = ""
    abstract: Words = ""
    task: str = "link_prediction"


class Found(BaseModel):
    """A paper that was found."""

    rank: int
    score: float
    id: str
    title: str
    abstract: str
    columns: dict[str, Any]
    percentile: float | None = None
    evidence: str | None = None


class Page(BaseModel):
    """Papers, best first."""

    score: str = Field(description="What scores are: a similarity, or how lists became one.")
    exact: bool
    papers: list[Found]


class Tag(Strict):
    """Papers of the library by id, or others, to be given labels."""

    ids: Annotated[list[Name], Field(max_length=MOST_TEXTS)] = []
    papers: Annotated[list[PaperIn], Field(max_length=MOST_TEXTS)] = []
    labels: (
        Annotated[list[Words | LabelIn], Field(min_length=1, max_length=MOST_RESULTS)] | None
    ) = Field(None, description="In place of the labels that the service was started with.")
    k: K = 5
    threshold: float | None = None
    exclude: Ids = Field([], description="Ids of labels.")


class TagFound(BaseModel):
    """A label for a paper."""

    rank: int
    score: float
    id: str
    name: str
    evidence: str | None = None


class TaggedPaper(BaseModel):
    """A paper and its labels, best first."""

    id: str | None
    title: str
    labels: list[TagFound]


class TaggedPapers(BaseModel):
    """Papers in the order of the request: those of ids first."""

    papers: list[TaggedPaper]


class Match(Strict):
    """Texts, and what may fit them: papers of the request, or those of the library."""

    papers: list[PaperIn] = Field(min_length=1, max_length=MOST_TEXTS)
    candidates: Annotated[list[CandidateIn], Field(min_length=1, max_length=2000)] | None = Field(
        None, description="By default the papers of the library."
    )
    task: str = "link_prediction"
    k: K = 10
    score: str = Field(
        "top3", description="Of a reviewer: top3 (mean of the best three), max, mean, percentile:75"
    )
    where: Where | None = Field(None, description="With papers of the library.")


class MatchFound(BaseModel):
    """A candidate, or a reviewer."""

    rank: int
    score: float
    id: str


class Matches(BaseModel):
    """For each paper its candidates, best first."""

    of: Literal["papers", "reviewers"]
    score: str
    matches: list[list[MatchFound]]


class Facts(BaseModel):
    """What the library holds."""

    papers: int
    tasks: dict[str, str] = Field(description="Searchable tasks, and what their queries are.")
    columns: dict[str, str]
    model: str
    similarity: str
    width: int
    labels: int
    generation: int
    scimult: str


class Health(BaseModel):
    """Whether it serves, and what."""

    status: Literal["ok", "stale"]
    papers: int
    generation: int
    problem: str | None = Field(None, description="Why the newest library cannot be served.")


class Problem(BaseModel):
    """Why there is no answer (RFC 9457)."""

    title: str
    status: int
    detail: str
    problem: str
    fix: str
    value: str | None = None


_MEANING = {
    400: "No request of HTTP",
    401: "The key is missing or wrong",
    403: "Not done by this service",
    404: "Not found",
    408: "The request did not arrive",
    413: "Too large",
    422: "What is asked for cannot be",
    429: "Busy",
    503: "Stopping",
    504: "Not in time",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the documentation of a path says of answers that are problems."""
    return {
        status: {"model": Problem, "content": {PROBLEM: {}}, "description": _MEANING[status]}
        for status in statuses
    }
