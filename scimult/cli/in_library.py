"""Checks and answers that ``search``, ``recommend`` and ``tag`` share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener, getproxies

from scimult.cli.checks import only_with
from scimult.cli.common import KEY, api_key, is_local, show_list
from scimult.cli.output import echo
from scimult.errors import ConfigError, DataError, StorageError
from scimult.progress import warn

if TYPE_CHECKING:
    from scimult.library import Library
    from scimult.library.results import Hit

_T = TypeVar("_T")
_SECONDS = 120
# What else to do than to send these options to a service.
ELSEWHERE = {
    "--where": ", or filter with --library, or by an HTTP request of your own",
    "--rerank": ", or rerank with --library",
}


def check_paper_source(
    library: Path | None,
    model: Path | None,
    papers: Path | None,
    only_library: Mapping[str, object],
    only_papers: Mapping[str, object],
) -> None:
    """Check that a verb was given either a library, or a model and papers, and no other's options.

    Raises
    ------
    ConfigError
        If neither or both were given, or an option of the other one.
    """
    if library is None and (model is None or papers is None):
        missing = "--model" if model is None else "--papers"
        fix = "give --library, or --model and --papers"
        raise ConfigError(f"{missing} is missing", fix=fix)
    if library is not None and papers is not None:
        fix = "leave one of them out; scimult library add adds papers to a library"
        raise ConfigError("--library and --papers are mutually exclusive", fix=fix)
    if library is None:
        only_with("--library", only_library)
    else:
        only_with("--papers", only_papers)


def show_answer(
    verb: Literal["search", "recommend"],
    question: Mapping[str, Any],
    target: str | Mapping[str, Any],
    title: str,
    as_json: bool,
) -> None:
    """Send a question to a service or to a local library, and print the papers.

    ``verb`` is the path at the service and the method of the library, ``target`` the service's
    address or the arguments to open the library. Fields that are None are left out.
    """
    fields = {name: value for name, value in question.items() if value is not None}
    if isinstance(target, str):
        answer = _ask_for_all(target, verb, fields)
        rows = [_hit(paper).as_dict() for paper in answer["papers"]]
        _show_rows(rows, answer["score"], answer["exact"], title, as_json)
        return
    from scimult.library import Library

    hits = asked(Library.open(**target), lambda library: getattr(library, verb)(**fields))
    _show_rows(hits.as_dicts(), hits.score, hits.exact, title, as_json)


def asked(library: Library, question: Callable[[Library], _T]) -> _T:
    """Ask a library, and again if another process changed it meanwhile: its files may be gone."""
    while True:
        before = library.state.manifest
        try:
            return question(library)
        except DataError:
            library.refresh()
            if library.state.manifest == before:
                raise


def _show_rows(
    rows: list[dict[str, Any]], score: str, exact: bool, title: str, as_json: bool
) -> None:
    if not rows:
        echo("no paper of the library matches", err=True)
    if not as_json:
        suffix = "" if exact else ", approximate"
        heading = f"score ({score}{suffix})"
        rows = [_cells(row, heading) for row in rows]
    show_list(rows, title, as_json)


def _cells(row: Mapping[str, Any], heading: str) -> dict[str, Any]:
    """Return what a table shows of a paper, its score under ``heading``."""
    cells = {
        heading if name == "score" else name: value
        for name, value in row.items()
        if name in ("rank", "score", "percentile", "id", "title", "year")
    }
    if "percentile" in cells:
        cells["percentile"] = f"{cells['percentile']:6.2f}"
    return cells


def _ask_for_all(server: str, verb: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a service, page by page where everything above a threshold is wanted, as of a library."""
    answer = _ask(server, verb, question)
    if "min_score" not in question or "k" in question:
        return answer
    from scimult.serving.schemas import MOST_DEPTH, MOST_RESULTS

    papers = page = answer["papers"]
    first = question.get("offset", 0)
    while len(page) == MOST_RESULTS and first + len(papers) <= MOST_DEPTH:
        page = _ask(server, verb, {**question, "offset": first + len(papers)})["papers"]
        papers = papers + page
    if len(page) == MOST_RESULTS:
        depth = first + len(papers)
        warn(f"more may be above the threshold: a service lists no more than the best {depth:,}")
    return {**answer, "papers": papers}


def _ask(server: str, verb: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Post a question to a service, which answers quickly as nothing is loaded here.

    Raises
    ------
    ConfigError
        If the address or the key is invalid.
    StorageError
        If no service answers there.
    DataError
        If the service refuses; with its problem and fix.
    """
    if not _is_address(server):
        fix = "write an address such as http://127.0.0.1:8000"
        raise ConfigError("not the address of a service", value=server, fix=fix)
    headers = {"Content-Type": "application/json"}
    if key := api_key(least=1, fix="copy the service's key: it is printable ASCII, on one line"):
        headers["Authorization"] = f"Bearer {key}"
    url = f"{server.rstrip('/')}/{verb}"
    request = Request(url, json.dumps(question).encode(), headers, method="POST")
    address = urlsplit(server)
    # No proxy leads back to this machine.
    proxies = {} if is_local(address.hostname or "") else getproxies()
    try:
        with build_opener(ProxyHandler(proxies)).open(request, timeout=_SECONDS) as answer:
            reply = json.load(answer)
    except HTTPError as error:
        raise _refusal(error, url) from error
    # Other protocols' answers and broken ones are no OSErrors.
    except (URLError, HTTPException, OSError, ValueError) as error:
        fix = "start it with scimult serve LIBRARY, or correct the address"
        if address.scheme in proxies:
            fix += f"; if ${address.scheme.upper()}_PROXY does not lead there, list it in $NO_PROXY"
        reason = str(getattr(error, "reason", error)).strip()  # an answer may be all of it
        raise StorageError(f"no service answers at {url} ({reason})", fix=fix) from error
    if not isinstance(reply, dict) or "papers" not in reply:
        fix = "give the address of scimult serve"
        raise StorageError(f"something else answers at {url}", fix=fix)
    return reply


def _is_address(server: str) -> bool:
    try:
        address = urlsplit(server)
        return address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # half a bracket, or a port that is no number
        return False


def _hit(paper: Mapping[str, Any]) -> Hit:
    """Return a paper of an answer as a library would."""
    from scimult.library.results import Hit
    from scimult.types import Text

    text = Text("paper", paper["title"], paper["abstract"])
    number, columns = paper.get("percentile"), paper["columns"]
    return Hit(paper["rank"], paper["score"], paper["id"], text, columns, number)


def _refusal(error: HTTPError, url: str) -> DataError:
    try:
        refusal = json.loads(error.read())
        problem, fix = f"{url}: {refusal['problem']}", refusal["fix"]
        if error.code == HTTPStatus.UNAUTHORIZED:
            fix = f"set ${KEY} to the service's key"
        return DataError(problem, value=refusal.get("value"), fix=fix)
    except (ValueError, KeyError, TypeError):
        fix = "give the address of scimult serve"
        return DataError(f"{url} answers {error.code} {error.reason}", fix=fix)
