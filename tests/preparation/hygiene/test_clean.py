"""``scimult prepare`` with hygiene: merging loses no pair, decontamination leaves none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scimult.config import validate
from scimult.data.prepared import PreparedData
from scimult.errors import ConfigError, DataError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from tests.prepared_folders import Metadata, citations, shown
from tests.raw_corpus import CITATIONS, PAPERS, raw_config, write_jsonl, write_raw, write_tsv

TITLE = "A title that two papers of this corpus share"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write the toy corpus; p1 has an abstract but no authors, p2 and p9 have its title."""
    root = write_raw(tmp_path / "raw")
    papers: list[dict[str, Any]] = [dict(paper) for paper in PAPERS]
    for row, abstract in ((2, ""), (1, "All there is."), (9, "All there is.")):
        papers[row].update(title=TITLE, abstract=abstract)
    papers[1].update(authors=[])
    papers[2].update(doi="10.1/a")
    write_jsonl(root / "papers.jsonl", papers)
    return root


def _links(data: PreparedData) -> set[tuple[str, str]]:
    ids = data.texts.ids
    return {
        (ids[query], ids[positive])
        for split in ("train", "dev")
        for file in data.pairs(split)  # type: ignore[arg-type]
        if file.task == "link_prediction"
        for query, group in zip(file.queries, file.positives, strict=True)
        for positive in group
    }


@pytest.mark.long
def test_merged_papers_keep_pairs_labels_and_ids(root: Path, tmp_path: Path) -> None:
    config = raw_config(root, hygiene={"duplicates": "merge"}, max_pairs_per_label="all")
    data, _ = build_dataset(config, tmp_path / "out")
    same = {"p2": "p1", "p9": "p1"}
    moved = {(same.get(a, a), same.get(b, b)) for a, b in CITATIONS}
    assert _links(data) == {(f"toy:{a}", f"toy:{b}") for a, b in moved if a != b}
    assert data.manifest.hygiene.duplicates["duplicates by title"] == 2
    assert data.manifest.hygiene.texts == {"read": 31, "kept": 29}
    assert data.row("toy:p9") == data.row("toy:p1") == data.texts.row("toy:p1")
    with pytest.raises(DataError, match="unknown text id"):
        data.row("toy:p99")
    metadata = Metadata.open(data.folder, len(data.texts))
    row = data.row("toy:p1")
    labels = {data.texts.ids[label] for label in metadata.labels[row]}
    assert labels == {f"toy/label:{name}" for i in (1, 2, 9) for name in PAPERS[i]["labels"]}
    assert metadata.years[row] == PAPERS[1]["year"]
    table = pa.ipc.open_file(str(data.folder / "metadata.arrow")).read_all().to_pylist()
    (entry,) = [entry for entry in table if entry["row"] == row]
    # What the keeper lacks comes from the others.
    assert entry["authors"] == sorted(set(PAPERS[2]["authors"]))
    assert entry["doi"] == "10.1/a"


@pytest.mark.long
def test_a_namespace_keeps_its_papers_when_they_are_merged_into_another(
    root: Path, tmp_path: Path
) -> None:
    write_jsonl(root / "more.jsonl", [PAPERS[0], dict(PAPERS[3], title=TITLE, abstract="")])
    write_tsv(root / "more.tsv", ("citing", "cited"), [("p0", "p3")])
    tree = raw_config(root, hygiene={"duplicates": "merge"}).model_dump(exclude_unset=True)
    more = {"name": "more", "papers": "more.jsonl", "citations": "more.tsv"}
    config = validate(DatasetConfig, {**tree, "sources": [*tree["sources"], more]})
    data, _ = build_dataset(config, tmp_path / "out")
    assert data.papers("more").tolist() == sorted([data.row("toy:p1"), data.row("more:p0")])
    assert data.row("more:p3") == data.row("toy:p1")


@pytest.mark.long
def test_refused_duplicates_stop_the_work_or_are_counted(root: Path, tmp_path: Path) -> None:
    config = raw_config(root, hygiene={"duplicates": "refuse"})
    with pytest.raises(DataError, match=r"text repeats another one.*toy:p2.*hygiene.duplicates"):
        build_dataset(config, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
    data, rejects = build_dataset(config, tmp_path / "out", skip_bad=True)
    assert rejects.counts == {"text repeats another one": 2}
    assert "toy:p9" not in data.texts.ids
    gone = {"p2", "p9"}
    assert _links(data) == {(f"toy:{a}", f"toy:{b}") for a, b in CITATIONS if not {a, b} & gone}
    assert (data.folder / "rejects.jsonl").read_text().count("repeats another one") == 2


@pytest.mark.long
def test_decontamination_leaves_no_such_text(root: Path, tmp_path: Path) -> None:
    sets = tmp_path / "eval"
    papers = [{"id": "x", "title": TITLE, "abstract": ""}, {"id": "y", "title": "New one"}]
    write_jsonl(sets / "set/papers.jsonl", papers)
    for remove in ([], ["query"]):
        hygiene = {"evaluation": str(sets), "decontaminate": remove}
        data, _ = build_dataset(raw_config(root, hygiene=hygiene), tmp_path / "out")
        (entry,) = data.manifest.hygiene.overlap
        assert entry.found["query"] == 1
        titles = [data.texts.text(row).title for row in range(len(data.texts))]
        assert (TITLE in titles) == (not remove)
    assert _links(data) == {
        (f"toy:{a}", f"toy:{b}") for a, b in CITATIONS if not {a, b} & {"p1", "p2", "p9"}
    }


def test_removing_every_paper_is_an_error(root: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "eval/set/papers.jsonl", PAPERS)
    write_jsonl(root / "papers.jsonl", PAPERS)
    hygiene = {
        "evaluation": str(tmp_path / "eval"),
        "decontaminate": ["query"],
        "min_title": 1,
    }
    with pytest.raises(DataError, match=r"cleaning removes every paper.*decontaminate"):
        build_dataset(raw_config(root, hygiene=hygiene), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_judged_links_and_their_scores_follow_their_papers(root: Path, tmp_path: Path) -> None:
    # p2 and p9 are merged into p1, with their links, scores and references.
    rows = [("p2", "p3", 1, 0.5), ("p9", "p3", 1, 1.5), ("p9", "p4", 0, 3), ("p2", "p1", 0, 4)]
    write_tsv(root / "links.tsv", ("query-id", "paper-id", "score", "teacher"), rows)
    write_tsv(root / "references.tsv", ("citing", "cited"), [("p9", "p5")])
    linked = {"name": "judged", "namespace": "toy", "links": "links.tsv"}
    config = raw_config(root, hygiene={"duplicates": "merge"}, dev_fraction=0)
    tree = config.model_dump(mode="json", exclude_unset=True)
    tree["sources"].append({**linked, "references": "references.tsv"})
    data, _ = build_dataset(validate(DatasetConfig, tree), tmp_path / "merged")
    one, three, four, five = (data.row(f"toy:p{number}") for number in (1, 3, 4, 5))
    (file,) = [file for file in data.pairs("train") if file.source == "judged"]
    assert file.queries.tolist() == [one]
    assert file.positives[0].tolist() == [three]
    assert file.negatives[0].tolist() == [four]
    assert [one, five] in citations(data).tolist()
    teacher = data.teacher_scores()
    assert teacher is not None
    assert len(teacher) == 2
    assert teacher(np.array([one, one]), np.array([three, four])).tolist() == [1, 3]

    write_jsonl(tmp_path / "eval/set/papers.jsonl", [{"id": "x", "title": TITLE, "abstract": ""}])
    evaluation = {"evaluation": str(tmp_path / "eval"), "decontaminate": ["query"]}
    tree["hygiene"] = evaluation
    data, _ = build_dataset(validate(DatasetConfig, tree), tmp_path / "clean")
    assert data.teacher_scores() is None
    assert all(data.texts.text(row).kind == "query" for row in shown(data)[:, 0])
    assert not [len(file) for file in data.pairs("train") if file.source == "judged" and len(file)]


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({"hygiene": {"decontaminate": ["query"]}}, "decontaminate needs the folder"),
        ({"hygiene": {"keys": ["doi"]}}, "keys are set, but duplicates are ignored"),
        ({"split": {"by": "year", "dev_from_year": 2015}}, "year ignores dev_fraction"),
        ({"hygiene": {"near": {"min_words": 2}}}, "min_words must be at least shingle_words"),
    ],
)
def test_settings_that_contradict_each_other(
    root: Path, choices: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        raw_config(root, **choices)


@pytest.mark.long
def test_splitting_by_year_counts_what_is_in_neither(root: Path, tmp_path: Path) -> None:
    tree = raw_config(root).model_dump(mode="json", exclude_unset=True, exclude={"dev_fraction"})
    tree["split"] = {"by": "year", "dev_from_year": 2012}
    data, _ = build_dataset(validate(DatasetConfig, tree), tmp_path / "out")
    years = Metadata.open(data.folder, len(data.texts)).years
    for file in data.pairs("train"):
        assert (years[file.queries] < 2012).all()
        assert (years[file.positives.values] < 2012).all()
    written = len(_links(data))
    assert written + data.manifest.in_neither_split.get("toy.link_prediction", 0) == len(
        set(CITATIONS)
    )


@pytest.mark.long
def test_bad_records_are_counted_once_over_both_steps(root: Path, tmp_path: Path) -> None:
    write_tsv(root / "citations.tsv", ("citing", "cited"), [*CITATIONS, ("p1", "nobody")])
    config = raw_config(root, hygiene={"duplicates": "merge"})
    _, rejects = build_dataset(config, tmp_path / "out", skip_bad=True)
    assert sum(rejects.counts.values()) == 1
