"""``scimult tagger``, as a cataloguer calls it."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from scimult.tagging import SuggestedTag, Tagger
from scimult.tagging.reading import write_vocabulary
from scimult.tagging.writing import write_tags
from scimult.types import Text
from scimult.unfinished import unfinished
from tests.command import invoke
from tests.raw_corpus import write_jsonl
from tests.tagging.made_up import VOCABULARY, papers
from tests.tiny import save_tiny_model

GIVEN = ("--vocabulary", "terms.jsonl", "--model")
ABSENT = ("--vocabulary", "no.csv", "--model")


def call(verb: str, *arguments: object) -> Any:
    return invoke("tagger", verb, *arguments)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a vocabulary, papers, and a tagger that the verb trained."""
    folder = tmp_path_factory.mktemp("cataloguing")
    save_tiny_model(folder / "model", similarity="cosine")
    write_vocabulary(folder / "terms.jsonl", VOCABULARY)
    write_jsonl(folder / "tagged.jsonl", papers(250))
    write_jsonl(folder / "new.jsonl", papers(60, seed=3))
    done = call("train", *train_options(folder))
    assert done.exit_code == 0, done.output
    assert "expected calibration error" in done.output
    assert not (folder / ".tagger.unfinished").exists()
    return folder


def train_options(folder: Path, papers: str = "tagged.jsonl") -> list[object]:
    files = ("--vocabulary", folder / "terms.jsonl", "--papers", folder / papers)
    return [folder / "tagger", "--model", folder / "model", "--dtype", "float32", *files]


def test_written_tags_equal_those_of_python(workspace: Path, tmp_path: Path) -> None:
    expected = Tagger.open(workspace / "tagger").tag(papers(60, seed=3), k=3)
    for name in ("o.jsonl", "o.csv", "o.trec"):
        options = ("--papers", workspace / "new.jsonl", "--out", tmp_path / name, "--top", 3)
        done = call("tag", workspace / "tagger", *options, "--evidence")
        assert done.exit_code == 0, done.output
        assert done.stdout == f"{tmp_path / name}: 180 tags for 60 papers\n"
    ids = [paper["id"] for paper in papers(60, seed=3)]
    pairs = [(name, rank, tag) for name, tags in zip(ids, expected, strict=True)
             for rank, tag in enumerate(tags, 1)]  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").open()]
    assert [row["id"] for row in lines] == ids
    assert lines[0]["tags"] == [
        {"id": t.id, "label": t.label, "score": round(t.score, 6), "evidence": t.evidence}
        for t in expected[0]
    ]
    table = list(csv.DictReader((tmp_path / "o.csv").open(newline="")))
    assert [(r["paper"], int(r["rank"]), r["tag"], r["label"], r["evidence"]) for r in table] == [
        (name, rank, tag.id, tag.label, tag.evidence) for name, rank, tag in pairs
    ]
    run = [line.split() for line in (tmp_path / "o.trec").read_text().splitlines()]
    assert [(r[0], r[1], r[2], int(r[3]), r[5]) for r in run] == [
        (name, "Q0", tag.id, rank, "scimult") for name, rank, tag in pairs
    ]
    assert not list(tmp_path.glob(".*"))


def test_a_table_json_and_exclusions(workspace: Path, tmp_path: Path) -> None:
    one = write_jsonl(
        tmp_path / "one.jsonl", [{"id": "x", "title": "On plasma", "abstract": "A vision."}]
    )
    shown = call("tag", workspace / "tagger", "--papers", one, "--evidence", "--threshold", 0.2)
    assert shown.exit_code == 0, shown.output
    assert "Plasma" in shown.output
    assert "A vision." in shown.output
    left = call("tag", workspace / "tagger", "--papers", one, "--json", "--exclude", "plasma")
    (row,) = map(json.loads, left.stdout.splitlines())
    assert len(row["tags"]) == 5
    assert "c/plasma" not in [tag["id"] for tag in row["tags"]]
    # All that meet a threshold, unless --top is given too.
    for limits, wanted in (
        (["--threshold", 0], len(VOCABULARY)),
        (["--threshold", 0, "--top", 7], 7),
    ):
        found = call("tag", workspace / "tagger", "--papers", one, "--json", *limits)
        assert len(json.loads(found.stdout)["tags"]) == wanted
    lines = shown.stdout.splitlines()
    assert sum("On plasma" in line for line in lines) == 1  # beside its first tag alone
    assert "On plasma" in next(line for line in lines if "Plasma" in line)


def test_papers_without_a_tag_are_counted(workspace: Path) -> None:
    options = ("--papers", workspace / "new.jsonl", "--threshold", 1)
    shown = call("tag", workspace / "tagger", *options)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == ""
    assert shown.stderr == "no tag reaches the threshold for 60 of 60 papers\n"


@pytest.mark.parametrize("verb", ["tag", "evaluate"])
def test_a_file_that_a_pattern_matches_is_not_overwritten(
    workspace: Path, tmp_path: Path, verb: str
) -> None:
    out = write_jsonl(tmp_path / "new.jsonl", papers(5))
    pattern = tmp_path / "n*.jsonl"
    options = (workspace / "tagger", "--papers", pattern, "--overwrite", "--out")
    refused = call(verb, *options, out)
    assert "output is also an input" in refused.output
    other = write_jsonl(tmp_path / "other.jsonl", [])
    done = call(verb, *options, other)
    assert done.exit_code == 0, done.output
    assert other.stat().st_size


def test_evaluate_measures_the_requested_precision(workspace: Path, tmp_path: Path) -> None:
    options = (
        "--papers",
        workspace / "new.jsonl",
        "--precision",
        0.5,
        "--out",
        tmp_path / "e.json",
    )
    done = call("evaluate", workspace / "tagger", *options)
    assert done.exit_code == 0, done.output
    facts = json.loads((tmp_path / "e.json").read_text())
    assert facts["at_precision"]["measured"] >= 0.5
    assert facts["seen"]["ndcg@10"] > 0.7
    assert facts["seen"]["papers"] == sum(bool(paper["labels"]) for paper in papers(60, seed=3))
    assert facts["unseen"]["papers"] == 0
    assert 0 <= facts["expected_calibration_error"] < 0.2
    assert f"{facts['all']['f1@5']:.4f}" in done.stdout
    at = facts["at_precision"]
    line = f"target precision 0.5: {at['measured']:.4f}, {at['tags_per_paper']:.2f} tags per paper"
    assert f"{line}, {at['share_of_gold']:.1%} of the gold tags" in done.stdout


def test_a_killed_tagging_resumes_from_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scimult.tagging.writing.PART", 2)
    some = [(str(number), Text("paper", f"Title {number}")) for number in range(5)]
    tagged: list[str] = []

    def tag(texts: list[Text], fails_at: int = 99) -> Sequence[Sequence[SuggestedTag]]:
        if len(tagged) >= fails_at:
            raise KeyboardInterrupt
        tagged.extend(text.title for text in texts)
        return [[SuggestedTag("a", "A", 0.5)] for _ in texts]

    out = tmp_path / "o.csv"
    with pytest.raises(KeyboardInterrupt):
        write_tags(out, some, lambda texts: tag(texts, fails_at=4), {"k": 1})
    assert not out.exists()
    assert write_tags(out, some, tag, {"k": 1}) == (5, 5)
    assert tagged == [f"Title {number}" for number in range(5)]  # none twice
    whole = out.read_bytes()
    assert write_tags(tmp_path / "p.csv", some, tag, {"k": 1}) == (5, 5)
    assert (tmp_path / "p.csv").read_bytes() == whole
    # Parts written with other settings are not reused.
    with pytest.raises(KeyboardInterrupt):
        write_tags(out, some, lambda texts: tag(texts, fails_at=12), {"k": 1})
    before = len(tagged)
    write_tags(out, some, tag, {"k": 2})
    assert len(tagged) == before + 5


def test_parts_of_a_tagger_that_is_replaced_while_it_is_opened_are_not_the_new_ones(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, newer, out = tmp_path / "tagger", tmp_path / "newer", tmp_path / "o.jsonl"
    shutil.copytree(workspace / "tagger", folder)
    write_jsonl(tmp_path / "others.jsonl", papers(200, seed=9))
    options = train_options(workspace, str(tmp_path / "others.jsonl"))[1:]
    assert call("train", newer, *options).exit_code == 0
    tagging = ("tag", "--papers", workspace / "new.jsonl")
    assert call(*tagging, newer, "--out", tmp_path / "wanted.jsonl").exit_code == 0
    opens = Tagger.open

    def replaced(path: Path, **options: Any) -> Tagger:
        opened = opens(path, **options)
        shutil.rmtree(folder)
        newer.rename(folder)
        return opened

    with monkeypatch.context() as patched:
        patched.setattr(Tagger, "open", replaced)
        patched.setattr("scimult.tagging.writing.atomic_file", Mock(side_effect=KeyboardInterrupt))
        assert call(*tagging, folder, "--out", out).exit_code != 0
    assert call(*tagging, folder, "--out", out).exit_code == 0
    assert out.read_bytes() == (tmp_path / "wanted.jsonl").read_bytes()


def test_a_killed_training_encodes_no_paper_twice(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scimult.tagging import training

    options = [tmp_path / "tagger", *train_options(workspace)[1:]]
    with monkeypatch.context() as patch:
        patch.setattr(training, "learn", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert call("train", *options).exit_code != 0
    assert (tmp_path / ".tagger.unfinished").is_dir()
    from scimult.retrieval.store import StoringEncoder

    added: list[int] = []
    real = StoringEncoder._add

    def counted(self: Any, part: Any, missing: Any, *rest: Any) -> None:
        added.append(len(missing))
        real(self, part, missing, *rest)

    monkeypatch.setattr(StoringEncoder, "_add", counted)
    done = call("train", *options)
    assert done.exit_code == 0, done.output
    assert added == [0]
    assert not (tmp_path / ".tagger.unfinished").exists()
    kept, again = (Tagger.open(folder / "tagger").facts for folder in (workspace, tmp_path))
    assert kept == again


def test_a_second_writer_is_refused_at_once_and_at_the_end(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [tmp_path / "tagger", *train_options(workspace)[1:]]
    out = tmp_path / "o.jsonl"
    tagging = ("tag", workspace / "tagger", "--papers", workspace / "new.jsonl", "--out", out)
    for name, again in ((tmp_path / "tagger", ("train", *options)), (out, tagging)):
        with unfinished(name):
            refused = call(*again)
        assert refused.exit_code == 1
        assert f"{name}: another process is writing here" in refused.stderr
        assert not name.exists()
        assert not list(tmp_path.glob(".*"))
    from scimult.tagging import tagger

    real = tagger.save_state

    def late(folder: Path, state: Any) -> None:
        real(folder, state)
        shutil.copytree(workspace / "tagger", tmp_path / "tagger")

    monkeypatch.setattr(tagger, "save_state", late)
    before = (workspace / "tagger" / "tagger.json").read_bytes()
    refused = call("train", *options, "--hierarchy", "closed")
    assert "output exists already" in refused.stderr
    assert (tmp_path / "tagger" / "tagger.json").read_bytes() == before


def test_what_a_kill_in_the_last_step_left_is_removed(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(workspace / "tagger", tmp_path / "tagger")
    write_jsonl(tmp_path / "o.jsonl", [])
    train = ("train", "tagger", *train_options(workspace)[1:])
    options = ("--papers", workspace / "new.jsonl", "--out", "o.jsonl")
    for name, again in (("tagger", train), ("o.jsonl", ("tag", "tagger", *options))):
        lock, store = Path(f".{name}.lock"), Path(f".{name}.unfinished")
        lock.touch()
        store.mkdir()
        part = write_jsonl(store / "part.jsonl", [])
        assert "output exists already" in call(*again).stderr
        assert part.exists()  # newer than the output: progress of one that replaces it
        assert not lock.exists()
        os.utime(part, (0, 0))
        with unfinished(Path(name)):
            os.utime(part, (0, 0))
            assert "output exists already" in call(*again).stderr
            assert part.exists()  # a living process holds it
            part.touch()
        store.mkdir()
        os.utime(write_jsonl(store / "part.jsonl", []), (0, 0))
        assert "output exists already" in call(*again).stderr
        assert not list(Path().glob(".*"))


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("train", ["T", *GIVEN, "model"], "--overwrite to replace this one"),
        ("train", ["n", *ABSENT, "model"], "no.csv: file does not exist"),
        ("train", ["n", *ABSENT, "model", "--column", "label=x"], "--column can only be used with"),
        ("train", ["n", *GIVEN, "no"], "folder does not exist"),
        ("tag", ["T", "--papers", "no.jsonl"], "no.jsonl: file does not exist"),
        ("tag", ["T", "--papers", "new.jsonl", "--out", "o.doc"], "not a format of tags"),
        ("tag", ["T", "--papers", "new.jsonl", "--precision", "0.999"], "no threshold guarantees"),
        # Before anything is opened.
        ("tag", ["no", "--papers", "new.jsonl", "--threshold", "nan"], "not between 0 and 1"),
        ("tag", ["no", "--papers", "new.jsonl", "--precision", "1.99"], "not between 0 and 1"),
        ("evaluate", ["no", "--papers", "new.jsonl", "--precision", "80"], "not between 0 and 1"),
        ("tag", ["T", "--papers", "new.jsonl", "--out", "new.jsonl"], "output is also an input"),
        ("tag", ["model", "--papers", "new.jsonl"], "model: not a tagger"),
        ("evaluate", ["T", "--papers", "new.jsonl", "--column", "labels"], "a column is"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, verb: str, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(workspace)
    done = call(verb, *(name if name != "T" else "tagger" for name in arguments))
    assert done.exit_code == 1, done.output
    assert message in done.stderr
    assert done.stderr.count("Fix:") == 1
    assert done.stderr.count("\n") == 1
