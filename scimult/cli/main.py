"""The ``scimult`` command: registers the verbs and turns errors into messages.

Verbs import heavy modules (torch, our models) inside their functions, so that
``scimult --help`` stays instant.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer
from tqdm import tqdm
from typer.core import TyperGroup

from scimult import __version__
from scimult.cli.card import card
from scimult.cli.compare import compare, correlate, export_results
from scimult.cli.cross_routes import cross_routes
from scimult.cli.demo import demo, generate
from scimult.cli.encode import encode
from scimult.cli.evaluate import evaluate
from scimult.cli.export import export, package
from scimult.cli.extras import not_installed
from scimult.cli.import_ import import_
from scimult.cli.interference import interference
from scimult.cli.library import library
from scimult.cli.match_reviewers import match_reviewers
from scimult.cli.merge import grow_task, merge
from scimult.cli.mine import mine
from scimult.cli.mteb import mteb
from scimult.cli.output import ended_by, prepare_streams, show_messages
from scimult.cli.prepare import prepare
from scimult.cli.pretrain import pretrain
from scimult.cli.recommend import recommend
from scimult.cli.report import report
from scimult.cli.runs import curves, runs
from scimult.cli.search import search
from scimult.cli.serve import mcp, serve
from scimult.cli.study import study
from scimult.cli.tag import tag
from scimult.cli.tagger import tagger
from scimult.cli.teach import teach
from scimult.cli.train_tokenizer import train_tokenizer
from scimult.errors import SciMultError

# Sent by timeout, schedulers, containers and closing terminals.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_FIXES = {
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file, not a folder",
    errno.ELOOP: "check the path: links in it lead to each other",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENOSPC: "free disk space, or write to another disk",
}


@contextmanager
def cleaned_up_when_killed() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception in the body, so that it cleans up.

    Signals that already have a handler, as in training, are left alone. A second signal kills
    at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def describe(error: OSError | UnicodeEncodeError) -> SciMultError:
    """Return a system error as ours, with its path and a fix."""
    if isinstance(error, UnicodeEncodeError):  # from libraries that take no such paths
        fix = "rename files and folders whose names are not UTF-8"
        return SciMultError("text has no valid encoding", value=error.object, fix=fix)
    name = error.filename if isinstance(error.filename, str) else None
    number = -1 if error.errno is None else error.errno
    fix = _FIXES.get(number, "check the path, the disk and the network")
    path = None if name is None else name if len(name) <= 200 else f"{name[:200]}…"
    return SciMultError(error.strerror or str(error), path=path, fix=fix)


def _end(number: int, _: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


class Verbs(TyperGroup):
    """Runs a verb; input and file-system errors print one line and exit with code 1."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the options before the verb; --version and --help print while they are read."""
        try:
            return super().make_context(*args, **kwargs)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise ended_by(describe(error)) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen verb; ``--debug`` keeps the traceback of errors."""
        try:
            show_messages()
            with cleaned_up_when_killed():
                return super().invoke(ctx)
        except typer.BadParameter as error:
            # So pydantic, by which newer versions of typer check values, begins what they say.
            error.message = error.message.removeprefix("Value error, ")
            # Of what is missing, only the name is said, and then the choices, after a full stop.
            help_text = getattr(error.param, "help", None)
            if help_text and not error.message:
                end = "." if error.format_message().endswith(".") else ""
                error.message = help_text.rstrip(".") + end
            raise
        except (SciMultError, OSError, UnicodeEncodeError) as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            problem = error if isinstance(error, SciMultError) else describe(error)
            raise ended_by(problem) from None
        except RuntimeError as error:
            cause = error.__context__  # below Python 3.13 Path.resolve() raises one for a loop
            loop = cause if isinstance(cause, OSError) and cause.errno == errno.ELOOP else None
            if loop is None or ctx.params.get("debug"):
                raise
            raise ended_by(describe(loop)) from None
        except ImportError as error:
            missing = not_installed(error, ctx.invoked_subcommand)
            if missing is None or ctx.params.get("debug"):
                raise
            raise ended_by(missing) from None


class CommandLine(typer.Typer):
    """Builds only the verb that is called: building all takes a sixth of a second."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; takes click's arguments."""
        prepare_streams()
        argv = kwargs.get("args", args[0] if args else None)
        words = sys.argv[1:] if argv is None else argv
        called = next((word for word in words if not word.startswith("-")), None)
        verbs, groups = self.registered_commands, self.registered_groups
        matching = [verb for verb in verbs if verb.name == called]
        if matching:
            self.registered_commands, self.registered_groups = matching, []
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.registered_commands, self.registered_groups = verbs, groups


app = CommandLine(
    name="scimult",
    help="Pre-train, evaluate and use multi-task encoders of scientific text.",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scimult {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks of errors."),
) -> None:
    """Define the options that precede the verb."""


# In the order of a project's work, rarely used verbs last.
VERBS: dict[str, tuple[Callable[..., object], ...]] = {
    "Data": (generate, prepare, mine, train_tokenizer, teach, card),
    "Training": (demo, pretrain, study, runs, grow_task, merge, interference),
    "Evaluation": (
        *(evaluate, mteb, compare, report, export_results),
        *(correlate, cross_routes, curves),
    ),
    "Use": (encode, search, recommend, tag, match_reviewers, serve, mcp),
    "Other formats": (import_, export, package),
}
for panel, verbs in VERBS.items():
    for verb in verbs:
        name = verb.__name__.strip("_").replace("_", "-")
        app.command(name, rich_help_panel=panel)(verb)
app.add_typer(library, rich_help_panel="Use")
app.add_typer(tagger, rich_help_panel="Use")


def launch(verb: str) -> NoReturn:
    """Run a verb under a launcher and end the process at once with its exit code.

    Unjoined threads of a process group sometimes abort a rank at exit (signal 6), after
    everything was written, and the launcher would then report a failed run. After an error, the
    end of NCCL's group could wait for the other ranks forever.
    """
    # Its own lock is shared by processes: from Python 3.14 on, one that ends so leaves it behind.
    tqdm.set_lock(threading.RLock())
    code: object = 0
    try:
        app([verb, *sys.argv[1:]])
    except SystemExit as ended:
        code = ended.code
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    app()
