"""Shards of vectors: written completely or not at all, memory-mapped, damage reported."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.errors import DataError, StorageError
from scimult.files import allow_many_files, sha256
from scimult.retrieval.shard_folders import open_folder
from scimult.retrieval.shards import (
    Shards,
    find_shard,
    fingerprint_of_texts,
    publish,
    shard_name,
    write_shard,
)
from scimult.retrieval.space import Space

SPACE = Space(4, "cosine", made_by={"weights": "abc", "task": "search"}, model="tiny")


def _vectors(rows: int, seed: int = 0, width: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def _write(folder: Path, sizes: list[int], space: Space = SPACE) -> tuple[list[str], np.ndarray]:
    ids, vectors, shards = [], [], []
    for number, rows in enumerate(sizes):
        names, part_ND = [f"s{number}r{row}" for row in range(rows)], _vectors(rows, number)
        hashes = [f"h{name}" for name in names]
        shards.append(write_shard(folder, number, space, names, part_ND, hashes))
        ids, vectors = ids + names, [*vectors, part_ND]
    publish(folder, space, shards)
    return ids, np.concatenate([np.empty((0, 4), np.float32), *vectors])


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), max_size=5), block=st.integers(1, 12), data=st.data())
def test_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], block: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("space")
    ids, vectors_ND = _write(folder, sizes)
    shards = Shards(folder)
    assert (len(shards), shards.ids, shards.space) == (len(ids), ids, SPACE)
    assert shards.hashes == [f"h{name}" for name in ids]
    assert shards.space.model == "tiny"
    read = [(first, part_BD) for first, part_BD in shards.blocks(block)]
    assert all(len(part_BD) <= block for _, part_BD in read)
    assert all(np.array_equal(part_BD, vectors_ND[i : i + len(part_BD)]) for i, part_BD in read)
    assert sum(len(part_BD) for _, part_BD in read) == len(ids)
    if ids:
        rows = np.array(data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=9)), dtype=int)
        assert np.array_equal(shards.rows(rows), vectors_ND[rows])
    assert shards.check() == {}
    assert shards.usable().all()


def test_common_tools_read_the_files(tmp_path: Path) -> None:
    ids, vectors_ND = _write(tmp_path, [3])
    assert np.array_equal(np.load(tmp_path / "000000.npy"), vectors_ND)
    with pa.memory_map(str(tmp_path / "000000.arrow")) as file:
        assert pa.ipc.open_file(file).read_all()["id"].to_pylist() == ids


def test_same_bytes_whoever_writes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _write(tmp_path / name, [3, 2])
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_only_complete_shards_of_the_same_space_are_found(tmp_path: Path) -> None:
    assert find_shard(tmp_path, 0, SPACE) is None
    written = write_shard(tmp_path, 0, SPACE, ["a", "b"], _vectors(2))
    assert find_shard(tmp_path, 0, SPACE) == written
    assert find_shard(tmp_path, 0, replace(SPACE, model="by another name")) == written
    other = replace(SPACE, made_by={"weights": "def", "task": "search"})
    assert find_shard(tmp_path, 0, other) is None
    assert find_shard(tmp_path, 0, SPACE, fingerprint_of_texts(["a", "b"], ["", ""])) == written
    for ids, hashes in ((["a", "c"], ["", ""]), (["a", "b"], ["", "h"])):
        assert find_shard(tmp_path, 0, SPACE, fingerprint_of_texts(ids, hashes)) is None
    (tmp_path / "000000.arrow").unlink()
    assert find_shard(tmp_path, 0, SPACE) is None


def test_another_process_may_replace_a_shard_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a command is started twice: the other one first removes the file of ids."""

    def removed_before(path: Path) -> str:
        (tmp_path / "000000.arrow").unlink(missing_ok=True)
        return sha256(path)

    wanted = write_shard(tmp_path, 0, SPACE, ["a", "b"], _vectors(2))
    monkeypatch.setattr("scimult.retrieval.shards.sha256", removed_before)
    assert find_shard(tmp_path, 0, SPACE) is None
    assert write_shard(tmp_path, 0, SPACE, ["a", "b"], _vectors(2)) == wanted


@pytest.mark.parametrize("killed", ["vectors", "ids"])
def test_a_killed_write_leaves_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    write_shard(tmp_path, 0, SPACE, ["old"], _vectors(1))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    target = "numpy.save" if killed == "vectors" else "pyarrow.ipc.new_file"
    with monkeypatch.context() as patch:
        patch.setattr(target, die)
        with pytest.raises(KeyboardInterrupt):
            write_shard(tmp_path, 0, SPACE, ["a", "b"], _vectors(2))
    assert find_shard(tmp_path, 0, SPACE) is None


@pytest.mark.parametrize("ending", [".npy", ".arrow"])
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_a_damaged_shard_is_named_and_the_rest_is_usable(
    tmp_path: Path, ending: str, damage: str
) -> None:
    ids, vectors_ND = _write(tmp_path, [3, 2, 4])
    path = tmp_path / f"000001{ending}"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "gone":
        path.unlink()
    else:
        content[-1 if ending == ".npy" else len(content) // 2] ^= 1
        path.write_bytes(content)
    shards = Shards(tmp_path)
    assert list(shards.check()) == ["000001"]
    assert "000001" in str(shards.check()["000001"])
    if damage == "flipped":
        return
    found = shards.ids
    assert [found[row] for row in (0, 2, 5, 8)] == [ids[row] for row in (0, 2, 5, 8)]
    assert shards.usable().tolist() == [True] * 3 + [False] * 2 + [True] * 4
    rest = [row for row in range(9) if row not in (3, 4)]
    assert np.array_equal(shards.rows(np.array(rest)), vectors_ND[rest])
    assert [first for first, _ in shards.blocks()] == [0, 5]
    with pytest.raises(DataError, match=r"000001.*damaged shard.*Fix: restore"):
        shards.rows(np.array([4]))


def test_shards_may_outnumber_the_usual_limit_of_open_files(tmp_path: Path) -> None:
    ids, _ = _write(tmp_path, [1] * 40)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_many_files.cache_clear()

    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, before[1]))
    try:
        shards = Shards(tmp_path)
        assert shards.ids == ids
        assert not shards.damaged
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_many_open_files_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged rows are left out of searches."""
    _write(tmp_path, [2])

    def load(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(np, "load", load)
    with pytest.raises(OSError, match="Too many"):
        Shards(tmp_path)


def test_vectors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shape \(2, 3\) for a space of width 4"):
        write_shard(tmp_path, 0, SPACE, ["a", "b"], _vectors(2, width=3))
    large = _vectors(2) * 1e9
    with pytest.raises(DataError, match="2 of 2 embeddings by tiny in float16 are not finite"):
        write_shard(tmp_path, 0, replace(SPACE, dtype="float16"), ["a", "b"], large)
    assert not (tmp_path / "000000.npy").exists()


def test_another_space_is_refused_by_name(tmp_path: Path) -> None:
    other = Space(8, "cosine", made_by={"weights": "def", "task": "search"}, model="large")
    with pytest.raises(DataError) as error:
        SPACE.check_same(other, tmp_path)
    message = str(error.value)
    assert "vectors of 'large', here of 'tiny' differ in" in message
    assert "weights 'def', here 'abc'; width 8, here 4" in message
    assert "task" not in message
    assert message.count("Fix:") == 1
    SPACE.check_same(replace(SPACE, model="renamed"), tmp_path)


def test_settings_in_the_hash_of_the_weights_are_named_alone(tmp_path: Path) -> None:
    def space(weights: str, computed_in: str, model: str = "tiny") -> Space:
        made_by = {"weights": weights, "computed_in": computed_in}
        return Space(4, "cosine", made_by=made_by, model=model)

    ours = space("abc", "float32")
    with pytest.raises(DataError, match=r"differ in computed_in 'int8', here 'float32'\. Fix"):
        ours.check_same(space("def", "int8"), tmp_path)
    with pytest.raises(DataError, match="differ in weights 'def'"):
        ours.check_same(space("def", "float32"), tmp_path)
    with pytest.raises(DataError, match="differ in weights 'def'.*; computed_in"):
        ours.check_same(space("def", "int8", "other"), tmp_path)


def test_half_precision_rounds(tmp_path: Path) -> None:
    half, vectors_ND = replace(SPACE, dtype="float16"), _vectors(3)
    publish(tmp_path, half, [write_shard(tmp_path, 0, half, list("abc"), vectors_ND)])
    rounded_ND = vectors_ND.astype(np.float16).astype(np.float32)
    assert np.array_equal(Shards(tmp_path).rows(np.arange(3)), rounded_ND)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "not a manifest of shards"),
        ("[]", "not a manifest of shards"),
        ('{"format": "scimult-shards", "version": 9}', "shards of another version"),
        ('{"format": "scimult-shards"}', "shards of another version"),
        ('{"format": "scimult-shards", "version": 1, "space": {}, "shards": []}', "damaged"),
    ],
)
def test_a_foreign_manifest_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        Shards(tmp_path)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("space", {"width": "3"}),
        ("space", {"similarity": "near"}),
        ("space", {"made_by": "a model"}),
        ("space", {"dtype": ["float32"]}),
        ("shards", {"name": "../000000"}),
        ("shards", {"rows": -1}),
        ("shards", {"rows": None}),
        ("shards", {"rows": 1 << 40}),
        ("shards", {"rows": 10**20}),
        ("shards", {"more": 1}),
    ],
)
def test_a_manifest_of_other_types_is_damaged(
    tmp_path: Path, part: str, changes: dict[str, Any]
) -> None:
    _write(tmp_path, [2])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (manifest["space"] if part == "space" else manifest["shards"][0]).update(changes)
    for shards in (manifest["shards"], "000000", [None]):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"shards": shards}))
        with pytest.raises(DataError, match="damaged manifest of shards"):
            Shards(tmp_path)


@pytest.mark.parametrize("below", ["", "search"])
def test_the_manifest_of_another_kind_of_folder_stays(tmp_path: Path, below: str) -> None:
    """Prepared folders, generated worlds and checkpoints have a file of this name, too."""
    folder = tmp_path / below
    folder.mkdir(exist_ok=True)
    manifest = folder / "manifest.json"
    manifest.write_text('{"version": "1", "texts": 5}')
    with pytest.raises(StorageError, match="output exists already"):
        open_folder(tmp_path, {folder: SPACE}, overwrite=False)
    assert os.listdir(folder) == ["manifest.json"]
    assert manifest.read_text() == '{"version": "1", "texts": 5}'


def test_an_unlisted_shard_is_not_seen(tmp_path: Path) -> None:
    _write(tmp_path, [2])
    late = write_shard(tmp_path, 1, SPACE, ["late"], _vectors(1))
    assert (late.name, late.rows) == (shard_name(1), 1)
    assert len(Shards(tmp_path)) == 2


def test_shards_are_opened_by_name_in_the_requested_order(tmp_path: Path) -> None:
    ids, vectors_ND = _write(tmp_path, [3, 2, 4])
    some = Shards(tmp_path, ["000002", "000000"])
    assert some.ids == [*ids[5:], *ids[:3]]
    assert np.array_equal(some.rows(np.arange(7)), vectors_ND[[5, 6, 7, 8, 0, 1, 2]])
    with pytest.raises(DataError, match="shards are missing.*000007"):
        Shards(tmp_path, ["000000", "000007"])


def test_a_folder_killed_while_it_is_overwritten_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "e"
    _write(root, [3, 2])

    def killed(folder: Path, **_: object) -> None:
        (folder / "manifest.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        open_folder(root, {root: SPACE}, overwrite=True)
    open_folder(root, {root: SPACE}, overwrite=True)
    assert [path.name for path in root.iterdir()] == ["manifest.json"]
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.long
def test_many_processes_may_create_a_folder_at_once(tmp_path: Path) -> None:
    """Ranks of a launcher start together: none may see another's half-created folder."""
    for attempt in range(50):
        root = tmp_path / str(attempt)
        barrier = threading.Barrier(4)

        def begin(root: Path = root, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            open_folder(root, {root / "a": SPACE, root / "b": SPACE}, overwrite=False)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(begin) for _ in range(4)]:
                done.result()
        assert sorted(path.name for path in root.iterdir()) == ["a", "b"]
    assert not list(tmp_path.glob(".*"))
