"""Steps run once, and again only if inputs or files changed; interrupted runs resume."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from scimult.config import validate
from scimult.data import token_store
from scimult.data.pairs import SPLITS
from scimult.data.prepared import PreparedData
from scimult.data.text_store import TextStore
from scimult.data.token_store import TEXTS_PER_CHUNK, TokenStore, TokenWriter, build_token_store
from scimult.data.tokenization import TextTokenizer
from scimult.errors import DataError
from scimult.files import read_json
from scimult.locks import OLD, UNFINISHED, temporary_name
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.steps import Steps
from scimult.types import Text
from tests.prepared_folders import citations, contents, write_texts
from tests.raw_corpus import PAPERS, raw_config, write_jsonl, write_raw, write_tsv


def test_a_step_is_made_again_when_inputs_or_its_files_changed(tmp_path: Path) -> None:
    made: list[Any] = []
    steps = Steps(tmp_path / "steps")

    def run(inputs: dict[str, Any]) -> Path:
        def make(folder: Path) -> None:
            made.append(inputs)
            (folder / "file").write_text(str(inputs))

        return steps.run("one", inputs, make).folder

    run({"a": 1})
    folder = run({"a": 1})
    assert len(made) == 1
    run({"a": 2})
    assert (folder / "file").read_text() == "{'a': 2}"
    (folder / "file").write_text("damaged")
    run({"a": 2})
    assert made == [{"a": 1}, {"a": 2}, {"a": 2}]
    # Of processes that were killed once a step was in place, while they removed the former one.
    for ending in (OLD, UNFINISHED):
        (temporary_name(folder, ending) / "half").mkdir(parents=True)
    run({"a": 2})
    assert [path.name for path in folder.parent.iterdir()] == ["one"]
    assert len(made) == 3


_KILLED = """
import itertools, os, sys
from pathlib import Path
from scimult.preparation.dataset import build_dataset
from tests.raw_corpus import raw_config
writes, root = itertools.count(1), Path(sys.argv[1])
def die(event, arguments):
    if event in ("os.mkdir", "os.rename", "os.link", "os.remove") and str(root) in str(arguments):
        if next(writes) == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
sys.addaudithook(die)
build_dataset(raw_config(root / "raw"), root / "out", steps=root / "steps")
"""


@pytest.mark.ranks
@pytest.mark.parametrize("write", [pytest.param(20, marks=pytest.mark.slow), 60])
def test_what_a_killed_preparation_leaves_changes_nothing(
    repository: Path, tmp_path: Path, write: int
) -> None:
    config, out = raw_config(write_raw(tmp_path / "raw")), tmp_path / "out"

    build_dataset(config, out, steps=tmp_path / "elsewhere")
    expected = contents(out)
    shutil.rmtree(out)
    command = [sys.executable, "-c", _KILLED, str(tmp_path), str(write)]
    assert subprocess.run(command, cwd=repository, check=False).returncode == -9
    assert not out.exists()
    build_dataset(config, out, steps=tmp_path / "steps")
    assert contents(out) == expected
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.rglob("*.lock"))


def test_content_is_compared_where_that_is_asked_for(tmp_path: Path) -> None:
    """By default size and time decide whether a file changed; a copy has the same content."""
    file, steps = tmp_path / "input", tmp_path / "steps"
    file.write_text("one")

    def run(verify: bool) -> str:
        kept = Steps(steps, verify=verify)
        inputs = kept.checksums({"input": file})
        folder = kept.run("one", inputs, lambda f: (f / "file").write_bytes(file.read_bytes()))
        return (folder.folder / "file").read_text()

    def change(path: Path, text: str) -> None:
        status = path.stat()
        path.write_text(text)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert run(False) == "one"
    change(file, "two")
    assert run(False) == "one"
    assert run(True) == "two"
    change(steps / "one" / "file", "bad")
    assert run(False) == "bad"
    assert run(True) == "two"
    made = (steps / "one" / "step.json").stat().st_mtime_ns
    file.touch()
    assert run(False) == "two"
    assert (steps / "one" / "step.json").stat().st_mtime_ns == made
    file.write_text("longer")
    assert run(False) == "longer"


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """What was made of the new content must not be kept for the old, which may come back."""
    file, steps = tmp_path / "input", Steps(tmp_path / "steps")

    def run(changed: str) -> str:
        def make(folder: Path) -> None:
            file.write_text(changed)
            (folder / "file").write_text(changed)

        return (
            steps.run("one", steps.checksums({"input": file}), make).folder / "file"
        ).read_text()

    file.write_text("old")
    with pytest.raises(DataError, match="input: file changed while it was read.*Fix: repeat"):
        run("new")
    assert not (tmp_path / "steps" / "one").exists()
    file.write_text("old")
    assert run("old") == "old"


def test_a_copied_folder_of_steps_is_reused(tmp_path: Path) -> None:
    """Copies of files have other times; their contents are read once."""
    made: list[int] = []

    def make(folder: Path) -> None:
        made.append(1)
        (folder / "file").write_text("long work")

    Steps(tmp_path / "steps").run("one", {"a": 1}, make)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "steps", copy, copy_function=shutil.copyfile)
    os.utime(copy / "one" / "file", ns=(1, 1))
    Steps(copy).run("one", {"a": 1}, make)
    described = read_json(copy / "one" / "step.json")
    assert (made, described["files"]["file"][1]) == ([1], 1)
    (copy / "one" / "file").write_text("lost work")
    Steps(copy).run("one", {"a": 1}, make)
    assert made == [1, 1]


def test_a_step_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise DataError("no")

    with pytest.raises(DataError):
        Steps(tmp_path / "steps").run("one", {}, fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_only_changed_steps_are_repeated(
    tmp_path: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, steps = write_raw(tmp_path / "raw"), tmp_path / "steps"
    tokenizer = TextTokenizer.from_folder(minilm)
    tokenised: list[int] = []
    encode = TextTokenizer.encode
    monkeypatch.setattr(
        TextTokenizer,
        "encode",
        lambda self, texts, length: tokenised.append(len(texts)) or encode(self, texts, length),
    )

    def build(name: str, **choices: Any) -> PreparedData:
        config = raw_config(root, **choices)
        return build_dataset(config, tmp_path / name, tokenizer=tokenizer, steps=steps)[0]

    def read_at() -> int:
        return (steps / "read" / "step.json").stat().st_mtime_ns

    first, time = build("first"), read_at()
    again = build("again", dev_fraction=0.5)
    assert read_at() == time
    assert tokenised == [len(first.texts)]
    assert again.fingerprint != first.fingerprint
    assert build("capped", max_pairs_per_label=1).fingerprint != first.fingerprint
    assert read_at() == time, "the cap is drawn after reading"
    alone = build_dataset(raw_config(root, dev_fraction=0.5), tmp_path / "alone")[0]
    assert again.fingerprint == alone.fingerprint
    write_jsonl(root / "papers.jsonl", [dict(PAPERS[0], title="Changed"), *PAPERS[1:]])
    changed = build("changed")
    assert read_at() != time
    assert len(tokenised) == 2
    assert changed.tokens(tokenizer, 64).meta["texts"] == changed.texts.fingerprint
    assert PreparedData.open(tmp_path / "first").fingerprint == first.fingerprint


@pytest.mark.long
def test_moved_evaluation_sets_are_the_same_but_others_are_not(tmp_path: Path) -> None:
    root, steps = write_raw(tmp_path / "raw"), tmp_path / "steps"
    sets = tmp_path / "sets"
    write_jsonl(sets / "one" / "papers.jsonl", [PAPERS[1]])

    def build(folder: Path) -> tuple[int, dict[str, int]]:
        hygiene = {"evaluation": str(folder), "decontaminate": ["query"]}
        data = build_dataset(raw_config(root, hygiene=hygiene), tmp_path / "out", steps=steps)[0]
        cleaned = (steps / "clean" / "step.json").stat().st_mtime_ns
        return cleaned, data.manifest.hygiene.texts

    before = build(sets)
    moved = sets.rename(tmp_path / "moved")
    assert build(moved) == before
    (moved / "one").rename(moved / "two")
    renamed = build(moved)
    assert (renamed[0] != before[0], renamed[1]) == (True, before[1])
    write_jsonl(moved / "two" / "papers.jsonl", [PAPERS[2]])
    changed = build(moved)
    assert changed[0] != renamed[0]
    assert build(moved) == changed


@pytest.mark.long
def test_changed_links_and_references_are_read_again(tmp_path: Path) -> None:
    root, steps = write_raw(tmp_path / "raw"), tmp_path / "steps"
    tree = raw_config(root).model_dump(mode="json", exclude_unset=True)
    more = {"name": "more", "namespace": "toy", "links": "links.tsv", "references": "more.tsv"}
    config = validate(DatasetConfig, {**tree, "sources": [*tree["sources"], more]})

    def check(linked: str, cited: str) -> None:
        write_tsv(root / "links.tsv", ("query-id", "paper-id", "score"), [("p0", linked, 1)])
        write_tsv(root / "more.tsv", ("citing", "cited"), [("p0", cited)])
        data = build_dataset(config, tmp_path / "out", steps=steps)[0]
        assert [data.row("toy:p0"), data.row(f"toy:{cited}")] in citations(data).tolist()
        files = [file for split in SPLITS for file in data.pairs(split)]
        (file,) = [file for file in files if file.source == "more" and len(file)]
        assert file.positives[0].tolist() == [data.row(f"toy:{linked}")]

    check("p7", "p8")
    check("p7", "p9")
    check("p6", "p9")


@pytest.fixture
def texts(tmp_path: Path) -> TextStore:
    """Write texts of four chunks."""
    texts = {
        str(number): Text("paper", "word " * (number % 4 + 1), str(number))
        for number in range(3 * TEXTS_PER_CHUNK + 10)
    }
    return write_texts(tmp_path / "texts", texts)


def _content(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "tokens.bin").read_bytes(), (folder / "offsets.npy").read_bytes()


@pytest.mark.long
def test_an_interrupted_build_goes_on_and_ends_the_same(
    texts: TextStore, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = TextTokenizer.from_folder(minilm)
    build_token_store(texts, tokenizer, tmp_path / "whole", 16)

    starts: list[int] = []
    encode_chunks = token_store.encode_chunks

    def interrupted(*arguments: Any) -> Any:
        starts.append(arguments[3])
        for number, chunk in enumerate(encode_chunks(*arguments)):
            if number == 2 and len(starts) == 1:
                raise KeyboardInterrupt
            yield chunk

    monkeypatch.setattr(token_store, "encode_chunks", interrupted)
    monkeypatch.setattr("scimult.data.token_store.CHUNKS_PER_MARK", 1)
    with pytest.raises(KeyboardInterrupt):
        build_token_store(texts, tokenizer, tmp_path / "resumed", 16)
    assert not (tmp_path / "resumed").exists()
    with (tmp_path / ".resumed.unfinished" / "tokens.bin").open("ab") as file:
        file.write(b"half a chunk")
    build_token_store(texts, tokenizer, tmp_path / "resumed", 16)
    assert starts == [0, 2 * TEXTS_PER_CHUNK]
    assert _content(tmp_path / "whole") == _content(tmp_path / "resumed")
    left = {path.name for path in (tmp_path / "resumed").iterdir()}
    assert left == {"meta.json", "offsets.npy", "tokens.bin"}
    assert len(TokenStore.open(tmp_path / "resumed", texts=texts)) == len(texts)


def test_unfinished_tokens_of_other_texts_are_not_resumed(tmp_path: Path) -> None:
    one, other = ({"dtype": "uint16", "texts": name} for name in ("one", "other"))
    lengths, tokens = np.array([2, 1]), np.array([5, 6, 7])
    with pytest.raises(KeyboardInterrupt), TokenWriter(tmp_path / "t", one) as writer:
        writer.append(lengths, tokens)
        writer._mark()
        raise KeyboardInterrupt
    with TokenWriter(tmp_path / "t", other) as writer:
        assert writer.texts == 0
        writer.append(lengths, tokens)
    assert np.load(tmp_path / "t" / "offsets.npy").tolist() == [0, 2, 3]
    assert np.fromfile(tmp_path / "t" / "tokens.bin", np.uint16).tolist() == [5, 6, 7]


@pytest.mark.long
def test_a_store_that_another_process_builds_is_waited_for(
    texts: TextStore,
    minilm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two locks in one process exclude each other like those of two processes."""
    tokenizer = TextTokenizer.from_folder(minilm)
    tokenises, may_go_on = Event(), Event()
    calls, encode_chunks = [], token_store.encode_chunks

    def slowly(*arguments: Any) -> Iterator[Any]:
        calls.append(arguments)
        tokenises.set()
        assert may_go_on.wait(60)
        yield from encode_chunks(*arguments)

    monkeypatch.setattr(token_store, "encode_chunks", slowly)
    caplog.set_level("INFO", "scimult")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build_token_store, texts, tokenizer, tmp_path / "t", 16)
        assert tokenises.wait(60)
        second = pool.submit(build_token_store, texts, tokenizer, tmp_path / "t", 16)
        while "waiting for its tokens" not in caplog.text:
            assert not second.done(), second.exception()
            time.sleep(0.01)
        may_go_on.set()
        stores = [first.result(60), second.result(60)]
    assert len(calls) == 1
    assert stores[0].tokens(3, 16).tolist() == stores[1].tokens(3, 16).tolist()
    assert not list(tmp_path.glob(".t.*"))
