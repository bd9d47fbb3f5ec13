"""Mining a prepared folder: by configuration, again, and without touching texts or tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.data.metadata import Metadata
from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.tokenization import TextTokenizer
from scimult.errors import DataError
from scimult.mining.dataset import build_dataset
from scimult.mining.mine import MiningConfig, mine_again
from tests.raw_corpus import CITATIONS, PAPERS, raw_config, write_jsonl, write_raw


@pytest.fixture
def data(tmp_path: Path, minilm: Path) -> PreparedData:
    config = raw_config(write_raw(tmp_path / "raw"), max_pairs_per_label=None)
    tokenizer = TextTokenizer.from_folder(minilm)
    return build_dataset(config, tmp_path / "out", tokenizer=tokenizer)[0]


def _groups(data: PreparedData, task: str) -> list[tuple[str, set[str], set[str]]]:
    """Return query, positives and negatives of every group, by id."""
    files: list[PairFile] = [*data.pairs("train"), *data.pairs("dev")]
    ids = data.texts.ids
    return [
        (ids[file.queries[i]], {ids[row] for row in file.positives[i]}, {ids[row] for row in pool})
        for file in files
        if file.task == task
        for i, pool in enumerate(file.negatives)
    ]


def test_link_prediction_negatives_follow_the_whole_graph(data: PreparedData) -> None:
    cites = {paper["id"]: {b for a, b in CITATIONS if a == paper["id"]} for paper in PAPERS}
    groups = _groups(data, "link_prediction")
    assert len(groups) == len(CITATIONS)
    assert any(pool for _, _, pool in groups)
    for query, positives, pool in groups:
        (positive,) = positives
        q, p = query.removeprefix("toy:"), positive.removeprefix("toy:")
        assert pool == {f"toy:{paper}" for paper in cites[p] - cites[q] - {q}}


@pytest.mark.parametrize("relation", ["cited", "author", "venue"])
def test_each_label_relation_by_itself(data: PreparedData, relation: str) -> None:
    mine_again(data.folder, MiningConfig(labels=[relation]))
    labels = {paper["id"]: set(paper["labels"]) for paper in PAPERS}

    def near(a: dict[str, object], b: dict[str, object]) -> bool:
        if relation == "cited":
            return (a["id"], b["id"]) in CITATIONS
        if relation == "author":
            return bool(set(a["authors"]) & set(b["authors"]))  # type: ignore[call-overload]
        return bool(a["venue"]) and a["venue"] == b["venue"]

    for query, _, pool in _groups(PreparedData.open(data.folder), "classification"):
        paper = next(p for p in PAPERS if f"toy:{p['id']}" == query)
        found = {label for other in PAPERS if near(paper, other) for label in other["labels"]}
        assert pool == {f"toy/label:{label}" for label in found - labels[paper["id"]]}


def test_mining_again_changes_the_negatives_alone(data: PreparedData) -> None:
    before = data.manifest
    positives = [file.positives.values.tolist() for file in data.pairs("train")]
    tokens = next((data.folder / "tokens").rglob("tokens.bin"))
    inode = tokens.stat().st_ino

    mine_again(data.folder, MiningConfig(max_negatives=1, citations=[], queries=[]))
    after = PreparedData.open(data.folder)
    assert after.manifest["mining"]["max_negatives"] == 1
    assert after.fingerprint != data.fingerprint
    assert after.manifest["files"]["texts.arrow"] == before["files"]["texts.arrow"]
    assert [file.positives.values.tolist() for file in after.pairs("train")] == positives
    assert tokens.stat().st_ino == inode
    pools = {f.task: f.negatives.lengths for f in after.pairs("train")}
    assert pools["classification"].max() == 1
    assert pools["link_prediction"].max() == pools["search"].max() == 0
    for entry in after.manifest["pairs"]:
        if entry["part"] != "labels":
            assert (entry["with_negatives"], entry["negatives"]) == (0, 0)
            assert entry["groups"] > 0

    mine_again(data.folder, MiningConfig())
    assert PreparedData.open(data.folder).fingerprint == data.fingerprint


def test_labels_of_another_label_space_are_no_candidates(tmp_path: Path) -> None:
    root = write_raw(tmp_path / "raw")
    write_jsonl(root / "papers2.jsonl", PAPERS)
    write_jsonl(root / "labels2.jsonl", [{"id": f"l{i}", "name": f"Other {i}"} for i in range(5)])
    other = {"name": "other", "papers": "papers2.jsonl", "labels": "labels2.jsonl"}
    sources = [raw_config(root).sources[0].model_dump(exclude_unset=True), other]
    data = build_dataset(raw_config(root, sources=sources), tmp_path / "out")[0]
    metadata = Metadata.open(data.folder, len(data.texts))
    toy, elsewhere = (data.texts.row(f"{name}:p0") for name in ("toy", "other"))
    assert metadata.authors[toy].tolist() == metadata.authors[elsewhere].tolist()
    for query, positives, pool in _groups(data, "classification"):
        space = query.split(":")[0]
        assert {label.split("/")[0] for label in positives | pool} == {space}


def test_a_folder_that_is_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a prepared folder"):
        mine_again(tmp_path, MiningConfig())
    assert list(tmp_path.iterdir()) == []
