"""A generated world on disk: same bytes, no leakage, readable by prepare and evaluate."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.config import load_config
from scimult.errors import StorageError
from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.suites import load_suite
from scimult.evaluation.systems import BM25System, DenseSystem, System
from scimult.files import read_json, sha256
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.world import World, WorldSettings, make_world, write_world
from scimult.preparation.world.layout import MANIFEST, paper_id
from scimult.types import FloatArray, Role, Similarity, Text
from tests.conftest import REPOSITORY
from tests.prepared_folders import contents


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(WorldSettings())


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "world"
    write_world(world, path)
    return path


def _jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.long
def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "again"):
        write_world(make_world(WorldSettings(papers=400, seed=3)), tmp_path / name)
    assert contents(tmp_path / "first") == contents(tmp_path / "again")


def test_manifest_tells_settings_counts_and_digests(world: World, folder: Path) -> None:
    manifest = read_json(folder / MANIFEST)
    assert WorldSettings(**manifest["settings"]) == world.settings
    assert set(manifest["sha256"]) == set(contents(folder)) - {MANIFEST}
    for name, digest in manifest["sha256"].items():
        assert sha256(folder / name) == digest
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        assert manifest["records"][name] == len(lines) - name.endswith(".tsv")


def test_training_knows_no_held_out_paper(world: World, folder: Path) -> None:
    old = {paper_id(row) for row in range(world.first_held_out)}
    papers = _jsonl(folder / "train/papers.jsonl")
    assert {paper["id"] for paper in papers} == old
    assert {paper["year"] for paper in papers} == set(range(2000, 2018))
    for row in _table(folder / "train/citations.tsv"):
        assert {row["citing"], row["cited"]} <= old
    for row in _table(folder / "train/clicks.tsv"):
        assert row["paper-id"] in old


def test_evaluation_papers_are_held_out(world: World, folder: Path) -> None:
    old = {paper_id(row) for row in range(world.first_held_out)}
    for name, count in (("fields_fine", 558), ("fields_coarse", 558)):
        papers = _jsonl(folder / "eval" / name / "papers.jsonl")
        assert len(papers) == count
        assert not old & {paper["id"] for paper in papers}
    for name in ("cite", "cite_rerank"):
        queries = _jsonl(folder / "eval" / name / "queries.jsonl")
        assert len(queries) == 200
        assert not old & {query["_id"] for query in queries}


def test_no_training_query_asks_what_an_evaluation_query_asks(world: World, folder: Path) -> None:
    asked = {query.concepts for query in world.train_queries}
    held_out = {query.concepts for query in world.eval_queries}
    assert len(held_out) == 200
    assert not asked & held_out
    train, test = (
        {query["text"] for query in _jsonl(folder / name / "queries.jsonl")}
        for name in ("train", "eval/search")
    )
    assert not train & test


def test_labels_are_those_of_the_papers(folder: Path) -> None:
    fine = {label["id"] for label in _jsonl(folder / "train/labels.jsonl")}
    assert fine == {label["id"] for label in _jsonl(folder / "eval/fields_fine/labels.jsonl")}
    for name in ("train", "eval/fields_fine"):
        for paper in _jsonl(folder / name / "papers.jsonl"):
            assert set(paper["labels"]) <= fine
            assert paper["primary"] in paper["labels"]
    coarse = {label["id"] for label in _jsonl(folder / "eval/fields_coarse/labels.jsonl")}
    assert len(coarse) == 6
    for paper in _jsonl(folder / "eval/fields_coarse/papers.jsonl"):
        assert paper["labels"] == [paper["primary"]]
        assert paper["primary"] in coarse


def test_a_rerank_list_holds_5_cited_and_25_older_others(world: World, folder: Path) -> None:
    lists: dict[str, dict[int, int]] = {}
    for row in _table(folder / "eval/cite_rerank/candidates.tsv"):
        candidates = lists.setdefault(row["query-id"], {})
        candidates[int(row["corpus-id"][1:])] = int(row["score"])
    assert len(lists) == 200
    for query, candidates in lists.items():
        cited = set(world.references[int(query[1:])].tolist())
        assert sum(candidates.values()) == 5
        assert len(candidates) == 30
        assert all((row in cited) == bool(score) for row, score in candidates.items())
        assert max(candidates) < int(query[1:])


def test_a_foreign_folder_is_not_replaced(world: World, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(StorageError, match="is not a generated world"):
        write_world(world, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.long
def test_a_generated_folder_is_replaced(tmp_path: Path) -> None:
    small = WorldSettings(papers=300)
    write_world(make_world(small), tmp_path / "world")
    write_world(make_world(small.model_copy(update={"seed": 1})), tmp_path / "world")
    assert read_json(tmp_path / "world" / MANIFEST)["settings"]["seed"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["world"]
    (tmp_path / "world" / "train" / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(StorageError, match="is not a generated world and nothing else"):
        write_world(make_world(small), tmp_path / "world")
    assert (tmp_path / "world" / "train" / "thesis.tex").is_file()


@pytest.mark.long
def test_prepare_reads_it_without_a_special_case(folder: Path, tmp_path: Path) -> None:
    config = REPOSITORY / "configs" / "data" / "world.yaml"
    settings = load_config(DatasetConfig, config, [f"root={folder / 'train'}"])
    data, rejects = build_dataset(settings, tmp_path / "prepared", tokenizer=None, skip_bad=False)
    assert not rejects.counts
    assert len(data.texts) == 2442 + 96 + 2442
    with_negatives = {
        file.task: np.mean(file.negatives.lengths > 0) for file in data.pairs("train")
    }
    assert with_negatives.keys() == {"classification", "link_prediction", "search"}
    assert min(with_negatives.values()) > 0.9


class _RandomEncoder:
    """Gives every text a random vector of its own."""

    name = "random"
    similarity: Similarity = "dot"

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        rows = [np.random.default_rng(zlib.crc32(repr(text).encode())) for text in texts]
        return np.stack([rng.standard_normal(32, dtype=np.float32) for rng in rows])


@pytest.mark.long
def test_bm25_does_not_solve_it_but_beats_chance(folder: Path, tmp_path: Path) -> None:
    """Measured main metrics x 100: BM25 67.7, 80.0, 28.9, 54.1, 62.1; random vectors 5.9, 16.7,
    0.6, 25.9, 0.4.
    """
    suite = load_suite("demo")
    sets = load_sets(suite, folder / "eval")
    systems: list[System] = [BM25System(), DenseSystem(_RandomEncoder())]
    bm25, chance = (
        {
            name: found.scores[found.main_metric]
            for name, found in evaluate(system, suite, sets, tmp_path).sets.items()
        }
        for system in systems
    )
    limits = {
        "fields_fine": (0.60, 0.80),
        "fields_coarse": (0.65, 0.90),
        "cite": (0.25, 0.40),
        "cite_rerank": (0.50, 0.65),
        "search": (0.55, 0.70),
    }
    assert bm25.keys() == limits.keys()
    for name, (least, most) in limits.items():
        assert least < bm25[name] < most
        assert bm25[name] > 2 * chance[name]
