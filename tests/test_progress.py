"""Progress bars on a terminal and in a notebook, but not in a pipe."""

from __future__ import annotations

import errno
import io
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tqdm.auto import tqdm as tqdm_of_notebooks

from scimult.cli.output import show_messages
from scimult.progress import bar, in_notebook, is_watched, note, progress, warn


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def _kernel(monkeypatch: pytest.MonkeyPatch, kernel: object) -> None:
    """Fake an imported IPython with the shell of a kernel or of a terminal."""
    shell = SimpleNamespace(kernel=kernel) if kernel else SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.mark.parametrize(("stream", "shown"), [(io.StringIO, False), (Terminal, True)])
def test_a_terminal_sees_a_bar_and_a_pipe_nothing(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], shown: bool
) -> None:
    stderr = stream()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert list(progress(range(3), "count")) == [0, 1, 2]
    assert ("count" in stderr.getvalue()) == shown
    assert is_watched() == shown


def test_a_notebook_sees_a_bar_though_its_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not in_notebook()
    _kernel(monkeypatch, object())
    assert in_notebook()
    with bar("encode", total=2) as shown:
        assert isinstance(shown, tqdm_of_notebooks)
        assert not shown.disable
    with bar("encode", total=2, show=False) as hidden:
        assert hidden.disable
    _kernel(monkeypatch, None)  # IPython in a terminal whose stderr goes to a file
    assert not in_notebook()
    assert bar("encode", total=2).disable


def test_messages_go_through_logging(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("scimult")
    handlers, logger.handlers, logger.propagate = logger.handlers, [], True
    try:
        with caplog.at_level(logging.WARNING, "scimult"):
            note("100% done")
            warn("a cache is damaged")
    finally:
        logger.handlers, logger.propagate = handlers, False
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("scimult", "WARNING", "a cache is damaged")
    ]


def test_without_a_set_up_python_shows_warnings_alone() -> None:
    code = "from scimult.progress import note, warn; note('step 1'); warn('slow')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "slow\n")


def test_the_command_line_shows_both_once_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    show_messages()
    note("step 1")
    warn("\x1b[2Jslow")
    assert capsys.readouterr().err == "step 1\n\\x1b[2Jslow\n"


class Full(io.StringIO):
    """A stream into a file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("stderr", [Full(), None])
def test_messages_that_cannot_be_shown_end_nothing(
    monkeypatch: pytest.MonkeyPatch, stderr: Full | None
) -> None:
    show_messages()
    monkeypatch.setattr(sys, "stderr", stderr)
    note("a run goes on")
    assert list(progress(range(3), "texts")) == [0, 1, 2]
