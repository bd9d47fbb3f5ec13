"""Third-party encoders: files that are damaged or incomplete, and modules after the scaling."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from scimult.errors import CheckpointError
from scimult.inference.sentence_encoder import EncoderSpec, SentenceEncoder
from scimult.types import Text
from tests.base_models import FAMILIES, save_base_model

WEIGHTS = "model.safetensors"
Pooling = Literal["own", "cls"]


def _load(folder: Path, pooling: Pooling = "own") -> SentenceEncoder:
    return SentenceEncoder(EncoderSpec(model=str(folder), pooling=pooling), name="e", device="cpu")


def _cut_off(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def _of_other_sizes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))


def _more_blocks(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))


def _under_other_names(folder: Path) -> None:
    weights = {f"inner.encoder.{name}": x for name, x in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize("pooling", ["own", "cls"])
@pytest.mark.parametrize("damage", [_cut_off, _of_other_sizes], ids=["cut off", "other sizes"])
def test_damaged_weights_are_one_line(
    tmp_path: Path, pooling: Pooling, damage: Callable[[Path], None]
) -> None:
    folder = save_base_model(tmp_path, "bert")
    damage(folder)
    with pytest.raises(CheckpointError, match="cannot load the encoder: .*Fix: ") as raised:
        _load(folder, pooling)
    assert str(raised.value).startswith(str(folder))


def test_a_folder_without_a_module_is_one_line(minilm: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(minilm, tmp_path / "copy"))
    shutil.rmtree(folder / "1_Pooling")
    with pytest.raises(CheckpointError, match="cannot load the encoder: .*Fix: "):
        _load(folder)


@pytest.mark.parametrize("pooling", ["own", "cls"])
@pytest.mark.parametrize("damage", [_more_blocks, _under_other_names], ids=["blocks", "names"])
def test_no_weight_is_random(
    tmp_path: Path, pooling: Pooling, damage: Callable[[Path], None]
) -> None:
    """The library warns, and every run would have other scores."""
    folder = save_base_model(tmp_path, "bert")
    damage(folder)
    with pytest.raises(CheckpointError, match=r"lack \d+ weights, which would be random.*Fix: "):
        _load(folder, pooling)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pooler_and_heads_may_be_missing_or_left_over(tmp_path: Path, family: str) -> None:
    folder = save_base_model(tmp_path, family)
    weights = {name: x for name, x in load_file(folder / WEIGHTS).items() if "pooler" not in name}
    some = next(iter(weights.values())).clone()
    save_file({**weights, "cls.bias": some}, folder / WEIGHTS, metadata={"format": "pt"})
    found = _load(folder).encode([Text("query", "graph")], task="search", role="query")
    assert found.shape == (1, 32)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_a_tokenizer_that_knows_no_words_is_refused(tmp_path: Path, family: str) -> None:
    """transformers makes one where its files are missing: all texts would have one vector."""
    folder = save_base_model(tmp_path, family)
    for path in folder.iterdir():
        if path.name not in ("config.json", WEIGHTS):
            path.unlink()
    with pytest.raises(CheckpointError, match="tokenizer knows no words.*Fix: copy its files"):
        _load(folder)


@pytest.mark.parametrize("after", ["cut", "module"])
def test_sixteen_bits_keep_what_follows_the_scaling(tmp_path: Path, after: str) -> None:
    """Cut to half of their numbers, or multiplied again, embeddings are not of length 1."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from torch.nn import Identity

    body = Transformer.load(str(save_base_model(tmp_path / "base", "bert")))
    width = body.get_embedding_dimension()
    last = [] if after == "cut" else [Dense(width, 8, activation_function=Identity())]
    half = width // 2 if after == "cut" else None
    modules = [body, Pooling(width, pooling_mode="mean"), Normalize(), *last]
    peer = SentenceTransformer(modules=modules, device="cpu", truncate_dim=half).bfloat16()
    peer.save(str(tmp_path / "saved"))
    encoder = _load(tmp_path / "saved")
    size = f"width {half or 8}"
    assert repr(encoder).endswith(f"/saved'; {size}, cosine; bfloat16 on cpu)")
    rows = encoder.encode([Text("paper", "Graphs")], task="search", role="query")
    np.testing.assert_allclose(rows, peer.encode(["Graphs"]), rtol=0, atol=1e-6)
    assert abs(np.linalg.norm(rows) - 1) > 0.1
