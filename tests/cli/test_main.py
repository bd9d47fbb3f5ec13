"""The shell around the verbs: errors, speed, exit codes."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import scimult
from scimult.cli import main
from scimult.cli.main import Verbs, app
from scimult.cli.output import print_records
from scimult.errors import DataError

runner = CliRunner()


@pytest.fixture
def failing() -> typer.Typer:
    """Return a command line with our error handling and verbs that fail."""
    shell = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)

    @shell.callback()
    def options(debug: bool = False) -> None:
        pass

    @shell.command()
    def data() -> None:
        raise DataError("title is empty", path="papers.jsonl", line=3, fix="write one")

    @shell.command()
    def file() -> None:
        Path("no/such/file").read_text(encoding="utf-8")

    @shell.command()
    def bug() -> None:
        raise ZeroDivisionError("ours")

    return shell


def test_a_user_error_is_one_line_and_exit_code_1(failing: typer.Typer) -> None:
    result = runner.invoke(failing, ["data"])
    assert result.exit_code == 1
    assert result.stderr == "error: papers.jsonl:3: title is empty. Fix: write one\n"
    assert result.stdout == ""


def test_a_missing_file_is_one_line_and_exit_code_1(failing: typer.Typer) -> None:
    result = runner.invoke(failing, ["file"])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "no/such/file" in result.stderr


def test_links_that_lead_to_each_other_are_one_line(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for command in (["mine", str(loop)], ["study", str(loop)]):
        result = runner.invoke(app, command)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert str(loop) in result.stderr


def test_debug_keeps_the_traceback(failing: typer.Typer) -> None:
    result = runner.invoke(failing, ["--debug", "data"])
    assert isinstance(result.exception, DataError)


def test_a_bug_keeps_its_traceback(failing: typer.Typer) -> None:
    assert isinstance(runner.invoke(failing, ["bug"]).exception, ZeroDivisionError)


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).stdout.strip() == f"scimult {scimult.__version__}"


def test_unknown_verb_is_a_usage_error() -> None:
    result = runner.invoke(app, ["prepaer"])
    assert result.exit_code == 2
    assert "prepaer" in result.stderr


@pytest.mark.parametrize("verb", [["encode", "--dtype"], ["library", "create", "x", "--precision"]])
def test_a_wrong_choice_is_named_without_words_of_the_parser(verb: list[str]) -> None:
    result = runner.invoke(app, [*verb, "float17"])
    assert result.exit_code == 2
    text = " ".join(result.stderr.replace("│", " ").split())
    assert f"Invalid value for '{verb[-1]}': 'float17' is not one of '" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "x"], "Missing option '--out'. Folder for report.html, .md, .tex and .json."),
        (["mine"], "Missing argument 'folder'. Folder with the prepared data."),
        (["library", "add"], "Missing argument 'folder'. Library folder."),
        (["export-results", "x", "--out", "y"], "PMC-Patients). Choose from: csv,"),
    ],
)
def test_what_is_missing_is_explained(words: list[str], said: str) -> None:
    result = runner.invoke(app, words)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_help_shows_the_whole_launcher_command() -> None:
    """Square brackets would be read as markup and vanish."""
    output = " ".join(runner.invoke(app, ["pretrain", "--help"]).output.split())
    assert "--config FILE key=value ..." in output


def test_flags_have_no_second_form() -> None:
    """One of them had --no-overwrite, too, which its help page gave as the default."""
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for verb in verbs.values():
        for chosen in (verb, *getattr(verb, "commands", {}).values()):
            assert not [param.name for param in chosen.params if param.secondary_opts], chosen.name


@pytest.mark.long
@pytest.mark.parametrize("verb", [["--help"], ["prepare", "--list"]])
def test_help_and_lists_load_nothing_heavy(verb: list[str]) -> None:
    heavy = {"torch", "transformers", "deepspeed", "datasets", "duckdb", "pyarrow", "numpy"}
    code = (
        "import sys; from scimult.cli.main import app;"
        f"app({verb}, standalone_mode=False); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert heavy & set(loaded.stdout.split()) == set()


def test_the_package_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match="^2$"):
        patch.setattr(sys, "argv", ["scimult", "serach"])
        runpy.run_module("scimult", run_name="__main__", alter_sys=True)
    assert "Did you mean 'search'" in capsys.readouterr().err


@pytest.mark.ranks
def test_the_package_loads_its_model_on_demand() -> None:
    code = (
        "import sys, scimult; print('torch' in sys.modules, 'SciMult' in dir(scimult));"
        "from scimult import Ensemble, SciMult; from scimult.inference import SciMult as same;"
        "print('torch' in sys.modules, SciMult is same, Ensemble.__name__)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["False", "True", "True", "True", "Ensemble"]
    with pytest.raises(AttributeError, match="module 'scimult' has no attribute 'Scimult'"):
        scimult.Scimult  # noqa: B018


@pytest.mark.ranks
def test_launch_scripts_pass_on_messages_and_exit_codes(repository: Path) -> None:
    for script, code in (
        ("launch/pretrain.py --config nowhere.yaml", 1),
        ("-m scimult.cli.pretrain --config nowhere.yaml", 1),
        ("launch/evaluate.py --no-such-option", 2),
        ("launch/benchmark.py --help", 0),
    ):
        done = subprocess.run(
            [sys.executable, *script.split()],
            cwd=repository,
            env={**os.environ, "PYTHONPATH": str(repository)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert done.stdout or done.stderr


def test_lists_that_go_to_a_file_are_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    title = " ".join(["attention"] * 15)
    print_records([{"rank": 1, "title": title}], "papers")
    assert title in capsys.readouterr().out


def test_a_launched_verb_that_fails_is_shown_and_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NCCL's groups, taken apart at the end of the interpreter, may wait for the other ranks."""

    def fails(_: list[str]) -> None:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(main, "app", fails)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        main.launch("pretrain")
    assert ended.value.code == 1
    assert "RuntimeError: a kernel failed" in capsys.readouterr().err


def test_a_launched_verb_leaves_no_semaphore_behind() -> None:
    """As Python 3.14 starts processes, that of tqdm outlived a rank, and a warning said so."""
    lines = [
        "import multiprocessing",
        "from scimult.cli import main",
        "from scimult.progress import warn",
        "multiprocessing.set_start_method('forkserver')",
        "main.app = lambda words: (main.show_messages(), warn('a message'))",
        "main.launch('pretrain')",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert done.stderr == "a message\n"
