"""Raw files to a prepared folder: nothing is lost, invented or moved between splits."""

from __future__ import annotations

import gzip
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scimult.config import validate
from scimult.data.prepared import PreparedData
from scimult.data.tokenization import TextTokenizer
from scimult.errors import ConfigError, DataError, StorageError
from scimult.files import read_json, write_json
from scimult.locks import lock_name, temporary_name
from scimult.preparation.config import SourceConfig
from scimult.preparation.dataset import build_dataset
from scimult.types import Text
from tests.prepared_folders import Metadata, named_pairs
from tests.raw_corpus import (
    CITATIONS,
    CLICKS,
    LABELS,
    PAPERS,
    QUERIES,
    raw_config,
    write_jsonl,
    write_raw,
    write_tsv,
)


@pytest.fixture
def data(root: Path, tmp_path: Path) -> PreparedData:
    return build_dataset(raw_config(root, max_pairs_per_label="all"), tmp_path / "out")[0]


def test_texts_come_in_the_order_labels_papers_queries(data: PreparedData) -> None:
    assert data.texts.ids == [
        *(f"toy/label:{label['id']}" for label in LABELS),
        *(f"toy:{paper['id']}" for paper in PAPERS),
        *(f"toy/query:{query['id']}" for query in QUERIES),
    ]
    assert data.texts.text(1) == Text("label", "Label 1", "About 1.")
    assert data.texts.text(5) == Text("paper", "Paper number 0", "An abstract about topic 0.")
    assert data.texts.text(25) == Text("query", "find topic 0")


def test_every_raw_pair_is_in_exactly_one_split(data: PreparedData) -> None:
    expected = {
        "classification": {
            (f"toy:{p['id']}", f"toy/label:{label}") for p in PAPERS for label in p["labels"]
        },
        "link_prediction": {(f"toy:{a}", f"toy:{b}") for a, b in CITATIONS},
        "search": {(f"toy/query:{q}", f"toy:{p}") for q, p, clicked in CLICKS if clicked},
    }
    train, dev = data.pairs("train"), data.pairs("dev")
    for task, pairs in expected.items():
        parts = [
            named_pairs(data, [file for file in files if file.task == task])
            for files in (train, dev)
        ]
        assert sorted([*parts[0], *parts[1]]) == sorted(pairs)
        assert not {query for query, _ in parts[0]} & {query for query, _ in parts[1]}
    paper_split = {}
    for file in [*train, *dev]:
        for query in file.queries.tolist():
            assert paper_split.setdefault(query, file.split) == file.split


def test_search_negatives_are_the_papers_shown_and_not_clicked(data: PreparedData) -> None:
    found = {}
    for file in [*data.pairs("train"), *data.pairs("dev")]:
        if file.task == "search":
            for query, pool in zip(file.queries, file.negatives, strict=True):
                found[data.texts.ids[query]] = {data.texts.ids[row] for row in pool}
    clicked = {(q, p) for q, p, click in CLICKS if click}
    for query in QUERIES:
        shown = {p for q, p, _ in CLICKS if q == query["id"] and (q, p) not in clicked}
        assert found[f"toy/query:{query['id']}"] == {f"toy:{p}" for p in shown}


@pytest.mark.long
def test_answers_in_neither_split_are_no_negatives(root: Path, tmp_path: Path) -> None:
    clicks = [(f"q{i}", f"p{k}", 1) for i in range(6) for k in range(i, 20, 2)]
    write_tsv(root / "clicks.tsv", ("query-id", "paper-id", "clicked"), clicks)
    chosen = {"split": {"by": "paper"}, "mining": {"queries": ["random"]}}
    data = build_dataset(raw_config(root, dev_fraction=0.3, **chosen), tmp_path / "out")[0]
    assert data.manifest.in_neither_split["toy.search"]
    clicked = {(f"toy/query:{q}", f"toy:{p}") for q, p, _ in clicks}
    ids = data.texts.ids
    (file,) = (file for file in data.pairs("train") if file.task == "search")
    assert file.negatives.lengths.all()
    for query, pool in zip(file.queries, file.negatives, strict=True):
        assert not clicked & {(ids[query], ids[row]) for row in pool}


def test_metadata_by_row(data: PreparedData) -> None:
    metadata = Metadata.open(data.folder, len(data.texts))
    for paper in PAPERS:
        row = data.texts.row(f"toy:{paper['id']}")
        others = [data.texts.row(f"toy:{other['id']}") for other in PAPERS]
        for field, lists in (("authors", metadata.authors), ("venue", metadata.venues)):
            values = {paper[field]} - {""} if field == "venue" else set(paper[field])
            for other, other_row in zip(PAPERS, others, strict=True):
                theirs = {other[field]} if field == "venue" else set(other[field])
                shared = set(lists[row].tolist()) & set(lists[other_row].tolist())
                assert len(shared) == len(values & theirs)
        assert {data.texts.ids[label] for label in metadata.labels[row]} == {
            f"toy/label:{label}" for label in paper["labels"]
        }
        assert metadata.years[row] == paper["year"]
    assert metadata.authors[0].tolist() == []
    assert metadata.years[0] == -1


def test_manifest_counts_and_names_every_file(data: PreparedData) -> None:
    counts = data.manifest.sources[0].counts
    assert counts["papers"] == 20
    assert counts["papers with empty abstract"] == 1
    assert counts["labels without definition"] == 1
    assert counts["citations"] == len(CITATIONS)
    assert [task.name for task in data.manifest.tasks] == [
        "classification",
        "link_prediction",
        "search",
    ]
    for entry in data.manifest.pairs:
        file = next(f for f in data.pairs(entry.split) if f.task == entry.task)
        assert entry.groups == len(file)
        assert entry.pairs == len(file.positives.values)
        assert entry.with_negatives == (file.negatives.lengths > 0).sum()
    on_disk = {path.relative_to(data.folder).as_posix() for path in data.folder.rglob("*.arrow")}
    assert set(data.manifest.files) == on_disk
    assert len(on_disk) == 4 + 6


@pytest.mark.long
def test_the_same_input_gives_the_same_folder_and_another_seed_another(
    root: Path, data: PreparedData, tmp_path: Path
) -> None:
    config = raw_config(root, max_pairs_per_label="all")
    again = build_dataset(config, tmp_path / "again")[0]
    assert again.fingerprint == data.fingerprint
    config = raw_config(root, max_pairs_per_label="all", seed=1)
    assert build_dataset(config, tmp_path / "other")[0].fingerprint != data.fingerprint


@pytest.mark.long
def test_folders_may_be_called_like_columns_and_patterns(
    root: Path, data: PreparedData, tmp_path: Path
) -> None:
    """DuckDB takes ``id=7`` for a column, and ``raw[1]`` for a pattern that matches ``raw1``."""
    folder = tmp_path / "id=7" / "line=1" / "text=a" / "query=b" / "paper=c" / "clicked=1"
    strange = write_raw(folder / "raw[1]")
    shutil.copytree(root, folder / "raw1")
    (folder / "raw1" / "papers.jsonl").write_text("another\n")
    made = build_dataset(raw_config(strange, max_pairs_per_label="all"), folder / "out[1]")[0]
    assert made.fingerprint == data.fingerprint


@pytest.mark.long
def test_compressed_input_is_the_same_input(root: Path, data: PreparedData, tmp_path: Path) -> None:
    plain = root / "papers.jsonl"
    (root / "papers.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    config = raw_config(root, max_pairs_per_label="all")
    config.sources[0].papers = "papers.jsonl.gz"
    assert build_dataset(config, tmp_path / "gz")[0].fingerprint == data.fingerprint


@pytest.mark.long
def test_down_sampling_keeps_what_it_leaves_out_as_known(root: Path, tmp_path: Path) -> None:
    data = build_dataset(raw_config(root, max_pairs_per_label=2), tmp_path / "out")[0]
    train, dev = (
        next(f for f in data.pairs(split) if f.task == "classification")
        for split in ("train", "dev")
    )
    per_label: dict[int, int] = {}
    for label in train.positives.values.tolist():
        per_label[label] = per_label.get(label, 0) + 1
    assert max(per_label.values()) == 2
    true_labels = {
        data.texts.row(f"toy:{p['id']}"): {data.texts.row(f"toy/label:{x}") for x in p["labels"]}
        for p in PAPERS
    }
    for file in (train, dev):
        groups = zip(file.queries, file.positives, file.unsampled, file.negatives, strict=True)
        for query, kept, left_out, negatives in groups:
            assert {*kept.tolist(), *left_out.tolist()} == true_labels[int(query)]
            assert not {*negatives.tolist()} & true_labels[int(query)]
    assert train.unsampled.lengths.sum() > 0
    assert dev.unsampled.lengths.sum() == 0


@pytest.mark.long
def test_sources_of_a_label_space_share_the_cap(root: Path, tmp_path: Path) -> None:
    """The paper: a label is in at most 100 pairs of all the pre-training data."""
    papers = [dict(paper, id=f"x{paper['id']}") for paper in PAPERS]
    write_jsonl(root / "more.jsonl", papers)
    first = raw_config(root).sources[0].model_dump(exclude_unset=True)
    shared = {"name": "more", "namespace": "toy", "papers": "more.jsonl", "labels": "none.jsonl"}
    apart = dict(shared, name="apart", namespace="apart", labels="labels.jsonl")
    write_jsonl(root / "none.jsonl", [{"id": "l9", "name": "Never used"}])
    config = raw_config(
        root,
        max_pairs_per_label=3,
        dev_fraction=0.0,
        sources=[first, shared, {**apart, "max_pairs_per_label": "all"}],
    )
    data = build_dataset(config, tmp_path / "out")[0]
    files = {file.source: file for file in data.pairs("train") if file.task == "classification"}
    together = np.concatenate([files[name].positives.values for name in ("toy", "more")])
    assert Counter(np.bincount(together)[np.bincount(together) > 0].tolist()) == {3: 5}
    assert len(files["more"].positives.values) > 0
    # Each source has 40 pairs of 5 labels. What is left out of a query that keeps another
    # label is known; a query that keeps none is not trained.
    assert len(files["apart"].positives.values) == 40
    assert sum(len(files[name].unsampled.values) for name in ("toy", "more")) > 0
    counts = {source.name: source.counts for source in data.manifest.sources}
    for name, file in files.items():
        left_out = counts[name]["pairs beyond the cap of their label"]
        assert left_out == 40 - len(file.positives.values)
        assert counts[name]["labels with such pairs"] == (5 if left_out else 0)


def test_sources_of_a_label_space_agree_on_the_cap(root: Path) -> None:
    first = raw_config(root).sources[0].model_dump(exclude_unset=True)
    other = dict(first, name="other", namespace="toy", max_pairs_per_label=7)
    with pytest.raises(ConfigError, match="share their labels.*max_pairs_per_label: 100 and 7"):
        raw_config(root, sources=[first, other])
    with pytest.raises(ConfigError, match="max_pairs_per_label needs labels"):
        raw_config(root, sources=[first, dict(other, labels=None)])


@pytest.mark.long
def test_sources_share_papers_through_a_namespace(root: Path, tmp_path: Path) -> None:
    other = dict(PAPERS[3], title="Another title", labels=["l4"], venue="Other", authors=["New"])
    write_jsonl(root / "more.jsonl", [other, dict(PAPERS[0], id="x1")])
    write_tsv(root / "more.tsv", ("citing", "cited"), [("x1", "p3"), ("p7", "x1")])
    first = raw_config(root).sources[0].model_dump(exclude_unset=True)
    second = {
        "name": "extra",
        "namespace": "toy",
        "papers": "more.jsonl",
        "citations": "more.tsv",
    }
    data = build_dataset(raw_config(root, sources=[first, second]), tmp_path / "out")[0]
    assert data.manifest.sources[1].counts["papers known from an earlier source"] == 1
    assert data.texts.text(data.texts.row("toy:p3")).title == "Paper number 3"
    extra = [f for split in ("train", "dev") for f in data.pairs(split) if f.source == "extra"]
    assert set(named_pairs(data, extra)) == {("toy:x1", "toy:p3"), ("toy:p7", "toy:x1")}
    metadata = Metadata.open(data.folder, len(data.texts))
    labels = metadata.labels[data.texts.row("toy:p3")]
    assert {data.texts.ids[label] for label in labels} == {f"toy/label:l{i}" for i in (3, 4)}


@pytest.mark.long
@pytest.mark.parametrize("reader", ["sql", "python"])
def test_texts_may_end_with_metadata(root: Path, tmp_path: Path, reader: str) -> None:
    papers = [dict(paper) for paper in PAPERS]
    papers[4].pop("year")
    if reader == "python":
        # A file with a nested list is left to Python.
        papers[3]["authors"] = [["Author", "3"]]
    write_jsonl(root / "papers.jsonl", papers)
    source = raw_config(root).sources[0].model_dump(exclude_unset=True)
    source["append_to_abstract"] = ["year", "venue"]
    config = raw_config(root, sources=[source])
    data = build_dataset(config, tmp_path / "out", skip_bad=True)[0]
    for paper in papers if reader == "sql" else [*papers[:3], *papers[4:]]:
        fields = (paper["abstract"], str(paper.get("year", "")), paper["venue"])
        body = " [SEP] ".join(field for field in fields if field)
        assert data.texts.text(data.texts.row(f"toy:{paper['id']}")).body == body
    plain = build_dataset(raw_config(root), tmp_path / "plain", skip_bad=True)[0]
    assert data.manifest.sources[0].counts == plain.manifest.sources[0].counts


@pytest.mark.long
def test_tokens_are_built_once_and_follow_the_tokenizer(
    root: Path, tmp_path: Path, minilm: Path
) -> None:
    tokenizer = TextTokenizer.from_folder(minilm)
    data = build_dataset(raw_config(root), tmp_path / "out", tokenizer=tokenizer)[0]
    (folder,) = (tmp_path / "out" / "tokens").iterdir()
    assert folder.name == tokenizer.fingerprint
    before = (folder / "tokens.bin").stat().st_mtime_ns
    store = data.tokens(tokenizer, 32)
    assert (folder / "tokens.bin").stat().st_mtime_ns == before
    texts = data.texts.slice(0, len(data.texts))
    expected = [ids.tolist() for ids in tokenizer.encode(texts, 32)]
    assert [store.tokens(row, 32).tolist() for row in range(len(texts))] == expected
    assert data.tokens(tokenizer, 600).meta["max_length"] == 600


def test_a_prepared_folder_is_checked_when_opened(data: PreparedData, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"raw: not a prepared folder.*scimult prepare"):
        PreparedData.open(tmp_path / "raw")
    path = data.folder / "pairs" / "toy.search.train.arrow"
    shutil.copy(data.folder / "citations.arrow", path)
    with pytest.raises(DataError, match=r"toy\.search\.train\.arrow: file is missing or has ch"):
        PreparedData.open(data.folder)
    manifest = read_json(data.folder / "manifest.json")
    write_json(data.folder / "manifest.json", {**manifest, "version": "0"})
    with pytest.raises(DataError, match="prepared folder of another version"):
        PreparedData.open(data.folder)
    world = {"format": "scimult generated world", "version": 1}
    write_json(data.folder / "manifest.json", world)
    with pytest.raises(DataError, match=r"not a prepared folder.*scimult prepare"):
        PreparedData.open(data.folder)


def test_only_a_prepared_folder_is_replaced(root: Path, data: PreparedData) -> None:
    with pytest.raises(StorageError, match=r"raw: exists and is not a prepared folder.*Fix"):
        build_dataset(raw_config(root), root)
    assert (root / "papers.jsonl").is_file()
    # A run whose output is the prepared folder; a table of the user's.
    for others in ("model", "mine.arrow"):
        (data.folder / others).mkdir()
        with pytest.raises(StorageError, match="is not a prepared folder and nothing else"):
            build_dataset(raw_config(root), data.folder)
        (data.folder / others).rmdir()
    for name in ("card.md", "card_years.png"):
        (data.folder / name).write_bytes(b"")
    # Of a killed card, and a killed run that had begun to tokenise.
    for left in (temporary_name(data.folder / "card.md"), lock_name(data.folder / "tokens")):
        left.touch()
    (data.folder / ".tokens.unfinished").mkdir()
    build_dataset(raw_config(root, dev_fraction=0), data.folder)
    assert [len(file) for file in PreparedData.open(data.folder).pairs("dev")] == [0, 0, 0]


@pytest.mark.long
def test_citations_that_leave_the_set_are_dropped_on_request(root: Path, tmp_path: Path) -> None:
    out = build_dataset(raw_config(root), tmp_path / "plain")[0]
    with (root / "citations.tsv").open("a") as file:
        file.write("p1\tp99\np99\tp1\np98\tp99\n")
    config = raw_config(root)
    with pytest.raises(DataError, match="names an unknown paper"):
        build_dataset(config, tmp_path / "refused")
    config.sources[0].dangling = {"citations": "drop"}
    data, rejects = build_dataset(config, tmp_path / "dropped")
    assert not rejects.counts
    assert data.manifest.sources[0].counts["citations without a text"] == 3
    assert data.manifest.files == out.manifest.files
    with (root / "citations.tsv").open("a") as file:
        file.write("\tp99\n")
    with pytest.raises(DataError, match="field 'citing' is empty"):
        build_dataset(config, tmp_path / "refused")
    with pytest.raises(ConfigError, match=r"dangling\.references is set, but the source has no"):
        tree = {"name": "a", "papers": "p", "citations": "c", "dangling": {"references": "drop"}}
        validate(SourceConfig, tree)
