"""Annif's REST paths, so that its clients can get labels from this service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, RootModel

from scimult import __version__
from scimult.serving.labels import Tags
from scimult.serving.refusals import Refusal
from scimult.serving.schemas import MOST_RESULTS, Words, refusals
from scimult.tagging.tagger import SuggestedTag
from scimult.types import Text

Answer = Callable[[Callable[[], BaseModel]], Awaitable[Response]]
MOST_DOCUMENTS = 32
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_ERRORS = refusals(400, 401, 404, 408, 413, 415, 422, 429, 503, 504)
Limit = Annotated[int, Field(ge=0, le=MOST_RESULTS)]
Threshold = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Project:
    """Labels under a name: Annif's term for a model with its vocabulary."""

    id: str
    tags: Callable[[], Tags]
    language: str = "en"


class Backend(BaseModel):
    """The backend that suggests labels."""

    backend_id: str = "scimult"


class ProjectFacts(BaseModel):
    """A project, as Annif describes it."""

    project_id: str
    name: str
    language: str
    backend: Backend = Backend()
    is_trained: bool = True


class ProjectList(BaseModel):
    """All projects: the service's labels, or none."""

    projects: list[ProjectFacts]


class Info(BaseModel):
    """Name and version of the service."""

    title: str = "SciMult on Annif's paths"
    version: str = __version__


class Subject(BaseModel):
    """A suggested label."""

    uri: str
    label: str
    notation: str | None = None
    score: float


class Subjects(BaseModel):
    """Labels, best first."""

    results: list[Subject]


class Document(BaseModel):
    """A text; other fields of Annif are ignored."""

    model_config = ConfigDict(extra="ignore")
    text: Words
    document_id: Words | None = None


class Documents(BaseModel):
    """Up to 32 texts."""

    documents: list[Document] = Field(max_length=MOST_DOCUMENTS)


class SubjectsOf(Subjects):
    """Labels of one document."""

    document_id: str | None


class Batch(RootModel[list[SubjectsOf]]):
    """Labels of documents, in the order of the request."""


def annif_paths(project: Project | None, answer: Answer) -> APIRouter:
    """Return the paths below ``/v1``."""
    router = APIRouter(prefix="/v1", tags=["Annif"])

    def find(project_id: str) -> Project:
        if project is None or project_id != project.id:
            fix = f"use {project.id}" if project else "start the service with --labels"
            raise Refusal(404, f"Project {project_id[:80]!r} not found", fix=fix)
        return project

    @router.get("/", responses=refusals(401))
    async def info() -> Info:
        """Describe the service."""
        return Info()

    @router.get("/projects", responses=refusals(401))
    async def projects() -> ProjectList:
        """List the projects."""
        return ProjectList(projects=[_facts(project)] if project else [])

    @router.get("/projects/{project_id}", responses=_ERRORS)
    async def one(project_id: str) -> ProjectFacts:
        """Describe a project."""
        return _facts(find(project_id))

    @router.post("/projects/{project_id}/suggest", response_model=Subjects, responses=_ERRORS)
    async def suggest(
        project_id: str,
        request: Request,
        text: Annotated[Words, Form()] = "",
        limit: Annotated[Limit, Form()] = 10,
        threshold: Annotated[Threshold, Form()] = 0.0,
    ) -> Response:
        """Suggest labels for a text."""
        project = find(project_id)
        _check_form(request)
        return await answer(
            lambda: Subjects(results=_suggested(project, [text], limit, threshold)[0])
        )

    @router.post("/projects/{project_id}/suggest-batch", response_model=Batch, responses=_ERRORS)
    async def suggest_batch(
        project_id: str,
        body: Documents,
        limit: Annotated[Limit, Query()] = 10,
        threshold: Annotated[Threshold, Query()] = 0.0,
    ) -> Response:
        """Suggest labels for up to 32 texts."""
        project = find(project_id)

        def work() -> Batch:
            texts = [document.text for document in body.documents]
            subjects = _suggested(project, texts, limit, threshold)
            names = [document.document_id for document in body.documents]
            return Batch(
                [SubjectsOf(results=r, document_id=n) for r, n in zip(subjects, names, strict=True)]
            )

        return await answer(work)

    @router.post("/projects/{project_id}/learn", responses=refusals(401, 403, 404))
    async def learn(project_id: str) -> None:
        """Refuse to learn from requests."""
        find(project_id)
        fix = "train the tagger again in its folder: the service follows it"
        raise Refusal(403, "the project does not learn from requests", fix=fix)

    return router


def _check_form(request: Request) -> None:
    """Refuse another body, whose text would pass as an empty one, which is no mistake."""
    if not request.headers.get("content-type", "").lower().startswith(_FORMS):
        fix = "send text as a field of a form, or JSON to suggest-batch"
        raise Refusal(422, "the body is not a form", fix=fix)


def _facts(project: Project) -> ProjectFacts:
    return ProjectFacts(project_id=project.id, name=project.id, language=project.language)


def _suggested(
    project: Project, texts: list[str], limit: int, threshold: float
) -> list[list[Subject]]:
    """Return labels with scores from 0 to 1; empty texts have none, as in Annif."""
    rows = [row for row, text in enumerate(texts) if text.strip()]
    subjects: list[list[Subject]] = [[] for _ in texts]
    if not rows or not limit:
        return subjects
    papers = [_paper(texts[row]) for row in rows]
    # Annif returns no sentences, and to find them takes longer than the labels.
    lists = project.tags().suggest(papers, k=limit, threshold=threshold, exclude=(), evidence=False)
    for row, suggestions in zip(rows, lists, strict=True):
        subjects[row] = [_subject(one) for one in suggestions]
    return subjects


def _subject(one: SuggestedTag) -> Subject:
    return Subject(uri=one.id, label=one.label, score=min(1.0, max(0.0, one.score)))


def _paper(text: str) -> Text:
    """Return a text as a paper, with its first line as the title."""
    title, _, body = text.strip().partition("\n")
    return Text("paper", title.strip(), body.strip())
