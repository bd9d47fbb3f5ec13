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
import yaml
from typer.testing import CliRunner, Result

from scimult.cli.main import app
from scimult.evaluation.benchmark import Benchmark
from scimult.files import only_writer
from scimult.models.embeddings import Embeddings
from scimult.retrieval.embeddings import write_embeddings
from tests.benchmark_sets import (
    CORPUS,
    QUERY_PAPERS,
    WordEncoder,
    write_coarse,
    write_fields,
    write_links,
    write_rerank,
    write_search,
)
from tests.tiny import save_cross_encoder, save_static_embeddings, save_tiny_model


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Write data of every protocol and a custom suite; return the suite's file."""
    data = tmp_path / "data"
    made = [write(data) for write in (write_fields, write_coarse, write_rerank, write_links)]
    made.append(write_search(data))
    tree = {
        "name": "own",
        "description": "Mine",
        "how_to_get": "ask me",
        "benchmarks": {entry.folder: _plain(entry) for entry in made},
    }
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def _plain(entry: Benchmark) -> dict[str, object]:
    tree: dict[str, object] = entry.model_dump(mode="json")
    return tree


def _evaluate(suite: Path, *arguments: str) -> Result:
    data, out = suite.parent / "data", suite.parent / "out"
    options = ["--suite", str(suite), "--data", str(data), "--out", str(out)]
    return CliRunner().invoke(app, ["evaluate", *options, *arguments])


def _stored(suite: Path) -> Path:
    """Store embeddings of the links set only."""
    encoder, folder = WordEncoder(), suite.parent / "stored/links"
    folder.mkdir(parents=True)
    for name, records in (("candidates", CORPUS), ("queries", QUERY_PAPERS)):
        vectors = np.stack([encoder._vector(str(record)) for record in records])
        write_embeddings(folder / name, [record["_id"] for record in records], vectors, {})
    return suite.parent / "stored"


def test_two_models_are_evaluated_as_one(suite: Path) -> None:
    one, two = (save_tiny_model(suite.parent / f"m{seed}", seed=seed) for seed in (0, 1))
    found = _evaluate(
        suite, "--sets", "links", "--model", f"both={one}+{two},combine=concatenation"
    )
    assert found.exit_code == 0, found.output
    assert "both" in found.stdout


def test_hybrids_are_scored_next_to_their_members(suite: Path) -> None:
    model = save_tiny_model(suite.parent / "model")
    cross = save_cross_encoder(suite.parent / "cross")
    found = _evaluate(
        suite,
        *("--sets", "search", "--bm25", "--model", f"tiny={model}"),
        *("--fuse", "hybrid=BM25+tiny", "--fuse", "tuned=BM25+tiny,by=weights"),
        *("--rerank", f"better=hybrid+{cross},top=2"),
    )
    assert found.exit_code == 0, found.stderr
    out = suite.parent / "out"
    settings = {
        name: json.loads((out / name / "result.json").read_text())["settings"]
        for name in ("hybrid", "tuned", "better")
    }
    assert settings["hybrid"]["members"].keys() == {"BM25", "tiny"}
    assert settings["tuned"]["by"] == "weights"
    assert settings["better"]["first"]["hybrid"]["by"] == "rank"
    assert json.loads((out / "better" / "result.json").read_text())["sets"]["search"]["scores"]


def test_a_weight_is_tuned_on_dev_queries(suite: Path) -> None:
    model = save_tiny_model(suite.parent / "model")
    fuse = ("--fuse", "tuned=BM25+tiny,by=weights,dev=dev")
    call = (suite, "--sets", "search", "--bm25", "--model", f"tiny={model}", *fuse)
    missing = _evaluate(*call)
    assert missing.exit_code == 1
    assert "qrels/dev.tsv" in missing.output
    assert not (suite.parent / "out" / "BM25").exists()
    folder = suite.parent / "data" / "search"
    with (folder / "queries.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "q4", "text": "drawing"}) + "\n")
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq4\td4\t1\n")
    found = _evaluate(*call)
    assert found.exit_code == 0, found.output
    result = json.loads((suite.parent / "out" / "tuned" / "result.json").read_text())
    assert result["settings"]["dev"] == "dev"
    assert result["sets"]["search"]["counts"]["queries"] == 3


def test_static_embeddings_alone_and_fused_with_bm25(suite: Path) -> None:
    static = save_static_embeddings(suite.parent / "static")
    found = _evaluate(
        *(suite, "--sets", "search", "--sets", "rerank", "--lexical", "beir=beir"),
        *("--encoder", f"static={static}", "--fuse", "hybrid=beir+static,by=weights"),
    )
    assert found.exit_code == 0, found.stderr
    result = json.loads((suite.parent / "out" / "static" / "result.json").read_text())
    assert result["settings"]["encoders"][0]["model"] == str(static)
    assert result["sets"].keys() == {"search", "rerank"}
    nowhere = _evaluate(suite, "--encoder", f"gone={suite.parent}/nowhere")
    assert nowhere.exit_code == 1
    assert "cannot load the encoder" in nowhere.output


def test_bm25_with_an_analyser_next_to_the_plain_one(suite: Path) -> None:
    stemmed = "stemmed=words,stemmer=english,stop_words=english,k1=1.2,b=0.75"
    found = _evaluate(
        *(suite, "--sets", "search", "--bm25", "--lexical", "beir=beir", "--lexical", stemmed)
    )
    assert found.exit_code == 0, found.stderr
    settings = {
        name: json.loads((suite.parent / "out" / name / "result.json").read_text())["settings"]
        for name in ("BM25", "beir", "stemmed")
    }
    assert settings["BM25"].keys() == {"kind", "variant", "k1", "b", "tokens"}
    assert (settings["beir"]["stemmer"], settings["beir"]["k1"]) == ("lucene", 0.9)
    assert (settings["stemmed"]["stop_words"], settings["stemmed"]["b"]) == ("english", 0.75)


@pytest.mark.parametrize(
    ("lexical", "problem"),
    [
        ("x=bier", "did you mean 'beir'"),
        ("x=words,stem=english", "unknown option of a system"),
        ("x=words,stemmer=englsh", "did you mean 'english'"),
        ("x=words,b=2", "b is out of range"),
        ("x=words,k1=high", "k1 is out of range"),
        ("BM25=words", "two systems have the same name"),
    ],
)
def test_invalid_settings_of_bm25(suite: Path, lexical: str, problem: str) -> None:
    found = _evaluate(suite, "--bm25", "--lexical", lexical)
    assert found.exit_code == 1
    assert problem in found.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--fuse", "hybrid=BM25+tin"), "did you mean"),
        (("--fuse", "hybrid=BM25"), "needs at least two systems"),
        (("--fuse", "hybrid=BM25+BM25"), "needs at least two systems"),
        (("--fuse", "BM25=BM25+other"), "unknown system"),
        (("--fuse", "hybrid=BM25+tiny,dev=dev"), "dev= can only be used with by=weights"),
        (("--fuse", "hybrid=BM25+tiny,by=weights,dev="), "dev= names no split"),
        (("--rerank", "better=BM25"), "no model to rerank with is named"),
        (("--rerank", "better=BM25+x,top=many"), "top is not a positive number"),
        (("--rerank", "better=BM25+x,top=0"), "top is not a positive number"),
        (("--rerank", "better=BM25+x,depth=3"), "unknown option of a system"),
    ],
)
def test_invalid_hybrids(suite: Path, arguments: tuple[str, ...], problem: str) -> None:
    stored = ("--embeddings", "tiny=nowhere")
    found = _evaluate(suite, "--bm25", *stored, *arguments)
    assert found.exit_code != 0
    assert problem in found.stderr


def test_bm25_a_model_and_stored_embeddings_share_one_table(suite: Path) -> None:
    model, out = save_tiny_model(suite.parent / "model"), suite.parent / "out"
    first = _evaluate(suite, "--bm25", "--model", f"tiny={model},pooling=mean,similarity=cosine")
    assert first.exit_code == 0, first.output
    assert "BM25" in first.stdout
    second = _evaluate(
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
    result = _evaluate(suite, "--bm25", "--save-runs", "benchmarks.links.mode=paper")
    assert result.exit_code == 0, result.output
    assert "links: mode 'paper'." in result.stdout
    run = (suite.parent / "out/BM25/runs/links.run").read_text()
    assert run.splitlines()[0].startswith("d1 Q0 d1 1 ")


def test_other_data_in_the_same_folder_is_refused_before_any_work(suite: Path) -> None:
    assert _evaluate(suite, "--bm25").exit_code == 0
    with (suite.parent / "data/search/qrels/test.tsv").open("a") as file:
        file.write("q3\td1\t1\n")
    result = _evaluate(suite, "--embeddings", "mine=nowhere")
    assert result.exit_code == 1
    assert "the result of BM25 on search differs in counts, files" in result.stderr


def test_a_suite_is_scored_in_parts(suite: Path) -> None:
    """One set, then all sets with data: one result, and missing sets are named."""
    assert _evaluate(suite, "--bm25", "--sets", "search").exit_code == 0
    (suite.parent / "data/coarse/papers.jsonl").unlink()
    assert "data of coarse is missing" in _evaluate(suite, "--bm25").stderr
    found = _evaluate(suite, "--bm25", "--available", "--resume")
    assert found.exit_code == 0, found.output
    assert "BM25: search: earlier score kept" in found.stderr
    assert "BM25: coarse: not scored: its data is missing: " in found.stderr
    written = json.loads((suite.parent / "out/BM25/result.json").read_text())
    assert list(written["sets"]) == ["fields", "links", "rerank", "search"]
    only = _evaluate(suite, "--bm25", "--available", "--sets", "coarse")
    assert only.exit_code == 1
    assert "no data of suite 'own' here. Fix: ask me" in only.stderr


def test_a_set_that_fails_is_named_at_the_end(suite: Path) -> None:
    found = _evaluate(suite, "--embeddings", f"mine={_stored(suite)}", "--bm25")
    assert found.exit_code == 1
    assert "mine: search: failed: " in found.stderr
    last = found.stderr.splitlines()[-1]
    assert last.startswith(
        "error: 4 sets failed: mine: coarse; mine: fields; mine: rerank; mine: s"
    )
    assert "| link_prediction | links | recall@1 |" in (suite.parent / "out/table.md").read_text()
    assert "mine failed on search: " in found.stdout.replace("\n", " ")


def test_another_model_of_the_same_name_does_not_replace_a_result(suite: Path) -> None:
    one, two = (save_tiny_model(suite.parent / f"m{seed}", seed=seed) for seed in (0, 1))
    assert _evaluate(suite, "--sets", "links", "--model", f"m={one}").exit_code == 0
    before = (suite.parent / "out/m/result.json").read_bytes()
    refused = _evaluate(suite, "--sets", "links", "--model", f"m={two}")
    assert refused.exit_code == 1
    assert "the existing result of m differs in fingerprint" in refused.stderr
    assert (suite.parent / "out/m/result.json").read_bytes() == before
    replaced = _evaluate(suite, "--sets", "links", "--model", f"m={two}", "--replace")
    assert replaced.exit_code == 0, replaced.output
    assert (suite.parent / "out/m/result.json").read_bytes() != before
    both = _evaluate(suite, "--bm25", "--resume", "--replace")
    assert "--resume and --replace are mutually exclusive" in both.stderr


def test_list_shows_suites_and_whether_their_data_is_here(suite: Path) -> None:
    (suite.parent / "data/coarse/papers.jsonl").unlink()
    arguments = ["--list", "--suite", str(suite), "--data", str(suite.parent / "data")]
    result = CliRunner().invoke(app, ["evaluate", *arguments])
    assert result.exit_code == 0, result.output
    for line in ("own: Mine", "  data: ask me", "  coarse [missing]: ", "  links [here]: "):
        assert line in result.stdout
    assert "first: " not in result.stdout
    result = CliRunner().invoke(app, ["evaluate", "--list", *arguments[3:]])
    assert "first: " in result.stdout
    assert "beir: " in result.stdout
    assert "  cacm [missing]: search, search" in result.stdout


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
    result = _evaluate(suite, "--bm25")
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
    result = _evaluate(suite, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert not list((suite.parent / "out").rglob("result.json"))


def test_out_is_needed(suite: Path) -> None:
    arguments = ["evaluate", "--suite", str(suite), "--data", str(suite.parent), "--bm25"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "no folder for the results" in result.stderr


def test_third_party_encoders_keep_embeddings_between_runs(suite: Path, minilm: Path) -> None:
    """A second run finds all embeddings stored and gets the same scores."""
    store, out = suite.parent / "store", suite.parent / "out"
    spec = f"theirs=minilm,model={minilm}"
    options = ("--sets", "search", "--store", str(store), "--precision", "float16")
    first = _evaluate(suite, "--encoder", spec, *options)
    assert first.exit_code == 0, first.output
    result = json.loads((out / "theirs/result.json").read_text())
    assert result["settings"]["stored_as"] == "float16"
    files = {path: path.stat().st_mtime_ns for path in store.rglob("*.npy")}
    assert len(files) == 4
    again = _evaluate(suite, "--encoder", spec, *options)
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
        found = _evaluate(suite, "--model", f"{name}={model}", *store)
        assert found.exit_code == 0, found.output
        sets = json.loads((out / name / "result.json").read_text())["sets"]
        scores.append({key: entry["scores"] for key, entry in sets.items()})
        tokens.append(sum(entry["cost"]["tokens"] for entry in sets.values()))
        seen.append(embedded[0])
    assert seen[0] == tokens[0] > 0
    assert seen[1] == tokens[1] == 0
    assert scores[1] == scores[0]


def test_unknown_encoders_and_keys_are_refused_before_any_work(suite: Path) -> None:
    unknown = _evaluate(suite, "--encoder", "theirs=scinc")
    assert unknown.exit_code == 1
    assert "did you mean 'scincl'" in unknown.stderr
    wrong = _evaluate(suite, "--encoder", "theirs=scincl,poolng=cls")
    assert wrong.exit_code == 1
    assert "unknown key (did you mean 'pooling'?)" in wrong.stderr


def test_one_process_at_a_time_scores_a_system(suite: Path) -> None:
    """Results grow set by set: two writers would lose each other's sets."""
    out = suite.parent / "out"
    with only_writer(out / "BM25"):
        result = _evaluate(suite, "--bm25")
    assert result.exit_code == 1
    assert "BM25: another process is writing here (process " in result.stderr
    assert not out.joinpath("BM25").exists()
