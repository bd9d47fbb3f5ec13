"""The service: its paths, their documentation, and errors as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any, get_args

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from scimult import __version__
from scimult.errors import SciMultError, suggest
from scimult.serving import schemas
from scimult.serving.annif import Project, annif_paths
from scimult.serving.answers import Answers
from scimult.serving.batching import DEADLINE
from scimult.serving.guards import Guards, Limits
from scimult.serving.metrics import Metrics
from scimult.serving.refusals import PROBLEM, Refusal, problem_of

THREADS = 32
"""Requests to work on at once; most of them wait for the encoder."""
# Threads for requests that wait for the first index of words, so that others are not held up.
_WAITING = 4
_SECONDS = 1.0

_ERRORS = schemas.refusals(400, 401, 408, 413, 415, 422, 429, 503, 504)


class Service:
    """A FastAPI application over a library; ``project`` has the labels for Annif's paths.

    The encoder of ``answers`` should report its passes to ``metrics``. ``key`` and ``hosts`` are
    those of `scimult.serving.guards.Guards`.
    """

    def __init__(
        self,
        answers: Answers,
        *,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        project: Project | None = None,
        key: str | None = None,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self._answers = answers
        self._limits, self._metrics = limits or Limits(), metrics or Metrics()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="answer")
        self._waiting = ThreadPoolExecutor(_WAITING, thread_name_prefix="waiting")
        app = FastAPI(
            title="SciMult",
            version=__version__,
            summary="A library of papers to encode, search, recommend, tag and match.",
            lifespan=self._lifespan,
            docs_url=None,
            redoc_url=None,
            # Behind a proxy, an address of this machine's own, without TLS.
            redirect_slashes=False,
            separate_input_output_schemas=False,
        )
        app.add_exception_handler(RequestValidationError, _invalid)
        app.add_exception_handler(HTTPException, _http_error)
        app.add_exception_handler(SciMultError, _refused)
        app.add_exception_handler(Exception, _broken)
        self._add_paths(app)
        app.include_router(annif_paths(project, self.answer))
        app.include_router(page_paths())
        self.app: ASGIApp = Guards(app, self._limits, self._metrics, key, hosts)

    async def answer(self, work: Callable[[], BaseModel], *, waits: bool = False) -> Response:
        """Do work in a thread, one of a few if it waits long, and return its result as JSON.

        Raises
        ------
        Refusal
            If it takes too long (504).
        """
        deadline = time.monotonic() + self._limits.seconds

        def as_json() -> bytes:
            # Past the deadline, requests cost no more passes of the model.
            DEADLINE.set(deadline)
            return work().model_dump_json().encode()

        threads = self._waiting if waits else self._threads
        # In a context of its own: the thread's next work has another deadline, or none.
        alone = contextvars.copy_context().run
        running = asyncio.get_running_loop().run_in_executor(threads, alone, as_json)
        try:
            body = await asyncio.wait_for(running, self._limits.seconds)
        except asyncio.TimeoutError:
            fix = "request less, or try again when the service is less busy"
            raise Refusal(504, "the answer was not ready in time", fix=fix) from None
        return Response(body, media_type="application/json")

    def _add_paths(self, app: FastAPI) -> None:
        answers = self._answers

        @app.post("/encode", response_model=schemas.Encoded, responses=_ERRORS)
        async def encode(request: schemas.Encode) -> Response:
            """Encode texts for one side of a task."""
            return await self.answer(lambda: answers.encode(request))

        @app.post("/search", response_model=schemas.Page, responses=_ERRORS)
        async def search(request: schemas.Search) -> Response:
            """Search by words, by papers of the library, by both, or by a vector."""
            waits = request.words is not None and not answers.served.has_words
            return await self.answer(lambda: answers.search(request), waits=waits)

        @app.post("/recommend", response_model=schemas.Page, responses=_ERRORS)
        async def recommend(request: schemas.Recommend) -> Response:
            """Recommend papers to cite for papers of the library, or for a draft."""
            return await self.answer(lambda: answers.recommend(request))

        @app.post("/tag", response_model=schemas.TaggedPapers, responses=_ERRORS)
        async def tag(request: schemas.Tag) -> Response:
            """Tag papers with the best labels."""
            return await self.answer(lambda: answers.tag(request))

        @app.post("/match", response_model=schemas.Matches, responses=_ERRORS)
        async def match(request: schemas.Match) -> Response:
            """Rank papers, or reviewers by their publications, for each paper."""
            return await self.answer(lambda: answers.match(request))

        @app.get("/library", responses=schemas.refusals(401))
        async def library() -> schemas.Facts:
            """Describe the library."""
            return answers.facts()

        @app.get("/health")
        async def health() -> schemas.Health:
            """Report the state of the service."""
            return answers.health

        @app.get("/metrics", response_class=Response, responses=schemas.refusals(401))
        async def metrics() -> Response:
            """Return counters and times for Prometheus."""
            library = answers.served.library
            self._metrics.papers.set(len(library))
            self._metrics.generation.set(library.state.manifest.generation)
            kind = "text/plain; version=0.0.4; charset=utf-8"
            return Response(self._metrics.page(), media_type=kind)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            # The server has answered all accepted requests by now, and takes no others.
            following.cancel()
            for threads in (self._threads, self._waiting):
                threads.shutdown(wait=True, cancel_futures=True)
            self._answers.served.close()

    async def _follow(self) -> None:
        """Check every second whether another process changed the library or the labels."""
        while True:
            await asyncio.sleep(_SECONDS)
            if await asyncio.to_thread(self._answers.follow):
                self._waiting.submit(self._answers.served.index_words)


def _respond(error: SciMultError) -> JSONResponse:
    body = problem_of(error)
    headers = error.headers if isinstance(error, Refusal) else None
    return JSONResponse(body, body["status"], headers=headers, media_type=PROBLEM)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SciMultError)
    return _respond(error)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    fix = "see /openapi.json for the paths and their methods"
    if error.status_code == 400:
        fix = f"see {request.url.path[:80]} in /openapi.json; JSON is read in UTF-8"
    elif error.status_code == 404 and request.url.path.endswith("/"):
        fix = f"leave out the last slash; {fix}"
    problem = f"{request.method} {request.url.path[:80]}: {error.detail}"
    headers = dict(error.headers or {})
    return _respond(Refusal(error.status_code, problem, fix=fix, headers=headers))


async def _broken(_: Request, __: Exception) -> JSONResponse:
    # The server logs the error.
    fix = "report it with the output of the service"
    return _respond(Refusal(500, "internal error of the service", fix=fix))


_TELLING = ("extra_forbidden", "string_too_long", "string_unicode", "too_long", "value_error")


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Report the first error of an invalid body, and suggest a similar field."""
    assert isinstance(error, RequestValidationError)
    # If all alternatives of a union fail, some say more than that the value is no number.
    first = min(error.errors(), key=lambda one: one["type"] not in _TELLING)
    path = [str(part) for part in first["loc"][1:] if _names_a_field(part)]
    where = ".".join(path)[:80] or "the body"
    if first["type"] == "json_invalid":
        return _respond(Refusal(422, "the body is not valid JSON", fix="send a JSON object"))
    if first["type"] == "extra_forbidden":
        known = _fields_of(request, first["loc"])
        fix = f"use one of {', '.join(known)}{suggest(path[-1] if path else '', known)}"
        return _respond(Refusal(422, f"unknown field {where!r}", fix=fix))
    fix = f"see {request.url.path} in /openapi.json"
    if len(first["loc"]) == 1:
        fix = f"send a JSON object, with Content-Type: application/json; {fix}"
    message = first["msg"].removeprefix("Value error, ")
    return _respond(Refusal(422, f"{where}: {message}", fix=fix))


def _names_a_field(part: int | str) -> bool:
    """Return whether a part of an error's location is a field, not a type of a union."""
    return isinstance(part, int) or (part.isidentifier() and not part[0].isupper())


def _fields_of(request: Request, location: Sequence[int | str]) -> list[str]:
    """Return the valid fields at an error's location in the body."""
    body = getattr(request.scope.get("route"), "body_field", None)
    models = _models_in(getattr(getattr(body, "field_info", None), "annotation", None))
    for part in location[1:-1]:
        types = [m.model_fields[str(part)].annotation for m in models if part in m.model_fields]
        models = [inner for one in types for inner in _models_in(one)] or models
    names = (field.alias or name for m in models for name, field in m.model_fields.items())
    return list(dict.fromkeys(names))


def _models_in(type_: Any) -> list[type[BaseModel]]:
    """Return a type, if it is a model, or the models among its parts."""
    if isinstance(type_, type) and issubclass(type_, BaseModel):
        return [type_]
    return [model for part in get_args(type_) for model in _models_in(part)]


_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def page_paths() -> APIRouter:
    """Return the paths of the web page, which are not in the OpenAPI schema."""
    router = APIRouter(include_in_schema=False)
    for path, (name, media_type) in _FILES.items():
        content = (resources.files("scimult.serving") / "web" / name).read_bytes()
        _add(router, path, content, media_type)
    return router


def _add(router: APIRouter, path: str, content: bytes, media_type: str) -> None:
    @router.get(path)
    async def page() -> Response:
        return Response(content, media_type=media_type)
