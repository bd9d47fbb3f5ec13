"""Encoding with int8 products and in other types, against float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scimult.checkpoints import load_pretrained
from scimult.errors import ConfigError, DataError
from scimult.inference import SciMult
from scimult.inference.origin import space_of
from scimult.inference.precision import _input_ranges, rounded_copy
from scimult.models import pack
from scimult.products import largest_weight
from tests.inference.test_encoder import PAPERS
from tests.models.variants import CASES, tiny_encoder, tiny_rows
from tests.tiny import save_tiny_model

has_bytes = pytest.mark.skipif(largest_weight() is None, reason="no products of bytes here")


def test_int8_is_for_cpus_that_have_its_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scimult.inference.precision.largest_weight", lambda: None)
    with pytest.raises(ConfigError, match=r"int8 products are not available on cpu.*'int8'"):
        SciMult.from_pretrained(save_tiny_model(tmp_path / "m"), device="cpu", dtype="int8")


@has_bytes
@pytest.mark.parametrize("variant", ["vanilla", "mha_ffn_expert", "pals"])
def test_int8_is_close_to_float32_in_every_linear(tmp_path: Path, variant: str) -> None:
    path = save_tiny_model(tmp_path / "m", variant=variant)
    plain, rounded = (
        SciMult.from_pretrained(path, device="cpu", dtype=dtype) for dtype in ("float32", "int8")
    )
    wanted_ND, found_ND = (model.encode(PAPERS, task="search") for model in (plain, rounded))
    assert rounded.dtype == "int8"
    assert rounded.fingerprint != plain.fingerprint
    assert not np.array_equal(found_ND, wanted_ND)
    # Random weights of width 16 were off by 5 % in 8 bits and by 8 % in 7.
    distances = np.linalg.norm(found_ND - wanted_ND, axis=1) / np.linalg.norm(wanted_ND, axis=1)
    assert distances.max() < 0.15


@pytest.mark.long
@has_bytes
def test_a_real_checkpoint_in_int8_is_as_close_as_others_are(minilm: Path) -> None:
    plain, rounded = (SciMult.from_pretrained(minilm, dtype=dtype) for dtype in ("float32", "int8"))
    both = (model.encode(PAPERS, task="search", role="candidate") for model in (plain, rounded))
    # ONNX Runtime's dynamic int8 of this model: 0.989 at the worst of 64 papers.
    assert np.sum(np.multiply(*both), axis=1).min() > 0.995


@pytest.mark.long
@has_bytes
@pytest.mark.parametrize("case", CASES)
def test_every_variant_can_be_rounded(case: str) -> None:
    model = tiny_encoder(case).float().eval()
    rounded = rounded_copy(model, 64)
    for route in range(model.config.num_routes):
        with torch.no_grad():
            wanted_BD, found_BD = (one(pack(tiny_rows()), route) for one in (model, rounded))
        distances_B = (found_BD - wanted_BD).norm(dim=1) / wanted_BD.norm(dim=1)
        # By 3 to 11 % in 7 bits, with random weights of width 16; single rows by up to half.
        assert 0 < distances_B.mean() < 0.2


@has_bytes
def test_ranges_are_of_the_attention_of_every_route_and_the_same_each_time(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path / "m", variant="mha_ffn_expert")
    model = SciMult.from_pretrained(path, device="cpu")._model
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    ranges = _input_ranges(model)
    named = {linear: name for name, linear in model.named_modules() if linear in ranges}
    experts = [name for name in before if ".qkv." in name and name.endswith(".weight")]
    assert sorted(f"{name}.weight" for name in named.values()) == sorted(experts)
    again = _input_ranges(model)
    assert all(torch.equal(again[linear], largest_D) for linear, largest_D in ranges.items())
    assert not any(part._forward_pre_hooks for part in model.modules())
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in before.items())


@has_bytes
def test_processors_that_round_differently_have_different_fingerprints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_tiny_model(tmp_path / "m")
    found = {}
    for steps in (64, 127):
        # Products with 127 steps may be wrong here, but the model is only asked for its name.
        for room in ("products", "inference.encoder"):
            monkeypatch.setattr(f"scimult.{room}.largest_weight", lambda steps=steps: steps)
        for dtype in ("float32", "bfloat16", "int8"):
            model = SciMult.from_pretrained(path, device="cpu", dtype=dtype)
            found[dtype, steps] = model.fingerprint
    assert found["float32", 64] == found["float32", 127]
    assert found["bfloat16", 64] == found["bfloat16", 127]
    assert found["int8", 64] != found["int8", 127]
    assert found["int8", 64] != found["float32", 64]


@has_bytes
def test_vectors_by_other_ranges_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of before 29 November differ from today's as both do from float32."""
    path = save_tiny_model(tmp_path / "m")
    models = [SciMult.from_pretrained(path, device="cpu", dtype=d) for d in ("int8", "float32")]
    today = [space_of(model, "search", "query", "float32") for model in models]
    made_by = {name: value for name, value in today[0].made_by.items() if name != "int8_ranges"}
    earlier = replace(today[0], made_by={**made_by, "weights": "0123456789abcdef"})
    with pytest.raises(DataError, match=r"differ in int8_ranges unknown, here 'shared'\. Fix:"):
        today[0].check_same(earlier, tmp_path)
    monkeypatch.setattr("scimult.inference.origin._INT8_RANGES", "others")
    again = [SciMult.from_pretrained(path, device="cpu", dtype=d) for d in ("int8", "float32")]
    assert again[0].fingerprint != models[0].fingerprint
    assert again[1].fingerprint == models[1].fingerprint


@has_bytes
@pytest.mark.parametrize("packed", [False, True])
def test_a_model_in_int8_leaves_others_of_its_weights_as_they_are(
    tmp_path: Path, packed: bool
) -> None:
    path = save_tiny_model(tmp_path / "m", variant="mha_ffn_expert")
    wanted = SciMult.from_pretrained(path, device="cpu")
    pretrained = SciMult.from_pretrained(path, device="cpu")._pretrained if packed else None
    pretrained = pretrained or load_pretrained(path)
    models = [
        SciMult(pretrained, name=dtype, device="cpu", dtype=dtype)
        for dtype in ("float32", "int8", "float32", "int8")
    ]
    before_ND, int8_ND, after_ND, again_ND = (
        model.encode(PAPERS, task="search") for model in models
    )
    # Packed linears add in another order.
    np.testing.assert_allclose(after_ND, wanted.encode(PAPERS, task="search"), atol=1e-5)
    np.testing.assert_array_equal(before_ND, after_ND)
    np.testing.assert_array_equal(int8_ND, again_ND)
    assert np.abs(int8_ND - after_ND).max() > 1e-3
    assert models[2].fingerprint == wanted.fingerprint
    shared = {tensor.data_ptr() for tensor in models[0]._model.state_dict().values()}
    assert {tensor.data_ptr() for tensor in models[1]._model.state_dict().values()} == shared


def test_a_model_in_another_type_leaves_others_of_its_weights_as_they_are(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m", variant="mha_ffn_expert")
    pretrained = load_pretrained(folder)
    before = {name: weight.clone() for name, weight in pretrained.model.state_dict().items()}
    plain = SciMult(pretrained, name="plain", device="cpu")
    wanted_ND = plain.encode(PAPERS, task="search")
    half = SciMult(pretrained, name="half", device="cpu", dtype="bfloat16")
    half_ND = half.encode(PAPERS, task="search")
    np.testing.assert_array_equal(plain.encode(PAPERS, task="search"), wanted_ND)
    assert half_ND.tobytes() != wanted_ND.tobytes()
    after = pretrained.model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    alone = SciMult.from_pretrained(folder, device="cpu", dtype="bfloat16")
    assert alone.fingerprint == half.fingerprint
    # float32 needs no second copy of the weights, and a loaded model keeps only one.
    assert plain._model is pretrained.model
    assert alone._model is alone._pretrained.model
