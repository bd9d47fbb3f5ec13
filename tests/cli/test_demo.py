"""The demo: its commands are valid, and each uses the outputs of earlier ones.

``tests/test_learning.py`` proves that training on such a world helps.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from scimult.cli.demo import commands
from scimult.cli.main import app
from scimult.evaluation.suites import load_suite
from scimult.training.stages import load_stages, stages_up_to
from tests.command import invoke, refused

OUT = Path("some where/demo")


@pytest.fixture
def parsed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, dict[str, object]]]:
    """Return verb and parsed options of each command, with or without a launcher."""
    monkeypatch.chdir(repository)
    found = []
    for command in commands(OUT, ranks=2, port=29999):
        if command[0] == "deepspeed":
            assert command[1:5] == ["--num_gpus", "2", "--master_port", "29999"]
            assert Path(command[5]).is_file()
            command = ["scimult", "pretrain", *command[6:]]
        _, verb, *arguments = command
        context = get_command(app).commands[verb].make_context(verb, arguments)  # type: ignore[attr-defined]
        found.append((verb, context.params))
    return found


def test_the_verbs_are_in_order(parsed: list[tuple[str, dict[str, object]]]) -> None:
    assert [verb for verb, _ in parsed] == [
        "generate",
        "prepare",
        "train-tokenizer",
        "pretrain",
        "evaluate",
    ]


def test_a_command_reads_what_an_earlier_one_wrote(
    parsed: list[tuple[str, dict[str, object]]],
) -> None:
    options = dict(parsed)
    assert options["prepare"]["root"] == OUT / "world" / "train"
    assert options["train-tokenizer"]["texts"] == [options["prepare"]["out"]]
    given = options["pretrain"]
    [config] = given["config"]  # type: ignore[misc]
    stages = load_stages(config, given["overrides"])  # type: ignore[arg-type]
    runs = [stage.config for stage in stages_up_to(stages, str(given["stage"]))]
    assert {run.data.prepared for run in runs} == {str(options["prepare"]["out"])}
    assert runs[0].model.tokenizer == str(options["train-tokenizer"]["out"])
    assert runs[0].schedule.steps == 0
    evaluated = [f"{Path(run.output).name}={run.output},dtype=float32" for run in runs]
    assert options["evaluate"]["model"] == evaluated
    assert options["evaluate"]["bm25"] is True
    assert options["evaluate"]["data"] == OUT / "world" / "eval"
    assert load_suite(str(options["evaluate"]["suite"])).name == "demo"


def test_a_failing_command_ends_the_demo(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "thesis.tex").write_text("years of work", encoding="utf-8")
    result = invoke("demo", "--out", tmp_path)
    assert result.exit_code == 1
    assert "command failed with exit code 1" in result.stderr
    assert "$ scimult generate --out" in result.stdout
    assert "scimult prepare" not in result.stdout


def test_outside_a_checkout_the_demo_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "run it in a checkout" in refused("demo")
