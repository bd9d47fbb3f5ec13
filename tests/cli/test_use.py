"""encode, search, recommend and tag, as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scimult.inference import SciMult
from scimult.retrieval.embeddings import read_embeddings
from tests.command import completed, invoke, refused, rows_of
from tests.raw_corpus import write_jsonl
from tests.tiny import save_tiny_model

PAPERS = [
    {"id": "p1", "title": "Drawing graphs", "abstract": "Layouts of large graphs."},
    {"id": "p2", "title": "Folding proteins", "abstract": "A simulation of folding."},
    {"id": "p3", "title": "Sparse matrices", "abstract": ""},
    {"id": "p4", "title": "Drawing  Graphs", "abstract": "The same title in other letters."},
]
LABELS = [{"id": "l1", "name": "Geometry", "definition": "Shapes"}, {"id": "l2", "name": "Biology"}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_jsonl(tmp_path / "papers.jsonl", PAPERS)
    write_jsonl(tmp_path / "labels.jsonl", LABELS)
    return tmp_path


def test_a_table_cuts_titles_that_hold_a_whole_paper(model: Path, folder: Path) -> None:
    """One filled six thousand lines of a terminal."""
    whole = "word " * 2000
    write_jsonl(
        folder / "papers.jsonl", [{"id": "p1", "title": whole}, {"id": "p2", "title": "Short"}]
    )
    given = ["word", "--model", model, "--papers", folder / "papers.jsonl"]
    table = invoke("search", *given).stdout
    assert table.count("word") < 80
    assert "…" in table
    assert whole.strip() in {row["title"] for row in rows_of(invoke("search", *given, "--json"))}


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_search_ranks_by_the_models_similarity(model: Path, folder: Path, dtype: str) -> None:
    options = ["--model", model, "--papers", folder, "--dtype", dtype, "--json"]
    rows = rows_of(invoke("search", "graphs", *options))
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
    result = completed(*arguments, "--task", "all", "--dtype", "float32")
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
    again = invoke(*arguments, "--task", "all", "--dtype", "float32")
    assert (again.exit_code, "0 of them new" in again.stdout) == (0, True)
    completed(*arguments, "--task", "all", "--overwrite")
    assert "exists already" in refused(*arguments, "--task", "search")
    assert "use one of all, classification, " in refused(*arguments[:-1], "e", "--task", "al")
    message = refused(*arguments, "--task", "search", "--overwrite")
    assert "is not a folder of embeddings and nothing else" in message
    (out / "search" / "notes.txt").write_text("mine", encoding="utf-8")
    message = refused(*arguments, "--task", "all", "--overwrite")
    assert "is not a folder with a folder of embeddings for each task" in message


def test_search_prints_a_table(model: Path, folder: Path) -> None:
    result = completed("search", "graphs", "--model", model, "--papers", folder, "--top", 2)
    assert "title" in result.stdout
    assert sum(f"p{number}" in result.stdout for number in (1, 2, 3, 4)) == 2


def test_search_keeps_embeddings_in_the_cache(model: Path, folder: Path) -> None:
    arguments = ("search", "graphs", "--model", model, "--papers", folder, "--json")
    without = rows_of(invoke(*arguments, "--no-cache"))
    assert not (folder / "cache").exists()
    assert rows_of(invoke(*arguments)) == without
    (kept,) = (folder / "cache" / "scimult" / "embeddings").iterdir()
    assert read_embeddings(kept).ids == ["p1", "p2", "p3", "p4"]
    assert rows_of(invoke(*arguments)) == without


def test_search_goes_on_without_its_cache(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("search", "graphs", "--model", model, "--papers", folder, "--json")
    wanted = rows_of(invoke(*arguments))
    (kept,) = (folder / "cache" / "scimult" / "embeddings").iterdir()
    (kept / "embeddings.npy").write_bytes(b"half")
    healed = invoke(*arguments)
    assert rows_of(healed) == wanted
    assert "encoding the texts again" in healed.stderr
    assert invoke(*arguments).stderr == ""
    monkeypatch.setenv("SCIMULT_CACHE", str(folder / "papers.jsonl"))
    unwritable = invoke(*arguments)
    assert rows_of(unwritable) == wanted
    assert (
        "$SCIMULT_CACHE names another folder, --no-cache turns the cache off" in unwritable.stderr
    )
    help_text = invoke("search", "--help").stdout
    assert "$SCIMULT_CACHE" in help_text
    assert "$XDG_CACHE_HOME" in help_text


def test_recommend_leaves_the_paper_itself_out(model: Path, folder: Path) -> None:
    options = ("--model", model, "--papers", folder, "--json")
    by_id = rows_of(invoke("recommend", "--id", "p2", *options))
    assert sorted(row["id"] for row in by_id) == ["p1", "p3", "p4"]
    assert rows_of(invoke("recommend", "--title", "folding PROTEINS", *options)) == by_id


def test_recommend_for_a_new_paper(model: Path, folder: Path) -> None:
    options = ("--model", model, "--papers", folder, "--json")
    rows = rows_of(invoke("recommend", "--title", "Trees", "--abstract", "Drawn well", *options))
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
    assert message in refused("recommend", *which, "--model", model, "--papers", folder)


def test_tag_ranks_labels_of_every_paper(model: Path, folder: Path) -> None:
    options = ("--model", model, "--papers", folder, "--labels", folder, "--top", 1)
    rows = rows_of(invoke("tag", *options, "--json"))
    encoder = SciMult.from_pretrained(model, dtype="auto")
    papers_ND = encoder.encode(PAPERS, task="classification")
    labels_CD = encoder.encode(LABELS, task="classification", role="candidate")
    best = [LABELS[row]["id"] for row in (papers_ND @ labels_CD.T).argmax(axis=1)]
    assert [row["labels"][0]["id"] for row in rows] == best
    table = completed("tag", *options)
    assert "Sparse matrices" in table.stdout
    completed("tag", *options, "--out", folder / "tags.jsonl")
    lines = (folder / "tags.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows


@pytest.mark.parametrize("option", ["--precision", "--store"])
def test_encode_halves_the_disk_space(model: Path, folder: Path, option: str) -> None:
    out = folder / "half"
    chosen = ("--model", model, "--task", "search", option, "float16", "--out", out)
    completed("encode", folder, *chosen)
    assert np.load(out / "000000.npy").dtype == np.float16


def test_encode_writes_a_folder(model: Path, folder: Path) -> None:
    options = ("--model", model, "--task", "link_prediction", "--out", folder / "e")
    result = completed("encode", folder, *options)
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
    again = invoke("encode", folder, *options)
    assert (again.exit_code, "0 of them new" in again.stdout) == (0, True)
    message = refused("encode", folder, *options[:-2], "--role", "query", "--out", folder / "e")
    assert "differ in role 'query', here 'candidate'. Fix: use the model and settings" in message
    again = invoke("encode", folder, *options, "--overwrite")
    assert (again.exit_code, "of them new" in again.stdout) == (0, False)


def test_encode_reads_labels_where_the_task_has_labels(model: Path, folder: Path) -> None:
    options = ("--model", model, "--task", "classification", "--out", folder / "e")
    completed("encode", folder, *options)
    assert read_embeddings(folder / "e").ids == ["l1", "l2"]


def test_encode_does_not_replace_another_folder(model: Path, folder: Path) -> None:
    options = ("--model", model, "--task", "search", "--out", folder, "--overwrite")
    assert "exists and is not a folder of embeddings" in refused("encode", folder, *options)
    assert (folder / "papers.jsonl").exists()
    options = ("--model", model, "--task", "search", "--out", folder / "e", "--overwrite")
    completed("encode", folder, *options)
    (folder / "e" / "thesis.tex").write_text("precious", encoding="utf-8")
    assert "embeddings and nothing else" in refused("encode", folder, *options)
    assert (folder / "e" / "thesis.tex").exists()


def test_parts_of_an_encoding_do_not_overwrite_and_say_what_is_missing(
    model: Path, folder: Path
) -> None:
    options = ("--model", model, "--task", "search", "--out", folder / "e", "--rows", 2)
    first = completed("encode", folder / "papers.jsonl", *options, "--part", "0/2")
    assert "2 texts encoded by part 0 of 2; shards still missing: 1 of 2" in first.stderr
    shards = sorted((folder / "e").rglob("*.npy"))
    assert "parts cannot overwrite" in refused(
        "encode", folder / "papers.jsonl", *options, "--part", "1/2", "--overwrite"
    )
    assert sorted((folder / "e").rglob("*.npy")) == shards
    last = invoke("encode", folder / "papers.jsonl", *options, "--part", "1/2")
    assert "4 embeddings of width 16" in last.stdout.replace("\n", " ")
    completed("encode", folder / "papers.jsonl", *options, "--part", "0/1", "--overwrite")


@pytest.mark.parametrize("task", ["search", "all"])
def test_shards_of_other_sizes_are_not_encoded_again(model: Path, folder: Path, task: str) -> None:
    """A complete folder was emptied before they were, and what a killed call had done was lost."""
    call = ("encode", folder / "papers.jsonl", "--model", model, "--task", task)

    def sizes(out: Path, *options: object) -> list[str]:
        message = refused(*call, "--out", out, *options)
        return re.findall(r"shards here have (\d+) rows.*value: (\d+).*pass --rows (\d+)", message)

    whole, part = folder / "whole", folder / "part"
    completed(*call, "--out", whole, "--rows", 3)
    kept = {path: path.read_bytes() for path in whole.rglob("*.*")}
    for rows in ("1", "2", "4", "9"):
        assert sizes(whole, "--rows", rows) == [("3", rows, "3")]
    assert kept == {path: path.read_bytes() for path in whole.rglob("*.*")}
    completed(*call, "--out", part, "--rows", 1, "--part", "0/2")
    assert sizes(part, "--rows", 2, "--part", "1/2") == [("1", "2", "1")]
    completed(*call, "--out", part, "--rows", 1, "--part", "1/2")
    completed(*call, "--out", whole, "--rows", 9, "--overwrite")
    # One shard is of either size, as long as all texts fit.
    assert ", 0 of them new" in completed(*call, "--out", whole, "--rows", 4).output
    assert sizes(whole, "--rows", 3) == [("4", "3", "4")]


@pytest.mark.parametrize("task", ["search", "all"])
def test_other_papers_do_not_replace_encoded_ones(model: Path, folder: Path, task: str) -> None:
    """With the name of a complete folder by mistake, all that was in it was lost."""
    write_jsonl(folder / "others.jsonl", [{"id": f"other{n}", "title": "Trees"} for n in range(4)])
    options = ("--model", model, "--task", task, "--out", folder / "e", "--rows", 2)
    completed("encode", folder / "papers.jsonl", *options)
    kept = {path: path.read_bytes() for path in (folder / "e").rglob("*.*")}
    for part in ((), ("--part", "1/2")):
        message = refused("encode", folder / "others.jsonl", *options, *part)
        assert "holds embeddings of other texts. Fix: choose another folder, or --over" in message
    assert kept == {path: path.read_bytes() for path in (folder / "e").rglob("*.*")}
    # One known paper at the beginning is enough: an input may grow, and papers leave it.
    write_jsonl(folder / "grown.jsonl", [{"id": "new", "title": "Trees"}, *PAPERS[1:]])
    assert (
        PAPERS[1]["id"] in read_embeddings(folder / "e" / ("search" if task == "all" else "")).ids
    )
    completed("encode", folder / "grown.jsonl", *options)
    completed("encode", folder / "others.jsonl", *options, "--overwrite")


def test_an_unknown_task_lists_the_known_ones(model: Path, folder: Path) -> None:
    assert "use one of classification, link_prediction, search (did you mean" in refused(
        "search", "x", "--model", model, "--papers", folder, "--task", "serach"
    )


def test_bad_papers_are_named_or_counted(model: Path, folder: Path) -> None:
    write_jsonl(folder / "papers.jsonl", [*PAPERS, {"id": "p1", "title": "Again"}, {"id": "p6"}])
    options = ("search", "x", "--model", model, "--papers", folder, "--json")
    assert "papers.jsonl:5: id is given twice" in refused(*options)
    result = invoke(*options, "--skip-bad")
    assert len(rows_of(result)) == 4
    assert "left out 1: id is given twice" in result.stderr
    assert "left out 1: paper has no text" in result.stderr


@pytest.mark.parametrize("verb", [("search", "x"), ("recommend", "--id", "p1")])
def test_a_task_that_ranks_labels_does_not_search_papers(
    model: Path, folder: Path, verb: tuple[str, ...]
) -> None:
    """The message named a field of the first paper as one that labels do not have."""
    options = ("--model", model, "--papers", folder, "--task", "classification")
    error = refused(*verb, *options)
    assert "this task does not search for papers (value: 'classification')" in error
    assert "Fix: use scimult tag" in error


def test_a_task_that_ranks_papers_does_not_tag(model: Path, folder: Path) -> None:
    options = ("--model", model, "--papers", folder, "--labels", folder, "--task", "search")
    assert "task does not rank labels for papers (value: 'search')" in refused("tag", *options)


def test_text_that_would_be_dropped_is_named_or_counted(model: Path, folder: Path) -> None:
    write_jsonl(folder / "papers.jsonl", [*PAPERS, {"id": "p5", "titel": "Trees", "abstract": "x"}])
    options = ("search", "x", "--model", model, "--papers", folder, "--json")
    assert "papers.jsonl:5: paper has text under 'titel'" in refused(*options)
    result = invoke(*options, "--skip-bad")
    assert len(rows_of(result)) == 4
    assert "left out 1: paper has text under 'titel'" in result.stderr
    write_jsonl(folder / "labels.jsonl", [{"id": "l1", "name": "Geometry", "abstract": "Shapes"}])
    result = invoke("tag", "--model", model, "--papers", folder, "--labels", folder, "--skip-bad")
    assert "labels.jsonl: no label is left" in result.stderr.splitlines()[-1]


def test_encode_of_a_broken_model_writes_nothing(folder: Path) -> None:
    broken = save_tiny_model(folder / "broken")
    weights = load_file(broken / "model.safetensors")
    save_file(
        {name: weight * torch.nan for name, weight in weights.items()}, broken / "model.safetensors"
    )
    assert re.search(
        r"4 of 4 embeddings by broken in b?float\d\d are not finite",
        refused("encode", folder, "--model", broken, "--task", "search", "--out", folder / "e"),
    )
    assert [path.name for path in (folder / "e").iterdir()] == ["manifest.json"]
    mended = save_tiny_model(folder / "mended")
    completed("encode", folder, "--model", mended, "--task", "search", "--out", folder / "e")


def test_wrong_paths_are_named(model: Path, folder: Path) -> None:
    nowhere = folder / "nowhere"
    assert "nowhere: folder does not exist" in refused(
        "search", "x", "--model", nowhere, "--papers", folder
    )
    assert "nowhere: file does not exist" in refused(
        "search", "x", "--model", model, "--papers", nowhere
    )


@pytest.mark.parametrize(
    ("name", "problem"), [("no*.jsonl", "no file matches"), ("no.jsonl", "file does not exist")]
)
def test_encode_tells_patterns_without_a_match_from_missing_files(
    model: Path, folder: Path, name: str, problem: str
) -> None:
    out = folder / "e"
    assert f"{name}: {problem}. Fix: " in refused(
        "encode", folder / name, "--model", model, "--task", "search", "--out", out
    )


def test_an_empty_query_is_an_error(model: Path, folder: Path) -> None:
    assert "is empty" in refused("search", " ", "--model", model, "--papers", folder)
