"""Running a service: its address and its shutdown."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from scimult.errors import ConfigError

if TYPE_CHECKING:  # it imports torch, which the checks of key and address need not wait for
    from scimult.serving.app import Service

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, before anything is loaded.

    Raises
    ------
    ConfigError
        If the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        fix = "choose another --host or --port"
        raise ConfigError(f"cannot listen: {error}", value=f"{host}:{port}", fix=fix) from None


def run(service: Service, sock: socket.socket, seconds: float, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests within ``seconds``."""
    config = uvicorn.Config(
        service.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        # Longer than proxies keep theirs (nginx and AWS: a minute): else some requests meet the end
        # of their connection, which for a POST is the proxy's error 502.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(seconds) + 5,
        # httptools, if installed, would keep headers of any size before the key is checked, and
        # websockets would pass the guards.
        http="h11",
        ws="none",
        h11_max_incomplete_event_size=1 << 16,
    )
    server = _Server(config)
    server.started_ = started
    server.run(sockets=[sock])


class _Server(uvicorn.Server):
    """Calls ``started_`` once it serves."""

    started_: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self.started_()
