"""Requests to a running service: nothing is loaded locally, so answers are quick."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from scimult.errors import ConfigError, DataError, StorageError

KEY = "SCIMULT_API_KEY"
_SECONDS = 120
# For errors about options that cannot be sent to a service.
NO_SERVER = "--library or --papers, not with --server"
OWN_REQUEST = "; to filter, send your own HTTP request"


def ask(server: str, verb: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Post a question to a service and return its answer.

    Parameters
    ----------
    server : str
        Address of the service.
    verb : str
        Path of the request.
    question : mapping
        Fields of the request.

    Raises
    ------
    ConfigError
        If the address is invalid.
    StorageError
        If no service answers there.
    DataError
        If the service refuses; with its problem and fix.
    """
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.netloc:
        fix = "write an address such as http://127.0.0.1:8000"
        raise ConfigError("not the address of a service", value=server, fix=fix)
    headers = {"Content-Type": "application/json"}
    if os.environ.get(KEY):
        headers["Authorization"] = f"Bearer {os.environ[KEY]}"
    url = f"{server.rstrip('/')}/{verb}"
    request = Request(url, json.dumps(question).encode(), headers, method="POST")
    try:
        with urlopen(request, timeout=_SECONDS) as answer:
            reply = json.load(answer)
    except HTTPError as error:
        raise _refusal(error, url) from error
    except (URLError, OSError, ValueError) as error:
        fix = "start it with scimult serve LIBRARY, or correct the address"
        reason = getattr(error, "reason", error)
        raise StorageError(f"no service answers at {url} ({reason})", fix=fix) from error
    if not isinstance(reply, dict) or "papers" not in reply:
        fix = "give the address of scimult serve"
        raise StorageError(f"something else answers at {url}", fix=fix)
    return reply


def rows_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an answer's papers in the form of a library's own hits."""
    rows = []
    for paper in answer["papers"]:
        row = {"rank": paper["rank"], "score": round(paper["score"], 4)}
        if paper.get("percentile") is not None:
            row["percentile"] = round(paper["percentile"], 2)
        rows.append({**row, "id": paper["id"], "title": paper["title"], **paper["columns"]})
    return rows


def _refusal(error: HTTPError, url: str) -> DataError:
    try:
        refusal = json.loads(error.read())
        problem, fix = f"{url}: {refusal['problem']}", refusal["fix"]
        return DataError(problem, value=refusal.get("value"), fix=fix)
    except (ValueError, KeyError, TypeError):
        fix = "give the address of scimult serve"
        return DataError(f"{url} answers {error.code} {error.reason}", fix=fix)
