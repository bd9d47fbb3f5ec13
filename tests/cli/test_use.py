"""encode, search, recommend and tag, as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from scimult.cli.main import app
from scimult.inference import SciMult
from scimult.retrieval.embeddings import read_embeddings
from tests.tiny import save_tiny_model

PAPERS = [
    {"id": "p1", "title": "Drawing graphs", "abstract": "Layouts of large graphs."},
    {"id": "p2", "title": "Folding proteins", "abstract": "A simulation of folding."},
    {"id": "p3", "title": "Sparse matrices", "abstract": ""},
    {"id": "p4", "title": "Drawing  Graphs", "abstract": "The same title in other letters."},
]
LABELS = [{"id": "l1", "name": "Geometry", "definition": "Shapes"}, {"id": "l2", "name": "Biology"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _write(tmp_path / "papers.jsonl", PAPERS)
    _write(tmp_path / "labels.jsonl", LABELS)
    return tmp_path


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in records), encoding="utf-8")


def _run(verb: str, *arguments: object) -> Any:
    return CliRunner().invoke(app, [verb, *map(str, arguments)])


def _rows(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def _error(result: Any) -> str:
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def test_a_table_cuts_titles_that_hold_a_whole_paper(model: Path, folder: Path) -> None:
    """One filled six thousand lines of a terminal."""
    whole = "word " * 2000
    _write(folder / "papers.jsonl", [{"id": "p1", "title": whole}, {"id": "p2", "title": "Short"}])
    given = ["word", "--model", model, "--papers", folder / "papers.jsonl"]
    table = _run("search", *given).stdout
    assert table.count("word") < 80
    assert "…" in table
    assert whole.strip() in {row["title"] for row in _rows(_run("search", *given, "--json"))}


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_search_ranks_by_the_models_similarity(model: Path, folder: Path, dtype: str) -> None:
    options = ["--model", model, "--papers", folder, "--dtype", dtype, "--json"]
    rows = _rows(_run("search", "graphs", *options))
    encoder = SciMult.from_pretrained(model, dtype=dtype)
    query_1D = encoder.encode(["graphs"], task="search")
    papers_ND = encoder.encode(PAPERS, task="search", role="candidate")
    scores_N = (papers_ND @ query_1D[0]).tolist()
    best = sorted(range(len(PAPERS)), key=lambda row: -scores_N[row])
    assert [row["id"] for row in rows] == [PAPERS[row]["id"] for row in best]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4]
    assert [row["score"] for row in rows] == pytest.approx(sorted(scores_N)[::-1], abs=1e-3)


def test_encode_for_all_tasks_writes_a_folder_for_each(model: Path, folder: Path) -> None:
    out = folder / "embeddings"
    arguments = ("encode", folder / "papers.jsonl", "--model", model, "--out", out)
    result = _run(*arguments, "--task", "all", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    names = ["search", "link_prediction", "classification"]
    assert result.output.startswith(f"{out}/{{{','.join(names)}}}: 4 embeddings of width 16")
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    encoder = SciMult.from_pretrained(model)
    for task, embeddings_ND in encoder.encode(PAPERS, task="all", role="candidate").items():
        stored = read_embeddings(out / task)
        assert stored.ids == ["p1", "p2", "p3", "p4"]
        assert np.array_equal(stored.embeddings_ND, embeddings_ND)
        role = "query" if task == "classification" else "candidate"
        assert (stored.meta["task"], stored.meta["role"]) == (task, role)
    again = _run(*arguments, "--task", "all", "--dtype", "float32")
    assert (again.exit_code, "0 of them new" in again.stdout) == (0, True)
    assert _run(*arguments, "--task", "all", "--overwrite").exit_code == 0
    assert "exists already" in _error(_run(*arguments, "--task", "search"))
    assert "use one of all, classification, " in _error(_run(*arguments[:-1], "e", "--task", "al"))
    message = _error(_run(*arguments, "--task", "search", "--overwrite"))
    assert "is not a folder of embeddings and nothing else" in message
    (out / "search" / "notes.txt").write_text("mine", encoding="utf-8")
    message = _error(_run(*arguments, "--task", "all", "--overwrite"))
    assert "is not a folder with a folder of embeddings for each task" in message


def test_search_prints_a_table(model: Path, folder: Path) -> None:
    result = _run("search", "graphs", "--model", model, "--papers", folder, "--top", 2)
    assert result.exit_code == 0
    assert "title" in result.stdout
    assert sum(f"p{number}" in result.stdout for number in (1, 2, 3, 4)) == 2


def test_search_keeps_embeddings_in_the_cache(model: Path, folder: Path) -> None:
    arguments = ("search", "graphs", "--model", model, "--papers", folder, "--json")
    without = _rows(_run(*arguments, "--no-cache"))
    assert not (folder / "cache").exists()
    assert _rows(_run(*arguments)) == without
    (kept,) = (folder / "cache" / "scimult" / "embeddings").iterdir()
    assert read_embeddings(kept).ids == ["p1", "p2", "p3", "p4"]
    assert _rows(_run(*arguments)) == without


def test_search_goes_on_without_its_cache(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("search", "graphs", "--model", model, "--papers", folder, "--json")
    wanted = _rows(_run(*arguments))
    (kept,) = (folder / "cache" / "scimult" / "embeddings").iterdir()
    (kept / "embeddings.npy").write_bytes(b"half")
    healed = _run(*arguments)
    assert _rows(healed) == wanted
    assert "encoding the texts again" in healed.stderr
    assert _run(*arguments).stderr == ""
    monkeypatch.setenv("SCIMULT_CACHE", str(folder / "papers.jsonl"))
    unwritable = _run(*arguments)
    assert _rows(unwritable) == wanted
    assert (
        "$SCIMULT_CACHE names another folder, --no-cache turns the cache off" in unwritable.stderr
    )
    help_text = _run("search", "--help").stdout
    assert "$SCIMULT_CACHE" in help_text
    assert "$XDG_CACHE_HOME" in help_text


def test_recommend_leaves_the_paper_itself_out(model: Path, folder: Path) -> None:
    options = ("--model", model, "--papers", folder, "--json")
    by_id = _rows(_run("recommend", "--id", "p2", *options))
    assert sorted(row["id"] for row in by_id) == ["p1", "p3", "p4"]
    assert _rows(_run("recommend", "--title", "folding PROTEINS", *options)) == by_id


def test_recommend_for_a_new_paper(model: Path, folder: Path) -> None:
    options = ("--model", model, "--papers", folder, "--json")
    rows = _rows(_run("recommend", "--title", "Trees", "--abstract", "Drawn well", *options))
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ((), "no paper given. Fix: give --id, or --title"),
        (("--title", " "), "no paper given"),
        (("--id", "p1", "--title", "x"), "--id excludes --title and --abstract. Fix: give --id"),
        (("--id", "p1", "--abstract", "x"), "--id excludes --title and --abstract"),
        (("--id", "p9"), "no text has this id"),
        (("--title", "Drawing graphs"), "several papers have this title (value: ['p1', 'p4'])"),
    ],
)
def test_recommend_must_know_which_paper(
    model: Path, folder: Path, which: tuple[str, ...], message: str
) -> None:
    result = _run("recommend", *which, "--model", model, "--papers", folder)
    assert message in _error(result)


def test_tag_ranks_labels_of_every_paper(model: Path, folder: Path) -> None:
    options = ("--model", model, "--papers", folder, "--labels", folder, "--top", 1)
    rows = _rows(_run("tag", *options, "--json"))
    encoder = SciMult.from_pretrained(model, dtype="auto")
    papers_ND = encoder.encode(PAPERS, task="classification")
    labels_CD = encoder.encode(LABELS, task="classification", role="candidate")
    best = [LABELS[row]["id"] for row in (papers_ND @ labels_CD.T).argmax(axis=1)]
    assert [row["labels"][0]["id"] for row in rows] == best
    table = _run("tag", *options)
    assert table.exit_code == 0
    assert "Sparse matrices" in table.stdout
    written = _run("tag", *options, "--out", folder / "tags.jsonl")
    assert written.exit_code == 0
    lines = (folder / "tags.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows


@pytest.mark.parametrize("option", ["--precision", "--store"])
def test_encode_halves_the_disk_space(model: Path, folder: Path, option: str) -> None:
    out = folder / "half"
    chosen = ("--model", model, "--task", "search", option, "float16", "--out", out)
    assert _run("encode", folder, *chosen).exit_code == 0
    assert np.load(out / "000000.npy").dtype == np.float16


def test_encode_writes_a_folder(model: Path, folder: Path) -> None:
    options = ("--model", model, "--task", "link_prediction", "--out", folder / "e")
    result = _run("encode", folder, *options)
    assert result.exit_code == 0, result.output
    encoder = SciMult.from_pretrained(model, dtype="auto")
    assert f"4 embeddings of width 16, computed in {encoder.dtype}" in result.stdout.replace(
        "\n", " "
    )
    stored = read_embeddings(folder / "e")
    assert stored.meta["computed_in"] == encoder.dtype
    assert stored.ids == ["p1", "p2", "p3", "p4"]
    wanted_ND = encoder.encode(PAPERS, task="link_prediction")
    np.testing.assert_allclose(stored.embeddings_ND, wanted_ND, atol=1e-5)
    assert stored.meta["role"] == "candidate"
    again = _run("encode", folder, *options)
    assert (again.exit_code, "0 of them new" in again.stdout) == (0, True)
    message = _error(
        _run("encode", folder, *options[:-2], "--role", "query", "--out", folder / "e")
    )
    assert "differ in role 'query', here 'candidate'. Fix: use the model and settings" in message
    again = _run("encode", folder, *options, "--overwrite")
    assert (again.exit_code, "of them new" in again.stdout) == (0, False)


def test_encode_reads_labels_where_the_task_has_labels(model: Path, folder: Path) -> None:
    options = ("--model", model, "--task", "classification", "--out", folder / "e")
    assert _run("encode", folder, *options).exit_code == 0
    assert read_embeddings(folder / "e").ids == ["l1", "l2"]


def test_encode_does_not_replace_another_folder(model: Path, folder: Path) -> None:
    options = ("--model", model, "--task", "search", "--out", folder, "--overwrite")
    assert "exists and is not a folder of embeddings" in _error(_run("encode", folder, *options))
    assert (folder / "papers.jsonl").exists()
    options = ("--model", model, "--task", "search", "--out", folder / "e", "--overwrite")
    assert _run("encode", folder, *options).exit_code == 0
    (folder / "e" / "thesis.tex").write_text("precious", encoding="utf-8")
    assert "embeddings and nothing else" in _error(_run("encode", folder, *options))
    assert (folder / "e" / "thesis.tex").exists()


def test_parts_of_an_encoding_do_not_overwrite_and_say_what_is_missing(
    model: Path, folder: Path
) -> None:
    options = ("--model", model, "--task", "search", "--out", folder / "e", "--rows", 2)
    first = _run("encode", folder / "papers.jsonl", *options, "--part", "0/2")
    assert first.exit_code == 0
    assert "2 texts encoded by part 0 of 2; shards still missing: 1 of 2" in first.stderr
    shards = sorted((folder / "e").rglob("*.npy"))
    refused = _run("encode", folder / "papers.jsonl", *options, "--part", "1/2", "--overwrite")
    assert "parts cannot overwrite" in _error(refused)
    assert sorted((folder / "e").rglob("*.npy")) == shards
    last = _run("encode", folder / "papers.jsonl", *options, "--part", "1/2")
    assert "4 embeddings of width 16" in last.stdout.replace("\n", " ")
    again = _run("encode", folder / "papers.jsonl", *options, "--part", "0/1", "--overwrite")
    assert again.exit_code == 0, again.output


def test_an_unknown_task_lists_the_known_ones(model: Path, folder: Path) -> None:
    result = _run("search", "x", "--model", model, "--papers", folder, "--task", "serach")
    assert "use one of classification, link_prediction, search (did you mean" in _error(result)


def test_bad_papers_are_named_or_counted(model: Path, folder: Path) -> None:
    _write(folder / "papers.jsonl", [*PAPERS, {"id": "p1", "title": "Again"}, {"id": "p6"}])
    options = ("search", "x", "--model", model, "--papers", folder, "--json")
    assert "papers.jsonl:5: id is given twice" in _error(_run(*options))
    result = _run(*options, "--skip-bad")
    assert len(_rows(result)) == 4
    assert "left out 1: id is given twice" in result.stderr
    assert "left out 1: paper has no text" in result.stderr


@pytest.mark.parametrize("verb", [("search", "x"), ("recommend", "--id", "p1")])
def test_a_task_that_ranks_labels_does_not_search_papers(
    model: Path, folder: Path, verb: tuple[str, ...]
) -> None:
    """The message named a field of the first paper as one that labels do not have."""
    options = ("--model", model, "--papers", folder, "--task", "classification")
    error = _error(_run(*verb, *options))
    assert "this task does not search for papers (value: 'classification')" in error
    assert "Fix: use scimult tag" in error


def test_a_task_that_ranks_papers_does_not_tag(model: Path, folder: Path) -> None:
    options = ("--model", model, "--papers", folder, "--labels", folder, "--task", "search")
    assert "task does not rank labels for papers (value: 'search')" in _error(_run("tag", *options))


def test_text_that_would_be_dropped_is_named_or_counted(model: Path, folder: Path) -> None:
    _write(folder / "papers.jsonl", [*PAPERS, {"id": "p5", "titel": "Trees", "abstract": "x"}])
    options = ("search", "x", "--model", model, "--papers", folder, "--json")
    assert "papers.jsonl:5: paper has text under 'titel'" in _error(_run(*options))
    result = _run(*options, "--skip-bad")
    assert len(_rows(result)) == 4
    assert "left out 1: paper has text under 'titel'" in result.stderr
    _write(folder / "labels.jsonl", [{"id": "l1", "name": "Geometry", "abstract": "Shapes"}])
    result = _run("tag", "--model", model, "--papers", folder, "--labels", folder, "--skip-bad")
    assert "labels.jsonl: no label is left" in result.stderr.splitlines()[-1]


def test_an_argument_of_broken_bytes_is_one_line(model: Path, folder: Path) -> None:
    error = _error(_run("search", "na\udcefve", "--model", model, "--papers", folder))
    assert "words are not valid UTF-8 (value: 'na\\udcefve')" in error


def test_encode_of_a_broken_model_writes_nothing(folder: Path) -> None:
    broken = save_tiny_model(folder / "broken")
    weights = load_file(broken / "model.safetensors")
    save_file(
        {name: weight * torch.nan for name, weight in weights.items()}, broken / "model.safetensors"
    )
    result = _run("encode", folder, "--model", broken, "--task", "search", "--out", folder / "e")
    assert re.search(r"4 of 4 embeddings by broken in b?float\d\d are not finite", _error(result))
    assert [path.name for path in (folder / "e").iterdir()] == ["manifest.json"]
    mended = save_tiny_model(folder / "mended")
    again = _run("encode", folder, "--model", mended, "--task", "search", "--out", folder / "e")
    assert again.exit_code == 0, again.output


def test_wrong_paths_are_named(model: Path, folder: Path) -> None:
    nowhere = folder / "nowhere"
    missing_model = _run("search", "x", "--model", nowhere, "--papers", folder)
    assert "nowhere: folder does not exist" in _error(missing_model)
    missing_papers = _run("search", "x", "--model", model, "--papers", nowhere)
    assert "nowhere: file does not exist" in _error(missing_papers)


@pytest.mark.parametrize(
    ("name", "problem"), [("no*.jsonl", "no file matches"), ("no.jsonl", "file does not exist")]
)
def test_encode_tells_patterns_without_a_match_from_missing_files(
    model: Path, folder: Path, name: str, problem: str
) -> None:
    out = folder / "e"
    result = _run("encode", folder / name, "--model", model, "--task", "search", "--out", out)
    assert f"{name}: {problem}. Fix: " in _error(result)


def test_an_empty_query_is_an_error(model: Path, folder: Path) -> None:
    result = _run("search", " ", "--model", model, "--papers", folder)
    assert "is empty" in _error(result)
