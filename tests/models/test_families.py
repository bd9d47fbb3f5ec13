"""RoBERTa, XLM-R and ModernBERT against transformers' own models: outputs, gradients, experts."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from scimult.checkpoints import load_pretrained
from scimult.checkpoints.families import FAMILIES
from scimult.checkpoints.warm_start import warm_start
from scimult.models import Encoder, attention, pack, variant_layouts
from tests.base_models import save_base_model
from tests.models.variants import FLOAT64, random_weights

# One token; around ModernBERT's window (8); its chunks (beyond 32), of padded rows.
LENGTHS = (5, 64, 23, 23, 1, 40, 64, 2, 9, 10, 33, 60)
BIASED = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    ("roberta", {"hidden_act": "gelu_new", "pad_token_id": 5, "max_position_embeddings": 70}),
    ("modernbert", BIASED),
    ("modernbert", {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}),
]
IDS = [*FAMILIES, "roberta, other options", "modernbert, biases", "modernbert, local first"]


@pytest.fixture(scope="module", params=CASES, ids=IDS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Encoder, PreTrainedModel]:
    """Return our encoder and transformers' model, both loaded from one folder."""
    family, options = request.param
    folder = save_base_model(tmp_path_factory.mktemp("base"), family, **options)
    theirs = AutoModel.from_pretrained(folder, attn_implementation="eager").eval().double()
    return load_pretrained(folder).model.double(), theirs


def rows() -> list[np.ndarray]:
    # Not below 10: transformers freezes the embedding of the padding token.
    rng = np.random.default_rng(0)
    return [rng.integers(10, 400, size=length) for length in LENGTHS]


def their_states(model: PreTrainedModel, texts: list[np.ndarray]) -> Tensor:
    # Row by row: ModernBERT's padding within windows is NaN in float64.
    return torch.cat([model(torch.from_numpy(row)[None]).last_hidden_state[0] for row in texts])


def tolerance_of(theirs: PreTrainedModel) -> float:
    """Return 1e-10; 5e-6 for ModernBERT, which rounds to float32 whatever its dtype is.

    Its rotated queries and keys and its attention weights are off by 2**-24 of themselves; in a
    few blocks of random weights that grows 14 times, and may do so differently elsewhere.
    """
    return 5e-6 if theirs.config.model_type == "modernbert" else FLOAT64


def test_token_states_equal_those_of_transformers(pair: tuple[Encoder, PreTrainedModel]) -> None:
    ours, theirs = pair
    difference = (ours.token_states(pack(rows())) - their_states(theirs, rows())).abs().max()
    assert difference <= tolerance_of(theirs)


def test_a_padding_token_inside_a_text_is_read_as_by_transformers(
    pair: tuple[Encoder, PreTrainedModel],
) -> None:
    """A tokenizer gives a literal <pad> in a text its id; RoBERTa's positions leave it out."""
    ours, theirs = pair
    texts = rows()
    for text, spots in zip(texts, ([0, 2], [5, 6, 63], [22]), strict=False):
        text[spots] = theirs.config.pad_token_id
    difference = (ours.token_states(pack(texts)) - their_states(theirs, texts)).abs().max()
    assert difference <= tolerance_of(theirs)


def test_gradients_equal_those_of_transformers(pair: tuple[Encoder, PreTrainedModel]) -> None:
    ours, theirs = pair
    ours.zero_grad(), theirs.zero_grad()
    weights = random_weights(sum(LENGTHS), 32)
    (ours.token_states(pack(rows())) * weights).sum().backward()
    (their_states(theirs, rows()) * weights).sum().backward()
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    expected = FAMILIES[ours.config.family].from_hf(gradients, ours.config)
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        # Sums over 334 tokens: relative to the largest entry of the tensor.
        scale = max(1.0, float(expected[name].abs().max())) * tolerance_of(theirs)
        assert (parameter.grad - expected[name]).abs().max() <= scale, name


@pytest.mark.long
@pytest.mark.parametrize("variant", ["mha_expert", "ffn_expert"])
def test_warm_start_keeps_the_embeddings(
    pair: tuple[Encoder, PreTrainedModel], variant: str
) -> None:
    vanilla, _ = pair
    layouts = variant_layouts(variant, {}, 3, vanilla.config.num_blocks)
    routed = Encoder(vanilla.config.model_copy(update=layouts)).eval().double()
    warm_start(routed, vanilla.state_dict())
    expected = vanilla(pack(rows()))
    for expert in range(3):
        assert torch.equal(routed(pack(rows()), expert), expected)
    # With different experts, a mixed batch equals its rows one by one.
    generator = torch.Generator().manual_seed(1)
    for name, weight in routed.named_parameters():
        if ".experts.1." in name or ".experts.2." in name:
            weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    routes = [i % 3 for i in range(len(LENGTHS))]
    mixed = routed(pack(rows()), routes)
    for embedding, row, expert in zip(mixed, rows(), routes, strict=True):
        alone = routed(pack([row]), expert)[0]
        assert (embedding - alone).abs().max() <= FLOAT64
    assert (mixed - expected).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("window", [1, 3, 8, 20])
def test_window_equals_a_masked_softmax(window: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [50, 1, 47, window + 1, window + 2, 4 * window, 4 * window + 1]
    qkv_T3HK = torch.randn(sum(lengths), 3, 2, 8, generator=generator).to(dtype)
    plan = attention.PackingPlan.build(lengths, 0, torch.device("cpu"))
    output = attention.attend(qkv_T3HK, plan, 0.0, training=True, window=window).double()
    assert output.isfinite().all()
    for start, length in zip(plan.starts_B.tolist(), plan.lengths_B.tolist(), strict=True):
        q, k, v = qkv_T3HK[start : start + length].double().permute(1, 2, 0, 3)
        places = torch.arange(length)
        far = (places[:, None] - places).abs() > window
        scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(far, float("-inf"))
        expected = (scores.softmax(-1) @ v).transpose(0, 1)
        # bfloat16: values below 4 in eight bits, with products and sums rounded again.
        tolerance = FLOAT64 if dtype == torch.float64 else 0.03
        assert (output[start : start + length] - expected).abs().max() <= tolerance


def test_gradients_of_padded_windows_are_finite() -> None:
    qkv_T3HK = torch.randn(97, 3, 2, 8, requires_grad=True)
    plan = attention.PackingPlan.build([50, 47], 0, torch.device("cpu"))
    attention.attend(qkv_T3HK, plan, 0.0, training=True, window=3).sum().backward()
    assert qkv_T3HK.grad is not None
    assert qkv_T3HK.grad.isfinite().all()


@pytest.mark.long
def test_long_texts_of_modernbert(tmp_path: Path) -> None:
    folder = save_base_model(tmp_path / "m", "modernbert", max_position_embeddings=2048)
    theirs = AutoModel.from_pretrained(folder, attn_implementation="eager").eval().double()
    ours = load_pretrained(folder)
    assert ours.config.max_length == 2048
    texts = [np.random.default_rng(0).integers(10, 400, size=length) for length in (2048, 1900)]
    with torch.no_grad():
        difference = (
            ours.model.double().token_states(pack(texts)) - their_states(theirs, texts)
        ).abs()
    assert difference.max() <= tolerance_of(theirs)


def test_initial_weights_are_a_function_of_the_seed(pair: tuple[Encoder, PreTrainedModel]) -> None:
    one, two = Encoder(pair[0].config), Encoder(pair[0].config)
    one.initialise(3), two.initialise(3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one(pack(rows())).isfinite().all()


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_under_autocast_tokens_attend_in_its_type(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_pretrained(save_base_model(tmp_path, family)).model
    module, seen = importlib.import_module(type(model.blocks[0].attention).__module__), set()

    def noted(qkv: Tensor, *args: Any, **options: Any) -> Tensor:
        seen.add(qkv.dtype)
        return attention.attend(qkv, *args, **options)

    monkeypatch.setattr(module, "attend", noted)
    with torch.autocast("cpu", torch.bfloat16):
        model(pack(rows()), 0)
    assert seen == {torch.bfloat16}
