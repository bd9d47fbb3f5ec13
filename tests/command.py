"""Call ``scimult`` in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from scimult.cli.main import app


def invoke(*words: object) -> Any:
    """Return the result of what a user writes after ``scimult``."""
    return CliRunner().invoke(app, list(map(str, words)))


def completed(*words: object) -> Any:
    """Return the result of a call that ends well."""
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    return result


def rows_of(result: Any) -> list[dict[str, Any]]:
    """Return the JSON lines that a call printed."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def refused(*words: object) -> str:
    """Return the one line that a call prints as it is refused, with a fix."""
    result = invoke(*words)
    assert result.exit_code == 1, result.output
    message = str(result.stderr)
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert message.count("Fix: ") == 1
    return message
