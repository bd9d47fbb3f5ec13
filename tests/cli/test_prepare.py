"""``scimult prepare`` and ``scimult mine`` from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scimult.cli.prepare import _with_decontamination
from scimult.config import apply_overrides
from scimult.data.manifest import PairEntry
from scimult.data.prepared import PREPARED, PreparedData
from scimult.files import atomic_folder
from scimult.preparation.sources import SOURCES
from tests.command import invoke
from tests.public import write_files
from tests.raw_corpus import raw_config, write_jsonl, write_raw
from tests.tiny import save_tiny_model


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tree = raw_config(write_raw(tmp_path / "raw")).model_dump(mode="json", exclude_unset=True)
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump({**tree, "root": "."}))
    return path


def _run(*arguments: object) -> tuple[int, str]:
    result = invoke(*arguments)
    return result.exit_code, result.output


@pytest.mark.long
def test_prepare_then_mine(config: Path, tmp_path: Path, minilm: Path) -> None:
    out = tmp_path / "out"
    paths = ("--config", config, "--out", out, "--root", tmp_path / "raw")
    code, output = _run(
        "prepare", *paths, "--tokenizer", minilm, "seed=3", "mining.max_negatives=2"
    )
    assert code == 0, output
    assert "papers: 20" in output
    data = PreparedData.open(out)
    assert data.manifest.config["seed"] == 3
    assert max(file.negatives.lengths.max() for file in data.pairs("train")) == 2
    assert len(list((out / "tokens").iterdir())) == 1

    code, output = _run("mine", out, "max_negatives=1")
    assert code == 0, output
    after = PreparedData.open(out)
    assert max(file.negatives.lengths.max() for file in after.pairs("train")) == 1
    assert after.manifest.mining == {**data.manifest.mining, "max_negatives": 1}

    rules = tmp_path / "rules.yaml"
    model = str(save_tiny_model(tmp_path / "model", similarity="cosine"))
    dense = {"rule": "dense", "model": model, "ranks": [0, 5]}
    rules.write_text(yaml.safe_dump({"citations": [dense, {"rule": "bm25", "count": 1}]}))
    code, output = _run("mine", out, "--config", rules, "max_negatives=3")
    assert code == 0, output
    mined = PreparedData.open(out)
    (entry,) = [
        entry
        for entry in mined.manifest.pairs
        if (entry.part, entry.split) == ("citations", "train")
    ]
    assert list(entry.found) == ["dense", "bm25"]
    assert min(entry.found.values()) > 0
    assert mined.manifest.mining["citations"][0]["model"] == model


@pytest.mark.long
def test_a_bad_record_is_one_line_and_exit_code_1_or_is_skipped(
    config: Path, tmp_path: Path
) -> None:
    with (tmp_path / "raw" / "citations.tsv").open("a") as file:
        file.write("p1\tp99\n")
    paths = ("prepare", "--config", config, "--out", tmp_path / "out", "--root", tmp_path / "raw")
    code, output = _run(*paths)
    assert code == 1
    assert output.startswith("error: ")
    assert "citations.tsv:" in output
    assert not (tmp_path / "out").exists()
    code, output = _run(*paths, "--skip-bad")
    assert code == 0, output
    assert "left out 1: column 'cited' names an unknown paper" in output


@pytest.mark.long
def test_a_root_that_yaml_would_cut(config: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").rename(tmp_path / "raw #1: new")
    out = tmp_path / "out"
    code, output = _run(
        "prepare", "--config", config, "--out", out, "--root", tmp_path / "raw #1: new"
    )
    assert code == 0, output
    folder = tmp_path / "sets #1"
    added = _with_decontamination([], folder)
    assert apply_overrides({}, added)["hygiene"] == {
        "evaluation": str(folder),
        "decontaminate": ["query"],
    }


@pytest.mark.long
@pytest.mark.parametrize("override", ["max_negative=1", "max_negatives=0", "max_negatives"])
def test_mine_refuses_invalid_settings(config: Path, tmp_path: Path, override: str) -> None:
    paths = ("--config", config, "--out", tmp_path / "out", "--root", tmp_path / "raw")
    assert _run("prepare", *paths)[0] == 0
    before = PreparedData.open(tmp_path / "out").fingerprint
    code, output = _run("mine", tmp_path / "out", override)
    assert code == 1
    assert output.startswith("error: ")
    (tmp_path / "empty.yaml").touch()
    code, output = _run("mine", tmp_path / "out", "--config", tmp_path / "empty.yaml")
    assert (code, "empty.yaml: no mining settings" in output) == (1, True)
    assert PreparedData.open(tmp_path / "out").fingerprint == before


@pytest.mark.long
def test_a_public_source_is_converted_and_prepared(tmp_path: Path) -> None:
    rows = [["cats?", "Cats are.", "Dogs are."], ["dogs?", "Dogs are.", "Cats are."]]
    write_files(tmp_path / "in", {"train.jsonl": rows})
    paths = ("--input", tmp_path / "in", "--raw", tmp_path / "raw")
    code, output = _run("prepare", "sentence-triples", *paths, "name=pets")
    assert code == 0, output
    assert "papers: 2; queries: 2" in output
    assert not (tmp_path / "out").exists()
    options = ("name=pets", "prepare.dev_fraction=0", "prepare.mining.max_negatives=1")
    code, output = _run("prepare", "sentence-triples", *paths, "--out", tmp_path / "out", *options)
    assert code == 0, output
    (file,) = PreparedData.open(tmp_path / "out").pairs("train")
    assert (file.source, file.task, len(file)) == ("pets", "search", 2)
    assert file.negatives.lengths.tolist() == [1, 1]
    licence = PreparedData.open(tmp_path / "out").manifest.config["sources"][0]["licence"]
    assert licence == SOURCES["sentence-triples"].licence
    again = ("--config", tmp_path / "raw" / "sources.yaml", "--out", tmp_path / "again")
    assert _run("prepare", *again)[0] == 0


def test_a_public_source_without_evaluation_texts(tmp_path: Path) -> None:
    rows = [["what purrs?", "Cats are.", "Dogs are."], ["dogs?", "Dogs are.", "Cats are."]]
    write_files(tmp_path / "in", {"train.jsonl": rows})
    write_jsonl(tmp_path / "eval/set/corpus.jsonl", [{"_id": "1", "title": "", "text": "A cat."}])
    write_jsonl(tmp_path / "eval/set/queries.jsonl", [{"_id": "q", "text": "What purrs"}])
    paths = ("--input", tmp_path / "in", "--out", tmp_path / "out")
    arguments = ("sentence-triples", *paths, "prepare.dev_fraction=0", "--decontaminate")
    code, output = _run("prepare", *arguments, tmp_path / "eval")
    assert code == 0, output
    data = PreparedData.open(tmp_path / "out")
    (file,) = data.pairs("train")
    assert [data.texts.text(row).title for row in file.queries] == ["dogs?"]
    assert (tmp_path / ".out.steps" / "clean").is_dir()
    code, output = _run("prepare", *arguments, tmp_path / "nowhere")
    assert code == 1
    assert "folder of evaluation sets does not exist" in output


def test_papers_without_pairs_are_only_converted(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"p.csv": "id,title,abstract,terms\n1,A,Text.,x\n"})
    paths = ("prepare", "table", "--input", tmp_path / "in", "papers.file=p.csv")
    code, output = _run(*paths, "--out", tmp_path / "out")
    assert code == 1
    assert "papers without labels, citations, links or queries" in output
    assert "p.csv: columns not read: terms" in output
    assert f"--raw {tmp_path / 'out.raw'} without --out" in output
    assert not (tmp_path / "out.raw").exists()
    write_files(tmp_path / "in", {"l.csv": "id,name\nx,\n"})
    options = ("papers.columns.labels=terms", "labels.file=l.csv", "--skip-bad")
    code, output = _run(*paths, "--out", tmp_path / "out", *options)
    assert code == 1
    assert f"left out: 1 as in {tmp_path / 'in' / 'l.csv'}:2: name of the label is empty" in output
    view = "{source: table, view: title_to_abstract, task: search}"
    assert f"'prepare.self_supervision=[{view}]'" in output
    by_itself = f"prepare.self_supervision=[{view[:-1]}, min_words: 1}}]"
    code, output = _run(*paths, "--out", tmp_path / "out", by_itself)
    assert code == 0, output
    assert [len(file) for file in PreparedData.open(tmp_path / "out").pairs("train")] == [1]
    code, output = _run(*paths, "--raw", tmp_path / "out.raw")
    assert code == 0, output
    assert "table: p.csv: columns not read: terms" in output
    assert (tmp_path / "out.raw" / "table" / "papers.parquet").is_file()


@pytest.mark.long
def test_all_removes_the_cap_of_labels(config: Path, tmp_path: Path) -> None:
    paths = ("prepare", "--config", config, "--root", tmp_path / "raw", "--out", tmp_path / "out")
    assert _run(*paths, "max_pairs_per_label=2")[0] == 0
    (capped,) = _labelled(PreparedData.open(tmp_path / "out"))
    code, output = _run(*paths, "max_pairs_per_label=all")
    assert code == 0, output
    (whole,) = _labelled(PreparedData.open(tmp_path / "out"))
    assert capped.unsampled > 0 == whole.unsampled


def _labelled(data: PreparedData) -> list[PairEntry]:
    return [e for e in data.manifest.pairs if (e.part, e.split) == ("labels", "train")]


def test_the_list_names_every_source() -> None:
    code, output = _run("prepare", "--list")
    assert code == 0
    assert all(f"{name}: {SOURCES[name].title}" in output for name in SOURCES)


@pytest.mark.long
def test_the_list_loads_nothing_heavy_and_a_conversion_no_torch(tmp_path: Path) -> None:
    write_files(tmp_path, {"p.csv": "id,title,abstract\n1,A,Text.\n"})
    words = [["--list"], ["table", "--input", f"{tmp_path}", "--raw", f"{tmp_path / 'raw'}"]]
    code = (
        "import sys; from scimult.cli.main import app\n"
        f"for words in {[words[0], [*words[1], 'papers.file=p.csv']]}:\n"
        "    app(['prepare', *words], standalone_mode=False); print('modules:', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed, converted = (line.split() for line in done.stdout.splitlines() if "modules:" in line)
    heavy = {"torch", "transformers", "deepspeed", "datasets", "pyarrow", "duckdb", "scipy"}
    assert heavy & set(listed) == set()
    assert heavy & set(converted) <= {"pyarrow", "duckdb"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("mapel", "--out", "x"), "did you mean 'maple'"),
        (("mapel",), "did you mean 'maple'"),
        (("maple",), "a source needs --raw or --out"),
        (("maple", "--out", "x", "--config", "y"), "takes neither --config nor --root"),
        (("maple", "--out", "x", "folder=[Art]"), "unknown key (did you mean 'folders'?)"),
        (("maple", "--out", "x", "--input", "none"), "does not exist"),
        (("maple", "--out", "x", "prepare.sed=1"), "unknown key (did you mean 'seed'?)"),
        (
            ("table", "--out", "x", "papers.file=p.csv", "prepare.max_pairs_per_label=3"),
            "table has its own max_pairs_per_label",
        ),
        (("--out", "x", "--raw", "y"), "need a source"),
        (("maple", "--raw", "x", "--decontaminate", "y"), "--decontaminate needs --out"),
        (
            ("maple", "--out", "x", "split.by=paper", "seed=1"),
            "not an option of maple, but of the preparation (value: 'split.by'). "
            "Fix: write prepare.split.by=...",
        ),
        (("maple", "--out", "x", "--raw", "x"), "--raw and --out are one folder"),
        (("maple", "--out", "x", "--raw", "x/raw"), "x/raw: --raw and --out are one folder"),
        (("maple", "--out", "x/y", "--raw", "x"), "Fix: choose folders next to each other"),
        (("--out", "x"), "--config and --out are needed"),
    ],
)
def test_contradictory_arguments(arguments: tuple[str, ...], problem: str) -> None:
    code, output = _run("prepare", *arguments)
    assert code == 1
    assert output.startswith("error: ")
    assert problem in output


def test_rejects_of_a_conversion_are_counted_and_named(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"train.jsonl": [["cats?", "Cats are."], ["alone"]]})
    paths = ("sentence-triples", "--input", tmp_path / "in", "--out", tmp_path / "out")
    code, output = _run("prepare", *paths)
    assert code == 1
    assert "train.jsonl:2" in output
    assert not (tmp_path / "out.raw").exists()
    code, output = _run("prepare", *paths, "--skip-bad")
    assert code == 0, output
    assert "left out 1: row needs one anchor and at least one positive" in output


@pytest.mark.long
def test_decontaminate_and_kept_steps(config: Path, tmp_path: Path) -> None:
    title = "A title of twenty letters and more"
    papers = tmp_path / "raw" / "papers.jsonl"
    papers.write_text(papers.read_text().replace("Paper number 4", title))
    write_jsonl(tmp_path / "eval" / "set" / "papers.jsonl", [{"id": "x", "title": title}])
    paths = ("prepare", "--config", config, "--out", tmp_path / "out", "--root", tmp_path / "raw")
    code, output = _run(*paths)
    assert code == 0, output
    code, output = _run(*paths, "--decontaminate", tmp_path / "eval")
    assert code == 0, output
    texts = PreparedData.open(tmp_path / "out").manifest.hygiene.texts
    assert texts["kept"] == texts["read"] - 1
    assert (
        f"cleaned: {texts['kept']} of {texts['read']} texts kept (scimult card {tmp_path}" in output
    )
    assert code == 0, output
    assert f"read: inputs unchanged, kept from {tmp_path / '.out.steps' / 'read'}" in output
    assert "toy:p4" not in PreparedData.open(tmp_path / "out").texts.ids
    code, output = _run(*paths, "--decontaminate", tmp_path / "eval", "hygiene.decontaminate=[]")
    assert code == 0, output
    data = PreparedData.open(tmp_path / "out")
    assert "toy:p4" in data.texts.ids
    assert data.manifest.hygiene.overlap[0].found["query"] == 1
    whole_section = "hygiene={duplicates: merge}"
    code, output = _run(*paths, "--decontaminate", tmp_path / "eval", whole_section)
    assert code == 0, output
    assert "toy:p4" not in PreparedData.open(tmp_path / "out").texts.ids
    code, output = _run(*paths, "--decontaminate", tmp_path / "nowhere")
    assert code == 1
    assert "folder of evaluation sets does not exist" in output


def test_two_preparations_of_one_folder(config: Path, tmp_path: Path) -> None:
    """The second names the process at work and leaves the first alone."""
    out = tmp_path / "two"
    with atomic_folder(out, PREPARED):
        code, output = _run("prepare", "--config", config, "--out", out, "--root", tmp_path / "raw")
    assert code == 1
    assert f"{out}: another process is writing here (process {os.getpid()} on " in output
    assert "wait until it is done" in output


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_prepare_replaces_nothing_else(config: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "two"
    if kind == "folder":
        out.mkdir()
        (out / "manifest.json").write_text("{}", encoding="utf-8")
    elif kind == "pipe":
        os.mkfifo(out)
    else:
        out.symlink_to(tmp_path / "raw")
    before = _identity(out)
    code, output = _run("prepare", "--config", config, "--out", out, "--root", tmp_path / "raw")
    assert code == 1
    assert output.startswith(f"error: {out}: ")
    assert output.count("Fix: ") == 1
    assert _identity(out) == before


def _identity(path: Path) -> tuple[int, ...]:
    """Return a file's identity, without the times, which reading changes."""
    stat = path.lstat()
    return stat.st_dev, stat.st_ino, stat.st_mode, stat.st_mtime_ns
