"""Schemas of requests and answers; unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from scimult.serving.refusals import PROBLEM
from scimult.types import Role

MOST_TEXTS, MOST_RESULTS, MOST_DEPTH, MOST_IDS = 256, 1000, 10_000, 10_000
"""Texts per request, results per page, depth of paging, ids per list."""
MOST_CHARACTERS, MOST_EVIDENCE, MOST_FIELDS = 100_000, 100, 50
"""Characters per text, papers per page with evidence, fields of an object."""


def few_fields(value: Any) -> Any:
    """Refuse an object of very many fields before each gets an error: other requests wait for it.

    Raises
    ------
    ValueError
        If it has more than ``MOST_FIELDS``.
    """
    if isinstance(value, dict) and len(value) > MOST_FIELDS:
        raise ValueError(f"Object should have at most {MOST_FIELDS} fields")
    return value


def few_values(value: Any) -> Any:
    """Refuse a filter of very many values, or columns, as `few_fields` does: each gets errors.

    Raises
    ------
    ValueError
        If it has more than ``MOST_IDS`` values in all.
    """
    lists = value.values() if isinstance(value, dict) else ()
    if len(lists) > 1 and sum(len(one) for one in lists if isinstance(one, list)) > MOST_IDS:
        raise ValueError(f"Filter should have at most {MOST_IDS} values in all")
    return few_fields(value)


Words = Annotated[str, StringConstraints(max_length=MOST_CHARACTERS)]
# Null is none, as in files of papers.
MaybeWords = Annotated[
    Words, BeforeValidator(lambda value: "" if value is None else value, Words | None)
]
Name = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Ids = Annotated[list[Name], Field(max_length=MOST_IDS)]
K = Annotated[int, Field(ge=1, le=MOST_RESULTS)]
Offset = Annotated[int, Field(ge=0, le=MOST_DEPTH)]
Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Scalar = Number | float | bool | Annotated[str, StringConstraints(max_length=1000)]


class Strict(BaseModel):
    """Base of requests: refuses unknown fields and converts nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)
    _few = model_validator(mode="before")(few_fields)


class PaperIn(Strict):
    """A paper, not necessarily in the library."""

    title: MaybeWords = ""
    abstract: MaybeWords = ""


class LabelIn(Strict):
    """A label; its id defaults to its name."""

    name: Words
    definition: MaybeWords = ""
    id: Name | None = None


class CandidateIn(PaperIn):
    """A candidate paper, optionally with its reviewer."""

    id: Name
    reviewer: Name | None = Field(None, description="If given, reviewers are ranked, not papers.")


class Range(Strict):
    """An inclusive range; open on a side that is left out."""

    from_: Scalar | None = Field(None, alias="from")
    to: Scalar | None = None


Where = Annotated[
    dict[Name, Scalar | Range | Annotated[list[Scalar | None], Field(max_length=MOST_IDS)] | None],
    BeforeValidator(few_values),
    Field(
        max_length=MOST_FIELDS,
        description="Per column: a value, null (absent), a list (any of these) or "
        '{"from": 2019, "to": 2022}.',
        examples=[{"year": {"from": 2019}}],
    ),
]


class Encode(Strict):
    """Texts to encode."""

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
    """Paging, filters and details of each paper, shared by all searches."""

    k: K | None = Field(None, description="Default: 10; with min_score: all, at most 1,000.")
    offset: Offset = 0
    min_score: float | None = Field(None, description="Every paper with at least this score.")
    where: Where | None = None
    only: Ids | None = None
    exclude: Ids = []
    method: Literal["auto", "exact", "approximate"] = "auto"
    percentile: bool = Field(False, description="Share of the library that scores lower.")
    evidence: bool = Field(
        False, description="Best-matching sentence of each paper; for at most 100 papers."
    )


class Search(Listing):
    """A search by words, by ids of papers, by both, or by your own vector."""

    text: Words = ""
    ids: Ids = []
    vector: Annotated[list[float], Field(max_length=65_536)] | None = None
    task: str = "search"
    words: Annotated[float, Field(ge=0, le=1)] | Literal["rank", "tuned"] | None = Field(
        None, description="Share of BM25 in the score; rank: fuse by ranks; tuned: tuned share."
    )


class Recommend(Listing):
    """Papers of the library, or a draft, to recommend papers for."""

    ids: Ids = []
    title: MaybeWords = ""
    abstract: MaybeWords = ""
    task: str = "link_prediction"


class Found(BaseModel):
    """A paper in a result, read from a `scimult.library.Hit`."""

    model_config = ConfigDict(from_attributes=True)
    rank: int
    score: float
    id: str
    title: str
    abstract: str
    columns: dict[str, Any]
    percentile: float | None = None
    evidence: str | None = None


class Page(BaseModel):
    """A page of papers, best first."""

    score: str = Field(description="Kind of the scores: a similarity, or how lists are fused.")
    exact: bool
    papers: list[Found]


class Tag(Strict):
    """Papers to tag: of the library, by id, or others."""

    ids: Annotated[list[Name], Field(max_length=MOST_TEXTS)] = []
    papers: Annotated[list[PaperIn], Field(max_length=MOST_TEXTS)] = []
    labels: (
        Annotated[list[Words | LabelIn], Field(min_length=1, max_length=MOST_RESULTS)] | None
    ) = Field(None, description="Instead of the labels that the service was started with.")
    k: K = 5
    threshold: float | None = Field(None, allow_inf_nan=False)
    exclude: Ids = Field([], description="Ids of labels to leave out.")


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
    """Papers, and the candidates to rank for each: those of the request or of the library."""

    papers: list[PaperIn] = Field(min_length=1, max_length=MOST_TEXTS)
    candidates: Annotated[list[CandidateIn], Field(min_length=1, max_length=2000)] | None = Field(
        None, description="Default: the papers of the library."
    )
    task: str = "link_prediction"
    k: K = 10
    score: str = Field(
        "top3",
        description="Score of a reviewer: top3 (mean of the best three), max, mean, percentile:75.",
    )
    where: Where | None = Field(None, description="Only for papers of the library.")


class MatchFound(BaseModel):
    """A matching paper or reviewer."""

    rank: int
    score: float
    id: str


class Matches(BaseModel):
    """The matches of each paper, best first."""

    of: Literal["papers", "reviewers"]
    score: str
    matches: list[list[MatchFound]]


class Facts(BaseModel):
    """Facts about the library."""

    papers: int
    tasks: dict[str, str] = Field(description="Searchable tasks, with the kind of their queries.")
    columns: dict[str, str]
    model: str
    similarity: str
    width: int
    labels: int
    generation: int
    scimult: str


class Health(BaseModel):
    """State of the service."""

    status: Literal["ok", "stale", "damaged"]
    papers: int
    generation: int
    problem: str | None = Field(
        None,
        description="Why the latest library or labels are not served, or some papers cannot be.",
    )


class Problem(BaseModel):
    """Why a request was refused (RFC 9457)."""

    title: str
    status: int
    detail: str
    problem: str
    fix: str
    value: str | None = None


_MEANING = {
    400: "Not a valid HTTP request",
    401: "The key is missing or wrong",
    403: "Not supported by this service",
    404: "Not found",
    408: "The request did not arrive in time",
    413: "The request is too large",
    415: "The request is compressed",
    422: "The request is invalid",
    429: "The service is busy",
    503: "The library cannot be read",
    504: "The answer was not ready in time",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of a path's refusals."""
    return {
        status: {"model": Problem, "content": {PROBLEM: {}}, "description": _MEANING[status]}
        for status in statuses
    }
