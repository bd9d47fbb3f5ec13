"""The command that merges models, and its gate."""

from __future__ import annotations

import json
import random
import re
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from scimult import SciMult
from scimult.checkpoints import load_pretrained
from scimult.evaluation import harness
from scimult.evaluation.results import SetResult, load_result
from scimult.evaluation.systems import System
from scimult.files import FolderKind, atomic_folder
from tests.benchmark_sets import HEADER, benchmark, write_jsonl, write_rows
from tests.command import completed, invoke, refused
from tests.tiny import save_tiny_model


@pytest.mark.long
def test_the_command_and_its_gate(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    other = save_tiny_model(tmp_path / "other", seed=5)
    out = tmp_path / "merged"
    result = completed("merge", model, other, "--out", out)
    assert load_pretrained(out).config.provenance["merged"]["shares"] == [0.5, 0.5]
    assert result.stdout == f"{out}: average: 0.5 of {model}, 0.5 of {other}\n"
    by_depth = [str(other), "--method", "task_vectors", "--base", str(model), "--by-depth", "1:0"]
    result = invoke("merge", *by_depth, "--out", tmp_path / "early")
    assert f"task vectors: 1 of {other}, base {model}, by depth 1:0" in result.stdout
    for words, expected in (
        ([f"--expert=search={model}", f"--expert=link_prediction={other}"], f"{other} for link"),
        ([str(model), "--share-experts"], f"share experts: {model}\n"),
    ):
        if words[0].startswith("--expert"):
            words.append(f"--expert=classification={model}")
        result = invoke("merge", *words, "--out", tmp_path / words[-1][-9:])
        assert expected in result.output
    for words, message in (
        ([str(model), "--expert", f"search={other}"], "one way of merging"),
        ([str(model), str(other), "--share-experts"], "one way of merging"),
        ([str(model), str(other), "--not-worse-than", str(model)], "needs a suite"),
        (["--expert", "search"], "an expert is TASK=MODEL"),
        ([str(model), str(other), "--by-depth", "1"], "--by-depth is not two numbers"),
        (
            [str(model), "--share-experts", "--method", "slerp"],
            "--method can only be used with whole models",
        ),
        (
            [str(model), "--share-experts", "--base", str(model)],
            "--base can only be used with whole models",
        ),
        (
            ["--expert", f"search={model}", "--share", "1"],
            "--share can only be used with whole models",
        ),
        (
            [str(model), str(other), "--variant", "ffn_expert"],
            "--variant can only be used with --expert",
        ),
        ([str(model), str(other), "--sets", "cisi"], "--sets can only be used with --suite"),
        ([str(model), str(tmp_path / "nowhere")], "folder does not exist"),
    ):
        assert message in refused("merge", *words, "--out", tmp_path / "no")
        assert not (tmp_path / "no").exists()


def _suite_that_prefers(model: Path, folder: Path) -> Path:
    """Write a search set whose judgments are the first results of a model."""
    words = random.Random(0)
    texts = ["".join(words.choices("abcdefghij ", k=40)) for _ in range(80)]
    queries, papers = texts[:40], texts[40:]
    encoder = SciMult.from_pretrained(model)
    q_QD = encoder.encode(queries, task="search", role="query")
    d_CD = encoder.encode([{"title": text} for text in papers], task="search", role="candidate")
    best = (q_QD @ d_CD.T).argmax(axis=1)
    rows = [{"_id": f"d{n}", "title": text, "text": ""} for n, text in enumerate(papers)]
    write_jsonl(folder / "own/corpus.jsonl", rows)
    write_jsonl(
        folder / "own/queries.jsonl", [{"_id": f"q{n}", "text": t} for n, t in enumerate(queries)]
    )
    judged = [(f"q{n}", f"d{row}", 1) for n, row in enumerate(best)]
    write_rows(folder / "own/qrels/test.tsv", [HEADER, *judged])
    entry = benchmark("own", "search", "search", ["ndcg@10"]).model_dump(mode="json")
    tree = {"name": "own", "description": "x", "how_to_get": "x", "benchmarks": {"own": entry}}
    (folder / "own.yaml").write_text(yaml.safe_dump(tree))
    return folder / "own.yaml"


@pytest.mark.long
def test_nothing_is_written_that_is_worse_than_its_parent(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    other = save_tiny_model(tmp_path / "other", seed=5)
    suite = _suite_that_prefers(model, tmp_path / "data")
    gate = ["--suite", str(suite), "--data", str(tmp_path / "data")]
    gate += ["--not-worse-than", str(model), "--results", str(tmp_path / "results")]
    words = ["merge", str(model), str(other), "--out", str(tmp_path / "out"), *gate]
    result = invoke(*words, "--share", "0", "--share", "1")
    assert result.exit_code == 1
    assert "the merged model is worse on own (" in result.output
    (p,) = re.findall(r"to model, p (\S+)\)", result.output)
    assert 0 < float(p) <= 0.05
    assert not (tmp_path / "out").exists()
    # Under its name a parent would be compared with itself.
    for name in ("model", "merged"):
        copy = tmp_path / "copies" / name
        shutil.copytree(model, copy)
        assert "two systems have the same name" in refused(*words, "--not-worse-than", copy)
    completed(*words, "--share", "1", "--share", "0")
    assert (tmp_path / "out").is_dir()
    assert (tmp_path / "results" / "table.md").is_file()


@pytest.mark.parametrize("words", [[], ["dtype=float32"]])
def test_the_gate_scores_as_evaluate_does_and_keeps_its_results(
    words: list[str], tmp_path: Path
) -> None:
    model, other = (save_tiny_model(tmp_path / name) for name in ("model", "other"))
    suite = _suite_that_prefers(model, tmp_path / "data")
    tree = yaml.safe_load(suite.read_text())
    tree["benchmarks"]["second"] = tree["benchmarks"]["own"]
    suite.write_text(yaml.safe_dump(tree))
    shutil.copytree(tmp_path / "data/own", tmp_path / "data/second")
    results = tmp_path / "results"
    scored = ["--suite", str(suite), "--data", str(tmp_path / "data")]
    evaluated = ["evaluate", *scored, "--out", str(results), "--model"]
    completed(*evaluated, ",".join([f"model={model}", *words]))
    before = load_result(results / "model/result.json")
    gate = ["merge", str(model), str(other), "--out", str(tmp_path / "out"), *scored]
    gate += ["--sets", "own", "--not-worse-than", str(model), "--results", str(results)]
    gate += [f"--{word.replace('=', ' ')}" for word in words]
    completed(*" ".join(gate).split())
    after = load_result(results / "model/result.json")
    assert after.settings == before.settings
    assert after.sets.keys() == {"own", "second"}
    assert after.sets["own"].scores == before.sets["own"].scores
    merged = load_result(results / "merged/result.json")
    assert merged.settings["dtype"] == before.settings["dtype"]


def test_a_set_that_could_not_be_scored_lets_nothing_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluation continues after a failed set, whose absence proves nothing."""
    model = save_tiny_model(tmp_path / "model")
    other = save_tiny_model(tmp_path / "other", seed=5)
    suite = _suite_that_prefers(model, tmp_path / "data")
    tree = yaml.safe_load(suite.read_text())
    tree["benchmarks"]["broken"] = tree["benchmarks"]["own"]
    suite.write_text(yaml.safe_dump(tree))
    scored = harness._scored

    def scored_but_one(system: System, name: str, *rest: Any) -> SetResult:
        if name == "broken":
            raise MemoryError("out of memory")
        return scored(system, name, *rest)

    monkeypatch.setattr(harness, "_scored", scored_but_one)
    words = ["merge", str(model), str(other), "--share", "1", "--share", "0"]
    words += ["--out", str(tmp_path / "out"), "--suite", str(suite)]
    words += ["--data", str(tmp_path / "data"), "--results", str(tmp_path / "results")]
    result = invoke(*words, "--not-worse-than", model)
    assert result.exit_code == 1
    assert "no score for merged on broken: out of memory" in result.output
    assert not (tmp_path / "out").exists()


def test_sets_without_scores_per_query_are_named_and_block_nothing(tmp_path: Path) -> None:
    model, other = (save_tiny_model(tmp_path / name) for name in ("model", "other"))
    signatures = {
        f"s{n}": {"paper_id": f"p{n}", "author_info": {"block": f"b{n // 4}"}} for n in range(16)
    }
    papers = {f"p{n}": {"paper_id": f"p{n}", "title": "ab" * (1 + n // 2)} for n in range(16)}
    clusters = {f"c{n}": {"signature_ids": [f"s{2 * n}", f"s{2 * n + 1}"]} for n in range(8)}
    (tmp_path / "persons").mkdir()
    for kind, tree in (("signatures", signatures), ("papers", papers), ("clusters", clusters)):
        (tmp_path / "persons" / f"made_{kind}.json").write_text(json.dumps(tree))
    entry = benchmark("persons", "link_prediction", "search", ["ndcg@10"]).model_dump(mode="json")
    entry |= {"protocol": "author_clustering", "format": "s2and", "split": "made"}
    entry["metrics"] = ["b_cubed_f1"]
    tree = {"name": "own", "description": "x", "how_to_get": "x", "benchmarks": {"persons": entry}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(tree))
    words = ["merge", str(model), str(other), "--out", str(tmp_path / "out")]
    words += ["--suite", str(tmp_path / "own.yaml"), "--data", str(tmp_path)]
    words += ["--results", str(tmp_path / "results"), "--not-worse-than", str(model)]
    result = completed(*words)
    assert "persons: not tested against model: no per-query scores" in result.output
    assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize(
    "verb",
    ["merge {0} {1}", "grow-task {0} --name reviewing --like search", "export {0} --to pretrained"],
)
def test_a_model_that_another_process_wrote_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The later of two calls with one --out replaced the model of the first without a word."""
    models = [save_tiny_model(tmp_path / f"seed{seed}", seed=seed) for seed in (0, 1)]
    out = tmp_path / "out"

    def after_another(folder: Path, kind: FolderKind | None = None) -> AbstractContextManager[Path]:
        shutil.copytree(models[1], folder)
        return atomic_folder(folder, kind)

    monkeypatch.setattr("scimult.checkpoints.pretrained.atomic_folder", after_another)
    words = [word.format(*models) for word in verb.split()]
    result = invoke(*words, "--out", out)
    assert result.exit_code == 1
    assert f"{out}: output exists already" in result.output.replace("\n", "")
    for path in models[1].iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()
