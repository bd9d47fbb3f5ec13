"""Bulk encoding equals one by one, in input order, in any parts, killed or not."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.data.records import Rejects
from scimult.data.text_files import RAW_FORMAT
from scimult.distributed import free_port
from scimult.errors import ConfigError, DataError, StorageError
from scimult.inference import SciMult
from scimult.inference.bulk import BulkEncoder, Encoded, Part, encode_shards
from scimult.inference.incoming import SeenIds, count_records, read_texts
from scimult.locks import create_living, temporary_name
from scimult.retrieval.embeddings import read_embeddings, write_embeddings
from scimult.retrieval.shards import Shards
from scimult.types import Text
from scimult.unfinished import only_call
from tests.command import completed, invoke
from tests.ranks import Verb
from tests.raw_corpus import write_jsonl
from tests.tiny import save_tiny_model

WORDS = "graph protein folding of a sparse matrix and drawing trees forests".split()


def some_texts(number: int, seed: int = 0) -> list[tuple[str, Text]]:
    rng = np.random.default_rng(seed)
    return [
        (f"p{row}", Text("paper", f"{row}", " ".join(rng.choice(WORDS, int(rng.integers(0, 30))))))
        for row in range(number)
    ]


def encode(out: Path, model: SciMult, texts: Any, task: str = "search", **options: Any) -> Encoded:
    bulk = BulkEncoder(model, out, task=task, role="candidate", **options.pop("bulk", {}))
    return encode_shards(bulk, texts, **options)


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.long
@settings(max_examples=12)
@given(
    number=st.integers(1, 40),
    rows=st.integers(1, 45),
    parts=st.integers(1, 4),
    tokens=st.sampled_from([None, 20, 90]),
    data=st.data(),
)
def test_shards_hold_what_one_by_one_gives_in_input_order(
    tmp_path_factory: pytest.TempPathFactory,
    folder: Path,
    number: int,
    rows: int,
    parts: int,
    tokens: int | None,
    data: st.DataObject,
) -> None:
    """To 1e-5 in float32: another batch adds the same numbers in another order."""
    model = SciMult.from_pretrained(folder, device="cpu")
    model._max_tokens = tokens
    out, texts = tmp_path_factory.mktemp("out") / "e", some_texts(number)
    shards = -(-number // rows)
    order = data.draw(st.permutations(range(parts)))
    for place, index in enumerate(order, start=1):
        done = encode(out, model, iter(texts), rows=rows, part=Part(index, parts))
        missing = [shard for shard in range(shards) if shard % parts in order[place:]]
        assert (done.texts, done.shards, done.missing) == (number, shards, missing)
    stored = Shards(out)
    assert [shard.rows for shard in stored.shards] == [
        min(rows, number - start) for start in range(0, number, rows)
    ]
    assert stored.ids == [name for name, _ in texts]
    alone = [model.encode([text], task="search", role="candidate") for _, text in texts]
    found_ND = stored.rows(np.arange(number))
    np.testing.assert_allclose(found_ND, np.concatenate(alone), atol=1e-5, rtol=1e-5)
    assert stored.check() == {}


def test_parts_write_the_bytes_of_one_process(tmp_path: Path, model: SciMult) -> None:
    texts = some_texts(50)
    encode(tmp_path / "one", model, texts, rows=8)
    for index in (2, 0, 1):
        encode(tmp_path / "parts", model, texts, rows=8, part=Part(index, 3))
    assert contents(tmp_path / "parts") == contents(tmp_path / "one")


def test_a_part_publishes_no_shard_of_an_earlier_input(tmp_path: Path, model: SciMult) -> None:
    out, before, after = tmp_path / "e", some_texts(20, seed=1), some_texts(20, seed=2)
    for index in (0, 1):
        encode(out, model, before, rows=4, part=Part(index, 2))
    assert encode(out, model, after, rows=4, part=Part(0, 2)).missing == [1, 3]
    assert len(Shards(out)) == 0
    assert encode(out, model, after, rows=4, part=Part(1, 2)).missing == []
    encode(tmp_path / "fresh", model, after, rows=4)
    assert contents(out) == contents(tmp_path / "fresh")


def test_two_inputs_into_one_folder_at_once(
    tmp_path: Path, model: SciMult, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, mine, others = tmp_path / "e", some_texts(20, seed=1), some_texts(20, seed=2)

    def meanwhile() -> Iterator[tuple[str, Text]]:
        yield from mine[:12]
        encode(out, model, others, rows=4)
        yield from mine[12:]

    with pytest.raises(StorageError, match=r"e: another process has replaced \d of 5 shards.*Fix"):
        encode(out, model, meanwhile(), rows=4)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "papers.jsonl").write_text('{"id": "a", "title": "Graphs"}\n')
    command = ["encode", "papers.jsonl", "--model", str(folder), "--task", "search", "--out", "f"]
    with only_call(Path("f")):
        refused = invoke(*command)
    assert "f: another process is writing here" in refused.stderr
    completed(*command)


def test_a_folder_that_was_not_finished_is_removed(tmp_path: Path, model: SciMult) -> None:
    dead, living = temporary_name(tmp_path / "e"), temporary_name(tmp_path / "e")
    dead.mkdir()
    held = create_living(living, folder=True)
    encode(tmp_path / "e", model, some_texts(3))
    os.close(held)
    assert sorted(tmp_path.iterdir()) == sorted([living, tmp_path / "e"])
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write.*Fix"):
        encode(tmp_path / "file" / "e", model, some_texts(3))


def test_a_pipe_is_refused_before_any_of_it_is_lost(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (None, "jsonl", "csv"):
        with pytest.raises(DataError, match="is a pipe, and files are read more than once.*Fix:"):
            list(read_texts([tmp_path / "pipe"], "paper", Rejects(skip_bad=True), format=name))


def test_only_what_is_missing_or_changed_is_encoded_again(tmp_path: Path, model: SciMult) -> None:
    texts = some_texts(30)
    assert encode(tmp_path / "e", model, texts, rows=8).encoded == 30
    before = contents(tmp_path / "e")
    assert encode(tmp_path / "e", model, texts, rows=8).encoded == 0
    (tmp_path / "e" / "000001.npy").write_bytes(b"damaged")
    (tmp_path / "e" / "000003.arrow").unlink()
    assert encode(tmp_path / "e", model, texts, rows=8).encoded == 8 + 6
    assert contents(tmp_path / "e") == before
    texts[20] = ("p20", Text("paper", "another"))
    del texts[24:]
    assert encode(tmp_path / "e", model, texts, rows=8).encoded == 8
    encode(tmp_path / "fresh", model, texts, rows=8)
    assert contents(tmp_path / "e") == contents(tmp_path / "fresh")


def test_readers_see_nothing_until_all_shards_are_written(tmp_path: Path, model: SciMult) -> None:
    def stops() -> Iterator[tuple[str, Text]]:
        yield from some_texts(20)
        raise DataError("no such file")

    with pytest.raises(DataError, match="no such file"):
        encode(tmp_path / "e", model, stops(), rows=8)
    assert len(Shards(tmp_path / "e")) == 0
    with pytest.raises(DataError, match="embeddings are incomplete.*resumes where it stopped"):
        read_embeddings(tmp_path / "e")
    assert encode(tmp_path / "e", model, some_texts(20), rows=8).encoded < 20
    assert len(read_embeddings(tmp_path / "e").ids) == 20


def test_all_tasks_are_those_of_a_call_of_each(tmp_path: Path, model: SciMult) -> None:
    texts = some_texts(20)
    encode(tmp_path / "all", model, texts, task="all", rows=8)
    assert {path.name for path in (tmp_path / "all").iterdir()} == set(model.tasks.names)
    with pytest.raises(DataError, match="one for each task.*name one of classification, link_pred"):
        read_embeddings(tmp_path / "all")
    for task in ("search", "link_prediction"):
        encode(tmp_path / task, model, texts, task=task, rows=8)
        assert contents(tmp_path / "all" / task) == contents(tmp_path / task)
    (tmp_path / "all" / "search" / "000002.npy").unlink()
    assert encode(tmp_path / "all", model, texts, task="all", rows=8).encoded == 4
    assert contents(tmp_path / "all" / "search") == contents(tmp_path / "search")


def test_other_embeddings_are_never_mixed_nor_replaced_without_overwrite(
    tmp_path: Path, model: SciMult
) -> None:
    texts, out = some_texts(5), tmp_path / "e"
    encode(out, model, texts)
    before = contents(out)
    with pytest.raises(DataError, match="vectors of 'tiny', here of 'tiny' differ in task"):
        encode(out, model, texts, task="link_prediction")
    with pytest.raises(DataError, match="differ in dtype 'float16', here 'float32'"):
        encode(out, model, texts, bulk={"precision": "float16"})
    with pytest.raises(StorageError, match="output exists already"):
        encode(out, model, texts, task="all")
    with pytest.raises(StorageError, match="not a folder with a folder of embeddings"):
        encode(out, model, texts, task="all", bulk={"overwrite": True})
    (out / "thesis.tex").write_text("precious")
    with pytest.raises(StorageError, match="is not a folder of embeddings and nothing else"):
        encode(out, model, texts, bulk={"overwrite": True})
    assert contents(out) == before | {"thesis.tex": b"precious"}
    (out / "thesis.tex").rename(temporary_name(out / "manifest.json"))  # of a killed writer
    encode(out, model, texts, bulk={"precision": "float16", "overwrite": True})
    assert read_embeddings(out).embeddings_ND.dtype == "f2"
    write_embeddings(tmp_path / "old", ["a"], np.ones((1, 16), np.float32), {})
    with pytest.raises(StorageError, match="output exists already"):
        encode(tmp_path / "old", model, texts)
    encode(tmp_path / "old", model, texts, bulk={"overwrite": True})
    assert not (tmp_path / "old" / "ids.txt").exists()


def test_a_model_with_a_further_task_does_not_replace_the_vectors_of_another(
    tmp_path: Path, model: SciMult
) -> None:
    folder = save_tiny_model(tmp_path / "other", seed=1, variant="vanilla")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["tasks"].append({**config["tasks"][1], "name": "further"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    other, out = SciMult.from_pretrained(folder, device="cpu"), tmp_path / "out"
    texts = some_texts(5)
    encode(out, model, texts, "all")
    before = contents(out)
    with pytest.raises(DataError, match="vectors of 'other', here of 'tiny' differ in weights"):
        encode(out, other, texts, "all")
    assert contents(out) == before


def test_no_text_and_impossible_parts_change_no_folder(tmp_path: Path, model: SciMult) -> None:
    for earlier in (False, True):
        before = contents(tmp_path)
        with pytest.raises(DataError, match="no text is left"):
            encode(tmp_path / "e", model, [], bulk={"overwrite": earlier})
        assert contents(tmp_path) == before
        encode(tmp_path / "e", model, some_texts(3))
    with pytest.raises(ConfigError, match="a shard has no rows"):
        encode(tmp_path / "e", model, some_texts(1), rows=0)
    for given_part in ("3/3", "1", "a/b", "-1/4", "1/0"):
        with pytest.raises(ConfigError, match=r"not a part i/n .value: '.*'.\. Fix: "):
            Part.parse(given_part)


def test_ranks_divide_a_part_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    found = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        found += [number for number in range(24) if Part.parse("1/2").has(number)]
    monkeypatch.setenv("RANK", "2")
    assert Part.parse(None) == Part(2, 4)
    assert sorted(found) == [n for n in range(24) if n % 8 >= 4]


def test_common_paper_formats_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,title,abstract\n1,Graphs,"Drawn,\nlarge"\n2,Trees,\n')
    (tmp_path / "b.bib").write_text("@article{k, title={Folding}, abstract={Of proteins}}")
    lines = [{"_id": "3", "title": "T", "text": "Body"}, {"id": "2", "title": "again"}, {"id": 5}]
    write_jsonl(tmp_path / "c.jsonl", lines)
    rejects = Rejects(skip_bad=True)
    csv = list(read_texts([tmp_path / "a.csv"], "paper", rejects))
    assert csv == [("1", Text("paper", "Graphs", "Drawn, large")), ("2", Text("paper", "Trees"))]
    (tmp_path / "d.jsonl").write_text('{"id": "2", "title": "in another file"}\n')
    files = [tmp_path / "c.jsonl", tmp_path / "d.jsonl"]
    assert [name for name, _ in read_texts(files, "paper", rejects)] == ["3", "2"]
    assert rejects.counts == {"paper has no text": 1, "id is given twice": 1}
    assert "d.jsonl:1: id is given twice (value: '2')" in rejects.summary()
    ((name, text),) = read_texts([tmp_path / "b.bib"], "paper", rejects)
    assert (name, text) == ("k", Text("paper", "Folding", "Of proteins"))
    columns = {"title": "abstract"}
    ((_, text),) = read_texts([tmp_path / "b.bib"], "paper", rejects, columns=columns)
    assert text.title == "Of proteins"
    assert count_records(files, "paper", None) == 4
    assert count_records([tmp_path / "a.csv"], "paper", None) == 3
    assert count_records([tmp_path / "b.bib"], "paper", None) is None


def test_a_cut_off_file_is_named_by_the_reader_not_by_the_count(tmp_path: Path) -> None:
    """typer prints "Aborted." for the EOFError of gzip."""
    lines = "".join(f'{{"id": "p{number}", "title": "Graphs"}}\n' for number in range(9))
    path = tmp_path / "papers.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode())[:-12])
    pq.write_table(pa.table({"id": ["1"], "title": ["Graphs"]}), tmp_path / "papers.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((tmp_path / "papers.parquet").read_bytes()[:-30])
    for file, problem in ((path, "compressed file is cut off"), (cut, "Parquet file is cut off")):
        assert count_records([file], "paper", None) in range(10)
        with pytest.raises(DataError, match=f"{file.name}.*{problem} or damaged"):
            list(read_texts([file], "paper", Rejects()))


def test_labels_are_counted_and_read_in_all_their_formats(tmp_path: Path) -> None:
    (tmp_path / "LABELS.CSV").write_text("id,name,definition\r\n1,Graphs,Nodes\r\n2,Trees,\r\n")
    table = pa.table({"id": ["1", "2"], "name": ["Graphs", "Trees"], "definition": ["Nodes", ""]})
    pq.write_table(table.replace_schema_metadata({RAW_FORMAT: "1"}), tmp_path / "labels.parquet")
    for path in tmp_path.iterdir():
        assert count_records([path], "label", None) == 2
        read = list(read_texts([path], "label", Rejects()))
        assert read == [("1", Text("label", "Graphs", "Nodes")), ("2", Text("label", "Trees"))]


@given(st.lists(st.lists(st.integers(0, 30), max_size=9), max_size=12))
def test_repeated_ids_are_recognised(chunks: list[list[int]]) -> None:
    seen, before = SeenIds(), set[int]()
    for chunk in chunks:
        expected = []
        for number in chunk:
            expected.append(number in before)
            before.add(number)
        assert seen.add([f"id {number}" for number in chunk]) == expected


@pytest.mark.ranks
@pytest.mark.parametrize("killed_after", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_killed_run_resumes_and_gives_the_same_bytes(
    tmp_path: Path, folder: Path, killed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": name, "title": t.title, "abstract": t.body} for name, t in some_texts(3000)]
    papers = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "papers.jsonl").write_text(papers + "not json\n")
    out = tmp_path / "killed"
    command = ["encode", "papers.jsonl", "--skip-bad", "--model", str(folder)]
    command += ["--task", "search", "--rows", "300", "--out"]
    running = Verb([*command, str(out)], tmp_path / "killed.log")
    until = time.monotonic() + 120
    while len(list(out.glob("*.arrow"))) < killed_after and time.monotonic() < until:
        assert running.poll() is None, "it ended before it was killed"
        time.sleep(0.005)
    running.kill()
    assert running.wait(60) == -signal.SIGKILL
    whole = {path: path.stat().st_mtime_ns for path in out.glob("*.arrow")}
    assert killed_after <= len(whole) < 10
    again = completed(*command, out)
    assert again.stdout.startswith(f"{out}: 3,000 embeddings of width 16, computed in ")
    assert f", {3000 - 300 * len(whole):,} of them new" in again.stdout
    assert "left out 1: line is not valid JSON" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in whole} == whole
    completed(*command, "whole")
    left_behind = {name for name in contents(out) if name.startswith(".")}
    assert {n: c for n, c in contents(out).items() if n not in left_behind} == contents(
        tmp_path / "whole"
    )


LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "deepspeed": [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2"],
}


@pytest.mark.ranks
@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("deepspeed", marks=pytest.mark.slow)]
)
def test_ranks_of_a_launcher_write_the_bytes_of_one_process(
    repository: Path, tmp_path: Path, folder: Path, launcher: str
) -> None:
    rows = [{"id": name, "title": t.title, "abstract": t.body} for name, t in some_texts(90)]
    write_jsonl(tmp_path / "papers.jsonl", rows)
    command = [str(repository / "launch" / "encode.py"), "papers.jsonl", "--model", str(folder)]
    command += ["--task", "link_prediction", "--rows", "20", "--dtype", "float32", "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(repository)}
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "capture_output": True}
    port = ["--master_port", "0"] if launcher == "torchrun" else ["--master_port", str(free_port())]
    done = subprocess.run(
        [*LAUNCHERS[launcher], *port, *command, "ranks"], check=False, text=True, **options
    )
    assert done.returncode == 0, done.stderr
    subprocess.run([sys.executable, *command, "alone"], check=True, **options)
    assert contents(tmp_path / "ranks") == contents(tmp_path / "alone")
    assert len(Shards(tmp_path / "ranks")) == 90
