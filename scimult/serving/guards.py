"""What stands before every request: who may ask, how much, how long, and how many at once."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scimult.serving.metrics import Metrics
from scimult.serving.refusals import PROBLEM, Refusal, problem_of

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/", "/page.css", "/page.js", "/health"})
"""Paths that need no key: they tell nothing of the papers."""
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Limits:
    """What a service takes.

    Attributes
    ----------
    waiting : int
        Requests with a body that are worked on at once; more are refused (429).
    seconds : float
        For an answer (504).
    body_bytes : int
        Of a request (413).
    body_seconds : float
        For its arrival (408).
    """

    waiting: int = 256
    seconds: float = 60.0
    body_bytes: int = 8 << 20
    body_seconds: float = 20.0


class Guards:
    """Refuses what must not reach the application, and counts the rest.

    Parameters
    ----------
    app : ASGI application
        What answers.
    limits : Limits
        What it takes.
    metrics : Metrics
        Counts.
    key : str, optional
        What every request has to bring: as a bearer token, as ``X-API-Key``, or as the password
        of basic authentication, which is how a client without an option for it brings one in its
        address.
    hosts : frozenset of str, optional
        Names under which the service may be called. A page elsewhere whose name leads to this
        machine calls by that name.
    """

    def __init__(
        self,
        app: App,
        limits: Limits,
        metrics: Metrics,
        key: str | None = None,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._key, self._hosts = key, hosts
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                known = {name for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] += [pair for pair in extra if pair[0] not in known]
            await send(message)

        held = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        self._waiting += held
        self._metrics.waiting.set(self._waiting)
        try:
            self._check(scope, held)
            body = await self._body(scope, receive) if held else b""
            await self._app(scope, _replayed(body, receive), counted)
        except Refusal as refusal:
            await _refuse(refusal, counted)
        finally:
            self._waiting -= held
            self._metrics.waiting.set(self._waiting)
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - begun)

    def _check(self, scope: Scope, held: bool) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        host = _name_of(headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            fix = "call it by the name of this machine that it listens on"
            raise Refusal(421, f"the service is not called {host[:80]!r}", fix=fix)
        if self._key is not None and scope["path"] not in OPEN and not self._opens(headers):
            fix = "send the service's key: Authorization: Bearer KEY"
            ask = {"WWW-Authenticate": "Bearer"}
            raise Refusal(401, "the key is missing or wrong", fix=fix, headers=ask)
        if held and self._waiting > self._limits.waiting:
            fix = "ask again in a second"
            raise Refusal(429, "the service is busy", fix=fix, headers={"Retry-After": "1"})

    def _opens(self, headers: Mapping[str, str]) -> bool:
        given = headers.get("x-api-key", "")
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = value
        elif scheme.lower() == "basic":
            try:
                given = base64.b64decode(value, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        assert self._key is not None
        return hmac.compare_digest(given.encode(), self._key.encode())

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most = self._limits.body_bytes
        said = dict(scope["headers"]).get(b"content-length", b"0")
        large = Refusal(
            413,
            f"the request is larger than {most:,} bytes",
            fix="send fewer or shorter texts at once",
            headers={"Connection": "close"},
        )
        if said.isdigit() and int(said) > most:
            raise large
        parts: list[bytes] = []
        size, end = 0, time.monotonic() + self._limits.body_seconds
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                fix = "send the whole request at once"
                close = {"Connection": "close"}
                raise Refusal(408, "the request did not arrive", fix=fix, headers=close) from None
            if message["type"] == "http.disconnect":
                return b"".join(parts)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise large
            if not message.get("more_body"):
                return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read already, and then waits for the client to go."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = json.dumps(problem_of(refusal)).encode()
    headers = {"content-type": PROBLEM, "content-length": str(len(body)), **refusal.headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _name_of(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
