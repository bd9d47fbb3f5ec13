"""What is read of several sources: where their labels go, and what is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scimult.data.prepared import PreparedData
from scimult.preparation.prepare import prepare
from tests.raw_corpus import raw_config, write_jsonl

# Which counts of a source of papers and labels are compared.
NAMES = (
    "papers",
    "papers with empty title",
    "papers with empty abstract",
    "papers without labels",
    "empty author names",
    "papers known from an earlier source",
    "labels",
    "labels without definition",
    "labels known from an earlier source",
)


def _prepared(root: Path, sources: list[dict[str, Any]]) -> PreparedData:
    (root / "out").mkdir()
    prepare(raw_config(root, sources=sources, dev_fraction=0.0), root / "out")
    return PreparedData.open(root / "out")


def test_labels_of_a_namespace_are_one_range_in_any_order_of_sources(tmp_path: Path) -> None:
    """Candidates of a label space are its range: between two of its sources another one comes."""
    sources = []
    for name, space, label in (("a1", "a", "x"), ("b1", "b", "y"), ("a2", "a", "z")):
        paper = {"id": f"{name}p", "title": name, "abstract": "", "labels": [label]}
        write_jsonl(tmp_path / f"{name}.jsonl", [paper])
        write_jsonl(tmp_path / f"{name}.labels.jsonl", [{"id": label, "name": f"{space} {label}"}])
        files = {"papers": f"{name}.jsonl", "labels": f"{name}.labels.jsonl"}
        sources.append({"name": name, "namespace": space, **files})
    data = _prepared(tmp_path, sources)
    spans = data.manifest.label_rows
    labels = {space: data.texts.ids[slice(*span)] for space, span in spans.items()}
    assert labels == {"a": ["a/label:x", "a/label:z"], "b": ["b/label:y"]}


def test_what_papers_and_labels_lack_is_counted(tmp_path: Path) -> None:
    papers: list[dict[str, Any]] = [
        {"id": "1", "title": "", "abstract": "A", "authors": ["", " ", "B"], "labels": ["x"]},
        {"id": "2", "title": "T", "abstract": None, "authors": None, "labels": []},
        {"id": "3", "title": "T", "abstract": "\u2003", "labels": None},
        {"id": "4", "title": "T", "abstract": "A", "authors": ["", "C"]},
    ]
    write_jsonl(tmp_path / "papers.jsonl", papers)
    write_jsonl(tmp_path / "labels.jsonl", [{"id": "x", "name": "X", "definition": " "}])
    files = {"papers": "papers.jsonl", "labels": "labels.jsonl"}
    write_jsonl(tmp_path / "more.jsonl", [papers[0], {**papers[3], "id": "5", "labels": ["y"]}])
    labels = [{"id": "x", "name": "X"}, {"id": "y", "name": "Y", "definition": "D"}]
    write_jsonl(tmp_path / "more.labels.jsonl", labels)
    more = {"namespace": "a", "papers": "more.jsonl", "labels": "more.labels.jsonl"}
    data = _prepared(tmp_path, [{"name": "a", **files}, {"name": "b", **more}])
    first, second = (source.counts for source in data.manifest.sources)
    assert [first[name] for name in NAMES] == [4, 1, 2, 3, 3, 0, 1, 1, 0]
    assert [second[name] for name in NAMES] == [2, 1, 0, 0, 3, 1, 2, 1, 1]
