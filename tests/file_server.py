"""A local file server: with or without ranges, slow, disconnecting, failing; and no hub at all."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module

import pytest
from huggingface_hub import constants

from scimult import transfers

CONTENT = bytes(range(256)) * 4096  # 1 MiB
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """The server's files, behaviour and received requests."""

    base: str = ""
    content: bytes = CONTENT
    mark: str | None = '"one"'
    ranges: bool = True
    cut: list[int] = field(default_factory=list)
    """Bytes after which the next responses disconnect."""
    errors: list[int] = field(default_factory=list)
    slow: bool = False
    asked: list[str | None] = field(default_factory=list)
    files: dict[str, str | bytes] = field(default_factory=dict)
    """Contents by path; other paths have the content above."""


def _send(state: Server, handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """Send a body, or its start before a disconnect."""
    if state.cut:
        body = body[: state.cut.pop(0)]
    for at in range(0, len(body), 1 << 16):
        handler.wfile.write(body[at : at + (1 << 16)])
        if state.slow:
            time.sleep(0.05)


def file_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serve until the test ends, without waits between retries."""
    state = Server()
    monkeypatch.setattr(transfers, "_WAITS", (0.0, 0.0))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            content = state.content
            if state.files:
                held = state.files[self.path]
                content = held.encode() if isinstance(held, str) else held
            state.asked.append(wanted)
            if state.errors:
                self.send_error(state.errors.pop(0))
                return
            start = 0
            if wanted and state.ranges and self.headers.get("If-Range") == state.mark:
                found = re.fullmatch(r"bytes=(\d+)-", wanted)
                assert found is not None
                start = int(found[1])
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                last = len(content) - 1
                self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content) - start))
            if state.mark:
                self.send_header("ETag", state.mark)
            self.end_headers()
            _send(state, self, content[start:])

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        # It looks this often whether to stop, and the test waits for it.
        threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        state.base = f"http://127.0.0.1:{served.server_address[1]}"
        yield state
        served.shutdown()


def cut_off_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody answer at the hub's address, and no client wait before a retry: it fails."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    import_module("sentence_transformers")  # what it imports binds time.sleep
    monkeypatch.delattr(time, "sleep")
