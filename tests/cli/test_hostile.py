"""Hostile and mistaken command lines: a one-line error, the right path, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.inference import SciMult
from scimult.unfinished import unfinished
from tests.command import completed, invoke, refused
from tests.raw_corpus import write_jsonl

# Arguments of verbs besides --out, in a folder with papers.jsonl, labels.jsonl and model.
VERBS_WITH_OUT = {
    "train-tokenizer": ("--texts", "papers.jsonl", "--vocab-size", "100"),
    "tag": ("--model", "model", "--papers", "papers.jsonl", "--labels", "labels.jsonl"),
    "encode": ("papers.jsonl", "--model", "model", "--task", "search"),
    "export": ("model", "--to", "pretrained"),
    "import": ("--released", "papers.jsonl", "--tokenizer", "model"),
    "generate": (),
    "grow-task": ("model", "--name", "new", "--like", "search"),
    "prepare": ("--config", "prepare.yaml"),
}
# Verbs that write only at the end of their work.
LATE = ("train-tokenizer", "tag", "export", "import", "grow-task", "export released", "merge")
TITLE = "\x1b[31mRED\x1b]0;mine\x07 \u202egnp"


@pytest.fixture
def folder(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with papers, labels and a model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here = tmp_path / "here"
    here.mkdir()
    _fill(here, model)
    monkeypatch.chdir(here)
    return here


def _fill(here: Path, model: Path) -> None:
    papers = [{"id": "p1", "title": TITLE}, {"id": "p2", "title": "Graphs"}]
    for name, rows in (("papers", papers), ("labels", [{"id": "l1", "name": "Geometry"}])):
        write_jsonl(here / f"{name}.jsonl", rows)
    (here / "prepare.yaml").write_text("sources: [{name: a, papers: papers.jsonl}]\n")
    (here / "model").symlink_to(model)


@pytest.mark.parametrize("verb", LATE)
def test_a_second_call_for_an_output_is_refused_before_its_work(verb: str, folder: Path) -> None:
    """It was refused when it came to write, or replaced the other's file."""
    others = {
        "merge": ("merge", "model", "some/other"),
        "export released": ("export", "model", "--to", "released"),
    }
    arguments = others.get(verb) or (verb, *VERBS_WITH_OUT[verb])
    before = set(folder.iterdir())
    with unfinished(folder / "out"):
        assert "out: another process is writing here" in refused(*arguments, "--out", "out")
    assert set(folder.iterdir()) == before


def test_a_file_that_a_faster_call_wrote_is_not_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scimult import checkpoints

    real = checkpoints.load_pretrained

    def slow(*arguments: Any, **options: Any) -> Any:
        (folder / "out").write_text("theirs")
        return real(*arguments, **options)

    monkeypatch.setattr(checkpoints, "load_pretrained", slow)
    message = refused("export", "model", "--to", "released", "--out", "out")
    assert "output exists already" in message
    assert (folder / "out").read_text() == "theirs"


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS_WITH_OUT)
@pytest.mark.parametrize("out", [".", "..", "labels.jsonl", "pipe", "link", "x" * 300])
def test_no_output_replaces_anything_else(folder: Path, verb: str, out: str) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / ("pipe" if verb == "tag" else "nowhere"))
    before, names = _content(folder), sorted(os.listdir(folder))
    refused(verb, *VERBS_WITH_OUT[verb], "--out", out)
    assert _content(folder) == before
    assert sorted(os.listdir(folder)) == names


@pytest.mark.parametrize("verb", VERBS_WITH_OUT)
def test_no_output_replaces_another_folder(folder: Path, verb: str) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").write_text("precious", encoding="utf-8")
    refused(verb, *VERBS_WITH_OUT[verb], "--out", "mine")
    assert (folder / "mine" / "thesis.tex").read_text(encoding="utf-8") == "precious"


def test_tag_never_replaces_an_input_and_other_files_only_on_request(folder: Path) -> None:
    before = _content(folder)
    (folder / "same").symlink_to(folder / "papers.jsonl")
    for papers, out in (("papers.jsonl", "papers.jsonl"), (".", "papers.jsonl"), (".", "same")):
        options = ("--model", "model", "--papers", papers, "--labels", "labels.jsonl")
        assert "output is also an input" in refused("tag", *options, "--out", out)
        message = refused("tag", *options, "--out", out, "--overwrite")
        assert "output is also an input" in message
    message = refused("tag", *options, "--out", "-")
    assert "-: would be a file of that name, not standard output. Fix: " in message
    (folder / "old.jsonl").write_text("old", encoding="utf-8")
    message = refused("tag", *options, "--out", "old.jsonl")
    assert "output exists already. Fix: choose another file, or --overwrite" in message
    assert _content(folder) == {**before, "old.jsonl": b"old", "same": before["papers.jsonl"]}
    completed("tag", *options, "--out", "old.jsonl", "--overwrite")
    assert json.loads((folder / "old.jsonl").read_text().splitlines()[0])["title"] == TITLE


@pytest.mark.parametrize(
    ("verb", "options", "name"),
    [
        ("curves", ("run", "--out", "thesis.md"), "a plot of curves"),
        ("card", ("prepared", "--out", "thesis.md"), "a data card"),
        ("report", ("results", "--out", "."), "is not part of a report"),
    ],
)
def test_verbs_with_fixed_file_names_replace_no_other_files(
    folder: Path, verb: str, options: tuple[str, ...], name: str
) -> None:
    (folder / "results").mkdir()
    for file in ("thesis.md", "report.tex"):
        (folder / file).write_text("precious", encoding="utf-8")
    before = _content(folder)
    assert name in refused(verb, *options)
    assert _content(folder) == before


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("compare", ("--baseline", "BM25")),
        ("report", ("--out", "new")),
        ("export-results", ("--to", "csv", "--out", "new")),
        ("curves", ("--out", "new.png")),
        ("merge", ("--out", "new")),
    ],
)
def test_a_folder_given_twice_is_refused(folder: Path, verb: str, options: tuple[str, ...]) -> None:
    """Two rows of one system cannot be told apart, and a model has a share."""
    (folder / "one").mkdir()
    (folder / "same").symlink_to(folder / "one")
    message = refused(verb, "one", "same", *options)
    assert "one folder is given twice (value: 'same'). Fix: name it once" in message
    assert not list(folder.glob("new*"))


def test_a_file_given_twice_is_refused(folder: Path) -> None:
    """Its words counted twice, so other tokens were learned."""
    (folder / "same.jsonl").symlink_to("papers.jsonl")
    texts = ("--texts", "papers.jsonl", "--texts", "same.jsonl")
    message = refused("train-tokenizer", *texts, "--out", "new")
    assert "one file is given twice (value: 'same.jsonl'). Fix: name it once" in message


def test_titles_do_not_command_the_terminal(folder: Path) -> None:
    inputs = ("--model", "model", "--papers", "papers.jsonl")
    recommend = invoke("recommend", "--id", "p1", *inputs)
    for result in (
        invoke("search", "red \x1b[31m", *inputs),
        invoke("tag", *inputs, "--labels", "labels.jsonl"),
        recommend,
        invoke("recommend", "--title", TITLE + "x", *inputs),
        invoke("search", "x", "--model", "model", "--papers", f"{TITLE}.jsonl"),
    ):
        assert not set("\x1b\x07\u202e") & set(result.output), result.output
    assert r"\x1b[31mRED\x1b]0;mine\x07 \u202egnp" in recommend.stdout
    rows = invoke("search", "red", *inputs, "--json").stdout.splitlines()
    assert TITLE in [json.loads(row)["title"] for row in rows]


def test_scores_name_their_similarity(folder: Path) -> None:
    search = ("search", "graphs", "--model", "model", "--papers", ".")
    assert "cosine" in invoke(*search, "--similarity", "cosine").stdout
    assert "minus L2" in invoke(*search, "--similarity", "l2").stdout
    listed = invoke(*search, "--similarity", "l2", "--dtype", "float32", "--json").stdout
    model = SciMult.from_pretrained(folder / "model")
    query_1D = model.encode(["graphs"], task="search")
    for row in map(json.loads, listed.splitlines()):
        paper_1D = model.encode([{"title": row["title"]}], task="search", role="candidate")
        assert row["score"] == pytest.approx(-np.linalg.norm(query_1D - paper_1D), abs=1e-3)
    assert set(json.loads(invoke(*search, "--json").stdout.splitlines()[0])) == {
        "rank",
        "score",
        "id",
        "title",
    }


def test_recommend_for_an_abstract_a_title_or_nothing(folder: Path) -> None:
    inputs = ("--model", "model", "--papers", ".")
    assert "p1" in invoke("recommend", "--abstract", "On graphs.", *inputs).stdout
    by_title = invoke("recommend", "--title", "Graph", *inputs)
    assert "no paper has this title" in by_title.stderr
    assert "did you mean 'Graphs'?" in by_title.stderr
    (folder / "papers.jsonl").write_text('{"id": "p1", "title": "Alone"}\n', encoding="utf-8")
    for as_json in ((), ("--json",)):
        result = completed("recommend", "--id", "p1", *inputs, *as_json)
        assert result.stdout == ""
        assert "nothing to rank" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "na\udcefve"),
        ("recommend", "--title", "na\udcefve"),
        ("recommend", "--abstract", "na\udcefve"),
        ("recommend", "--id", "na\udcefve"),
    ],
)
def test_undecodable_arguments(folder: Path, arguments: tuple[str, ...]) -> None:
    error = refused(*arguments, "--model", "model", "--papers", ".")
    assert r"words are not valid UTF-8 (value: 'na\udcefve')" in error


def test_an_undecodable_file_name(folder: Path) -> None:
    name = os.fsdecode(b"na\xefve.jsonl")
    (folder / name).write_bytes((folder / "papers.jsonl").read_bytes())
    completed("encode", name, "--model", "model", "--task", "search", "--out", "e")
    assert len(json.loads((folder / "e" / "manifest.json").read_text())["shards"]) == 1
    assert r"e\udcef" in refused(
        "encode", name + "e\udcef", *VERBS_WITH_OUT["encode"][1:], "--out", "f"
    )


def test_a_model_in_an_undecodable_folder_is_not_called_damaged(folder: Path) -> None:
    name = os.fsdecode(b"m\xf6del")
    shutil.copytree(folder / "model", folder / name)
    error = refused("encode", "papers.jsonl", "--model", name, "--task", "search", "--out", "e")
    assert "rename files and folders whose names are not UTF-8" in error


# One process for all mistakes: each is made by a fork, which has loaded what `scimult` loads.
_EARLY = """
import json, os, sys
from typer.testing import CliRunner
from scimult.cli.main import app
for arguments in json.loads(sys.argv[1]):
    if os.fork() == 0:
        result = CliRunner().invoke(app, arguments.split())
        heavy = {"torch", "transformers", "deepspeed"} & sys.modules.keys()
        print(json.dumps([arguments, result.stderr, result.exit_code, sorted(heavy)]), flush=True)
        os._exit(0)
    os.wait()
"""
MISTAKES = {
    "search x --model model --papers nope.jsonl": "nope.jsonl: file does not exist",
    "search x --model nope --papers .": "nope: folder does not exist",
    "search x --model papers.jsonl --papers .": "a model is a folder, not a file",
    "search x --model model --papers a.txt": "a.txt: unknown file format",
    "search x --model model --papers model/": "folder holds none of papers.jsonl",
    "search x --model model --papers . --device gpu": "(did you mean 'cuda'?)",
    "search x --model model --papers . --device mps": "use one of cpu, cuda, cuda:0",
    "recommend --model model --papers .": "no paper given",
    "recommend --title x --model model --papers nope": "nope: file does not exist",
    "tag --model model --papers . --labels nope": "nope: file does not exist",
    "tag --model model --papers . --labels . --out labels.jsonl": "also an input",
    "encode nope --model model --task search --out e": "nope: file does not exist",
    "encode . --model model --task search --out model": "model: is a link",
    "export nope --to folded --out e": "nope: folder does not exist",
    "export model --to folded --out .": "cannot replace the current folder",
    "package model --name m --out labels.jsonl": "labels.jsonl: exists and is not a folder",
    "import --released nope --tokenizer model --out e": "nope: file does not exist",
    "import --base nope --adapter search=a --out e": "nope: folder does not exist",
    "grow-task nope --name x --like search --out e": "nope: folder does not exist",
    "train-tokenizer --texts nope --out e": "nope: texts do not exist",
    "prepare --config nope.yaml --out e": "nope.yaml: file does not exist",
    "prepare table --input nope --out e": "nope: downloaded folder does not exist",
    "prepare --config prepare.yaml --out labels.jsonl": "exists and is not a folder",
    "report nope --out e": "nope: folder does not exist",
    "report . --map x=nope --out e": "nope: folder does not exist",
    "report . --data nope --out e": "nope: folder does not exist",
    "cross-routes --model nope --data . --out e": "nope: folder does not exist",
}


@pytest.fixture(scope="module")
def early(
    tmp_path_factory: pytest.TempPathFactory, model: Path
) -> dict[str, tuple[str, int, list[str]]]:
    """Return, of each mistake, its message, exit code, and the large packages loaded by then."""
    here = tmp_path_factory.mktemp("early")
    _fill(here, model)
    (here / "a.txt").write_text("words\n", encoding="utf-8")
    command = [sys.executable, "-c", _EARLY, json.dumps(list(MISTAKES))]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    reports = map(json.loads, done.stdout.splitlines())
    return {arguments: tuple(report) for arguments, *report in reports}


@pytest.mark.ranks
@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_are_reported_before_torch_is_loaded(
    early: dict[str, tuple[str, int, list[str]]], arguments: str
) -> None:
    message, exit_code, heavy = early[arguments]
    assert MISTAKES[arguments] in message
    assert message.count("Fix: ") == 1
    assert (exit_code, heavy) == (1, [])


@pytest.mark.ranks
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_killed_verb_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import signal, sys, time, typer\n"
        "from scimult.cli.main import Verbs\n"
        "from scimult.files import atomic_folder\n"
        # Tests under nohup ignore it.
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "app = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)\n"
        "@app.callback()\n"
        "def options(debug: bool = False) -> None: pass\n"
        "@app.command()\n"
        "def write(out: str) -> None:\n"
        "    with atomic_folder(out) as temporary:\n"
        "        (temporary / 'a').touch()\n"
        "        print('writing', flush=True)\n"
        "        time.sleep(60)\n"
        "app(['write', sys.argv[1]])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert len(os.listdir(tmp_path)) == 2
        time.sleep(0.1)
        process.send_signal(number)
        _, problem = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "Traceback" not in problem
    assert os.listdir(tmp_path) == []
