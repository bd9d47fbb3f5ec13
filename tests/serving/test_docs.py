"""docs/serving.md: its requests work, and its paths and codes are those of the service."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from scimult.serving.mcp import mcp_server
from tests.serving.conftest import Running


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "serving.md").read_text(encoding="utf-8")


def test_its_requests_are_answered(page: str, server: Running) -> None:
    requests = re.findall(r"curl localhost:8000(/\w+) .*?-d '(.*?)'\n", page, re.S)
    assert requests
    for path, body in requests:
        assert server.post(path, json.loads(body)).status_code == 200


def test_its_paths_and_codes_are_documented(page: str, server: Running) -> None:
    schema = httpx.get(f"{server.url}/openapi.json").json()
    paths = set(re.findall(r"^\| `POST (/\w+)`", page, re.M))
    assert paths == {path for path in schema["paths"] if path.count("/") == 1} - {
        "/library",
        "/health",
        "/metrics",
    }
    codes = set(re.findall(r"\d{3}", " ".join(re.findall(r"^\| (\d.*?) \|", page, re.M))))
    # 421 is for browsers under DNS rebinding, and not in the schema.
    assert codes - {"421"} == set(schema["paths"]["/search"]["post"]["responses"]) - {"200", "400"}


def test_its_programs_are_valid_python_and_its_tools_exist(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    assert len(blocks) == 2
    for block in blocks:
        ast.parse(block)
    listed = asyncio.run(mcp_server(cast(Any, None)).list_tools())
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    assert named == {tool.name for tool in listed}
