"""Temporary files and folders of living and of dead writers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from scimult import files, locks
from scimult.errors import StorageError
from scimult.locks import (
    create_living,
    exclusive,
    is_left,
    lock_name,
    remove_leftovers,
    scratch_folder,
    temporary_name,
)
from scimult.unfinished import only_call, unfinished

WRITERS = (files.atomic_file, files.atomic_folder, files.only_writer, only_call, unfinished)


@pytest.mark.long
def test_a_write_survives_those_who_remove_leftovers(tmp_path: Path) -> None:
    """They may meet a temporary file between its creation and its lock."""
    path, written = tmp_path / "a.txt", threading.Event()

    def remove() -> None:
        while not written.is_set():
            remove_leftovers(path)

    with ThreadPoolExecutor(2) as pool:
        removed = [pool.submit(remove) for _ in range(2)]
        try:
            for number in range(300):
                with files.atomic_file(path) as temporary:
                    temporary.write_text(str(number), encoding="utf-8")
                assert path.read_text(encoding="utf-8") == str(number)
        finally:
            written.set()
        for done in removed:
            done.result()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("folder", [False, True])
def test_a_folder_that_vanishes_ends_the_write(tmp_path: Path, folder: bool) -> None:
    with pytest.raises(FileNotFoundError):
        create_living(tmp_path / "gone" / "a.tmp", folder=folder)


def test_an_object_that_is_never_where_it_was_created_ends_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below /proc, a file that was opened is not the one that its name finds."""
    monkeypatch.setattr(locks, "_is_at", lambda descriptor, path: False)
    with pytest.raises(OSError, match="removed again and again"):
        create_living(tmp_path / "a.tmp")


def test_scratch_of_killed_processes_is_removed(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "one") as living:
        dead = living.with_name(living.name.replace(".tmp", "0.tmp"))
        (dead / "inside").mkdir(parents=True)
        with scratch_folder(tmp_path / "one") as scratch:
            (scratch / "file").write_text("")
            assert {*tmp_path.iterdir()} == {living, scratch}
    assert not any(tmp_path.iterdir())


def test_what_killed_processes_left_is_told_from_what_the_living_hold(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    temporary, lock = temporary_name(path), lock_name(path)
    with exclusive(lock, path):
        held = create_living(temporary)
        assert not is_left(temporary)
        assert not is_left(lock)
        os.close(held)
        assert is_left(temporary)
    lock.touch()
    assert is_left(lock)
    for name in ("manifest.json", ".hidden", "mine.lock", ".manifest.json.0000123456789.tmp"):
        (tmp_path / name).touch()
        assert not is_left(tmp_path / name)
    assert not is_left(lock_name(tmp_path / "gone"))


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_refused_leaves_no_folder_above_its_output(
    tmp_path: Path, writer: Callable[[Path], AbstractContextManager[Any]]
) -> None:
    out = tmp_path / "new" / "newer" / "out"
    with pytest.raises(LookupError), writer(out):
        assert out.parent.is_dir()
        raise LookupError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LookupError), writer(out):
        (tmp_path / "new" / "of_another").touch()
        raise LookupError
    assert list(tmp_path.rglob("*")) == [tmp_path / "new", tmp_path / "new" / "of_another"]


@pytest.mark.parametrize("writer", WRITERS)
def test_folders_that_cannot_be_made_leave_none_above_them(
    tmp_path: Path, writer: Callable[[Path], AbstractContextManager[Any]]
) -> None:
    with (
        pytest.raises(StorageError, match="cannot write"),
        writer(tmp_path / "a" / ("n" * 300) / "b"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
