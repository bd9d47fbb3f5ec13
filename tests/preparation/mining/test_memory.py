"""Memory of a process, as the kernel counts it: mapped pages are released, content stays."""

from __future__ import annotations

import mmap
import re
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import pytest

from scimult.errors import ConfigError
from scimult.preparation.mining import memory
from scimult.preparation.mining.engine import Limits, open_duckdb
from scimult.preparation.mining.memory import Held, bytes_of, give_back, held, within

SIZE = 48 << 20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux counts pages")


@pytest.mark.parametrize(
    ("size", "expected"),
    [("4GB", 4 * 10**9), ("4 GiB", 4 << 30), ("1.5gb", 1_500_000_000), ("900MB", 9 * 10**8)],
)
def test_units(size: str, expected: int) -> None:
    assert bytes_of(size) == expected


@pytest.mark.parametrize("size", ["4", "GB", "4 apples", "-1GB"])
def test_invalid_limits(size: str) -> None:
    with pytest.raises(ConfigError, match="not a valid memory limit"):
        bytes_of(size)


@linux
def test_too_little_memory_reports_how_much_is_needed(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"too little memory.* or more"),
        within(Limits("50MB"), []),
    ):
        raise AssertionError


@pytest.mark.parametrize("megabytes", [260, 293, 330, 375])
def test_the_memory_that_is_asked_for_suffices(
    monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    monkeypatch.setattr(memory, "held", lambda: Held(megabytes * 10**6, 0))
    with pytest.raises(ConfigError) as caught, within(Limits("100MB"), [], 3 / 8):
        raise AssertionError
    (enough,) = re.findall(r"give (\S+) or more", str(caught.value))
    with within(Limits(enough), [], 3 / 8) as limits:
        assert limits.memory is not None


@linux
def test_mapped_pages_are_released_and_their_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    np.arange(SIZE // 8).tofile(path)
    read = np.memmap(path, np.int64, mode="r")
    written = np.memmap(tmp_path / "written", np.int64, mode="w+", shape=SIZE // 8)
    private = np.memmap(path, np.int64, mode="c")
    before = held().mapped
    total = int(read.sum())
    written[:] = read
    private[0] = -1
    assert held().mapped - before > 1.9 * SIZE
    give_back([tmp_path])
    assert held().mapped - before < 0.1 * SIZE
    assert int(read.sum()) == int(written.sum()) == total
    assert private[0] == -1
    give_back([tmp_path / "elsewhere"])
    assert held().mapped - before > 1.9 * SIZE


@pytest.mark.long
@linux
def test_a_limit_bounds_mapped_pages_and_reports_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = held()
    # After other tests the limit is some gigabytes; the file exceeds it too.
    limit = (before.own + before.mapped + (600 << 20)) / 0.75
    path = tmp_path / "rows"
    with path.open("wb") as file:
        file.truncate(int(limit) // 8 + 6 * SIZE)
    limits = Limits(f"{limit / 1e6:.0f}MB", threads=3)
    with path.open("rb") as file, within(limits, [tmp_path]) as engine:
        assert engine.threads == 3
        assert engine.memory is not None
        assert 256 << 20 <= int(engine.memory.removesuffix("MiB")) << 20 < limit - before.own
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for start in range(0, len(mapped), SIZE):
            mapped[start : start + SIZE].count(b"\0")
            time.sleep(0.12)
        # An eighth of the limit, and the pages read since the last look.
        assert held().mapped - before.mapped < limit / 8 + 3 * SIZE < len(mapped)
        mapped.close()
    assert "peak memory:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "expected", "message"),
    [
        (duckdb.OutOfMemoryException("failed to pin"), ConfigError, "'9MB'.*raise --memory"),
        (duckdb.IOException("No space left on device"), OSError, "No space left"),
        (duckdb.IOException("other"), duckdb.IOException, "other"),
    ],
)
def test_an_engine_without_memory_or_disk_says_so(
    tmp_path: Path, problem: Exception, expected: type[Exception], message: str
) -> None:
    with pytest.raises(expected, match=message), open_duckdb(tmp_path, Limits("9MB", threads=1)):
        raise problem
