"""Saved heads whose files do not fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from scimult.checkpoints.heads import HeadDescription, load_heads, save_heads
from scimult.errors import CheckpointError


@pytest.mark.parametrize("shapes", [((8,), (3,)), ((3, 8), (2,)), ((2, 8), (2,))])
def test_weights_that_are_not_one_row_per_class_are_refused(
    tmp_path: Path, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Two outputs were read as the probabilities of three classes; others ended in a traceback."""
    head = HeadDescription(kind="multi_class", classes=["a", "b", "c"])
    save_heads(tmp_path, {"t.weight": torch.ones(3, 8), "t.bias": torch.ones(3)}, {"t": head})
    assert load_heads(tmp_path)["t"].predict(torch.ones(1, 8)).shape == (1, 3)
    weight, bias = map(torch.zeros, shapes)
    save_file({"t.weight": weight, "t.bias": bias}, tmp_path / "heads.safetensors")
    with pytest.raises(CheckpointError, match=r"heads\.json: .* do not fit their weights"):
        load_heads(tmp_path)
