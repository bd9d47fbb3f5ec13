"""Benchmarks: their counts are right, and their last line is machine-readable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import data, generated
from benchmarks.app import app
from benchmarks.data import Cost, Work, measure_preparation, measure_reading
from benchmarks.generated import Library, write_library
from benchmarks.search import SHAPES
from benchmarks.timing import interleaved, ratio
from benchmarks.variants import (
    CASES,
    SIZES,
    active_parameters,
    build,
    make_load,
    pooler_parameters,
)
from scimult.data.text_store import TextStore, TextStoreWriter
from scimult.data.token_store import build_token_store
from scimult.data.tokenization import TextTokenizer
from scimult.preparation.mining.engine import Limits
from scimult.types import Text
from tests.base_models import save_base_model
from tests.training.corpus import prepare_corpus

CPU = torch.device("cpu")


def reported(*arguments: str) -> dict[str, Any]:
    """Return what a benchmark prints last."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize(
    ("name", "released"), [("vanilla", 109_482_240), ("mha_expert", 137_830_656)]
)
def test_counts_of_the_released_models(name: str, released: int) -> None:
    """The released files contain BERT's unused pooler, which we leave out."""
    with torch.device("meta"):
        model = build(name, "bert-base")
    assert sum(p.numel() for p in model.parameters()) + pooler_parameters("bert-base") == released


@pytest.mark.parametrize("name", CASES)
def test_active_parameters_are_those_of_one_route(name: str) -> None:
    model = build(name, "tiny")
    model.initialise(0)
    load = make_load(64, 16, CPU, torch.float32, SIZES["tiny"]["vocab_size"])
    trainable = [p.requires_grad for p in model.parameters()]
    active = active_parameters(model, load)
    assert [p.requires_grad for p in model.parameters()] == trainable
    total = sum(p.numel() for p in model.parameters())
    others = sum(
        p.numel()
        for key, p in model.named_parameters()
        if any(f".experts.{route}." in key for route in (1, 2))
    )
    if name == "fusion":
        # Fusion reads the adapters of all routes, and mixes them by its route's weights.
        others = sum(
            p.numel()
            for key, p in model.named_parameters()
            if any(f"fusion.experts.{route}." in key for route in (1, 2))
        )
    assert active == total - others


def test_last_line_is_one_json_object() -> None:
    arguments = ["variants", "mha_expert", "prefix", "--size", "tiny"]
    report = reported(*arguments, "--tokens", "64", "--rounds", "1")
    expert, prefix = report["rows"]
    assert [expert["name"], prefix["name"]] == ["mha_expert", "prefix"]
    assert expert["mixed"]["median"] > 0
    assert expert["encode_all"]["median"] > 0
    assert expert["trainable"] == expert["parameters"] > expert["active"]
    assert prefix["trainable"] < prefix["parameters"]
    assert report["machine"]["torch"] == torch.__version__


@pytest.mark.ranks
def test_training_against_sentence_transformers(tmp_path: Path) -> None:
    prepare_corpus(tmp_path)
    base = save_base_model(tmp_path / "base", "bert")
    sizes = ["--pairs", "4", "--max-length", "32", "--chunk-tokens", "40", "--rounds", "1"]
    arguments = ["--base", str(base), "--prepared", str(tmp_path / "prepared"), *sizes]
    report = reported("train", *arguments, "--precision", "fp32")
    assert [row["dropout"] for row in report["rows"]] == [0.1, 0.0]
    for row in report["rows"]:
        assert min(row["ours"], row["theirs"], row["cached"]["median"]) > 0
        assert 0 <= row["padding"] < 1


@pytest.mark.long
def test_gradients_in_half_precision(tmp_path: Path) -> None:
    prepare_corpus(tmp_path)
    base = save_base_model(tmp_path / "base", "bert")
    arguments = ["--base", str(base), "--prepared", str(tmp_path / "prepared"), "--pairs", "8"]
    report = reported("gradients", *arguments, "--max-length", "32", "--chunks", "5")
    whole, cut = report["rows"]
    assert whole["chunks"] == 1
    assert cut["chunks"] >= 5
    assert len(whole["groups"]) == 9
    for row in report["rows"]:
        # Above 0, which float32 would give, and within bfloat16's eight bits over a few blocks.
        assert 2**-9 < row["groups"]["all"][0] < 0.1


@pytest.mark.slow
def test_the_cost_of_preparing_a_library(tmp_path: Path) -> None:
    size = ["--papers", "200", "--citations", "500", "--labels", "5", "--words", "40", "--clean"]
    arguments = ["data", *size, "--memory", "3GB", "--folder", str(tmp_path / "library")]
    names = ["generate", "read, split, write", "clean, split, write"]
    for _ in range(2):
        report = reported(*arguments)
        steps = report["steps"]
        assert [step["step"] for step in steps] == [*names, "mine citations", "mine labels"]
        assert all(0 < step["own_mb"] <= step["peak_mb"] < 3000 for step in steps)
        assert report["reading"] is None
    lines = (tmp_path / "library" / "costs.jsonl").read_text().splitlines()
    assert len(lines) == len(steps), "finished steps are not repeated"


def test_files_of_a_library_are_those_of_its_settings_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = (Library(papers=n, citations=20, labels=2, words=5) for n in (15, 25))
    write_library(tmp_path, first)
    before = (tmp_path / "papers.jsonl").read_bytes()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(generated, "_write_citations", Mock(side_effect=KeyboardInterrupt))
        write_library(tmp_path, other)
    write_library(tmp_path, first)
    assert (tmp_path / "papers.jsonl").read_bytes() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_costs_are_measured_again_after_other_settings_used_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """The steps of other limits would be kept, and cost nothing."""
    size = Library(papers=150, citations=300, labels=4, words=30)
    asked, left = list[str](), list[list[str]]()

    def measured(step: str, work: Callable[[], object], folder: Path) -> Cost:
        asked.append(step)
        if step == "generate":
            left.append([path.name for path in tmp_path.glob("steps/*")])
        (tmp_path / "steps").mkdir(exist_ok=True)
        (tmp_path / "steps" / step).touch()
        return Cost(step, *[1.0] * 7)

    monkeypatch.setattr(data, "measured", measured)
    for used in (1, threads, threads):
        work = Work(size, clean=False, limits=Limits(threads=used))
        costs = [*measure_preparation(work, tmp_path)]
        assert [cost.step for cost in costs] == asked[:4]
    assert len(asked) == 4 * threads
    assert left == [[]] * threads


def test_reading_a_token_store_is_compared_with_its_memory_map(
    tmp_path: Path, minilm: Path
) -> None:
    write_library(tmp_path / "raw", Library(papers=150, citations=300, labels=4, words=30))
    (tmp_path / "texts").mkdir()
    with TextStoreWriter(tmp_path / "texts") as writer:
        for line in (tmp_path / "raw" / "papers.jsonl").read_text().splitlines():
            paper = json.loads(line)
            writer.add(paper["id"], Text("paper", paper["title"], paper["abstract"]))
    texts, tokenizer = TextStore.open(tmp_path / "texts"), TextTokenizer.from_folder(minilm)
    build_token_store(texts, tokenizer, tmp_path / "tokens", 64)
    reading = measure_reading(tmp_path / "tokens", rounds=2)
    assert reading.rows_per_second > 0
    assert reading.as_json()["random"]["low"] <= reading.random.median <= reading.random.high


def test_unknown_names_are_refused() -> None:
    for arguments in (["mha_exprt"], ["--size", "bert"]):
        result = CliRunner().invoke(app, ["variants", *arguments])
        assert result.exit_code == 1
        assert "did you mean" in result.output


def test_works_take_turns_and_are_compared_round_by_round() -> None:
    order: list[str] = []
    works = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    seconds = interleaved(works, 2, CPU)
    assert order == ["a", "b"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}
    found = ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0])
    assert (found.low, found.median, found.high) == (1.0, 2.0, 3.0)


def test_the_cpu_clock_is_refused_for_a_gpu() -> None:
    options = ["--device", "cuda", "--clock", "cpu", "--size", "tiny"]
    result = CliRunner().invoke(app, ["variants", *options])
    assert result.exit_code == 1
    assert "cannot time a GPU" in result.output


@pytest.mark.ranks
def test_search_reports_the_requested_shapes() -> None:
    """A process with the embeddings in memory cannot have a peak below their size."""
    arguments = ["search", "cs_conference", "--width", "32", "--k", "10", "--fraction", "0.001"]
    (row,) = reported(*arguments)["rows"]
    queries, candidates = SHAPES[row["name"]]
    assert (row["queries"], row["candidates"]) == (queries, candidates)
    assert row["fraction"] == 262 / queries
    assert row["whole_seconds"] == pytest.approx(row["seconds"] / row["fraction"])
    assert row["peak_bytes"] > candidates * 32 * 4
    assert row["whole_bytes"] - row["peak_bytes"] == (queries - 262) * (32 * 4 + 10 * 12)


def test_unknown_shapes_are_named() -> None:
    found = CliRunner().invoke(app, ["search", "cs_conferences"])
    assert found.exit_code == 1
    assert "did you mean 'cs_conference'" in found.output


def test_matching_reviewers_is_timed() -> None:
    sizes = ("--submissions", "30", "--reviewers", "40", "--each", "3", "--width", "8")
    report = reported("reviewers", *sizes)
    assert (report["submissions"], report["reviewers"], report["rounds"] >= 1) == (30, 40, True)
    assert report["assign_cpu"] > 0
