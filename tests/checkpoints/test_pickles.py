"""Errors of refused pickles."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from scimult.checkpoints.pickles import check_sums, load_pickle
from scimult.errors import CheckpointError


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("how", ["raw", "torch", "rubbish"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_nobody_is_told_to_load_unsafely(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "weights.bin"
    if how == "raw":
        path.write_bytes(pickle.dumps(_Evil()))
    elif how == "torch":
        torch.save({"a": _Evil()}, path)
    else:
        path.write_bytes(b"\x80\x02rubbish")
    with pytest.raises(CheckpointError, match=r"weights\.bin: .*Fix: ") as caught:
        load_pickle(path)
    message = str(caught.value)
    assert "weights_only" not in message
    assert "torch.load" not in message
    assert message.count("Fix: ") == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_file_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    """Within a number of the old format, torch raises an error of ``struct``."""
    path = tmp_path / "weights.bin"
    torch.save({"a": torch.arange(6.0)}, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"weights\.bin: .*Fix: "):
            load_pickle(path)


def test_a_changed_weight_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    torch.save({"a": torch.arange(6.0)}, path)
    check_sums(path)
    content = bytearray(path.read_bytes())
    content[content.index(torch.arange(6.0).numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)
    load_pickle(path)  # torch reads it
    with pytest.raises(CheckpointError, match=r"weights: .*damaged: weights/data/0 has another"):
        check_sums(path)
