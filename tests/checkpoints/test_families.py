"""Hugging Face folders of every family: round trips both ways, heads, and unsupported options."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertForPreTraining,
    ModernBertConfig,
)

from scimult.checkpoints import load_pretrained, save_pretrained
from scimult.checkpoints.families import FAMILIES, export_config, export_weights
from scimult.checkpoints.modernbert_keys import modernbert_config
from scimult.checkpoints.reading import read_config
from scimult.errors import CheckpointError
from scimult.files import write_json
from scimult.models import Encoder, EncoderConfig, pack, variant_layouts
from scimult.types import Text
from tests.base_models import change_config, hf_model, save_base_model, save_tokenizer
from tests.models.variants import FLOAT64

PAPER = Text("paper", "Graph attention networks", "We classify naïve papers.")
OPTIONS: dict[str, dict[str, object]] = {
    "modernbert": {"attention_bias": True, "mlp_bias": True, "norm_bias": True},
    "roberta": {"hidden_act": "gelu_new"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_load_save_load_gives_the_same(tmp_path: Path, family: str) -> None:
    first = load_pretrained(save_base_model(tmp_path / "hf", family))
    assert first.config.max_length == first.config.encoder.max_positions == 64
    save_pretrained(tmp_path / "ours", first.model.state_dict(), first.tokenizer, first.config)
    second = load_pretrained(tmp_path / "ours")
    assert second.config == first.config
    assert second.tokenizer.fingerprint == first.tokenizer.fingerprint
    texts = pack(first.tokenizer.encode([PAPER], 64))
    assert torch.equal(first.model(texts), second.model(texts))


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_config_survive_the_way_to_transformers_and_back(
    tmp_path: Path, family: str
) -> None:
    folder = save_base_model(tmp_path / "hf", family, **OPTIONS.get(family, {}))
    ours, theirs = load_pretrained(folder), AutoModel.from_pretrained(folder)
    returned = export_weights(ours.model.state_dict(), ours.config.encoder)
    original = theirs.state_dict()
    assert returned.keys() == {key for key in original if not key.startswith("pooler.")}
    assert all(torch.equal(returned[key], original[key]) for key in returned)
    # The exported config describes the same model to transformers and to us.
    write_json(folder / "config.json", export_config(ours.config.encoder))
    again = AutoModel.from_pretrained(folder, attn_implementation="eager").eval().double()
    assert read_config(folder).encoder == ours.config.encoder
    tokens = torch.arange(10, 74)[None]
    with torch.no_grad():
        states = again(input_ids=tokens).last_hidden_state[0]
        found = ours.model.double().token_states(pack([tokens[0].numpy()]))
    # ModernBERT rounds queries, keys and attention weights to float32 whatever its dtype is.
    tolerance = 5e-6 if family == "modernbert" else FLOAT64
    assert (states - found).abs().max() <= tolerance


def test_shards_are_one_model(tmp_path: Path) -> None:
    folder = save_base_model(tmp_path / "hf", "bert")
    whole = load_pretrained(folder).model.state_dict()
    (folder / "model.safetensors").unlink()
    hf_model("bert").save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    sharded = load_pretrained(folder).model.state_dict()
    assert sharded.keys() == whole.keys()
    assert all(torch.equal(sharded[key], whole[key]) for key in whole)

    index = folder / "model.safetensors.index.json"
    for file in ("../model.safetensors", 1, None, ["model.safetensors"]):
        write_json(index, {"weight_map": {"a": file}})
        with pytest.raises(CheckpointError, match=r"index\.json: names no files of this folder"):
            load_pretrained(folder)
    for file in ("model-9.safetensors", "x" * 400):
        write_json(index, {"weight_map": {"a": file}})
        with pytest.raises(CheckpointError, match=r"index\.json: a file that it names is not here"):
            load_pretrained(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_beside_the_encoder_are_left_out(tmp_path: Path, family: str) -> None:
    folder = save_base_model(tmp_path / "hf", family)
    state = load_pretrained(folder).model.state_dict()
    # Mapped from the file that saving, with transformers 5.3, overwrites in place.
    alone = {key: tensor.clone() for key, tensor in state.items()}
    with_head = AutoModelForMaskedLM.from_pretrained(folder)
    with_head.save_pretrained(folder)
    loaded = load_pretrained(folder).model.state_dict()
    assert loaded.keys() == alone.keys()
    assert all(torch.equal(loaded[key], alone[key]) for key in alone)


@pytest.mark.parametrize("spelling", ["gamma and beta", "weight and bias"])
def test_a_pretraining_pickle_with_heads(tmp_path: Path, spelling: str) -> None:
    """BiomedBERT and old BERTs: ``pytorch_model.bin``, everything below ``bert.``, ``cls.*``."""
    save_tokenizer(tmp_path, "bert")
    sizes = hf_model("bert").config.to_dict()
    model = BertForPreTraining(BertConfig(**sizes)).eval()
    model.config.save_pretrained(tmp_path)
    weights = dict(model.state_dict()) | {"bert.embeddings.position_ids": torch.arange(64)[None]}
    assert any(key.startswith("cls.predictions.") for key in weights)
    if spelling == "gamma and beta":
        weights = {
            key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): value
            for key, value in weights.items()
        }
    torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    # SciBERT's config.json is older than these keys.
    change_config(tmp_path, model_type=None, layer_norm_eps=None)
    ours = load_pretrained(tmp_path)
    tokens = torch.arange(10, 40)[None]
    with torch.no_grad():
        expected = model.bert.double()(input_ids=tokens).last_hidden_state[0, 0]
        found = ours.model.double()(pack([tokens[0].numpy()]))[0]
    assert (found - expected).abs().max() <= FLOAT64


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_a_missing_weight_is_named(tmp_path: Path, family: str) -> None:
    folder = save_base_model(tmp_path / "hf", family)
    change_config(folder, num_hidden_layers=5, layer_types=None)
    with pytest.raises(CheckpointError, match=r"missing: blocks\.4\.attention"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("bert", "model_type", "deberta-v2"),
        ("bert", "hidden_act", "relu"),
        ("bert", "is_decoder", True),
        ("bert", "add_cross_attention", True),
        ("roberta", "position_embedding_type", "relative_key"),
        ("xlm-roberta", "hidden_act", "silu"),
        ("xlm-roberta", "pad_token_id", "one"),
        ("modernbert", "hidden_activation", "relu"),
        ("modernbert", "embedding_dropout", 0.1),
        ("modernbert", "rope_scaling", {"type": "linear", "factor": 2}),
        ("modernbert", "layer_types", ["full_attention"]),
        ("modernbert", "layer_types", ["causal"] * 4),
        ("modernbert", "layer_types", [["full_attention"]] * 4),
        ("modernbert", "rope_parameters", {"full_attention": {"rope_type": "yarn"}}),
    ],
)
def test_options_that_our_blocks_lack_are_named(
    tmp_path: Path, family: str, key: str, value: object
) -> None:
    folder = change_config(save_base_model(tmp_path / "hf", family), **{key: value})
    with pytest.raises(CheckpointError, match=rf"config\.json: {key}.*not supported.*Fix: use"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_attention_heads", None, "lacks 'num_attention_heads'"),
        ("hidden_size", 31, "multiple"),
        ("vocab_size", 10**25, r"valid: vocab_size: Input should be less.*Fix"),
    ],
)
def test_sizes_that_cannot_be_are_named(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    folder = change_config(save_base_model(tmp_path / "hf", "roberta"), **{key: value})
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(folder)


def test_both_spellings_of_a_modernbert_config() -> None:
    published = {
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "local_attention": 128,
        "layer_norm_eps": 1e-5,
        "position_embedding_type": "absolute",
    }
    old = modernbert_config(published, "cls", "test")
    assert old == modernbert_config(ModernBertConfig().to_dict(), "cls", "test")
    assert old.modern is not None
    assert old.modern.global_blocks == [0, 3, 6, 9, 12, 15, 18, 21]
    assert (old.max_positions, old.modern.local_window) == (8192, 64)
    assert export_config(old)["global_attn_every_n_layers"] == 3


def test_parameter_count_of_modernbert_base() -> None:
    config = modernbert_config(ModernBertConfig().to_dict(), "cls", "test")
    with torch.device("meta"):
        ours, theirs = Encoder(config), AutoModel.from_config(ModernBertConfig())
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1]


def test_experts_are_not_exported() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_blocks": 2, "num_heads": 2}
    config = EncoderConfig(**sizes, intermediate_size=8, **variant_layouts("ffn_expert", {}, 2, 2))
    with pytest.raises(CheckpointError, match="experts has no plain Transformer form.*Fix"):
        export_weights(Encoder(config).state_dict(), config)


def test_an_encoder_without_token_types_is_a_bert_with_a_zero_one() -> None:
    config = EncoderConfig(
        vocab_size=50, hidden_size=8, num_blocks=1, num_heads=2, intermediate_size=8, token_types=0
    )
    model = Encoder(config).eval()
    model.initialise(0)
    bert = AutoModel.from_config(BertConfig(**export_config(config)), attn_implementation="eager")
    bert.load_state_dict(export_weights(model.state_dict(), config), strict=False)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        expected = bert.eval().double()(input_ids=tokens).last_hidden_state[0]
        found = model.double().token_states(pack([tokens[0].numpy()]))
    assert (found - expected).abs().max() <= FLOAT64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "modernbert"}, "the section modern is for family modernbert"),
        ({"modern": {"global_blocks": [0]}}, "the section modern is for family modernbert"),
        ({"family": "roberta"}, "position_offset 0 does not fit"),
        ({"position_offset": 2}, "position_offset 2 does not fit"),
        (
            {"family": "modernbert", "token_types": 0, "modern": {"global_blocks": [2]}},
            "names a block that does not exist",
        ),
        ({"family": "modernbert", "modern": {"global_blocks": []}}, "token_types 0"),
        (
            {
                "family": "modernbert",
                "token_types": 0,
                "hidden_size": 6,
                "modern": {"global_blocks": []},
            },
            "even",
        ),
    ],
)
def test_contradictory_encoder_configs_are_refused(
    changes: dict[str, object], message: str
) -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_blocks": 2, "num_heads": 2}
    with pytest.raises(ValueError, match=message):
        EncoderConfig.model_validate(sizes | {"intermediate_size": 8} | changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_without_tokenizer_files_is_refused(tmp_path: Path, family: str) -> None:
    """transformers opens most of them, with a vocabulary of special tokens alone."""
    hf_model(family).save_pretrained(tmp_path)
    message = "holds no (vocabulary.*copy the files|usable tokenizer)"
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(tmp_path)
