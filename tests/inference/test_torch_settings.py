"""What a program sets in torch for itself changes no embedding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from scimult.inference import SciMult
from tests.tiny import save_tiny_model

TEXTS = ["A long title about graphs", "Short", "words " * 20]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_settings_of_torch_around_a_call_change_no_number(tmp_path: Path, dtype: str) -> None:
    model = SciMult.from_pretrained(save_tiny_model(tmp_path / "tiny"), device="cpu", dtype=dtype)
    expected_ND = model.encode(TEXTS, task="search")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_array_equal(model.encode(TEXTS, task="search"), expected_ND)
    for default in (torch.float64, torch.float16):
        torch.set_default_dtype(default)
        try:
            found_ND = model.encode(TEXTS, task="search")
        finally:
            torch.set_default_dtype(torch.float32)
        np.testing.assert_array_equal(found_ND, expected_ND)
