"""Streams as daemons, old terminals and scripts leave them: closed, or not in UTF-8."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scimult.cli import output
from scimult.progress import is_watched, progress
from tests.command import invoke
from tests.tiny import save_tiny_model

TITLE = "Gödel – 😀"
# What a verb does with its streams.
_VERB = """
import json, sys, typer
from scimult.cli.output import prepare_streams, print_records, show_messages
from scimult.progress import note, progress
prepare_streams()
show_messages()
note("a message")
typer.echo(json.dumps({"title": sys.argv[1]}, ensure_ascii=False))
print_records([{"title": word} for word in progress([sys.argv[1]], "words")], "papers")
"""


def _verb(
    title: str, encoding: str = "utf-8", closed: str = ""
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", _VERB, title]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", TITLE),
        ("latin-1", r"Gödel \u2013 \ud83d\ude00"),
        ("ascii", r"G\u00f6del \u2013 \ud83d\ude00"),
    ],
)
def test_characters_that_a_terminal_lacks_are_escaped(encoding: str, shown: str) -> None:
    done = _verb(TITLE, encoding)
    assert done.returncode == 0, done.stderr
    first, *table = done.stdout.splitlines()
    # Typer prints UTF-8 where the encoding is ASCII, which nobody chooses.
    assert json.loads(first.decode("utf-8" if encoding == "ascii" else encoding)) == {
        "title": TITLE
    }
    assert any(shown in line.decode(encoding) for line in table)


def test_undecodable_bytes_are_escaped_in_json() -> None:
    done = _verb("na\udcefve")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode().splitlines()[0]) == {"title": "na\udcefve"}


def test_messages_of_a_closed_stderr_are_no_output() -> None:
    done = _verb(TITLE, closed="2>&- <&-")
    assert done.returncode == 0
    assert done.stdout.decode().startswith('{"title": ')
    assert b"a message" not in done.stdout
    assert _verb(TITLE, closed=">&- 2>&-").returncode == 0


@pytest.mark.parametrize("words", ["search --help", "--help", "--version"])
def test_a_full_disk_behind_stdout_is_named(words: str) -> None:
    command = [sys.executable, "-m", "scimult", *words.split()]
    # Where Python does not buffer, nothing is left to write as it ends.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, check=False, env=buffered
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: No space left on device. Fix: free disk space")
    assert done.stderr.count(b"\n") == 1


def test_python_without_stderr_has_no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert not is_watched()
    assert list(progress(range(2), "count")) == [0, 1]


def test_streams_of_programs_that_call_verbs_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    output.prepare_streams()
    assert sys.stdout is stream


def test_folders_whose_names_have_no_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library tokenizers takes no such path; its error is no traceback."""
    monkeypatch.chdir(tmp_path)
    save_tiny_model(tmp_path / "model")
    (tmp_path / "papers.jsonl").write_text('{"id": "a", "title": "Graphs"}\n', encoding="utf-8")
    out = os.fsdecode(b"na\xefve")
    arguments = ["library", "create", f"{out}/l", "--model", "model", "--papers", "papers.jsonl"]
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: text has no valid encoding")
    assert result.stderr.count("\n") == 1
    assert sorted(os.listdir()) == ["model", "papers.jsonl"]
