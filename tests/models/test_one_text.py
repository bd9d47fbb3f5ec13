"""One text with numpy: against our encoder and transformers, and the functions inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoModel

from scimult.checkpoints.families import FAMILIES
from scimult.checkpoints.mapped import map_weights
from scimult.models import Encoder, EncoderConfig, pack
from scimult.models.config import ModernLayout
from scimult.models.one_text import embedding_of, gelu, gelu_tanh, is_covered
from tests.base_models import hf_model
from tests.models.variants import CASES, tiny_config

# States are of order 1. Each is a sum of at most 100 products that are rounded to 2**-24, 6e-6 all
# in all, and LayerNorms bring what earlier blocks were off back to order 1.
FLOAT32 = 1e-5
COVERED = {name for name, (variant, _) in CASES.items() if "vanilla" in variant or "exp" in variant}
COVERED.remove("experts, instructions")


def _arrays(model: Encoder) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def _random(config: EncoderConfig, seed: int) -> Encoder:
    model = Encoder(config)
    model.initialise(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 999))
def test_embeddings_are_those_of_the_encoder(data: st.DataObject, seed: int) -> None:
    draw = data.draw
    family, heads, blocks = draw(st.sampled_from(["bert", "roberta"])), draw(st.integers(1, 4)), 3
    # A LayerNorm over one or two numbers may divide by almost 0, and so amplify rounding.
    width = heads * draw(st.integers(8, 12))
    routes = draw(st.integers(1, 3))
    experts = {
        "count": routes,
        "sublayers": draw(st.lists(st.sampled_from(["attention", "feed_forward"]), unique=True)),
        "blocks": draw(st.lists(st.integers(0, blocks - 1), unique=True)),
        "own_norm": draw(st.sampled_from([None, True, False])),
    }
    config = EncoderConfig.model_validate(
        {
            "family": family,
            "vocab_size": 30,
            "hidden_size": width,
            "num_blocks": blocks,
            "num_heads": heads,
            "intermediate_size": draw(st.integers(1, 40)),
            "max_positions": 70,
            "position_offset": 2 if family == "roberta" else 0,
            "token_types": draw(st.integers(0, 2)),
            "activation": draw(st.sampled_from(["gelu", "gelu_tanh"])),
            "norm_eps": draw(st.sampled_from([1e-12, 1e-5])),
            "initializer_range": 0.3,
            "pooling": draw(st.sampled_from(["cls", "mean", "position"])),
            "pooling_position": draw(st.integers(-9, 9)),
            "dims": draw(st.sampled_from([None, 1, width])),
            "experts": draw(st.sampled_from([None, experts])),
        }
    )
    model = _random(config, seed)
    tokens_T = np.random.default_rng(seed).integers(0, 30, draw(st.integers(1, 70)))
    route = draw(st.integers(0, config.num_routes - 1))
    found_D = embedding_of(tokens_T, config, _arrays(model), route)
    with torch.no_grad():
        wanted_D = model.double()(pack([tokens_T]), [route])[0].numpy()
    assert found_D.dtype == np.float32
    assert np.abs(found_D - wanted_D).max() <= FLOAT32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_token_states_are_those_of_transformers(
    family: str, act: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    theirs = hf_model(family, hidden_act=act).to(dtype).float()
    path = tmp_path / "model.safetensors"
    stored = {name: weight.to(dtype) for name, weight in theirs.state_dict().items()}
    save_file({name: weight.contiguous() for name, weight in stored.items()}, path)
    known = FAMILIES[family]
    config = known.encoder_config(theirs.config.to_dict(), "mean", path)
    weights: Any = map_weights(path)
    ours = known.from_hf(weights, config)
    tokens_T = np.random.default_rng(0).integers(4, 60, 50)
    found_D = embedding_of(tokens_T, config, ours)  # type: ignore[arg-type]
    with torch.no_grad():
        ids = torch.from_numpy(tokens_T)[None]
        wanted_D = theirs.double()(input_ids=ids).last_hidden_state[0].mean(dim=0).numpy()
    assert np.abs(found_D - wanted_D).max() <= FLOAT32


def test_a_loaded_checkpoint_of_transformers_is_read(tmp_path: Path) -> None:
    hf_model("bert").save_pretrained(tmp_path)
    theirs = AutoModel.from_pretrained(tmp_path).state_dict()
    ours = map_weights(tmp_path / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[name].numpy(), ours[name]) for name in ours)


@pytest.mark.parametrize("case", CASES)
def test_only_plain_blocks_and_experts_are_covered(case: str) -> None:
    config = tiny_config(case)
    assert is_covered(config) == (case in COVERED)
    if case in COVERED:
        model = _random(config, 3)
        for route in range(config.num_routes):
            with torch.no_grad():
                wanted_D = model(pack([np.arange(9)]), [route])[0].numpy()
            found_D = embedding_of(np.arange(9), config, _arrays(model), route)
            assert np.abs(found_D - wanted_D).max() <= FLOAT32


def test_modernbert_is_not_covered() -> None:
    modern = ModernLayout(global_blocks=[0])
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_blocks": 1, "num_heads": 1}
    tree = {**sizes, "intermediate_size": 8, "token_types": 0, "family": "modernbert"}
    assert not is_covered(EncoderConfig.model_validate({**tree, "modern": modern}))


def test_activations_are_those_of_torch() -> None:
    x = np.concatenate([np.linspace(-9, 9, 200_001), [-1e4, 1e4, 0.0]]).astype(np.float32)
    wanted = torch.from_numpy(x).double()
    exact = torch.nn.functional.gelu(wanted).numpy()
    # Interpolation is off by 7e-9 of x, and below -6 at most 6e-9 is dropped; then float32 rounds.
    assert np.all(np.abs(gelu(x) - exact) <= 1e-7 * np.maximum(1, np.abs(x)))
    by_tanh = torch.nn.functional.gelu(wanted, approximate="tanh").numpy()
    assert np.all(np.abs(gelu_tanh(x) - by_tanh) <= 5e-7 * np.maximum(1, np.abs(x)))
