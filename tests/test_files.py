from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scimult import files
from scimult.errors import DataError, StorageError


def _identity(path: Path) -> tuple[int, ...]:
    """Return a file's identity, without the times that reading changes."""
    stat = path.lstat()
    return stat.st_dev, stat.st_ino, stat.st_mode


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


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    path.chmod(mode)
    files.write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_mode & 0o777 == mode


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


def test_content_reaches_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int | str] = []
    replace = os.replace

    def renamed(source: Path, target: Path) -> None:
        order.append("rename")
        replace(source, target)

    monkeypatch.setattr(files.os, "fsync", lambda written: order.append(os.fstat(written).st_ino))
    monkeypatch.setattr(files.os, "replace", renamed)
    with files.atomic_folder(tmp_path / "folder") as folder:
        files.write_json(folder / "a.json", {})
        inner, whole, parent = (x.stat().st_ino for x in (folder / "a.json", folder, tmp_path))
    assert order == [inner, "rename", whole, inner, whole, "rename", parent]


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
    for path in (tmp_path / "file" / "a.txt", tmp_path / "file" / "b" / "a.txt"):
        with pytest.raises(StorageError, match=r"cannot write.*Fix: .* a part of it is a file"):
            files.write_text(path, "x")


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    for version in ("1", "2"):
        with files.atomic_folder(tmp_path / "run", ANY) as temporary:
            (temporary / version).mkdir()
            (temporary / "data").write_text(version, encoding="utf-8")
        assert _names(tmp_path / "run") == [version, "data"]
    assert _names(tmp_path) == ["run"]


@pytest.mark.parametrize("failure", [ZeroDivisionError(), OSError(errno.ENOSPC, "full")])
def test_a_failure_keeps_the_old_folder(tmp_path: Path, failure: Exception) -> None:
    with files.atomic_folder(tmp_path / "run") as temporary:
        (temporary / "data").write_text("old", encoding="utf-8")
    with (
        pytest.raises((ZeroDivisionError, StorageError)),
        files.atomic_folder(tmp_path / "run", ANY) as temporary,
    ):
        (temporary / "data").write_text("new", encoding="utf-8")
        raise failure
    assert (tmp_path / "run" / "data").read_text(encoding="utf-8") == "old"
    assert _names(tmp_path) == ["run"]


def test_json_keeps_letters_readable(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"name": "Ångström"})
    assert "Ångström" in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert files.read_json(tmp_path / "a.json") == {"name": "Ångström"}


@pytest.mark.parametrize("content", [None, b"{", b"\xff\xfe", b"9" * 5000, b"[" * 200_000])
def test_unreadable_json_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.json"):
        files.read_json(path)
    with pytest.raises(DataError, match="cannot read: Is a directory"):
        files.read_json(tmp_path)


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert files.sha256(tmp_path / "abc").startswith("ba7816bf8f01cfea414140de5dae2223")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EROFS, "may write to"),
        (errno.EDQUOT, "free disk space"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EIO, "check that"),
    ],
)
def test_every_write_error_comes_with_advice(number: int, advice: str) -> None:
    error = files.storage_error(OSError(number, os.strerror(number)), "out")
    assert advice in str(error)


ANY = files.FolderKind("a folder with data", lambda folder: (folder / "data").is_file())


def _write_folder(path: Path, text: str, kind: files.FolderKind | None = ANY) -> None:
    with files.atomic_folder(path, kind) as temporary:
        (temporary / "data").write_text(text, encoding="utf-8")


def _make(path: Path, what: str) -> None:
    if what in ("folder", "own kind"):
        path.mkdir()
        (path / ("data" if what == "own kind" else "thesis.tex")).write_text("x", encoding="utf-8")
    elif what == "file":
        path.write_text("x", encoding="utf-8")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        (path.parent / "elsewhere").mkdir()
        path.symlink_to(path.parent / ("elsewhere" if what == "link" else "nowhere"))


@pytest.mark.parametrize(
    ("what", "kind", "problem"),
    [
        ("folder", ANY, "exists and is not a folder with data"),
        ("own kind", None, "output exists already"),
        ("file", ANY, "exists and is not a folder"),
        ("pipe", ANY, "exists and is not a folder"),
        ("link", ANY, "is a link"),
        ("dangling link", ANY, "is a link"),
    ],
)
def test_a_folder_replaces_nothing_of_another_kind(
    tmp_path: Path, what: str, kind: files.FolderKind | None, problem: str
) -> None:
    _make(tmp_path / "out", what)
    before, own = _names(tmp_path), _identity(tmp_path / "out")
    with pytest.raises(StorageError, match=rf"out: {problem}.*Fix: "):
        _write_folder(tmp_path / "out", "new", kind)
    assert _names(tmp_path) == before
    assert _identity(tmp_path / "out") == own


def test_a_folder_that_came_meanwhile_is_kept(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="is not a folder with data"),
        files.atomic_folder(tmp_path / "out", ANY),
    ):
        _make(tmp_path / "out", "folder")
    assert _names(tmp_path / "out") == ["thesis.tex"]


@pytest.mark.parametrize("name", [".", "..", "../out"])
def test_the_folder_one_is_in_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    with pytest.raises(StorageError, match="cannot replace the current folder"):
        _write_folder(Path(name), "new")
    with pytest.raises(StorageError, match="is a folder"):
        files.write_text(name, "new")
    assert _names(tmp_path) == ["out"]


def test_a_file_replaces_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = _identity(tmp_path / "pipe")
    with pytest.raises(StorageError, match="is a device or a pipe"):
        files.write_text(tmp_path / "pipe", "x")
    assert _identity(tmp_path / "pipe") == before


def test_a_file_is_written_through_its_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("old", encoding="utf-8")
    (tmp_path / "a.txt").symlink_to(tmp_path / "real" / "a.txt")
    files.write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "real" / "a.txt").read_text(encoding="utf-8") == "new"
    assert (tmp_path / "a.txt").is_symlink()


_WRITER = """
import sys, time
from pathlib import Path
from scimult import files
kind = files.FolderKind("a folder with data", lambda folder: (folder / "data").is_file())
opened = {"folder": lambda path: files.atomic_folder(path, kind),
          "file": files.atomic_file, "in place": files.only_writer}[sys.argv[1]]
with opened(Path(sys.argv[2])) as temporary:
    if sys.argv[1] == "folder":
        (temporary / "data").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def start_writer() -> Iterator[Callable[[str, Path], subprocess.Popen[str]]]:
    """Return a function that starts a process that writes until killed."""
    started: list[subprocess.Popen[str]] = []

    def start(what: str, path: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _WRITER, what, str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.ranks
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_a_killed_writer_left_is_removed_by_the_next(
    tmp_path: Path, what: str, start_writer: Callable[[str, Path], subprocess.Popen[str]]
) -> None:
    write = _write_folder if what == "folder" else files.write_text
    other = tmp_path / ".out.old.0123456789ab.tmp"  # of a target called out.old
    other.mkdir()
    process = start_writer(what, tmp_path / "out")
    process.kill()
    process.wait()
    assert len(_names(tmp_path)) > 1
    write(tmp_path / "out", "new")
    assert _names(tmp_path) == [other.name, "out"]


@pytest.mark.ranks
def test_two_writers_of_one_folder(
    tmp_path: Path, start_writer: Callable[[str, Path], subprocess.Popen[str]]
) -> None:
    for what, path in (("folder", tmp_path / "a"), ("in place", tmp_path / "b")):
        process = start_writer(what, path)
        host = socket.gethostname()
        message = rf"another process is writing here \(process {process.pid} on {host} since "
        with pytest.raises(StorageError, match=message):
            if what == "folder":
                _write_folder(path, "new")
            else:
                with files.only_writer(path):
                    pass
        process.kill()
        process.wait()
    _write_folder(tmp_path / "a", "new")
    with files.only_writer(tmp_path / "b"):
        pass
    assert _names(tmp_path) == ["a", "b"]
    assert _names(tmp_path / "b") == []


@pytest.mark.ranks
def test_a_living_writer_of_a_file_keeps_its_temporary_file(
    tmp_path: Path, start_writer: Callable[[str, Path], subprocess.Popen[str]]
) -> None:
    start_writer("file", tmp_path / "out")
    files.write_text(tmp_path / "out", "new")
    assert len(_names(tmp_path)) == 2


@pytest.mark.parametrize("reader", [True, False])
def test_a_kill_between_the_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: bool
) -> None:
    path = tmp_path / "out"
    _write_folder(path, "old")
    renamed: list[Any] = []

    def killed(*names: Any) -> None:
        if renamed:
            raise SystemExit
        renamed.append(names)
        os.rename(*names)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", killed)
        patch.setattr(files.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(SystemExit):
            _write_folder(path, "new")
    assert not path.exists()
    if reader:
        files.recover_folder(path)
        assert (path / "data").read_text(encoding="utf-8") == "old"
        assert _names(tmp_path) == ["out"]
    with pytest.raises(ZeroDivisionError), files.atomic_folder(path, ANY):
        raise ZeroDivisionError  # the next writer puts the old one back before it fails
    assert (path / "data").read_text(encoding="utf-8") == "old"
    assert _names(tmp_path) == ["out"]


def test_numpys_words_for_a_full_disk_are_understood(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"cannot write: no space left.*Fix: free disk space"),
        files.atomic_file(tmp_path / "a.npy"),
    ):
        raise OSError("312576 requested and 153568 written")
    message = str(files.storage_error(OSError("something else"), "out"))
    assert "something else" in message
    assert "free disk space" not in message


@pytest.mark.parametrize("characters", [250, 300])
def test_a_name_that_is_too_long(tmp_path: Path, characters: int) -> None:
    for write in (_write_folder, files.write_text):
        with pytest.raises(StorageError, match="Fix: choose a shorter name"):
            write(tmp_path / ("x" * characters), "x")


def test_a_path_that_cannot_be_is_refused_before_any_work(tmp_path: Path) -> None:
    for path, fix in ((tmp_path / ("x" * 300), "choose a sho"), (Path(__file__) / "o", "a part")):
        with pytest.raises(StorageError, match=f"Fix: .*{fix}"):
            files.check_replaceable(path)
