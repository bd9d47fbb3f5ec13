"""Queries without torch: the same embeddings and fingerprint as SciMult's, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.errors import CheckpointError, DataError, UnknownNameError
from scimult.inference import SciMult
from scimult.inference.origin import INT8_STEPS
from scimult.inference.query_encoder import QueryEncoder
from scimult.products import largest_weight
from tests.tiny import save_tiny_model

TEXTS = ["graph of tokens", "a", "protein kernels, " * 40]
# Of texts, 64 tokens at most: see tests/models/test_one_text.py. Random weights of a tiny model
# are large, and so are its embeddings: the tolerance is a share of them.
FLOAT32 = 1e-5


def _off(found_ND: np.ndarray, wanted_ND: np.ndarray) -> float:
    return float(np.abs(found_ND - wanted_ND).max() / max(1.0, np.abs(wanted_ND).max()))


@pytest.mark.parametrize("variant", ["vanilla", "mha_expert", "ffn_expert", "mha_ffn_expert"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"pooling": "mean", "similarity": "cosine"}, {"dims": 5, "normalise": True}],
    ids=["own", "mean, cosine", "cut, length 1"],
)
def test_embeddings_are_those_of_the_model_for_each_task_and_side(
    tmp_path: Path, variant: str, settings: dict[str, Any]
) -> None:
    folder = save_tiny_model(tmp_path / "model", variant=variant)
    model, light = SciMult.from_pretrained(folder, **settings), QueryEncoder(folder, **settings)
    assert (light.width, light.similarity) == (model.width, model.similarity)
    for task in model.tasks.names:
        for role in ("query", "candidate"):
            assert light.kind(task, role) == model.kind(task, role)
            wanted_ND = model.encode(TEXTS, task=task, role=role)
            assert _off(light.encode(TEXTS, task=task, role=role), wanted_ND) <= FLOAT32
    assert light.encode([], task="search").shape == (0, model.width)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_the_fingerprint_is_that_of_the_model(tmp_path: Path, dtype: str) -> None:
    folder = save_tiny_model(tmp_path / "model", similarity="cosine")
    model = SciMult.from_pretrained(folder, dtype=dtype)
    # Without torch nothing tells how this processor rounds: it is taken to have VNNI.
    is_one = dtype != "int8" or largest_weight() == INT8_STEPS
    assert (QueryEncoder(folder, dtype=dtype).fingerprint == model.fingerprint) == is_one
    other = save_tiny_model(tmp_path / "other", similarity="cosine", seed=1)
    assert QueryEncoder(other, dtype=dtype).fingerprint != model.fingerprint


@pytest.mark.long
def test_minilm_of_sentence_transformers(minilm: Path, tmp_path: Path) -> None:
    model = SciMult.from_pretrained(minilm)
    model.save_tokenizer(tmp_path)
    light = QueryEncoder(minilm, tokenizer=tmp_path)
    texts = ["citation recommendation", {"title": "Graphs", "abstract": "We rank papers. " * 200}]
    for task, kind in (("search", texts[:1]), ("link_prediction", texts)):
        wanted_ND = model.encode(kind, task=task)
        # Numbers of vectors of length 1.
        assert np.abs(light.encode(kind, task=task) - wanted_ND).max() <= 1e-6
    assert light.fingerprint == model.fingerprint


@pytest.mark.parametrize("variant", ["adapters", "lora", "pals", "fusion", "prefix"])
def test_another_architecture_is_refused(tmp_path: Path, variant: str) -> None:
    folder = save_tiny_model(tmp_path / "model", variant=variant)
    with pytest.raises(CheckpointError, match="needs torch: the model is of another architecture"):
        QueryEncoder(folder)


def test_what_only_others_can_open_is_refused(minilm: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tokenizer that needs transformers"):
        QueryEncoder(minilm)
    with pytest.raises(CheckpointError, match="is not on this machine"):
        QueryEncoder("organisation/name")
    folder = save_tiny_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot map the weights"):
        QueryEncoder(folder)


def test_bad_texts_and_tasks_are_refused_as_by_the_model(tmp_path: Path) -> None:
    light = QueryEncoder(save_tiny_model(tmp_path / "model"))
    with pytest.raises(DataError, match="empty"):
        light.encode([" "], task="search")
    with pytest.raises(UnknownNameError, match="serach"):
        light.encode(["x"], task="serach")


def test_a_model_is_called_as_the_path_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as the target of a link: ``work/minilm`` is often a link to a package's ``model``."""
    folder = save_tiny_model(tmp_path / "model")
    (tmp_path / "mine").symlink_to(folder)
    monkeypatch.chdir(folder)
    names = {
        tmp_path / "mine": "mine",
        f"{tmp_path}/mine/": "mine",
        "../mine": "mine",
        ".": "model",
    }
    for path, name in names.items():
        assert QueryEncoder(path).name == name, path
        assert SciMult.from_pretrained(path, device="cpu").name == name, path
