"""Folded models embed as the routed ones do, in every library that loads them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoTokenizer

from scimult.checkpoints import (
    PretrainedConfig,
    fold,
    load_pretrained,
    onnx_export,
    save_pretrained,
)
from scimult.checkpoints.exports import (
    export_folded,
    export_sentence_transformers,
)
from scimult.checkpoints.onnx_export import export_onnx
from scimult.checkpoints.released_export import write_released
from scimult.data.tokenization import TextTokenizer
from scimult.errors import CheckpointError, ConfigError, SciMultError, UnknownNameError
from scimult.files import folder_bytes
from scimult.inference import SciMult
from scimult.models import EncoderConfig, ExpertLayout
from scimult.types import Text
from tests.checkpoints.exported import (
    difference,
    embed,
    in_onnxruntime,
    routed_model,
    strings,
)
from tests.tiny import save_tiny_model

PROVENANCE = {"base": "org/name", "data": "abc123", "step": 7}
TASKS = ("search", "link_prediction", "classification")


@pytest.fixture(params=["mha_expert", "ffn_expert", "mha_ffn_expert", "vanilla"])
def variant(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.long
@pytest.mark.parametrize(("pooling", "similarity"), [("cls", "dot"), ("mean", "cosine")])
def test_folded_is_bit_equal_for_us_and_close_elsewhere(
    tmp_path: Path, variant: str, pooling: Any, similarity: Any
) -> None:
    folder = save_tiny_model(
        tmp_path / "m", variant=variant, pooling=pooling, similarity=similarity
    )
    model = load_pretrained(folder)
    for task in TASKS:
        export_folded(tmp_path / task, model, task)
        back = load_pretrained(tmp_path / task)
        assert back.config.encoder.experts is None
        assert (back.config.similarity, back.config.max_length) == (similarity, 64)
        assert back.tasks.names == [task]
        wanted_ND = embed(model, task)
        assert np.array_equal(embed(back, task), wanted_ND)
        theirs = SentenceTransformer(str(tmp_path / task), device="cpu")
        assert theirs.similarity_fn_name == similarity
        assert difference(theirs.encode(strings(model)), wanted_ND) <= 1e-5


def test_other_tasks_of_a_folded_model_are_unknown(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m"))
    export_folded(tmp_path / "f", model, "search")
    with pytest.raises(UnknownNameError, match="use one of all, search"):
        embed(load_pretrained(tmp_path / "f"), "classification")
    with pytest.raises(UnknownNameError, match="did you mean 'search'"):
        export_folded(tmp_path / "g", model, "serach")
    with pytest.raises(ConfigError, match="--task: search, link_prediction, classification"):
        export_folded(tmp_path / "g", model, None)
    assert not (tmp_path / "g").exists()


def test_vanilla_folds_for_all_tasks(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m", variant="vanilla"))
    export_folded(tmp_path / "f", model, None)
    assert load_pretrained(tmp_path / "f").tasks.names == list(TASKS)


def test_lower_casing_of_ours_goes_into_the_tokenizer_files(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "cased").mkdir()
    for name, section in (("tokenizer.json", "normalizer"), ("tokenizer_config.json", None)):
        content = json.loads((minilm / name).read_text())
        if section is None:
            content["do_lower_case"] = False
        else:
            content[section]["lowercase"] = False
        (tmp_path / "cased" / name).write_text(json.dumps(content))
    tokenizer = TextTokenizer.from_folder(tmp_path / "cased", lowercase=True)
    (tmp_path / "t").mkdir()
    tokenizer.save_plain(tmp_path / "t", 64)
    unchanged = AutoTokenizer.from_pretrained(tmp_path / "cased")
    assert unchanged("Graph")["input_ids"] != unchanged("graph")["input_ids"]
    # Literal special tokens stay what they are, as in every text.
    text = Text("paper", "Graph DRAWING of İstanbul", "Déjà Vu [SEP] Naïve [MASK] [PAD][CLS] [Pad]")
    plain = AutoTokenizer.from_pretrained(tmp_path / "t")
    wanted = tokenizer.encode([text], 64)[0].tolist()
    assert plain(f"{text.title} [SEP] {text.body}")["input_ids"] == wanted
    assert TextTokenizer.from_folder(tmp_path / "t").encode([text], 64)[0].tolist() == wanted


def test_router_runs_the_experts_of_the_task(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m", similarity="l2"))
    export_sentence_transformers(tmp_path / "st", model)
    routed = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    assert routed.similarity_fn_name == "euclidean"
    assert routed.max_seq_length == 64
    for task in TASKS:
        assert difference(routed.encode(strings(model), task=task), embed(model, task)) <= 1e-5
        alone = load_pretrained(tmp_path / "st" / task)
        assert np.array_equal(embed(alone, task), embed(model, task))
    with pytest.raises(ValueError, match="task='search'"):
        routed.encode(["x"])
    with pytest.raises(ValueError, match="No route found for task type 'serach'"):
        routed.encode(["x"], task="serach")


def test_router_of_a_vanilla_model_has_its_weights_once(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m", variant="vanilla"))
    export_sentence_transformers(tmp_path / "st", model)
    assert len(list((tmp_path / "st").rglob("model.safetensors"))) == 1
    routed = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    assert difference(routed.encode(strings(model), task="search"), embed(model, "search")) <= 1e-5
    assert folder_bytes(tmp_path / "st") < 2 * folder_bytes(tmp_path / "m")


def test_task_names_that_cannot_be_routes_are_refused(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m"))
    model.config.tasks[0] = model.config.tasks[0].model_copy(update={"name": "a.b"})
    with pytest.raises(CheckpointError, match="cannot be a route .value: 'a.b'"):
        export_sentence_transformers(tmp_path / "st", model)


@pytest.fixture(scope="module")
def onnx_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export one model with experts, mean pooling and unit vectors; slow, hence shared."""
    folder = tmp_path_factory.mktemp("onnx")
    model = load_pretrained(save_tiny_model(folder / "m", pooling="mean"), normalise=True)
    model.config.provenance |= PROVENANCE
    difference = export_onnx(folder / "o", model, "search")
    assert difference is not None
    assert difference <= 1e-5
    return folder


@pytest.mark.long
def test_onnx_computes_the_same_at_any_batch_and_length(onnx_folder: Path) -> None:
    model = load_pretrained(onnx_folder / "m", normalise=True)
    wanted_ND = embed(model, "search")
    for rows in (slice(0, 1), slice(0, 5), slice(1, 3)):
        found_ND = in_onnxruntime(onnx_folder / "o", strings(model)[rows])
        assert difference(found_ND, wanted_ND[rows]) <= 1e-5


LAST = {"pooling": "position", "pooling_position": -1}


@pytest.mark.parametrize("pooling", [{"pooling": "cls"}, {"pooling": "mean"}, LAST], ids=str)
@pytest.mark.parametrize("normalise", [False, True])
def test_what_becomes_the_graph_embeds_as_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooling: dict[str, Any], normalise: bool
) -> None:
    caught: list[torch.nn.Module] = []
    monkeypatch.setattr(onnx_export, "_write_graph", lambda embedder, *_: caught.append(embedder))
    monkeypatch.setattr(onnx_export, "_compare", lambda *_: 0.0)
    model = routed_model(tmp_path, "ffn_expert", **pooling)
    model.config.normalise = normalise
    export_onnx(tmp_path / "o", model, "search")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "o")
    batch = tokenizer(
        strings(model), padding=True, truncation=True, max_length=64, return_tensors="pt"
    )
    with torch.no_grad():
        found_ND = caught[0](batch["input_ids"], batch["attention_mask"]).numpy()
    assert difference(found_ND, embed(model, "search")) <= 1e-5
    assert AutoConfig.from_pretrained(tmp_path / "o").num_hidden_layers == 2


def test_onnx_that_computes_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m", variant="vanilla"))
    monkeypatch.setattr(onnx_export, "_write_graph", lambda *_: None)
    monkeypatch.setattr(onnx_export, "_compare", lambda *_: 0.5)
    with pytest.raises(CheckpointError, match=r"differ from PyTorch's by 5\.0e-01"):
        export_onnx(tmp_path / "o", model, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]
    monkeypatch.setattr(onnx_export, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs onnx and onnxscript.*scimult\[onnx\]"):
        export_onnx(tmp_path / "o", model, None)


def test_an_export_that_torch_cannot_do_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So onnxscript 0.5 to 0.6 failed with newer onnx-ir, and torch 2.6 with any."""

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to convert")

    model = load_pretrained(save_tiny_model(tmp_path / "m", variant="vanilla"))
    monkeypatch.setattr(torch.onnx, "export", fails)
    problem = r"torch .* cannot write the graph \(RuntimeError\).*upgrade 'scimult\[onnx\]'"
    with pytest.raises(ConfigError, match=problem):
        export_onnx(tmp_path / "o", model, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


@pytest.mark.parametrize(
    ("section", "name"),
    [(PretrainedConfig, "max_length"), (EncoderConfig, "max_positions"), (ExpertLayout, "blocks")],
)
def test_settings_that_folding_does_not_know_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: type[BaseModel], name: str
) -> None:
    """As if the code had gained a setting that folding does not know."""
    model = load_pretrained(save_tiny_model(tmp_path / "m"))
    monkeypatch.setitem(fold._PLAIN, section, fold._PLAIN[section] - {name})
    with pytest.raises(CheckpointError, match=f"with {name} cannot be folded.*pretrained"):
        export_folded(tmp_path / "f", model, "search")


def test_weights_beyond_a_bert_are_refused(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m"))
    model.model.blocks[0].extra = torch.nn.Linear(2, 2)
    with pytest.raises(
        CheckpointError, match=r"weights that a plain encoder does not.*blocks\.0\.ext"
    ):
        export_folded(tmp_path / "f", model, "search")


@pytest.mark.long
def test_cards_say_what_users_need(tmp_path: Path, onnx_folder: Path) -> None:
    folder = save_tiny_model(tmp_path / "run" / "model", pooling="mean")
    model = load_pretrained(folder)
    model.config.provenance |= PROVENANCE
    export_folded(tmp_path / "f", model, "search")
    export_sentence_transformers(tmp_path / "st", model)
    cards = {}
    for place in (folder, tmp_path / "f", tmp_path / "st", onnx_folder / "o"):
        text = (place / "README.md").read_text(encoding="utf-8")
        found = re.fullmatch(r"---\n(.*?)---\n(.*)", text, re.DOTALL)
        assert found is not None
        cards[place.name] = yaml.safe_load(found[1]), found[2]
    libraries = [front["library_name"] for front, _ in cards.values()]
    assert libraries == ["scimult", "sentence-transformers", "sentence-transformers", "onnx"]
    assert cards["f"][0]["base_model"] == "org/name"
    assert "# run\n" in cards["model"][1]
    for name, (front, body) in cards.items():
        assert "search" in front["tags"]
        assert "the mean over all tokens" in body
        assert "compared by dot product" in body
        assert "## Provenance" in body
        if name != "model":
            assert "`title[SEP]abstract`" in body
            assert "- data: abc123\n- step: 7" in body
    assert "Find a pair of scientific papers" in cards["st"][1]
    assert "Find a pair of scientific papers" not in cards["f"][1]


@pytest.mark.long
def test_the_code_of_a_card_runs_where_the_folder_is(
    tmp_path: Path, onnx_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model(tmp_path / "own")
    model = load_pretrained(folder)
    export_folded(tmp_path / "folded", model, "search")
    export_sentence_transformers(tmp_path / "routed", model)
    paper = Text("paper", "Graph drawing", "We lay out large graphs.")
    plain_1D = SciMult.from_pretrained(folder).encode([paper], task="search", role="query")
    unit = SciMult.from_pretrained(onnx_folder / "m", normalise=True)
    places = dict.fromkeys((folder, tmp_path / "folded", tmp_path / "routed"), plain_1D)
    places[onnx_folder / "o"] = unit.encode([paper], task="search", role="query")
    for place, expected_1D in places.items():
        monkeypatch.chdir(place.parent)
        card = (place / "README.md").read_text(encoding="utf-8")
        found: dict[str, Any] = {}
        exec(re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0], found)
        np.testing.assert_allclose(found["embeddings"][:1], expected_1D, atol=1e-5, err_msg=card)


def test_damaged_folded_config_is_an_error(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m"))
    export_folded(tmp_path / "f", model, "search")
    file = tmp_path / "f" / "config.json"
    content = json.loads(file.read_text())
    content["scimult"]["max_lenght"] = 3
    file.write_text(json.dumps(content))
    with pytest.raises(SciMultError, match="max_lenght: unknown key.*'max_length'"):
        load_pretrained(tmp_path / "f")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("form", ["pretrained", "released", "onnx"])
def test_weights_that_compute_nothing_are_neither_saved_nor_exported(
    tmp_path: Path, value: float, form: str
) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m", variant="mha_expert"))
    name, weight = next(iter(model.model.named_parameters()))
    with torch.no_grad():
        weight.view(-1)[0] = value
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match="a weight is not finite.*Fix: check the model"):
        if form == "pretrained":
            save_pretrained(out, model.model.state_dict(), model.tokenizer, model.config)
        elif form == "released":
            write_released(out, model)
        else:
            export_onnx(out, model, task="search")
    assert not out.exists(), name
