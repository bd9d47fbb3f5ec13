"""A run starts from a base checkpoint of any family, or from an architecture of any family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scimult.checkpoints import load_pretrained
from scimult.checkpoints.families import FAMILIES
from scimult.errors import ConfigError
from scimult.models import pack
from scimult.training.build import build_model
from scimult.training.config import PretrainConfig
from scimult.types import Text
from tests.base_models import save_base_model, save_tokenizer

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
    with pytest.raises(ConfigError, match="beyond the model's 64 positions"):
        build_model(run(base=str(folder), variant=variant, max_length=65))


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
