"""Questions to a running service from the command line: nothing is loaded, so answers are quick."""

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
# Of the error at an option that a service does not take from afar.
NO_SERVER = "--library or --papers, not with --server"
OWN_REQUEST = "; filters go into a request of your own"


def ask(server: str, verb: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a service.

    Parameters
    ----------
    server : str
        Its address.
    verb : str
        Path of the question.
    question : mapping
        Its fields.

    Raises
    ------
    ConfigError
        If the address is none.
    StorageError
        If nothing answers there.
    DataError
        If the service refuses; with its problem and fix.
    """
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.netloc:
        fix = "write an address such as http://127.0.0.1:8000"
        raise ConfigError("no address of a service", value=server, fix=fix)
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
        fix = "start it with scimult serve LIBRARY, or name its address"
        reason = getattr(error, "reason", error)
        raise StorageError(f"no service answers at {url} ({reason})", fix=fix) from error
    if not isinstance(reply, dict) or "papers" not in reply:
        fix = "name the address of scimult serve"
        raise StorageError(f"something else answers at {url}", fix=fix)
    return reply


def rows_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the papers of an answer as a library's own search shows them."""
    rows = []
    for paper in answer["papers"]:
        row = {"rank": paper["rank"], "score": round(paper["score"], 4)}
        if paper.get("percentile") is not None:
            row["percentile"] = round(paper["percentile"], 2)
        rows.append({**row, "id": paper["id"], "title": paper["title"], **paper["columns"]})
    return rows


def _refusal(error: HTTPError, url: str) -> DataError:
    try:
        told = json.loads(error.read())
        return DataError(f"{url}: {told['problem']}", value=told.get("value"), fix=told["fix"])
    except (ValueError, KeyError, TypeError):
        fix = "name the address of scimult serve"
        return DataError(f"{url} answers {error.code} {error.reason}", fix=fix)
