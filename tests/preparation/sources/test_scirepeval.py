"""SciRepEval's training tasks: made-up rows for each, and the real rows of its sample files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from scimult.data.records import Record
from scimult.errors import DataError
from scimult.evaluation.formats.scirepeval import text_of
from scimult.evaluation.suites import load_suite
from scimult.preparation.sources import SOURCES, convert
from tests.public import Content, Converted, run


def _text(number: int, **more: Any) -> dict[str, Any]:
    return {"corpus_id": number, "title": f"Paper {number}", "abstract": "Text.", **more}


def _shown(*scores: int, start: int = 1) -> list[dict[str, Any]]:
    extra = {"venue": "", "year": "", "author_names": ""}
    return [_text(start + i, score=score, **extra) for i, score in enumerate(scores)]


def _convert(tmp_path: Path, task: str, rows: list[Any], **options: Any) -> Converted:
    return run(
        tmp_path,
        "scirepeval",
        {f"{task}/train.jsonl": rows},
        tasks=[task],
        splits=["train"],
        **options,
    )


def test_fields_of_study(tmp_path: Path) -> None:
    rows = [
        _text(1, labels=[3, 5], labels_text=["Art", "Law"]),
        _text(2, labels=[5], labels_text=["Law"], abstract=None),
        _text(3, labels=[], labels_text=[]),
    ]
    found = _convert(tmp_path, "fos", [{**rows[0]}, rows[1] | {"abstract": None}, rows[2]])
    assert [label["id"] for label in found.rows("scirepeval-fos", "labels")] == ["Art", "Law"]
    papers = found.rows("scirepeval-fos", "papers")
    assert [(paper["id"], paper["labels"]) for paper in papers] == [
        ("1", ["Art", "Law"]),
        ("2", ["Law"]),
    ]
    counts = found.counts("scirepeval-fos")
    assert (counts["rows"], counts["rows without a label"], counts["papers"]) == (3, 1, 2)
    # With so few labels, the usual cap of 100 pairs would leave next to nothing.
    assert found.conversion.configs[0].max_pairs_per_label == "all"


def test_mesh_descriptors(tmp_path: Path) -> None:
    rows = [_text(1, mag_id=7, descriptor="Brain", qualifier=None)]
    found = _convert(tmp_path, "mesh_descriptors", rows)
    [paper] = found.rows("scirepeval-mesh_descriptors", "papers")
    assert (paper["labels"], paper["target"]) == (["Brain"], "Brain")


@pytest.mark.parametrize(
    ("task", "field", "values", "names"),
    [
        (
            "cite_count",
            "log_citations",
            [0.0, 0.99, 2.0],
            ["0 to below 1", "0 to below 1", "2 to below 3"],
        ),
        (
            "pub_year",
            "year",
            [1999, 2000, 2009],
            ["1990 to below 2000", "2000 to below 2010", "2000 to below 2010"],
        ),
    ],
)
def test_regression_becomes_bands(
    tmp_path: Path, task: str, field: str, values: list[float], names: list[str]
) -> None:
    rows = [_text(i, **{field: value}) for i, value in enumerate(values)]
    found = _convert(tmp_path, task, rows)
    papers = found.rows(f"scirepeval-{task}", "papers")
    assert [label.split("from ")[1] for (label,) in (paper["labels"] for paper in papers)] == names
    assert [paper["target"] for paper in papers] == values


@pytest.mark.parametrize("task", ["same_author", "high_influence_cite"])
def test_judged_papers(tmp_path: Path, task: str) -> None:
    rows = [{"query": _text(9), "candidates": _shown(1, 0, 1)}]
    found = _convert(tmp_path, task, rows)
    assert found.pairs(f"scirepeval-{task}", "links") == [
        ("9", "1", "1"),
        ("9", "2", "0"),
        ("9", "3", "1"),
    ]
    assert found.conversion.configs[0].max_pairs_per_label is None


def test_search_with_click_scores(tmp_path: Path) -> None:
    rows = [
        {"query": "fast cats", "candidates": _shown(3, 0)},
        {"query": "fast cats", "candidates": _shown(0, 0, 2)},
        {"query": "slow dogs", "candidates": _shown(0, 0)},
    ]
    found = _convert(tmp_path, "search", rows)
    counts = found.counts("scirepeval-search")
    assert (counts["rows"], counts["rows without a positive"], counts["queries"]) == (3, 1, 1)
    data = found.prepare(tmp_path / "out")
    (file,) = data.pairs("train")
    ids = data.texts.ids
    assert [data.texts.text(int(query)).title for query in file.queries] == ["fast cats"]
    # Chosen in one session and not in the other is chosen; paper 2 never was.
    assert [ids[p] for p in file.positives[0]] == ["scirepeval-search:1", "scirepeval-search:3"]
    assert [ids[n] for n in file.negatives[0]] == ["scirepeval-search:2"]


def test_search_candidates_may_end_with_venue_and_year(tmp_path: Path) -> None:
    """Training reads what the evaluation of the same rows reads (SciRepEval, section 4.1)."""
    suite = load_suite("scirepeval")
    candidates = [
        _text(1, score=1, venue="Annals of Cats", year=1999, author_names=""),
        _text(2, score=0, venue="", year=2001, author_names=""),
        _text(3, score=0, venue="Dogs", year="", author_names="") | {"abstract": ""},
        _text(4, score=0, venue="", year="", author_names=""),
    ]
    found = _convert(tmp_path, "search", [{"query": "cats", "candidates": candidates}])
    (source,) = (config.model_dump(exclude_unset=True) for config in found.conversion.configs)
    source["append_to_abstract"] = ["venue", "year"]
    data = found.prepare(tmp_path / "out", sources=[source])
    for candidate in candidates:
        record = Record(tmp_path, 1, candidate)
        row = data.texts.row(f"scirepeval-search:{candidate['corpus_id']}")
        assert data.texts.text(row) == text_of(record, suite.benchmarks["search"])
    assert data.texts.text(row).body == "Text."
    counts = data.manifest.sources[0].counts
    assert counts["papers with empty abstract"] == 1


def test_one_bad_candidate_does_not_cost_its_row(tmp_path: Path) -> None:
    rows = [{"query": "cats", "candidates": [*_shown(1), {"corpus_id": 8, "score": 0}]}]
    with pytest.raises(DataError, match="title and abstract are both empty"):
        _convert(tmp_path, "search", rows)
    found = _convert(tmp_path, "search", rows, skip_bad=True)
    assert len(found.pairs("scirepeval-search", "judgments")) == 1
    assert found.conversion.rejects.counts["title and abstract are both empty"] == 1


@pytest.mark.parametrize(
    ("task", "row", "problem"),
    [
        ("fos", _text(1, labels=[1]), "missing field 'labels_text'"),
        ("fos", {"title": "T", "labels_text": ["Art"]}, "paper has no id"),
        ("cite_count", _text(1), "missing field 'log_citations'"),
        ("same_author", {"query": _text(1), "candidates": "many"}, "not a list of objects"),
        ("search", {"query": None, "candidates": _shown(1)}, "field 'query' is null"),
        ("cite_prediction", {"query": _text(1)}, "field 'pos' is not an object"),
    ],
)
def test_bad_rows(tmp_path: Path, task: str, row: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError) as caught:
        _convert(tmp_path, task, [row])
    assert problem in str(caught.value)
    assert "train.jsonl:1" in str(caught.value)


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    files: dict[str, Content] = {"fos/train.jsonl": [_text(1, labels_text=["Art"])]}
    with pytest.raises(DataError, match="no file of the split 'validation'"):
        run(tmp_path, "scirepeval", files, tasks=["fos"])


HUB_CARD = """\
---
configs:
- config_name: fos
  data_files:
  - split: train
    path: fos/train-*
---
"""


def test_rows_stream_from_a_data_set_in_the_layout_of_the_hub(tmp_path: Path) -> None:
    rows = [_text(i, labels=[1], labels_text=["Art"]) for i in range(3)]
    files: dict[str, Content] = {
        "README.md": HUB_CARD,
        "fos/train-00000-of-00002.parquet": rows[:2],
        "fos/train-00001-of-00002.parquet": rows[2:],
    }
    options = {"tasks": ["fos"], "splits": ["train"]}
    streamed = run(tmp_path, "scirepeval", files, hub=str(tmp_path / "download"), **options)
    papers = streamed.rows("scirepeval-fos", "papers")
    assert [paper["id"] for paper in papers] == ["0", "1", "2"]
    fewer = {**files, "fos/train-00001-of-00002.parquet": rows[:1]}
    again = run(tmp_path, "scirepeval", fewer, hub=str(tmp_path / "download"), **options)
    assert len(again.rows("scirepeval-fos", "papers")) == 2, "what has no checksum is read again"
    assert run(tmp_path, "scirepeval", files, **options).rows("scirepeval-fos", "papers") == papers
    with pytest.raises(DataError, match="data set on the hub cannot be read"):
        run(tmp_path, "scirepeval", files, hub=str(tmp_path / "nothing"), **options)


def test_counts_that_differ_are_notes_or_on_request_errors(tmp_path: Path) -> None:
    rows = [{"query": _text(1), "pos": _text(2), "neg": _text(3)}]
    found = _convert(tmp_path, "cite_prediction", rows)
    note = "scirepeval-cite_prediction: triples: 1, published 819,836"
    assert found.notes == [note]
    with pytest.raises(DataError, match="counts differ from the published ones"):
        _convert(tmp_path, "cite_prediction", rows, check_counts=True)


@pytest.mark.long
@pytest.mark.data
def test_the_real_sample_files(tmp_path: Path, scimult_data: Path) -> None:
    samples = scimult_data / "formats" / "scirepeval"
    files = {
        "fos": "fos_small.json",
        "mesh_descriptors": "mesh_small.json",
        "same_author": "s2and_small.json",
        "search": "search_small.jsonl",
        "cite_prediction": "specter_small.json",
    }
    for task, name in files.items():
        target = tmp_path / "download" / task / f"train{Path(name).suffix}"
        target.parent.mkdir(parents=True)
        shutil.copy(samples / name, target)
    source = SOURCES["scirepeval"]
    options = source.options(tasks=list(files), splits=["train"])  # type: ignore[call-arg]
    conversion, _ = convert(source, options, tmp_path / "download", tmp_path / "raw")
    found = Converted(tmp_path / "raw", conversion, [])
    data = found.prepare(tmp_path / "out")
    pairs = {file.source: len(file.positives.values) for file in data.pairs("train")}

    fields = json.loads((samples / "fos_small.json").read_text())
    authors = json.loads((samples / "s2and_small.json").read_text())
    searches = [json.loads(line) for line in (samples / "search_small.jsonl").open()]
    triples = json.loads((samples / "specter_small.json").read_text())
    assert pairs == {
        "scirepeval-fos": sum(len(row["labels_text"]) for row in fields),
        "scirepeval-mesh_descriptors": 206,
        "scirepeval-same_author": len(
            {
                (row["query"]["corpus_id"], c["corpus_id"])
                for row in authors
                for c in row["candidates"]
                if c["score"] > 0
            }
        ),
        "scirepeval-search": sum(c["score"] > 0 for row in searches for c in row["candidates"]),
        "scirepeval-cite_prediction": len(
            {(row["query"]["corpus_id"], row["pos"]["corpus_id"]) for row in triples}
        ),
    }
    assert conversion.rejects.counts == {}


@pytest.mark.data
def test_a_real_row_that_comes_again_under_another_label(
    tmp_path: Path, scimult_data: Path
) -> None:
    rows = json.loads((scimult_data / "formats" / "scirepeval" / "fos_small.json").read_text())
    again = {**rows[0], "labels_text": ["Heraldry"]}
    found = _convert(tmp_path, "fos", [*rows, again])
    first = next(
        paper
        for paper in found.rows("scirepeval-fos", "papers")
        if paper["id"] == str(rows[0]["corpus_id"])
    )
    assert first["labels"] == [*rows[0]["labels_text"], "Heraldry"]
    counts = found.counts("scirepeval-fos")
    assert (counts["papers repeated"], counts["labels added by repeated papers"]) == (1, 1)
    data = found.prepare(tmp_path / "out")
    (file,) = data.pairs("train")
    label = data.texts.row("scirepeval-fos/label:Heraldry")
    paper = data.texts.row(f"scirepeval-fos:{first['id']}")
    trained = {
        int(query)
        for query, positives in zip(file.queries, file.positives, strict=True)
        if label in positives
    }
    assert trained == {paper}


def test_a_row_that_is_refused_leaves_no_label(tmp_path: Path) -> None:
    rows = [_text(1, labels_text=["Art"]), {"corpus_id": 2, "labels_text": ["Law"]}]
    found = _convert(tmp_path, "fos", rows, skip_bad=True)
    assert [label["id"] for label in found.rows("scirepeval-fos", "labels")] == ["Art"]


def test_spaces_around_a_label_do_not_part_it_from_its_papers(tmp_path: Path) -> None:
    rows = [_text(1, labels_text=["Art ", "Art"]), _text(2, labels_text=[" Art", "\u3000Law"])]
    found = run(tmp_path, "scirepeval", {"fos/train.jsonl": rows}, tasks=["fos"], splits=["train"])
    assert [row["id"] for row in found.rows("scirepeval-fos", "labels")] == ["Art", "Law"]
    (pairs,) = found.prepare(tmp_path / "prepared").pairs("train")
    assert sorted(len(one) for one in pairs.positives) == [1, 2]
