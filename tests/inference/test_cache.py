"""The embedding cache: unwritable, damaged or full, it never changes results."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scimult.errors import ConfigError
from scimult.inference.cache import EmbeddingCache
from scimult.locks import create_living
from scimult.retrieval.embeddings import IDS_FILE, MATRIX_FILE, META_FILE
from scimult.types import FloatArray

IDS = ["a", "b", "c"]
ROWS_ND = np.arange(12, dtype=np.float32).reshape(3, 4)
SIZE = ROWS_ND.nbytes


def key(number: int) -> str:
    return f"{number:016x}"


def keep(cache: EmbeddingCache, number: int, rows: FloatArray = ROWS_ND) -> None:
    cache.keep(key(number), IDS, rows, {"model_name": "m"})
    if (folder := cache.folder / key(number)).is_dir():
        os.utime(folder, (number, number))  # as if written in this order, long ago


def kept(cache: EmbeddingCache) -> list[int]:
    return sorted(int(folder.name, 16) for folder in cache.folder.iterdir())


def test_what_is_kept_is_found_for_the_same_ids_and_width(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path / "deep" / "er", 10 * SIZE)
    assert cache.read(key(1), IDS, 4) is None
    keep(cache, 1)
    found = cache.read(key(1), IDS, 4)
    assert found is not None
    assert np.array_equal(found, ROWS_ND)
    assert cache.read(key(1), IDS[::-1], 4) is None
    assert cache.read(key(1), IDS, 3) is None


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (MATRIX_FILE, _cut),
        (MATRIX_FILE, _flip),
        (MATRIX_FILE, Path.unlink),
        (IDS_FILE, _cut),
        (META_FILE, _cut),
        (META_FILE, Path.unlink),
    ],
)
def test_a_damaged_entry_is_noted_and_replaced(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    damage: Callable[[Path], object],
) -> None:
    cache = EmbeddingCache(tmp_path, 10 * SIZE)
    keep(cache, 1)
    damage(tmp_path / key(1) / name)
    assert cache.read(key(1), IDS, 4) is None
    assert f"{key(1)}: damaged or of another version" in capsys.readouterr().err
    keep(cache, 1, ROWS_ND + 1)
    healed = cache.read(key(1), IDS, 4)
    assert healed is not None
    assert np.array_equal(healed, ROWS_ND + 1)
    assert capsys.readouterr().err == ""


def test_a_cache_that_cannot_be_written_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    cache = EmbeddingCache(tmp_path / "file" / "cache", 10 * SIZE)
    assert cache.read(key(1), IDS, 4) is None
    keep(cache, 1)
    message = capsys.readouterr().err
    assert "cannot cache embeddings (cannot write: " in message
    assert "$SCIMULT_CACHE names another folder, --no-cache turns the cache off" in message


def test_the_least_recently_used_are_removed_beyond_the_limit(tmp_path: Path) -> None:
    rows = np.ones((3, 1_000), dtype=np.float32)
    cache = EmbeddingCache(tmp_path, 3 * (rows.nbytes + 1_000))
    for number in (1, 2, 3):
        keep(cache, number, rows)
    assert cache.read(key(1), IDS, 1_000) is not None  # used now, the others long ago
    keep(cache, 4, rows)
    assert kept(cache) == [1, 3, 4]
    keep(cache, 5, rows)
    assert kept(cache) == [1, 4, 5]


def test_embeddings_larger_than_the_limit_are_not_cached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = EmbeddingCache(tmp_path, SIZE - 1)
    keep(cache, 1)
    assert not list(tmp_path.iterdir())
    assert "do not fit the cache: $SCIMULT_CACHE_GB limits it" in capsys.readouterr().err


def test_leftovers_of_killed_writers_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x" * 5_000)
    dead, alive = (tmp_path / f".{key(9)}.0123abcd{number}.tmp" for number in (0, 1))
    dead.mkdir()
    writing = create_living(alive, folder=True)
    for folder in (dead, alive):
        (folder / MATRIX_FILE).write_bytes(b"x" * 5_000)
    keep(EmbeddingCache(tmp_path, 1_000), 1)
    os.close(writing)
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, key(1), "thesis"}


def test_the_environment_configures_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCIMULT_CACHE", "SCIMULT_CACHE_GB", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def here() -> tuple[Path, int]:
        cache = EmbeddingCache.of_user()
        assert cache is not None
        return cache.folder.relative_to(tmp_path), cache.max_bytes

    assert here() == (Path(".cache/scimult/embeddings"), 10**10)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert here() == (Path("xdg/scimult/embeddings"), 10**10)
    monkeypatch.setenv("SCIMULT_CACHE", str(tmp_path / "mine"))
    monkeypatch.setenv("SCIMULT_CACHE_GB", "0.5")
    assert here() == (Path("mine/embeddings"), 5 * 10**8)
    monkeypatch.setenv("SCIMULT_CACHE_GB", "0")
    assert here() == (Path("mine/embeddings"), 0)
    for wrong in ("much", "nan", "-1", "1e300"):
        monkeypatch.setenv("SCIMULT_CACHE_GB", wrong)
        with pytest.raises(ConfigError, match=f"is not a number of gigabytes .value: '{wrong}'"):
            EmbeddingCache.of_user()
