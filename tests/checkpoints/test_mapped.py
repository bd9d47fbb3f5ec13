"""Memory-mapped weights: against the safetensors library, and with damage anywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from scimult.checkpoints.mapped import map_weights
from scimult.errors import CheckpointError

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4),
    dtype=st.sampled_from(TYPES),
    described=st.booleans(),
    seed=st.integers(0, 99),
)
def test_arrays_are_those_of_the_library(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[list[int]],
    dtype: torch.dtype,
    described: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    tensors = {f"w{n}": (9 * torch.randn(shape)).to(dtype) for n, shape in enumerate(shapes)}
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"} if described else None)
    found = map_weights(path)
    for name, wanted in load_file(path).items():
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], wanted.float().numpy())
    assert found.keys() == tensors.keys()


def test_a_file_that_was_cut_or_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(3, 2), "b": torch.zeros(5)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="cannot map the weights"):
            map_weights(path)
    for content in (b"\xff" * 64, whole.replace(b"F32", b"U88"), whole.replace(b"[3,2]", b"[9,2]")):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="Fix: copy or download it again"):
            map_weights(path)
    with pytest.raises(CheckpointError):
        map_weights(tmp_path / "absent")
