"""Damaged files of numpy end in errors that readers expect."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from scimult.arrays import load_array, load_arrays

ERRORS = (OSError, EOFError, ValueError)


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    wanted = np.arange(6).reshape(2, 3)
    np.save(tmp_path / "a.npy", wanted)
    for mapped in (False, True):
        np.testing.assert_array_equal(load_array(tmp_path / "a.npy", mapped=mapped), wanted)
    np.savez(tmp_path / "a.npz", one=wanted, other=wanted[0])
    arrays = load_arrays(tmp_path / "a.npz")
    assert sorted(arrays) == ["one", "other"]
    np.testing.assert_array_equal(arrays["other"], wanted[0])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:invalid escape")  # of damaged headers, which Python parses
def test_any_damage_is_an_error_that_readers_expect(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez_compressed(tmp_path / "a.npz", one=np.arange(99))
    for path, load in ((tmp_path / "a.npy", load_array), (tmp_path / "a.npz", load_arrays)):
        whole = path.read_bytes()
        for place in range(len(whole)):
            for damaged in (whole[:place], *(_with(whole, place, byte) for byte in b"(\\\x00\xff")):
                path.write_bytes(damaged)
                with suppress(*ERRORS):
                    load(path)
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00\x17\x00{'descr': '<f4', 'a': (\n")
    with pytest.raises(ValueError, match="damaged header"):
        load_array(path)


def _with(whole: bytes, place: int, byte: int) -> bytes:
    return whole[:place] + bytes([byte]) + whole[place + 1 :]
