"""Checkpoints on disk: every kind of damage is detected, and needed ones are kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scimult import distributed
from scimult.errors import CheckpointError, StorageError
from scimult.training import state
from scimult.training.folder import has_checkpoint
from scimult.training.state import CheckpointStore


def write(folder: Path) -> None:
    (folder / "whole").write_bytes(bytes(range(200)))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    found = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for step in (10, 20):
        found.save(step, write, {"data": "d"})
    return found


def truncate(step: Path) -> None:
    (step / "whole").write_bytes((step / "whole").read_bytes()[:-1])


def flip(step: Path) -> None:
    content = bytearray((step / "whole").read_bytes())
    content[100] ^= 1
    (step / "whole").write_bytes(content)


def say(text: str) -> Callable[[Path], None]:
    return lambda step: (step / "manifest.json").write_text(text) and None


def change_manifest(old: str, new: str) -> Callable[[Path], None]:
    def change(step: Path) -> None:
        text = (step / "manifest.json").read_text()
        assert old in text
        (step / "manifest.json").write_text(text.replace(old, new))

    return change


DAMAGES = {
    "truncated": truncate,
    "flipped bit": flip,
    "missing file": lambda step: (step / "whole").unlink(),
    "missing manifest": lambda step: (step / "manifest.json").unlink(),
    "empty manifest": say(""),
    "garbage manifest": say("\x00\x17 no JSON"),
    "manifest of another kind": say("[1, 2]"),
    "manifest without its parts": say('{"manifest": {"step": 20}, "sha256": ""}'),
    "manifest with another value": change_manifest('"d"', '"e"'),
    "copied to another step": lambda step: step.rename(step.with_name("step-0000030")) and None,
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_newest_is_named_and_the_one_before_is_used(
    store: CheckpointStore, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[kind](store.folder / "step-0000020")
    newest = store.newest()
    assert newest is not None
    assert (newest.step, newest.info) == (10, {"data": "d"})
    name = "step-0000030" if kind.startswith("copied") else "step-0000020"
    assert f"skipping damaged checkpoint {name}" in capsys.readouterr().err


def test_a_manifest_that_cannot_be_written_fails_on_every_rank(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[str | None] = []

    def gather(problem: str | None) -> list[str | None]:
        gathered.append(problem)
        return [problem, None]

    def full(path: Path, value: object) -> None:
        raise StorageError("cannot write: no space left on device", path=path)

    monkeypatch.setattr(distributed, "all_gather_objects", gather)
    monkeypatch.setattr(state, "write_json", full)
    with pytest.raises(StorageError, match="no space left"):
        store.save(30, write, {})
    # Only the main rank writes it: had it left at once, the others would wait for it.
    assert [problem is not None for problem in gathered] == [False, False, True]
    assert [path.name for path in sorted(store.folder.iterdir())] == [
        "step-0000010",
        "step-0000020",
    ]


def test_without_an_intact_checkpoint_a_run_does_not_start_over(store: CheckpointStore) -> None:
    for step in (10, 20):
        truncate(store.folder / f"step-00000{step}")
    with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
        store.newest()
    with pytest.raises(CheckpointError, match="missing or truncated"):
        store.at(20)


def test_the_best_is_kept_while_a_kept_one_names_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    left = []
    for step, best in ((1, None), (2, 2), (3, 2), (4, 2), (5, 5), (6, 5), (7, 5)):
        store.save(step, write, {}, best)
        left.append([int(path.name[5:]) for path in sorted(store.folder.iterdir())])
    # Step 5 may turn out damaged: then the run continues from 4, whose best is 2.
    assert left == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5], [5, 6], [5, 6, 7]]


def test_a_damaged_later_checkpoint_does_not_displace_an_intact_one(store: CheckpointStore) -> None:
    truncate(store.folder / "step-0000020")
    killed = [".step-0000015.tmp", ".step-0000010.0123456789ab.old"]
    left = [store.folder / name for name in killed]
    for folder in left:
        folder.mkdir()
    CheckpointStore(store.folder, keep=1).save(12, write, {})
    newest = store.newest()
    assert newest is not None
    assert newest.step == 12
    assert not (store.folder / "step-0000010").exists()
    assert not any(folder.exists() for folder in left)


@pytest.mark.parametrize("name", ["step-0000010.bak", "step-old", "step-"])
def test_copies_beside_checkpoints_are_left_alone(store: CheckpointStore, name: str) -> None:
    copy = store.folder / name
    shutil.copytree(store.folder / "step-0000010", copy)
    newest = store.newest()
    assert newest is not None
    assert newest.step == 20
    CheckpointStore(store.folder, keep=1).save(30, write, {})
    assert copy.is_dir()
    with pytest.raises(CheckpointError, match="use one of 30"):
        store.at(10)
    shutil.rmtree(store.folder / "step-0000030")
    assert not has_checkpoint(store.folder.parent)


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for step in (9_999_998, 9_999_999, 10_000_000):
        store.save(step, write, {})
    newest = store.newest()
    assert newest is not None
    assert newest.step == 10_000_000
    assert store.at(9_999_999).step == 9_999_999
    assert not store.has(9_999_998)
