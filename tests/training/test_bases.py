"""A run starts from a base checkpoint of any family, or from an architecture of any family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from scimult.checkpoints import load_pretrained, save_pretrained
from scimult.checkpoints.families import FAMILIES
from scimult.errors import ConfigError
from scimult.files import read_json, write_json
from scimult.models import pack
from scimult.training.build import build_model
from scimult.training.config import PretrainConfig
from scimult.types import Text
from tests.base_models import save_base_model, save_tokenizer
from tests.tiny import save_tiny_model

PAPER = Text("paper", "Graph attention networks", "We classify naïve papers.")


def run(max_length: int = 64, **model: object) -> PretrainConfig:
    return PretrainConfig.model_validate(
        {
            "output": "unused",
            "data": {"prepared": "unused", "max_length": max_length},
            "model": model,
            "schedule": {"steps": 1},
        }
    )


@pytest.mark.long
@pytest.mark.parametrize("variant", ["vanilla", "mha_expert", "ffn_expert"])
@pytest.mark.parametrize("family", FAMILIES)
def test_first_embeddings_are_those_of_the_base(tmp_path: Path, family: str, variant: str) -> None:
    folder = save_base_model(tmp_path / "base", family)
    base = load_pretrained(folder)
    started = build_model(run(base=str(folder), variant=variant, dropout=0.0))
    assert started.config.encoder.family == family
    texts = pack(base.tokenizer.encode([PAPER], 64))
    for expert in range(3):
        assert torch.equal(started.model.eval()(texts, expert), base.model(texts))
    with pytest.raises(ConfigError, match="exceeds the model's 64 positions"):
        build_model(run(base=str(folder), variant=variant, max_length=65))


def test_a_base_whose_tasks_change_places_is_another_base(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, variant="mha_expert")
    settings = run(base=str(folder), variant="mha_expert")
    before = build_model(settings)
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, "tasks": config["tasks"][::-1]})
    after = build_model(settings)
    assert before.routes("search") == after.routes("search")
    experts = [
        {name: weight for name, weight in model.model.state_dict().items() if "experts.0" in name}
        for model in (before, after)
    ]
    assert any((experts[0][name] != experts[1][name]).any() for name in experts[0])
    assert before.base_digest != after.base_digest


def test_a_model_reads_texts_as_long_as_its_base_or_its_training_did(tmp_path: Path) -> None:
    """Like sentence-transformers, and not all positions that a base happens to have."""
    plain = save_base_model(tmp_path / "plain", "bert")
    assert build_model(run(max_length=16, base=str(plain))).config.max_length == 64
    body = Transformer(str(plain))
    theirs = SentenceTransformer(modules=[body, Pooling(32, "mean")], device="cpu")
    theirs.max_seq_length = 20
    folder = tmp_path / "library"
    theirs.save(str(folder))
    first = build_model(run(max_length=16, base=str(folder)))
    assert first.config.max_length == 20
    assert build_model(run(max_length=32, base=str(folder))).config.max_length == 32
    saved = tmp_path / "first"
    save_pretrained(saved, first.model.state_dict(), first.tokenizer, first.config)
    assert build_model(run(max_length=16, base=str(saved))).config.max_length == 20


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("roberta", {"position_offset": 2, "token_types": 1}),
        ("modernbert", {"token_types": 0, "modern": {"global_blocks": [0]}}),
    ],
)
def test_a_new_model_of_another_family(
    tmp_path: Path, family: str, settings: dict[str, object]
) -> None:
    save_tokenizer(tmp_path, family)
    sizes = {"hidden_size": 16, "num_blocks": 2, "num_heads": 2, "intermediate_size": 32}
    architecture = {"family": family, "max_positions": 64} | sizes | settings
    model = build_model(
        run(tokenizer=str(tmp_path), architecture=architecture, variant="ffn_expert")
    )
    texts = pack(model.tokenizer.encode([PAPER], 64))
    embedded = model.model.eval()(texts, 1)
    assert embedded.isfinite().all()
    assert not torch.equal(embedded, torch.zeros_like(embedded))
