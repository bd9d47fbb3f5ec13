"""``scimult evaluate``, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scimult import distributed
from scimult.cli import evaluate
from scimult.files import only_writer
from scimult.library.manifest import FILE as LIBRARY
from scimult.models.embeddings import Embeddings
from scimult.retrieval.embeddings import write_embeddings
from scimult.tagging.folder import FILE as TAGGER
from tests.benchmark_sets import (
    CORPUS,
    QUERY_PAPERS,
    WordEncoder,
)
from tests.cli.conftest import evaluated
from tests.command import completed, invoke, refused
from tests.tiny import save_tiny_model


def _stored(suite: Path) -> Path:
    """Store embeddings of the links set only."""
    encoder, folder = WordEncoder(), suite.parent / "stored/links"
    folder.mkdir(parents=True)
    for name, records in (("candidates", CORPUS), ("queries", QUERY_PAPERS)):
        vectors = np.stack([encoder._vector(str(record)) for record in records])
        write_embeddings(folder / name, [record["_id"] for record in records], vectors, {})
    return suite.parent / "stored"


def test_bm25_a_model_and_stored_embeddings_share_one_table(suite: Path) -> None:
    model, out = save_tiny_model(suite.parent / "model"), suite.parent / "out"
    first = evaluated(suite, "--bm25", "--model", f"tiny={model},pooling=mean,similarity=cosine")
    assert first.exit_code == 0, first.output
    assert "BM25" in first.stdout
    second = evaluated(
        suite, "--embeddings", f"mine={_stored(suite)},similarity=l2", "--sets", "links"
    )
    assert second.exit_code == 0, second.output
    header = (out / "table.md").read_text().splitlines()[2]
    assert header == "| task | set | metric | BM25 | tiny | mine |"
    settings = json.loads((out / "tiny/result.json").read_text())["settings"]
    assert settings["pooling"] == "mean"
    assert settings["similarity"] == "cosine"
    assert len(settings["fingerprint"]) == 16


def test_overrides_change_the_suite(suite: Path) -> None:
    result = evaluated(suite, "--bm25", "--save-runs", "benchmarks.links.mode=paper")
    assert result.exit_code == 0, result.output
    assert "links: mode 'paper'." in result.stdout
    run = (suite.parent / "out/BM25/runs/links.run").read_text()
    assert run.splitlines()[0].startswith("d1 Q0 d1 1 ")


def test_other_data_in_the_same_folder_is_refused_before_any_work(suite: Path) -> None:
    assert evaluated(suite, "--bm25").exit_code == 0
    with (suite.parent / "data/search/qrels/test.tsv").open("a") as file:
        file.write("q3\td1\t1\n")
    result = evaluated(suite, "--embeddings", "mine=nowhere")
    assert result.exit_code == 1
    assert "the result of BM25 on search differs in counts, files" in result.stderr


def test_a_suite_is_scored_in_parts(suite: Path) -> None:
    """One set, then all sets with data: one result, and missing sets are named."""
    assert evaluated(suite, "--bm25", "--sets", "search").exit_code == 0
    (suite.parent / "data/coarse/papers.jsonl").unlink()
    assert "data of coarse is missing" in evaluated(suite, "--bm25").stderr
    found = evaluated(suite, "--bm25", "--available", "--resume")
    assert found.exit_code == 0, found.output
    assert "BM25: search: earlier score kept" in found.stderr
    assert "BM25: coarse: not scored: its data is missing: " in found.stderr
    written = json.loads((suite.parent / "out/BM25/result.json").read_text())
    assert list(written["sets"]) == ["fields", "links", "rerank", "search"]
    links = written["sets"]["links"]
    assert (
        f"BM25: links: {links['main_metric']} {100 * links['scores'][links['main_metric']]:.2f} ("
        in found.stderr
    )
    only = evaluated(suite, "--bm25", "--available", "--sets", "coarse")
    assert only.exit_code == 1
    assert "no data of suite 'own' here. Fix: ask me" in only.stderr


def test_a_set_that_fails_is_named_at_the_end(suite: Path) -> None:
    """Neither it, nor a system that cannot be loaded, stops the others."""
    better = ("--bm25", "--rerank", f"better=BM25+{suite.parent / 'missing'}")
    found = evaluated(suite, "--embeddings", f"mine={_stored(suite)}", *better, "--lexical=b=beir")
    assert found.exit_code == 1
    assert "mine: search: failed: " in found.stderr
    assert "better: failed: cannot load cross-encoder" in found.stderr
    last = found.stderr.splitlines()[-1]
    assert last.startswith("error: 9 sets failed: mine: coarse; mine: fields; mine: rerank; mine:")
    assert "| link_prediction | links | recall@1 |" in (suite.parent / "out/table.md").read_text()
    assert "mine failed on search: " in found.stdout.replace("\n", " ")


def test_another_model_of_the_same_name_does_not_replace_a_result(suite: Path) -> None:
    one, two = (save_tiny_model(suite.parent / f"m{seed}", seed=seed) for seed in (0, 1))
    assert evaluated(suite, "--sets", "links", "--model", f"m={one}").exit_code == 0
    before = (suite.parent / "out/m/result.json").read_bytes()
    refused = evaluated(suite, "--sets", "links", "--model", f"m={two}")
    assert refused.exit_code == 1
    assert "the existing result of m differs in fingerprint" in refused.stderr
    assert (suite.parent / "out/m/result.json").read_bytes() == before
    replaced = evaluated(suite, "--sets", "links", "--model", f"m={two}", "--replace")
    assert replaced.exit_code == 0, replaced.output
    assert (suite.parent / "out/m/result.json").read_bytes() != before
    both = evaluated(suite, "--bm25", "--resume", "--replace")
    assert "--resume and --replace are mutually exclusive" in both.stderr


def test_list_shows_suites_and_whether_their_data_is_here(suite: Path) -> None:
    (suite.parent / "data/coarse/papers.jsonl").unlink()
    arguments = ["--list", "--suite", str(suite), "--data", str(suite.parent / "data")]
    result = completed("evaluate", *arguments)
    for line in ("own: Mine", "  data: ask me", "  coarse [missing]: ", "  links [here]: "):
        assert line in result.stdout
    assert "first: " not in result.stdout
    result = invoke("evaluate", "--list", *arguments[3:])
    assert "first: " in result.stdout
    assert "beir: " in result.stdout
    assert "  cacm [missing]: search, search" in result.stdout
    one = ["--sets", "cacm", "benchmarks.cacm.licence=mine"]
    result = invoke("evaluate", "--list", *one, *arguments[3:])
    assert "; mine" in result.stdout
    assert [line[:6] for line in result.stdout.splitlines() if "[" in line] == ["  cacm"]


@pytest.mark.ranks
def test_the_launch_script_takes_the_same_options(repository: Path, suite: Path) -> None:
    script = str(repository / "launch/evaluate.py")
    options = ["--suite", str(suite), "--data", str(suite.parent / "data"), "--bm25"]
    options += ["--out", str(suite.parent / "out"), "--sets", "search"]
    found = subprocess.run(
        [sys.executable, script, *options], capture_output=True, text=True, check=True
    )
    assert "ndcg@10" in found.stdout
    assert (suite.parent / "out/BM25/result.json").is_file()


def test_only_rank_0_works(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = evaluated(suite, "--bm25")
    assert result.exit_code == 0
    assert result.output == ""
    assert not (suite.parent / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to evaluate"),
        (["--bm25", "--sets", "cisi"], "unknown benchmark (value: 'cisi')"),
        (["--bm25", "benchmarks.links.mod=paper"], "did you mean 'mode'?"),
        (["--model", "path/to/model"], "a system is NAME=FOLDER"),
        (["--encoder", "to/my-lm,dtype=auto"], "Fix: write my_lm=to/my-lm,dtype=auto"),
        (["--model", "=to/my-lm"], "Fix: write mymodel=runs/mymodel"),
        (["--bm25", "--embeddings", "BM25=x"], "two systems have the same name"),
        (["--embeddings", "my model=x"], "not a valid system name"),
        (["--embeddings", "mine=x"], "folder of embeddings does not exist"),
        (["--model", "m=x,pool=mean"], "unknown option of a system (value: 'pool')"),
        (["--bm25", "--model", "m=x,combine=mean"], "combine= needs several models"),
        (["--bm25", "--encoder", "m=minilm,combine=mean"], "combine= needs several models"),
        (["--bm25", "--model", "m=x,dtype=int8,dtype=auto"], "is given twice"),
        (["--bm25", "--precision", "float16"], "--precision is that of a store"),
        (["--bm25", "benchmarks.links.folder=gone"], "data of links is missing: "),
    ],
)
def test_mistakes_are_one_line(suite: Path, arguments: list[str], message: str) -> None:
    result = evaluated(suite, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert not list((suite.parent / "out").rglob("result.json"))


def test_out_is_needed(suite: Path) -> None:
    arguments = ["evaluate", "--suite", str(suite), "--data", str(suite.parent), "--bm25"]
    assert "no folder for the results" in refused(*arguments)


@pytest.mark.parametrize("name", ["manifest.json", LIBRARY, TAGGER])
def test_results_do_not_go_among_the_files_of_other_output(suite: Path, name: str) -> None:
    out = suite.parent / "out"
    out.mkdir()
    (out / name).write_text("{}", encoding="utf-8")
    result = evaluated(suite, "--bm25")
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert "out: output exists already. Fix: choose another folder" in said
    assert [path.name for path in out.iterdir()] == [name]


@pytest.mark.long
def test_third_party_encoders_keep_embeddings_between_runs(suite: Path, minilm: Path) -> None:
    """A second run finds all embeddings stored and gets the same scores."""
    store, out = suite.parent / "store", suite.parent / "out"
    spec = f"theirs=minilm,model={minilm}"
    options = ("--sets", "search", "--store", str(store), "--precision", "float16")
    first = evaluated(suite, "--encoder", spec, *options)
    assert first.exit_code == 0, first.output
    result = json.loads((out / "theirs/result.json").read_text())
    assert result["settings"]["stored_as"] == "float16"
    files = {path: path.stat().st_mtime_ns for path in store.rglob("*.npy")}
    assert len(files) == 4
    again = evaluated(suite, "--encoder", spec, *options)
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*.npy")} == files
    second = json.loads((out / "theirs/result.json").read_text())
    assert second["sets"]["search"]["scores"] == result["sets"]["search"]["scores"]


def test_with_a_store_a_second_run_encodes_no_token(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count tokens in the results and at the model's first layer."""
    model, out = save_tiny_model(suite.parent / "model"), suite.parent / "out"
    embedded, forward = [0], Embeddings.forward

    def counted(layer: Embeddings, tokens_T: torch.Tensor, plan: Any) -> torch.Tensor:
        embedded[0] += tokens_T.numel()
        return forward(layer, tokens_T, plan)

    monkeypatch.setattr(Embeddings, "forward", counted)
    scores, tokens, seen = [], [], []
    for name in ("first", "second"):
        embedded[0] = 0
        store = ("--store", str(suite.parent / "store"))
        found = evaluated(suite, "--model", f"{name}={model}", *store)
        assert found.exit_code == 0, found.output
        sets = json.loads((out / name / "result.json").read_text())["sets"]
        scores.append({key: entry["scores"] for key, entry in sets.items()})
        tokens.append(sum(entry["cost"]["tokens"] for entry in sets.values()))
        seen.append(embedded[0])
    assert seen[0] == tokens[0] > 0
    assert seen[1] == tokens[1] == 0
    assert scores[1] == scores[0]


def test_unknown_encoders_and_keys_are_refused_before_any_work(suite: Path) -> None:
    unknown = evaluated(suite, "--encoder", "theirs=scinc")
    assert unknown.exit_code == 1
    assert "did you mean 'scincl'" in unknown.stderr
    wrong = evaluated(suite, "--encoder", "theirs=scincl,poolng=cls")
    assert wrong.exit_code == 1
    assert "unknown key (did you mean 'pooling'?)" in wrong.stderr


def test_one_process_at_a_time_scores_a_system(suite: Path) -> None:
    """Results grow set by set: two writers would lose each other's sets."""
    out = suite.parent / "out"
    with only_writer(out / "BM25"):
        result = evaluated(suite, "--bm25")
    assert result.exit_code == 1
    assert "BM25: another process is writing here (process " in result.stderr
    assert not out.joinpath("BM25").exists()


@pytest.mark.parametrize(("device", "own"), [(None, True), ("cuda", True), ("cuda:1", False)])
def test_ranks_of_a_launcher_encode_on_a_gpu_each(
    monkeypatch: pytest.MonkeyPatch, device: str | None, own: bool
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(distributed, "initialise", lambda *_, **__: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for name, value in {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "5"}.items():
        monkeypatch.setenv(name, value)
    with evaluate._joined_ranks(device):
        assert taken == [5] * own
