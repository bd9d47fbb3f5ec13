"""The page: one file of each kind, sent as it is."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, Response

_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def page_paths() -> APIRouter:
    """Return the paths of the page; they stand outside the documentation."""
    router = APIRouter(include_in_schema=False)
    for path, (name, kind) in _FILES.items():
        content = (resources.files("scimult.serving") / "web" / name).read_bytes()
        _add(router, path, content, kind)
    return router


def _add(router: APIRouter, path: str, content: bytes, kind: str) -> None:
    @router.get(path)
    async def page() -> Response:
        return Response(content, media_type=kind)
