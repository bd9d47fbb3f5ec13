"""Targets from fields and tables: writing, splitting, scaling and rejecting them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.config import validate
from scimult.data.prepared import PreparedData
from scimult.data.targets import TargetFile
from scimult.errors import ConfigError, DataError, SciMultError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from tests.raw_corpus import write_jsonl

VENUES = ["b", "a", "b", "a", 7, 7, "", None]
YEARS = [2000, 2004, 2010, 2001, 2002, 2005, None, 2008]
LABELS: list[list[Any]] = [["x"], ["y", "x"], ["y"], [], ["z", "x", "x"], ["y"], ["x"], ["z"]]
COUNTS = {0: 0.0, 1: 1.0, 3: 9.0, 5: 3.0}
VENUE = {"task": "venue", "kind": "multi_class", "field": "place"}
TOPICS = {"task": "topics", "kind": "multi_label", "field": "topics"}
YEAR = {"task": "year", "kind": "regression", "field": "size"}
COUNT = {"task": "count", "kind": "regression", "file": "counts.tsv", "column": "citations"}


def papers(**changes: list[Any]) -> list[dict[str, Any]]:
    columns = {"place": VENUES, "size": YEARS, "topics": LABELS} | changes
    rows = []
    for i in range(8):
        row = {"id": f"p{i}", "title": f"Title {i}", "abstract": f"About {i}"}
        rows.append(row | {name: values[i] for name, values in columns.items()})
    return rows


def prepare(
    folder: Path,
    *targets: dict[str, Any],
    rows: list[dict[str, Any]] | None = None,
    table: str | None = None,
    skip_bad: bool = False,
    **settings: Any,
) -> PreparedData:
    write_jsonl(folder / "papers.jsonl", rows or papers())
    counts = "paper-id\tcitations\n" + "".join(f"p{i}\t{n}\n" for i, n in COUNTS.items())
    (folder / "counts.tsv").write_text(counts if table is None else table)
    source = {"name": "world", "papers": "papers.jsonl", "targets": list(targets)}
    tree = {"root": str(folder), "sources": [source], "dev_fraction": 0.0} | settings
    config = validate(DatasetConfig, tree)
    return build_dataset(config, folder / "prepared", skip_bad=skip_bad)[0]


def by_paper(data: PreparedData, file: TargetFile) -> dict[str, Any]:
    """Return each paper's target with the names of its classes."""
    found = {}
    for place, identifier in enumerate(data.texts.ids_at(file.rows)):
        name = identifier.partition(":")[2]
        if file.kind == "regression":
            found[name] = float(file.numbers[place])
        else:
            found[name] = {file.classes[number] for number in file.labels[place]}
    return found


def test_targets_are_those_of_the_files(tmp_path: Path) -> None:
    data = prepare(tmp_path, VENUE, TOPICS, YEAR, COUNT)
    files = {file.task: file for file in data.targets("train")}
    assert files["venue"].classes == ("7", "a", "b")
    expected = {f"p{i}": {str(venue)} for i, venue in enumerate(VENUES) if venue}
    assert by_paper(data, files["venue"]) == expected
    expected = {f"p{i}": set(labels) for i, labels in enumerate(LABELS) if labels}
    assert by_paper(data, files["topics"]) == expected
    assert by_paper(data, files["year"]) == {f"p{i}": y for i, y in enumerate(YEARS) if y}
    assert by_paper(data, files["count"]) == {f"p{i}": n for i, n in COUNTS.items()}
    assert {task.name: task.format for task in data.manifest.tasks} == {
        "venue": "classification",
        "topics": "classification",
        "year": "regression",
        "count": "regression",
    }
    entries = {(e.task, e.split): (e.kind, e.papers, e.classes) for e in data.manifest.targets}
    assert entries["venue", "train"] == ("multi_class", 6, 3)
    assert entries["venue", "dev"] == ("multi_class", 0, 3)
    rows = files["topics"].rows[[1, 0]]
    assert files["topics"].targets(rows).tolist() == [[1, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("scale", ["none", "log", "unit", "standard"])
def test_numbers_are_scaled_by_the_train_split(tmp_path: Path, scale: str) -> None:
    data = prepare(tmp_path, COUNT | {"scale": scale}, dev_fraction=0.5, seed=3)
    train, dev = (*data.targets("train"), *data.targets("dev"))
    names = {*by_paper(data, train)}
    assert names
    assert not names & {*by_paper(data, dev)}
    read = {f"p{i}": n for i, n in COUNTS.items()}
    known = np.array([read[name] for name in sorted(names)])
    change = {
        "none": lambda n: n,
        "log": np.log1p,
        "unit": lambda n: (n - known.min()) / (known.max() - known.min()),
        "standard": lambda n: (n - known.mean()) / known.std(),
    }[scale]
    found = by_paper(data, train) | by_paper(data, dev)
    assert found == pytest.approx({name: change(n) for name, n in read.items()})
    for entry in data.manifest.targets:
        raw = np.log1p(list(read.values())) if scale == "log" else np.array([*read.values()])
        assert sorted(entry.factor * raw + entry.offset) == pytest.approx(sorted(found.values()))


def test_years_have_the_mean_of_log_citations(tmp_path: Path) -> None:
    """SciRepEval, appendix A.4: years from 0 to 1, times the mean of the citations' targets."""
    year = YEAR | {"scale": "unit", "times_mean_of": "count"}
    data = prepare(tmp_path, year, COUNT | {"scale": "log"})
    mean = np.log1p(list(COUNTS.values())).mean()
    expected = {f"p{i}": (y - 2000) / 10 * mean for i, y in enumerate(YEARS) if y}
    (found,) = (file for file in data.targets("train") if file.task == "year")
    assert by_paper(data, found) == pytest.approx(expected)


def test_numbers_around_0_lend_no_mean(tmp_path: Path) -> None:
    """Numpy gives these standardised counts a mean of 3e-16."""
    year = YEAR | {"scale": "unit", "times_mean_of": "count"}
    table = "paper-id\tcitations\np1\t2\np2\t3\np3\t3\n"
    with pytest.raises(DataError, match="the mean of count is 0"):
        prepare(tmp_path, year, COUNT | {"scale": "standard"}, table=table)


def test_rare_classes_and_their_papers_are_left_out(tmp_path: Path) -> None:
    rows = papers(topics=[["x", "rare"], ["x"], ["x"], ["rare"], ["y"], ["y"], ["y", "x"], ["y"]])
    data = prepare(tmp_path, TOPICS | {"min_papers": 3}, rows=rows)
    (file,) = data.targets("train")
    assert file.classes == ("x", "y")
    assert by_paper(data, file)["p0"] == {"x"}
    assert "p3" not in by_paper(data, file)


def test_merged_papers_keep_the_target_of_the_first(tmp_path: Path) -> None:
    rows = papers()
    for row in (rows[0], rows[3]):
        row["title"] = row["abstract"] = "a title of enough words to be told from all others"
    hygiene = {"duplicates": "merge"}
    data = prepare(tmp_path, COUNT, VENUE, rows=rows, hygiene=hygiene)
    (counts, venues) = data.targets("train")
    assert by_paper(data, counts) == {"p0": 0.0, "p1": 1.0, "p5": 3.0}
    assert by_paper(data, venues)["p0"] == {"b"}


@pytest.mark.long
def test_merged_papers_keep_the_target_of_the_one_that_stays(tmp_path: Path) -> None:
    """The first with an abstract stays; targets of another source do not contradict its own."""
    rows = papers()
    for number, row in enumerate(rows):
        row["title"] = " ".join(f"word{number}{letter}" for letter in "abcdefgh")
    rows[0] |= {"title": rows[3]["title"], "abstract": ""}
    rows[0]["place"], rows[3]["place"] = "a", "b"
    one = prepare(tmp_path, COUNT, VENUE, rows=rows, hygiene={"duplicates": "merge"})
    (counts, venues) = one.targets("train")
    assert by_paper(one, counts) == {"p3": 9.0, "p1": 1.0, "p5": 3.0}
    assert by_paper(one, venues)["p3"] == {"b"}
    source = {"name": "world", "papers": "papers.jsonl", "targets": [COUNT, VENUE]}
    other = {**source, "name": "other", "papers": "others.jsonl", "targets": [VENUE]}
    others = [{**row, "id": f"o{i}", "place": "c"} for i, row in enumerate(rows)]
    write_jsonl(tmp_path / "others.jsonl", others)
    tree = {"root": str(tmp_path), "sources": [source, other], "dev_fraction": 0.0}
    config = validate(DatasetConfig, tree | {"hygiene": {"duplicates": "merge"}})
    data = build_dataset(config, tmp_path / "both")[0]
    files = [file for file in data.targets("train") if file.task == "venue"]
    found = {file.source: by_paper(data, file) for file in files}
    # Only papers without a place of their own have that of their copies.
    assert found == {"world": by_paper(one, venues), "other": {"p6": {"c"}, "p7": {"c"}}}
    copies = [row for row in others if row["id"] not in ("o6", "o7")]
    write_jsonl(tmp_path / "others.jsonl", copies)
    entries = build_dataset(config, tmp_path / "copies")[0].manifest.targets
    assert {entry.source for entry in entries} == {"world"}, "nothing is left of the other's"


@pytest.mark.long
def test_a_paper_of_two_sources_has_the_target_of_the_earlier_one(tmp_path: Path) -> None:
    own = [{**row, "place": "ab"[i % 2]} for i, row in enumerate(papers())]
    prepare(tmp_path, VENUE, rows=own)
    others = [{**row, "id": f"p{i}", "place": "c"} for i, row in enumerate(own[:2] * 4, start=5)]
    write_jsonl(tmp_path / "others.jsonl", others)
    source = {"name": "world", "papers": "papers.jsonl", "targets": [VENUE]}
    other = {**source, "name": "other", "namespace": "world", "papers": "others.jsonl"}
    tree = {"root": str(tmp_path), "sources": [source, other], "dev_fraction": 0.0}
    data, _ = build_dataset(validate(DatasetConfig, tree), tmp_path / "both")
    first, second = (by_paper(data, file) for file in data.targets("train"))
    assert first == {f"p{i}": {"ab"[i % 2]} for i in range(8)}
    assert second == {f"p{i}": {"c"} for i in range(8, 13)}
    # Of the other source's papers with class c, only one is its own.
    write_jsonl(tmp_path / "others.jsonl", others[:4])
    with pytest.raises(DataError, match=r"only one paper has this class.*value: 'c'"):
        build_dataset(validate(DatasetConfig, tree), tmp_path / "lonely")


def test_a_repeated_line_makes_no_class_of_two_papers(tmp_path: Path) -> None:
    table = "paper-id\tvalue\np0\tx\np1\tx\np2\tlonely\np2\tx\np2\tlonely\n"
    topics = {"task": "topics", "kind": "multi_label", "file": "counts.tsv"}
    with pytest.raises(DataError, match=r"only one paper has this class.*value: 'lonely'"):
        prepare(tmp_path, topics, table=table)


def test_dev_papers_with_targets_are_held_out(tmp_path: Path) -> None:
    data = prepare(tmp_path, YEAR, dev_fraction=0.5, seed=3)
    (dev,) = data.targets("dev")
    assert len(dev)
    assert data.held_out().tolist() == dev.rows.tolist()


TABLE = "paper-id\tcitations\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "rows", "table", "message"),
    [
        (COUNT, None, TABLE + "p1\tnan\n", "counts.tsv:2.*not a finite number.*nan"),
        (COUNT, None, TABLE + "p1\t\n", "counts.tsv:2.*not a finite number"),
        (COUNT, None, TABLE + "p1\t2\np9\t1\n", "counts.tsv:3.*unknown paper.*p9"),
        (
            COUNT,
            None,
            TABLE + "p1\t2\np0\t1\np1\t3\n",
            "tsv:4: paper has two targets.*lines 2 and 4",
        ),
        (COUNT, None, "paper-id\tcount\np1\t2\n", "file lacks the column citations"),
        (
            COUNT | {"scale": "log"},
            None,
            TABLE + "p1\t-2\n",
            "tsv:2: negative number with scale log",
        ),
        (
            COUNT | {"scale": "unit"},
            None,
            TABLE + "p1\t2\np2\t2\n",
            "all numbers are 2, which scale unit",
        ),
        (
            # Numpy gives them a deviation of 1e-17.
            COUNT | {"scale": "standard"},
            None,
            TABLE + "p1\t0.1\np2\t0.1\np3\t0.1\n",
            "all numbers are 0.1, which scale standard",
        ),
        (YEAR, papers(size=["new"] * 8), None, "papers.jsonl:1.*not a finite number.*new"),
        (YEAR | {"field": "sise"}, None, None, "no paper has a target of task 'year'.*sise"),
        (VENUE, papers(place=[*"aabbbbac"]), None, "papers.jsonl:8: only one paper.*value: 'c'"),
        (VENUE, papers(place=["a"] * 8), None, "classes left: 1"),
        (VENUE, papers(place=[["a"]] * 8), None, "'place' is not a string"),
        (TOPICS, papers(topics=["x"] * 8), None, "'topics' is not a list of strings"),
    ],
)
def test_bad_targets(
    tmp_path: Path,
    target: dict[str, Any],
    rows: list[dict[str, Any]] | None,
    table: str | None,
    message: str,
) -> None:
    with pytest.raises(SciMultError, match=message) as raised:
        prepare(tmp_path, target, rows=rows, table=table)
    assert str(raised.value).count("Fix:") == 1
    assert not (tmp_path / "prepared").exists()


def test_bad_targets_are_left_out_one_by_one(tmp_path: Path) -> None:
    rows = papers(place=[*"aabbba", "c", ["x"]])
    table = TABLE + "p1\tnan\np2\t1\np3\t2\np99\t3\n"
    data = prepare(tmp_path, COUNT, VENUE, rows=rows, table=table, skip_bad=True)
    counts, venues = data.targets("train")
    assert by_paper(data, counts) == {"p2": 1.0, "p3": 2.0}
    assert venues.classes == ("a", "b")
    assert len(data.texts) == 8
    assert sum(data.manifest.rejects.values()) == 4


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            [{"task": "year", "kind": "regression"}],
            "from a field of the papers or from a file; name one",
        ),
        ([YEAR | {"column": "n"}], "column needs a file"),
        ([YEAR | {"min_papers": 3}], "min_papers: unknown key"),
        ([VENUE | {"scale": "log"}], "scale: unknown key"),
        ([VENUE | {"kind": "classes"}], "unknown kind 'classes'.*multi_class, multi_label"),
        ([VENUE, VENUE | {"field": "size"}], "lists a target task twice"),
        ([YEAR | {"times_mean_of": "venue"}, VENUE], "must name another regression"),
        ([YEAR | {"task": "a.b"}], "task.*should match pattern"),
    ],
)
def test_contradictory_targets(tmp_path: Path, targets: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(tmp_path, *targets)


def test_a_task_has_pairs_or_targets(tmp_path: Path) -> None:
    (tmp_path / "citations.tsv").write_text("citing\tcited\np1\tp0\n")
    source = {"name": "world", "papers": "papers.jsonl", "citations": "citations.tsv"}
    source |= {"targets": [YEAR | {"task": "link_prediction"}]}  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="task has pairs and targets.*link_prediction"):
        prepare(tmp_path, sources=[source])


def test_sources_of_a_task_agree(tmp_path: Path) -> None:
    first = {"name": "one", "papers": "papers.jsonl", "targets": [VENUE]}
    second = {"name": "two", "papers": "papers.jsonl", "targets": [VENUE | {"min_papers": 2}]}
    with pytest.raises(ConfigError, match="'one' and 'two' have different targets of task 'venue'"):
        prepare(tmp_path, sources=[first, second])
