"""Guards of the service: keys, request sizes, arrival times and the number of requests."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scimult.serving.metrics import Metrics
from scimult.serving.refusals import PROBLEM, Refusal, problem_of

OPEN = frozenset({"/", "/page.css", "/page.js", "/health"})
"""Paths without a key: they reveal nothing about the papers' contents."""
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
    """Limits on requests, with the status that refuses more.

    Attributes
    ----------
    waiting : int
        Requests with a body at once (429).
    seconds : float
        Time for an answer (504).
    body_bytes : int
        Size of a request (413).
    body_seconds : float
        Time for a request to arrive (408).
    """

    waiting: int = 256
    seconds: float = 60.0
    body_bytes: int = 8 << 20
    body_seconds: float = 20.0


class Guards:
    """Refuses requests that must not reach the application, and counts all.

    Parameters
    ----------
    key : str, optional
        Required of every request: as a bearer token, as ``X-API-Key``, or as the password of basic
        authentication, for clients that can only put it into the address.
    hosts : frozenset of str, optional
        Accepted Host headers. They stop DNS rebinding, where another site's name resolves to this
        machine.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        metrics: Metrics,
        key: str | None = None,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._key, self._hosts = key, hosts
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        if scope["method"] == "HEAD":
            # As GET; the server, which keeps its own scope, sends the headers alone.
            scope = {**scope, "method": "GET"}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] += [pair for pair in extra if pair[0] not in present]
            await send(message)

        has_body = scope["method"] not in ("GET", "OPTIONS")
        self._waiting += has_body
        self._metrics.waiting.set(self._waiting)
        try:
            self._check(scope, has_body)
            body = await self._body(scope, receive) if has_body else b""
            await self._app(scope, _replayed(body, receive), send_with_headers)
        except Refusal as refusal:
            await _refuse(refusal, send_with_headers)
        finally:
            self._waiting -= has_body
            self._metrics.waiting.set(self._waiting)
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - started)

    def _check(self, scope: Scope, has_body: bool) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        host = _name_of(headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            fix = "use the address that it listens on"
            raise Refusal(421, f"the service is not at {host[:80]!r}", fix=fix)
        if self._key is not None and scope["path"] not in OPEN and not self._has_key(headers):
            fix = "send the service's key: Authorization: Bearer KEY"
            challenge = {"WWW-Authenticate": "Bearer"}
            raise Refusal(401, "the key is missing or wrong", fix=fix, headers=challenge)
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if has_body and encoding != "identity":
            fix = "send it without Content-Encoding"
            raise Refusal(415, f"the request is compressed: {encoding[:80]!r}", fix=fix)
        if has_body and self._waiting > self._limits.waiting:
            fix = "try again in a second"
            raise Refusal(429, "the service is busy", fix=fix, headers={"Retry-After": "1"})

    def _has_key(self, headers: Mapping[str, str]) -> bool:
        key = headers.get("x-api-key", "")
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            key = value
        elif scheme.lower() == "basic":
            try:
                key = base64.b64decode(value, validate=True).decode().partition(":")[2]
            except ValueError:  # not base64, not ASCII, or not UTF-8 within
                return False
        assert self._key is not None
        return hmac.compare_digest(key.encode(), self._key.encode())

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most = self._limits.body_bytes
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"0")
        too_large = Refusal(
            413,
            f"the request is larger than {most:,} bytes",
            fix="send fewer or shorter texts at once",
            headers={"Connection": "close"},
        )
        parts: list[bytes] = []
        size, end = 0, time.monotonic() + self._limits.body_seconds
        if announced.isdigit() and int(announced) > most:
            # One that sends the body only if asked to is told before.
            if b"expect" not in headers:
                await _discard(receive, end)
            raise too_large
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                fix = "send the whole request at once"
                close = {"Connection": "close"}
                raise Refusal(408, "the request did not arrive", fix=fix, headers=close) from None
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the request was cut off", fix="send the whole request")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            is_last = not message.get("more_body")
            if size > most:
                if not is_last:
                    await _discard(receive, end)
                raise too_large
            if is_last:
                return b"".join(parts)


async def _discard(receive: Receive, end: float) -> None:
    """Read the rest of a request until ``end``: clients read no answer before they have sent all.

    A connection that is closed before that is reset, and the answer lost.
    """
    more = True
    while more:
        try:
            message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
        except asyncio.TimeoutError:
            return
        more = message["type"] == "http.request" and message.get("more_body", False)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that first replays a body that was already read."""
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


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
