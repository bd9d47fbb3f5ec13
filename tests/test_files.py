from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from scimult import files
from scimult.errors import DataError, StorageError


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _disk_is_full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_appears_whole_and_alone(tmp_path: Path) -> None:
    with files.atomic_file(tmp_path / "new" / "a.txt") as temporary:
        temporary.write_text("half", encoding="utf-8")
        assert not (tmp_path / "new" / "a.txt").exists()
    assert (tmp_path / "new" / "a.txt").read_text(encoding="utf-8") == "half"
    assert _names(tmp_path / "new") == ["a.txt"]


def test_an_exception_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(ZeroDivisionError), files.atomic_file(path) as temporary:
        temporary.write_text("half", encoding="utf-8")
        raise ZeroDivisionError
    assert path.read_text(encoding="utf-8") == "old"
    assert _names(tmp_path) == ["a.txt"]


def test_a_full_disk_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    with (
        pytest.raises(StorageError, match=r"a\.txt: cannot write: No space.*Fix: free disk space"),
        files.atomic_file(path) as temporary,
    ):
        temporary.write_text("half", encoding="utf-8")
        _disk_is_full()
    assert path.read_text(encoding="utf-8") == "old"
    assert _names(tmp_path) == ["a.txt"]


def test_a_disk_that_fills_at_fsync_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"version": 1})
    monkeypatch.setattr(files.os, "fsync", _disk_is_full)
    with pytest.raises(StorageError, match="No space"):
        files.write_json(path, {"version": 2})
    assert files.read_json(path) == {"version": 1}
    assert _names(tmp_path) == ["a.json"]


def test_a_real_device_without_space() -> None:
    with (
        pytest.raises(OSError, match="No space") as caught,
        open("/dev/full", "w", encoding="utf-8") as device,
    ):
        device.write("x")
        device.flush()
    assert "free disk space" in str(files.storage_error(caught.value, "out.bin"))


def test_an_input_that_is_missing_is_not_blamed_on_the_output(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="input.txt"), files.atomic_file(tmp_path / "out"):
        (tmp_path / "input.txt").read_text(encoding="utf-8")
    assert _names(tmp_path) == []


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StorageError, match="cannot write"):
        files.write_text(tmp_path / "file" / "a.txt", "x")


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    for version in ("1", "2"):
        with files.atomic_folder(tmp_path / "run") as temporary:
            (temporary / version).mkdir()
            (temporary / version / "data").write_text(version, encoding="utf-8")
        assert _names(tmp_path / "run") == [version]
    assert _names(tmp_path) == ["run"]


@pytest.mark.parametrize("failure", [ZeroDivisionError(), OSError(errno.ENOSPC, "full")])
def test_a_failure_keeps_the_old_folder(tmp_path: Path, failure: Exception) -> None:
    with files.atomic_folder(tmp_path / "run") as temporary:
        (temporary / "data").write_text("old", encoding="utf-8")
    with (
        pytest.raises((ZeroDivisionError, StorageError)),
        files.atomic_folder(tmp_path / "run") as temporary,
    ):
        (temporary / "data").write_text("new", encoding="utf-8")
        raise failure
    assert (tmp_path / "run" / "data").read_text(encoding="utf-8") == "old"
    assert _names(tmp_path) == ["run"]


def test_json_keeps_letters_readable(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"name": "Ångström"})
    assert "Ångström" in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert files.read_json(tmp_path / "a.json") == {"name": "Ångström"}


@pytest.mark.parametrize("content", [None, b"{", b"\xff\xfe"])
def test_unreadable_json_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.json"):
        files.read_json(path)


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert files.sha256(tmp_path / "abc").startswith("ba7816bf8f01cfea414140de5dae2223")


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EROFS, "may write to"), (errno.EDQUOT, "free disk space"), (errno.EIO, "check that")],
)
def test_every_write_error_comes_with_advice(number: int, advice: str) -> None:
    error = files.storage_error(OSError(number, os.strerror(number)), "out")
    assert advice in str(error)
