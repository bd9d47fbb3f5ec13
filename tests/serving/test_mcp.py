"""The tools, called by the SDK's own client, in this process and over stdio."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from scimult.cli.serve import followed_labels
from scimult.library import Library
from scimult.serving import mcp
from scimult.serving.answers import Answers
from scimult.serving.mcp import MOST_ABSTRACT, MOST_TITLE, mcp_server
from scimult.serving.served import Served
from tests.library.conftest import dated
from tests.serving.conftest import LABELS, save_labels
from tests.tiny import save_tiny_model

T = TypeVar("T")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    root = tmp_path_factory.mktemp("tools")
    model = save_tiny_model(root / "model", similarity="cosine")
    long = {"id": "long", "title": "t" * 9999, "abstract": "a" * 99_999, "venue": "v" * 9999}
    long["authors"] = [f"author {i}" for i in range(21)]
    Library.create(root / "library", [*dated(30), long], model=model)
    served = Served(root / "library")
    yield Answers(served, followed_labels(served, save_labels(root), None, None, False))
    served.close()


def _with(answers: Answers, use: Callable[[Client], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Client(mcp_server(answers)) as client:
            return await use(client)

    return asyncio.run(run())


def _call(answers: Answers, tool: str, **arguments: Any) -> Any:
    return _with(answers, lambda client: client.call_tool(tool, arguments))


def test_tools_describe_their_arguments(answers: Answers) -> None:
    listed = _with(answers, lambda client: client.list_tools())
    tools = {tool.name: tool for tool in listed.tools}
    assert sorted(tools) == [
        "describe_library",
        "read_papers",
        "recommend_papers",
        "search_papers",
        "tag_papers",
    ]
    assert all(tool.description and tool.output_schema for tool in tools.values())
    assert tools["search_papers"].input_schema["properties"]["k"]["maximum"] == 50
    assert all(tool.input_schema["additionalProperties"] is False for tool in tools.values())


@pytest.mark.long
def test_pages_are_the_librarys_lists(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    library = answers.served.library
    expected = library.search("graph", where={"year": (2003, None)})
    found, page = [], 1
    while page:
        arguments = {"query": "graph", "k": 4, "page": page, "filters": {"year": {"from": 2003}}}
        listed = _call(answers, "search_papers", **arguments).structured_content
        found += listed["papers"]
        page = listed["next_page"] if len(found) < 10 else 0
    assert [one["id"] for one in found[:10]] == expected.ids
    scores = [one["score"] for one in found[:10]]
    assert scores == pytest.approx(expected.scores, abs=1e-4)
    assert [one["rank"] for one in found] == list(range(1, len(found) + 1))
    assert all(one["evidence"] for one in found)
    last = _call(answers, "search_papers", query="graph", k=50).structured_content
    assert len(last["papers"]) == 31
    assert last["next_page"] is None
    monkeypatch.setattr(mcp, "MOST_PAGES", 2)
    last = _call(answers, "search_papers", query="graph", k=5, page=2).structured_content
    assert (len(last["papers"]), last["next_page"]) == (5, None)


def test_related_work_tags_and_texts(answers: Answers) -> None:
    library = answers.served.library
    found = _call(answers, "recommend_papers", ids=["p001"], k=3).structured_content
    assert [one["id"] for one in found["papers"]] == library.recommend("p001", k=3).ids
    draft = {"title": "A graph", "abstract": "Of words."}
    found = _call(answers, "recommend_papers", **draft, k=3).structured_content
    assert [one["id"] for one in found["papers"]] == library.recommend(**draft, k=3).ids
    found = _call(answers, "tag_papers", ids=["p001"], k=2).structured_content
    (tagged,) = library.tag(LABELS, ids=["p001"], k=2)
    assert [one["id"] for one in found["papers"][0]["labels"]] == tagged.labels.ids
    found = _call(answers, "tag_papers", **draft, labels=["Nets", "Trees"]).structured_content
    assert {one["name"] for one in found["papers"][0]["labels"]} == {"Nets", "Trees"}
    found = _call(answers, "read_papers", ids=["p004", "p001"]).structured_content
    assert [one["title"] for one in found["papers"]] == [dated(5)[4]["title"], dated(5)[1]["title"]]
    assert found["papers"][0]["columns"]["year"] == 2004
    facts = _call(answers, "describe_library").structured_content
    assert facts["papers"] == 31
    assert facts["columns"]["year"] == "BIGINT"


def test_answers_are_bounded(answers: Answers) -> None:
    arguments = {"query": "t" * 99, "filters": {"id": "long"}}
    (paper,) = _call(answers, "search_papers", **arguments).structured_content["papers"]
    assert len(paper["title"]) == MOST_TITLE
    assert len(paper["abstract"]) == MOST_ABSTRACT
    assert len(paper["columns"]["venue"]) == 200
    (paper,) = _call(answers, "read_papers", ids=["long"]).structured_content["papers"]
    assert len(paper["abstract"]) == 10_000
    # Else the first twenty would pass for all.
    assert paper["columns"]["authors"] == [*(f"author {i}" for i in range(20)), "…"]
    (paper,) = _call(answers, "tag_papers", ids=["long"]).structured_content["papers"]
    assert len(paper["title"]) == MOST_TITLE


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search_papers", {"query": "a", "task": "serch"}, "did you mean 'search'"),
        ("search_papers", {"query": "a", "filters": {"yeer": 1}}, "did you mean 'year'"),
        (
            "search_papers",
            {"query": "a", "k": 51},
            "k: Input should be less than or equal to 50 (51). Fix: write k as the tool's",
        ),
        ("search_papers", {}, "the argument query is missing. Fix: give it"),
        ("recommend_papers", {"ids": "p001"}, "ids: Input should be a valid list ('p001'). Fix"),
        ("search_papers", {"query": "a", "filters": "year > 1"}, 'Fix: write filters as {"year"'),
        (
            "search_papers",
            {"query": "a", "filters": {"year": {"form": 1}}},
            "filters: year: neither a value, nor a list, nor a range ({'form': 1}). Fix: write",
        ),
        ("recommend_papers", {"ids": [""]}, "String should have at least 1 character (''). Fix"),
        ("tag_papers", {"title": "a", "labels": []}, "labels: List should have at least 1 item"),
        ("recommend_papers", {"ids": ["nobody"]}, "no paper has this id ('nobody')"),
        (
            "search_papers",
            {"query": "a", "filters": {"venue": "v" * 1001}},
            "filters: String should have at most 1000 characters",
        ),
        # Fixes name arguments of the tool, not of an HTTP request.
        ("search_papers", {"query": " "}, "nothing to search for. Fix: write query in words"),
        ("recommend_papers", {}, "no paper is given. Fix: give ids of the library, or title and"),
        ("tag_papers", {"title": " "}, "no paper is given. Fix: give ids of the library, or title"),
        ("read_papers", {"ids": ["nobody"]}, "Fix: use ids of the library"),
        (
            "search_papers",
            {"query": "a", "filter": {"year": 2001}},
            "unknown argument of search_papers ('filter'). Fix: use query, k, page, filters, "
            "words, task (did you mean 'filters'?)",
        ),
        ("describe_library", {"task": "search"}, "describe_library ('task'). Fix: leave it out"),
    ],
)
def test_errors_name_the_fix(
    answers: Answers, tool: str, arguments: dict[str, Any], message: str
) -> None:
    found = _call(answers, tool, **arguments)
    assert found.is_error
    assert message in found.content[0].text
    assert "Error executing" not in found.content[0].text
    assert "Traceback" not in found.content[0].text
    assert "pydantic" not in found.content[0].text


def test_an_internal_error_is_no_empty_answer(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(Library, "search", fails)
    found = _call(answers, "search_papers", query="a")
    assert found.is_error
    assert found.structured_content is None
    assert "Traceback" not in found.content[0].text


def test_a_sync_is_seen_at_the_next_call(answers: Answers) -> None:
    writer = Library.open(answers.served.path)
    writer.add([{"id": "new", "title": "quite new"}])
    found = _call(answers, "read_papers", ids=["new"]).structured_content
    assert found["papers"][0]["title"] == "quite new"
    writer.remove(["new"])


@pytest.mark.ranks
def test_over_stdio(answers: Answers, tmp_path: Path) -> None:
    """Standard output carries only the protocol, and the error output no developers' messages."""
    messages = tmp_path / "messages"
    start = "import sys; from scimult.cli.main import app; app(sys.argv[1:])"
    server = StdioServerParameters(
        command=sys.executable,
        args=["-c", start, "mcp", str(answers.served.path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    async def run() -> Any:
        with messages.open("w") as file:
            async with Client(stdio_client(server, file), read_timeout_seconds=120) as client:
                return await client.call_tool("search_papers", {"query": "graph", "words": 0.5})

    found = asyncio.run(run()).structured_content
    expected = Library.open(answers.served.path).search("graph", words=0.5)
    assert [one["id"] for one in found["papers"]] == expected.ids
    assert "DEBUG" not in messages.read_text()
