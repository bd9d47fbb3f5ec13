"""Bad input: one message with file, line, value and fix; nothing half-written; skippable."""

from __future__ import annotations

import errno
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from scimult.config import load_config, validate
from scimult.data.prepared import PreparedData
from scimult.data.tokenization import TextTokenizer
from scimult.errors import ConfigError, DataError, StorageError, UnknownNameError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.mine import mine_again
from scimult.preparation.prepare import prepare
from tests.prepared_folders import contents
from tests.raw_corpus import PAPERS, raw_config, write_jsonl


def _replace_line(path: Path, line: int, content: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[line - 1] = content
    path.write_bytes(b"\n".join(lines))


def _paper(**changes: Any) -> bytes:
    paper = {**PAPERS[2], **changes}
    return json.dumps({key: value for key, value in paper.items() if value != "DROP"}).encode()


# File, line, its new content, the problem, the reported value, the counts after skipping.
BAD_LINES = [
    ("papers.jsonl", 3, _paper(abstract="DROP"), "missing field 'abstract'", "authors"),
    ("papers.jsonl", 3, _paper(title="DROP"), "missing field 'title'", "abstract"),
    ("papers.jsonl", 3, _paper(title=None), "field 'title' is null", "abstract"),
    ("papers.jsonl", 3, _paper(title=" ", abstract=""), "title and abstract are both empty", "p2"),
    ("papers.jsonl", 3, _paper(title=7), "field 'title' is not a string", "7"),
    ("papers.jsonl", 3, _paper(id="p1"), "id occurs twice in one file", "toy:p1"),
    ("papers.jsonl", 3, _paper(id=""), "field 'id' is empty", ""),
    ("papers.jsonl", 3, _paper(year="soon"), "field 'year' is not an integer", "soon"),
    ("papers.jsonl", 3, _paper(authors="A, B"), "field 'authors' is not a list of strings", "A, B"),
    ("papers.jsonl", 3, _paper(authors=["\ud800"]), "field 'authors' is not valid Unicode", "d800"),
    ("papers.jsonl", 3, _paper(labels=[1.5]), "field 'labels' is not a list of strings", "[1.5]"),
    ("papers.jsonl", 3, _paper(labels=[9]), "undefined label", "9"),
    ("papers.jsonl", 3, _paper(labels=["l9"]), "undefined label", "l9"),
    ("papers.jsonl", 3, _paper()[:40], "line is not valid JSON", "{"),
    ("papers.jsonl", 3, b'{"id": "caf\xe9"}', "line is not UTF-8", "caf"),
    ("labels.jsonl", 2, b'{"id": "l1", "definition": "x"}', "missing field 'name'", "definition"),
    ("labels.jsonl", 2, b'{"id": "l1", "name": ""}', "name of the label is empty", "l1"),
    ("labels.jsonl", 2, b'{"id": "l0", "name": "A"}', "id occurs twice in one file", "label:l0"),
    ("citations.tsv", 2, b"p1\tp99", "column 'cited' names an unknown paper", "p99"),
    ("citations.tsv", 2, b"p99\tp1", "column 'citing' names an unknown paper", "p99"),
    ("citations.tsv", 2, b"p1\tp1", "paper cites itself", "p1"),
    ("citations.tsv", 2, b"p1", "wrong number of values", "p1"),
    ("queries.jsonl", 2, b'{"id": "q1", "text": " "}', "query is empty", "q1"),
    ("queries.jsonl", 2, b'{"id": "q0", "text": "x"}', "id occurs twice in one file", "query:q0"),
    ("clicks.tsv", 3, b"q77\tp1\t0", "column 'query-id' names an unknown query", "q77"),
    ("clicks.tsv", 3, b"q0\tp77\t0", "column 'paper-id' names an unknown paper", "p77"),
    ("clicks.tsv", 3, b"q0\tp3\tyes", "field 'clicked' is not 0 or 1", "yes"),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "line", "content", "problem", "value"), BAD_LINES)
def test_a_bad_record(
    root: Path, tmp_path: Path, name: str, line: int, content: bytes, problem: str, value: str
) -> None:
    _replace_line(root / name, line, content)
    with pytest.raises(DataError) as caught:
        build_dataset(raw_config(root), tmp_path / "out")
    message = str(caught.value)
    assert message.startswith(f"{root / name}:{line}: {problem}")
    assert value in message
    assert "Fix: " in message
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]

    (tmp_path / "out").mkdir()
    rejects = prepare(raw_config(root), tmp_path / "out", skip_bad=True)
    data = PreparedData.open(tmp_path / "out")
    assert rejects.counts[problem] == 1
    assert data.manifest.rejects[problem] == 1
    logged = [
        json.loads(entry) for entry in (data.folder / "rejects.jsonl").read_text().splitlines()
    ]
    first = logged[0]
    assert (first["reason"], first["file"], first["line"]) == (problem, str(root / name), line)
    assert len(logged) == sum(rejects.counts.values())
    assert problem in rejects.summary()


@pytest.mark.long
def test_an_unknown_label_leaves_the_paper_and_its_other_labels(root: Path, tmp_path: Path) -> None:
    _replace_line(root / "papers.jsonl", 3, _paper(labels=["l9", "l4"]))
    data, rejects = build_dataset(raw_config(root), tmp_path / "out", skip_bad=True)
    assert sum(rejects.counts.values()) == 1
    row, label = data.texts.row("toy:p2"), data.texts.row("toy/label:l4")
    files = [*data.pairs("train"), *data.pairs("dev")]
    pairs = [
        f.positives[i].tolist()
        for f in files
        for i in (f.queries == row).nonzero()[0]
        if f.task == "classification"
    ]
    assert pairs == [[label]]


@pytest.mark.long
def test_a_query_without_a_positive(root: Path, tmp_path: Path) -> None:
    clicks = root / "clicks.tsv"
    clicks.write_text(clicks.read_text().replace("q1\tp3\t1", "q1\tp3\t0"))
    problem = "query without a positive"
    with pytest.raises(DataError, match=rf"queries\.jsonl:2: {problem}.*'toy/query:q1'.*Fix: "):
        build_dataset(raw_config(root), tmp_path / "out")
    data, rejects = build_dataset(raw_config(root), tmp_path / "out", skip_bad=True)
    assert rejects.counts == {problem: 1}
    row = data.texts.row("toy/query:q1")
    files = [*data.pairs("train"), *data.pairs("dev")]
    assert all(row not in file.queries for file in files)


@pytest.mark.parametrize("name", ["papers", "labels", "citations", "queries", "clicks"])
def test_empty_and_missing_files(root: Path, tmp_path: Path, name: str) -> None:
    (path,) = root.glob(f"{name}.*")
    path.write_bytes(b"")
    with pytest.raises(DataError, match=rf"{path.name}: file is empty.*Fix: "):
        build_dataset(raw_config(root), tmp_path / "out")
    path.unlink()
    with pytest.raises(DataError, match=rf"{path.name}: {name} file of source 'toy' does not"):
        build_dataset(raw_config(root), tmp_path / "out", skip_bad=True)
    path.with_name(f"{name}.parquet").touch()
    with pytest.raises(DataError, match=rf"Fix: name {name}\.parquet, which conversions write"):
        build_dataset(raw_config(root), tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["raw"]


def test_a_truncated_gzip(root: Path, tmp_path: Path) -> None:
    whole = gzip.compress((root / "papers.jsonl").read_bytes())
    (root / "papers.jsonl.gz").write_bytes(whole[:-30])
    config = raw_config(root)
    config.sources[0].papers = "papers.jsonl.gz"
    with pytest.raises(DataError, match=r"papers\.jsonl\.gz:\d+: compressed file is cut.*Fix: "):
        build_dataset(config, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.long
def test_a_null_abstract_is_an_empty_one_and_ids_may_be_integers(
    root: Path, tmp_path: Path
) -> None:
    labels = [{"id": number, "name": f"Label {number}"} for number in range(5)]
    write_jsonl(root / "labels.jsonl", labels)
    papers = [{**paper, "abstract": None, "labels": [1, "2"]} for paper in PAPERS]
    write_jsonl(root / "papers.jsonl", papers)
    data, rejects = build_dataset(raw_config(root), tmp_path / "out")
    assert not rejects.counts
    assert data.manifest.sources[0].counts["papers with empty abstract"] == len(PAPERS)
    named = {data.texts.row(f"toy/label:{number}") for number in (1, 2)}
    for file in (file for file in data.pairs("train") if file.task == "classification"):
        assert all(set(positives.tolist()) == named for positives in file.positives)


@pytest.mark.parametrize(
    ("content", "what", "fix"),
    [
        (gzip.compress(b"{}", mtime=0), "gzip", "in .gz"),
        (b"PAR1\x15\x04", "Parquet", "scimult prepare table"),
        (b"PK\x03\x04\x14", "ZIP", "unpack it"),
        ('{"id": 1}'.encode("utf-16"), "UTF-16", "UTF-8"),
    ],
)
@pytest.mark.parametrize("name", ["papers.jsonl", "citations.tsv"])
def test_a_file_of_another_format_is_no_bad_record(
    root: Path, tmp_path: Path, name: str, content: bytes, what: str, fix: str
) -> None:
    (root / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: file is not text but {what}.*Fix: .*{fix}"):
        build_dataset(raw_config(root), tmp_path / "out", skip_bad=True)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("papers.jsonl", "1 a b\n", "no paper is left"),
        ("citations.tsv", "citing\tcited\n", "citations: no pair is left"),
        ("citations.tsv", "citing\tcited\np1\tp1\n", "citations: no pair is left"),
    ],
)
def test_nothing_left_is_an_error_even_if_bad_records_are_skipped(
    root: Path, tmp_path: Path, name: str, content: str, problem: str
) -> None:
    (root / name).write_text(content)
    with pytest.raises(
        DataError, match=rf"{name}: {problem}.*Fix: check that it is the right"
    ) as e:
        build_dataset(raw_config(root), tmp_path / "out", skip_bad=True)
    has_bad_line = content != "citing\tcited\n"
    assert (f"; left out: 1 as in {root / name}:" in str(e.value)) == has_bad_line
    assert ("run without --skip-bad" in str(e.value)) == has_bad_line
    assert str(e.value).count("Fix: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_pairs_that_are_all_dropped_are_counted(root: Path, tmp_path: Path) -> None:
    (root / "citations.tsv").write_text("citing\tcited\np1\tx\np2\ty\n")
    config = raw_config(root)
    (source,) = config.sources
    dropping = source.model_copy(update={"dangling": {"citations": "drop"}})
    config = config.model_copy(update={"sources": [dropping]})
    with pytest.raises(
        DataError, match="dropped for a paper without a text: 2. .*ids are those of the"
    ):
        build_dataset(config, tmp_path / "out")


@pytest.mark.long
def test_a_split_that_leaves_nothing_to_train_on_is_told(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    early, late = ({"by": "year", "dev_from_year": year} for year in (1990, 2010))
    config = raw_config(root).model_dump(exclude_unset=True, exclude={"dev_fraction"})
    for number, (split, told) in enumerate(((late, 0), (early, 3))):
        caplog.clear()
        build_dataset(validate(DatasetConfig, config | {"split": split}), tmp_path / f"{number}")
        texts = [record.message for record in caplog.records if "training pair" in record.message]
        assert len(texts) == told
        assert all("split.by year from 1990 leaves no training pair" in text for text in texts)


def test_a_source_whose_papers_have_no_labels(root: Path, tmp_path: Path) -> None:
    write_jsonl(root / "papers.jsonl", [{**paper, "labels": []} for paper in PAPERS])
    with pytest.raises(DataError, match=r"papers\.jsonl: no paper has a defined label.*Fix: "):
        build_dataset(raw_config(root), tmp_path / "out")


def test_labels_that_are_all_undefined_are_named(root: Path, tmp_path: Path) -> None:
    write_jsonl(root / "labels.jsonl", [{"id": "other", "name": "Other"}])
    with pytest.raises(DataError, match=r"no paper has a defined label; left out: .*'l0'.*Fix: ch"):
        build_dataset(raw_config(root), tmp_path / "out", skip_bad=True)


CONTRADICTIONS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda s: s.pop("clicks"), "queries need exactly one of positives, judgments, clicks; f"),
    (lambda s: s.update(positives="x.tsv"), "found positives and clicks"),
    (lambda s: s.pop("queries"), "clicks need queries"),
    (lambda s: s.update(score_threshold=2), "score_threshold needs judgments"),
    (lambda s: (s.pop("papers"), s.pop("labels")), "no source gives papers for the namespace"),
    (lambda s: s.pop("papers"), "labels need papers"),
    (lambda s: (s.pop("labels"), s.update(tasks={"labels": "classification"})), "has no labels"),
    (lambda s: s.update(name="a/b"), r"sources\.0\.name"),
    (lambda s: s.update(paper="x"), "did you mean 'papers'"),
    (lambda s: [s.pop(k) for k in list(s) if k not in ("name", "papers")], "nothing to train on"),
]


@pytest.mark.parametrize(("change", "message"), CONTRADICTIONS)
def test_contradictions_fail_before_any_file_is_read(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    source = raw_config(tmp_path / "nowhere").sources[0].model_dump(exclude_unset=True)
    change(source)
    with pytest.raises(ConfigError, match=message):
        raw_config(tmp_path / "nowhere", sources=[source])


def test_two_sources_of_one_name(tmp_path: Path) -> None:
    source = raw_config(tmp_path).sources[0].model_dump(exclude_unset=True)
    with pytest.raises(ConfigError, match="sources need distinct names"):
        raw_config(tmp_path, sources=[source, source])


@pytest.mark.long
def test_tasks_of_the_configuration(root: Path, tmp_path: Path) -> None:
    source = raw_config(root).sources[0].model_dump(exclude_unset=True)
    source["tasks"] = {"citations": "co_citation"}
    with pytest.raises(UnknownNameError, match=r"'co_citation'.*classification, link_prediction"):
        build_dataset(raw_config(root, sources=[source]), tmp_path / "out")
    own = {"name": "co_citation", "query_kind": "query"}
    with pytest.raises(ConfigError, match=r"citations pair a paper with a paper.*Fix: set query"):
        build_dataset(raw_config(root, sources=[source], tasks=[own]), tmp_path / "out")
    own["query_kind"] = "paper"
    data = build_dataset(raw_config(root, sources=[source], tasks=[own]), tmp_path / "out")[0]
    assert {file.task for file in data.pairs("train")} == {
        "classification",
        "co_citation",
        "search",
    }
    assert own["name"] in [task.name for task in data.manifest.tasks]


def test_an_unset_variable_in_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unset environment variable.*NO_SUCH_PLACE.*--root"):
        build_dataset(raw_config(Path("$NO_SUCH_PLACE/x")), tmp_path / "out")


def test_an_unknown_key_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("sources: [{name: a, papers: p, citation: c}]\n")
    with pytest.raises(ConfigError, match=r"c\.yaml: .*\n.*citation: unknown key.*'citations'"):
        load_config(DatasetConfig, tmp_path / "c.yaml")


def _disk_full_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Simulate a full disk for the file ``name``."""
    real = pa.ipc.new_file

    def new_file(path: str, schema: pa.Schema) -> Any:
        if re.search(name, path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, schema)

    monkeypatch.setattr(pa.ipc, "new_file", new_file)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [r"texts\.arrow", r"metadata\.arrow", r"shown\.arrow", r"search\.dev", r"\.dev.*\.tmp"]
)
def test_a_full_disk_leaves_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _disk_full_at(monkeypatch, name)
    with pytest.raises(StorageError, match="cannot write: No space left on device.*Fix: free disk"):
        build_dataset(raw_config(root), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.long
def test_a_full_disk_keeps_the_folder_that_was_there(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minilm: Path
) -> None:
    data = build_dataset(raw_config(root), tmp_path / "out")[0]
    before = contents(data.folder)
    _disk_full_at(monkeypatch, r"search\.dev")
    with pytest.raises(StorageError, match="No space left"):
        build_dataset(raw_config(root, seed=3), data.folder)
    with pytest.raises(StorageError, match="No space left"):
        mine_again(data.folder, MiningConfig(max_negatives=1))
    monkeypatch.setattr(TextTokenizer, "encode", _no_space)
    with pytest.raises(StorageError, match="No space left"):
        PreparedData.open(data.folder).tokens(TextTokenizer.from_folder(minilm))
    assert contents(data.folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("p1\tp1\t1", "paper is linked to itself (value: 'p1')"),
        ("p1\tp99\t1", "column 'paper-id' names an unknown paper (value: 'p99')"),
        ("p99\tp1\t1", "column 'query-id' names an unknown paper (value: 'p99')"),
        ("p1\tp2\tgood", "field 'score' is not a finite number (value: 'good')"),
        ("p1\tp2\t1\tp99", "column 'negative-id' names an unknown paper (value: 'p99')"),
        (
            "p1\tp2\t0\tp3",
            "column 'negative-id' is set for a pair below the threshold (value: 'p3')",
        ),
        ("p1\tp2\t1\tp2", "hard negative is the query or the answer (value: 'p2')"),
        ("p1\tp2\t1\tp1", "hard negative is the query or the answer (value: 'p1')"),
    ],
)
def test_bad_links_and_hard_negatives(root: Path, tmp_path: Path, line: str, problem: str) -> None:
    good = ["query-id\tpaper-id\tscore", "p1\tp2\t1"]
    if line.count("\t") == 3:
        good = [f"{good[0]}\tnegative-id", f"{good[1]}\t"]
    (root / "links.tsv").write_text("\n".join([*good, line, ""]))
    source = {"name": "judged", "papers": "papers.jsonl", "links": "links.tsv"}
    with pytest.raises(DataError) as caught:
        build_dataset(raw_config(root, sources=[source]), tmp_path / "out")
    assert f"links.tsv:3: {problem}" in str(caught.value)


def test_two_parts_of_a_source_cannot_train_one_task(root: Path) -> None:
    source = {"name": "x", "papers": "papers.jsonl", "links": "l.tsv", "citations": "c.tsv"}
    with pytest.raises(ConfigError, match="need different tasks"):
        raw_config(root, sources=[source])
