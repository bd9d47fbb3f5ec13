"""Refusals of a service: a status, the problem and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from scimult.errors import SciMultError, shown
from scimult.library.segments import UnreadableError

PROBLEM = "application/problem+json"


class Refusal(SciMultError):
    """A refused request, with its HTTP status and headers such as ``Retry-After``."""

    def __init__(
        self, status: int, problem: str, *, fix: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(problem, fix=fix)
        self.status, self.headers = status, dict(headers or {})


def problem_of(error: SciMultError) -> dict[str, Any]:
    """Return an error as a response body (RFC 9457), without paths of this machine."""
    status = 503 if isinstance(error, UnreadableError) else 422
    if isinstance(error, Refusal):
        status = error.status
    body: dict[str, Any] = {
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": f"{error.problem}. Fix: {error.fix}" if error.fix else error.problem,
        "problem": error.problem,
        "fix": error.fix or "check the request against /openapi.json",
    }
    if error.value is not None:
        value = error.value if isinstance(error.value, str) else shown(error.value)
        # JSON's escapes may hold half of a character, which UTF-8 cannot.
        body["value"] = value.encode(errors="replace").decode()[:200]
    return body
