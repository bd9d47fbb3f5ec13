"""Cross-encoders: damaged folders, and those saved in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification

from scimult.errors import ConfigError
from scimult.retrieval.cross_encoder import load_cross_encoder
from tests.tiny import save_cross_encoder, tiny_tokenizer

PAIRS = [("a graph", f"another graph of {number} nodes") for number in range(8)]


@pytest.fixture
def cross(tmp_path: Path) -> Path:
    return save_cross_encoder(tmp_path / "cross")


def test_a_cut_file_is_an_error_for_users(cross: Path) -> None:
    weights = cross / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="cannot load cross-encoder"):
        load_cross_encoder(str(cross))


@pytest.mark.parametrize("missing", ["a block", "the pooler"])
def test_no_weight_is_random(cross: Path, missing: str) -> None:
    """transformers only warns; a classifier's head reads the pooler."""
    if missing == "a block":
        config = json.loads((cross / "config.json").read_text())
        (cross / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    else:
        weights = load_file(cross / "model.safetensors")
        kept = {name: x for name, x in weights.items() if "pooler" not in name}
        save_file(kept, cross / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack \d+ weights, which would be random.*Fix: "):
        load_cross_encoder(str(cross))


def test_a_cpu_scores_in_float32_whatever_was_saved(cross: Path, tmp_path: Path) -> None:
    half, full = tmp_path / "half", tmp_path / "full"
    model = BertForSequenceClassification.from_pretrained(cross).bfloat16()
    model.save_pretrained(half)
    model.float().save_pretrained(full)
    for folder in (half, full):
        tiny_tokenizer().save(folder)
    scores = [load_cross_encoder(str(folder), "cpu")(PAIRS) for folder in (half, full)]
    np.testing.assert_array_equal(*scores)
