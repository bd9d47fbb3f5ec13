"""Cross-encoders: damaged folders, and those saved in bfloat16."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, constants, is_offline_mode
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from scimult.errors import CheckpointError, ConfigError
from scimult.inference.sentence_encoder import EncoderSpec
from scimult.inference.sentence_model import load_model
from scimult.reach import is_cut_off
from scimult.retrieval.cross_encoder import load_cross_encoder
from tests.file_server import cut_off_hub
from tests.tiny import save_cross_encoder, tiny_backend, tiny_tokenizer

PAIRS = [("a graph", f"another graph of {number} nodes") for number in range(8)]


@pytest.fixture
def cross(tmp_path: Path) -> Path:
    return save_cross_encoder(tmp_path / "cross")


def test_a_cut_file_is_an_error_for_users(cross: Path) -> None:
    weights = cross / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="cannot load cross-encoder"):
        load_cross_encoder(str(cross))


class ConnectError(Exception):
    """As the HTTP libraries of the hub's client call it."""


class ProxyError(ConnectError):
    """Of a proxy that lets nothing through."""


@pytest.mark.parametrize(
    ("answer", "cut_off"),
    [(ConnectError(), True), (ProxyError(), True), (TimeoutError(), False), (ValueError(), False)],
)
def test_without_a_network_the_hub_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, answer: Exception, cut_off: bool
) -> None:
    """Its client would repeat each request of a download for half a minute."""
    asked, loaded = [], []

    def model_info(_: HfApi, name: str, **__: object) -> None:
        asked.append(name)
        raise answer

    def load(*_: object, **__: object) -> None:
        loaded.append(is_offline_mode())
        raise OSError("no such model.")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", model_info)
    monkeypatch.setattr("sentence_transformers.CrossEncoder", load)
    monkeypatch.setattr("sentence_transformers.SentenceTransformer", load)
    with pytest.raises(ConfigError, match=r"no such model \(value: 'a/b'\). Fix: "):
        load_cross_encoder("a/b")
    with pytest.raises(CheckpointError, match=r"a/b: .*no such model. Fix: "):
        load_model(EncoderSpec(model="a/b", pooling="own"), "cpu")
    assert (asked, loaded) == (["a/b"] * 2, [cut_off] * 2)
    assert not is_offline_mode()


def test_a_downloaded_model_is_read_at_once_without_a_network(
    cross: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers looks for an adapter of it on the hub even if told to read local files only."""
    snapshot = tmp_path / "cache/models--a--b/snapshots" / ("0" * 40)
    shutil.copytree(cross, snapshot)
    (tmp_path / "cache/models--a--b/refs").mkdir()
    (tmp_path / "cache/models--a--b/refs/main").write_text(snapshot.name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    cut_off_hub(monkeypatch)
    scores = load_cross_encoder("a/b", "cpu")(PAIRS)
    np.testing.assert_array_equal(scores, load_cross_encoder(str(cross), "cpu")(PAIRS))


def test_without_a_network_the_error_says_how_to_download_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cut_off_hub(monkeypatch)
    download = "run `hf download a/b --local-dir FOLDER` elsewhere and use that folder"
    with pytest.raises(ConfigError, match=f"cannot load cross-encoder: .*Fix: .*; or {download}$"):
        load_cross_encoder("a/b", "cpu")
    with pytest.raises(CheckpointError, match=f"cannot load the encoder: .*Fix: .*; or {download}"):
        load_model(EncoderSpec(model="a/b"), "cpu")
    with pytest.raises(CheckpointError, match="Fix: name a folder; --model takes"):
        load_model(EncoderSpec(model=str(tmp_path)), "cpu")


def test_the_hub_is_not_asked_for_a_folder(cross: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(HfApi, "model_info")
    assert not is_cut_off(str(cross))


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


def _adapted(base: Path, folder: Path, **settings: Any) -> tuple[Path, Any]:
    """Save an adapter as sentence-transformers does; return its folder and PEFT's own model."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    config = peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False, **settings)
    adapted = peft.get_peft_model(model, config).eval()
    CrossEncoder(str(base), device="cpu").save_pretrained(str(folder))
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
    adapted.save_pretrained(folder)
    return folder, adapted


def test_an_adapter_scores_as_in_peft_itself(cross: Path, tmp_path: Path) -> None:
    folder, adapted = _adapted(cross, tmp_path / "adapter", task_type="SEQ_CLS")
    scores = load_cross_encoder(str(folder), "cpu")(PAIRS)
    queries, documents = zip(*PAIRS, strict=True)
    read = AutoTokenizer.from_pretrained(cross)(
        list(queries), list(documents), padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        wanted = adapted(**read).logits[:, 0].numpy()
    np.testing.assert_allclose(scores, wanted, atol=1e-5)  # float32, in other batches
    assert np.abs(scores - load_cross_encoder(str(cross), "cpu")(PAIRS)).max() > 0.01
    # PEFT alone writes no list of modules, without which the library finds no base.
    (folder / "modules.json").unlink()
    with pytest.raises(ConfigError, match="cannot load cross-encoder.*Fix: merge the adapter into"):
        load_cross_encoder(str(folder))


@pytest.mark.parametrize("missing", ["the base's head", "a saved head", "a block's update"])
def test_no_weight_of_an_adapter_is_random(cross: Path, tmp_path: Path, missing: str) -> None:
    """Scores of an adapter without a head over an encoder differed at each start."""
    base, settings = cross, {"task_type": "SEQ_CLS"}
    if missing == "the base's head":
        base, settings = tmp_path / "encoder", {}
        AutoModel.from_pretrained(cross).save_pretrained(base)
        tiny_tokenizer().save(base)
    folder, _ = _adapted(base, tmp_path / "adapter", **settings)
    part = {"a saved head": "classifier", "a block's update": "lora_B"}.get(missing, "nothing")
    weights = load_file(folder / "adapter_model.safetensors")
    kept = {name: weight for name, weight in weights.items() if part not in name}
    save_file(kept, folder / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"lack [12] weights, which would be random.*Fix: "):
        load_cross_encoder(str(folder))


def test_a_cpu_scores_in_float32_whatever_was_saved(cross: Path, tmp_path: Path) -> None:
    half, full = tmp_path / "half", tmp_path / "full"
    model = BertForSequenceClassification.from_pretrained(cross).bfloat16()
    model.save_pretrained(half)
    model.float().save_pretrained(full)
    for folder in (half, full):
        tiny_tokenizer().save(folder)
    scores = [load_cross_encoder(str(folder), "cpu")(PAIRS) for folder in (half, full)]
    np.testing.assert_array_equal(*scores)


def test_sure_scores_keep_their_order(cross: Path) -> None:
    """In float32 all sigmoids of scores above 17 are 1."""
    before = load_cross_encoder(str(cross), "cpu")(PAIRS)
    model = BertForSequenceClassification.from_pretrained(cross)
    model.classifier.bias.data += 20
    model.save_pretrained(cross)
    after = load_cross_encoder(str(cross), "cpu")(PAIRS)
    np.testing.assert_allclose(after, before + 20, rtol=0, atol=1e-5)
    assert np.argsort(after).tolist() == np.argsort(before).tolist()


def test_a_pair_has_one_score_whatever_is_scored_with_it(cross: Path) -> None:
    pairs = [("graphs", f"graph of {number} nodes " * (1 + number % 7)) for number in range(40)]
    scores_P = load_cross_encoder(str(cross), "cpu")([*pairs, *pairs[::3]])
    np.testing.assert_array_equal(scores_P[40:], scores_P[:40:3])


def test_long_pairs_are_cut_to_the_positions_behind_the_paddings(tmp_path: Path) -> None:
    """RoBERTa's begin after it; the library counts all and then reads beyond the table."""
    tokenizer = tiny_tokenizer()
    config = RobertaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        pad_token_id=1,
        num_labels=1,
    )
    RobertaForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    score = load_cross_encoder(str(tmp_path), "cpu")
    long, longer = "graph " * 20, "graph " * 40
    assert score([("a", long)]) == score([("a", longer)])


def test_a_tokenizer_must_be_able_to_pad(cross: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=tiny_backend()).save_pretrained(cross)
    with pytest.raises(ConfigError, match="cannot score: .*padding token.*Fix: "):
        load_cross_encoder(str(cross))


def test_a_tokenizer_must_know_words(cross: Path) -> None:
    """transformers makes one without its files, to which all texts are unknown words."""
    for path in cross.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ConfigError, match="tokenizer knows no words.*Fix: copy its files"):
        load_cross_encoder(str(cross))
