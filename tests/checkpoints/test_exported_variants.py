"""Exports of every variant and family: to a plain encoder if possible, else our own module."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from scimult.checkpoints import load_pretrained
from scimult.checkpoints.exports import export_folded, export_sentence_transformers
from scimult.checkpoints.families import FAMILIES
from scimult.checkpoints.fold import fold, plain_model
from scimult.checkpoints.onnx_export import export_onnx
from scimult.checkpoints.released_export import write_released
from scimult.errors import CheckpointError, ConfigError, UnknownNameError
from scimult.models import VARIANTS
from scimult.types import Role
from tests.checkpoints.exported import (
    TASKS,
    TEXTS,
    difference,
    embed,
    in_onnxruntime,
    routed_model,
    strings,
)
from tests.models.variants import CASES

SIDES: tuple[Role, ...] = get_args(Role)
# name -> (arguments of routed_model, relative tolerance of embeddings of the folded model)
FOLDED: dict[str, tuple[dict[str, Any], float]] = {
    "norms per expert": ({"variant": "mha_ffn_expert", "options": {"own_norm": True}}, 0),
    "shared norms, by format": (
        {"variant": "mha_ffn_expert", "options": {"own_norm": False}, "routing": "format"},
        0,
    ),
    "roberta, by side": (
        {"variant": "ffn_expert", "family": "roberta", "routing": "task_and_side"},
        0,
    ),
    "xlm-roberta": ({"variant": "mha_expert", "family": "xlm-roberta", "pooling": "mean"}, 0),
    "modernbert": ({"variant": "mha_ffn_expert", "family": "modernbert"}, 0),
    "last token": (
        {"variant": "vanilla", "pooling": "position", "pooling_position": -1},
        0,
    ),
    # One rounding to float32 of each changed weight.
    "LoRA": ({"variant": "lora", "options": {"rank": 2}}, 1e-5),
    "LoRA everywhere": (
        {"variant": "lora", "options": CASES["LoRA everywhere"][1], "family": "roberta"},
        1e-5,
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FOLDED)
def test_folded_routes_embed_the_same_in_every_library(tmp_path: Path, name: str) -> None:
    arguments, tolerance = FOLDED[name]
    model = routed_model(tmp_path, **arguments)
    by_side = model.config.routing == "task_and_side"
    seen = []
    for task in ("search", "link_prediction"):
        for side in SIDES if by_side else (None,):
            folder = tmp_path / f"{task}-{side}"
            export_folded(folder, model, task, side)
            wanted_ND = embed(model, task, side or "query")
            seen.append(wanted_ND)
            back = load_pretrained(folder)
            assert not back.config.encoder.is_routed
            assert difference(embed(back, task), wanted_ND) <= tolerance
            theirs = SentenceTransformer(str(folder), device="cpu")
            assert difference(theirs.encode(strings(model)), wanted_ND) <= 1e-5
    if model.config.encoder.is_routed:
        assert all(difference(a, b) > 0.01 for a, b in pairwise(seen))


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_finds_all_weights_of_a_folded_model(tmp_path: Path, family: str) -> None:
    model = routed_model(tmp_path, "ffn_expert", family=family)
    export_folded(tmp_path / "f", model, "classification")
    plain, info = AutoModel.from_pretrained(tmp_path / "f", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "f")
    batch = tokenizer(
        strings(model), padding=True, truncation=True, max_length=64, return_tensors="pt"
    )
    with torch.no_grad():
        states = plain.eval()(**batch).last_hidden_state[:, 0].numpy()
    assert difference(states, embed(model, "classification")) <= 1e-5


def test_folding_by_format_keeps_all_tasks_of_the_format(tmp_path: Path) -> None:
    model = routed_model(tmp_path, "ffn_expert", routing="format")
    config, _ = fold(model, "link_prediction")
    assert [task.name for task in config.tasks] == ["link_prediction", "recommendation"]


def test_sides_are_named_where_they_differ_and_only_there(tmp_path: Path) -> None:
    sided = routed_model(tmp_path / "a", "mha_expert", routing="task_and_side")
    with pytest.raises(ConfigError, match="only one side.*--side query or --side candidate"):
        fold(sided, "search")
    for name in ("mha_expert", "vanilla"):
        model = routed_model(tmp_path / name, name)
        with pytest.raises(ConfigError, match="queries and candidates alike.*leave --side out"):
            fold(model, "search", "candidate")


def test_roberta_whose_padding_would_move_positions_is_refused(tmp_path: Path) -> None:
    model = routed_model(tmp_path, "ffn_expert", family="roberta")
    config, weights = fold(model, "search")
    with pytest.raises(CheckpointError, match=r"counts positions.*value: 0.*the id 1"):
        plain_model(config, weights, pad_id=0)


NOT_PLAIN = {
    "adapters": {"options": {"width": 4}},
    "fusion": {"options": {"width": 4}},
    "pals": {"options": {"width": 8, "heads": 2}},
    "control_codes": {},
    "instruction": {},
    "prefix": {},
}


@pytest.mark.parametrize("variant", NOT_PLAIN)
def test_variants_without_a_plain_form_say_so_and_what_to_use(tmp_path: Path, variant: str) -> None:
    model = routed_model(tmp_path, variant, **NOT_PLAIN[variant])
    for export in (export_folded, export_onnx):
        with pytest.raises(CheckpointError, match=r"cannot be folded.*sentence-tran.*pretrained"):
            export(tmp_path / "out", model, "search")
    with pytest.raises(CheckpointError, match=r"released structure cannot express.*pretrained"):
        write_released(tmp_path / "out", model)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changes",
    [{"dims": 8}, {"pooling": "position", "pooling_position": 2}],
    ids=["dims", "pooling_position"],
)
def test_settings_without_a_plain_form_are_named(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    model = routed_model(tmp_path, "vanilla", **changes)
    with pytest.raises(CheckpointError, match=f"with {list(changes)[-1]} cannot be folded"):
        fold(model, None)
    export_sentence_transformers(tmp_path / "st", model)
    theirs = SentenceTransformer(str(tmp_path / "st"), device="cpu", trust_remote_code=True)
    found_ND = theirs.encode(strings(model), task="search")
    assert found_ND.shape == (len(TEXTS), theirs.get_embedding_dimension())
    assert difference(found_ND, embed(model, "search")) <= 1e-5


def test_every_variant_is_tested() -> None:
    folded = {arguments["variant"] for arguments, _ in FOLDED.values()}
    assert folded | NOT_PLAIN.keys() == set(VARIANTS)


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_sentence_transformers_routes_every_variant(tmp_path: Path, variant: str) -> None:
    routing = "task_and_side" if variant in ("mha_expert", "adapters") else "format"
    model = routed_model(tmp_path, variant, routing=routing, **NOT_PLAIN.get(variant, {}))
    (note,) = export_sentence_transformers(tmp_path / "st", model)
    ours = variant in NOT_PLAIN
    assert ("our module runs the model" in note) == ours
    assert ("needs none of our code" in note) == (not ours)
    theirs = SentenceTransformer(str(tmp_path / "st"), device="cpu", trust_remote_code=ours)
    for task in TASKS:
        for side in SIDES:
            wanted_ND = embed(model, task.name, side)
            sided = ours or (variant != "vanilla" and routing == "task_and_side")
            name = f"{task.name}/{side}" if sided else task.name
            assert difference(theirs.encode(strings(model), task=name), wanted_ND) <= 1e-5
    with pytest.raises((ValueError, UnknownNameError), match="serach"):
        theirs.encode(["x"], task="serach")
    with pytest.raises((ValueError, ConfigError), match="task="):
        theirs.encode(["x"])


def test_our_module_in_sentence_transformers(tmp_path: Path) -> None:
    model = routed_model(tmp_path, "adapters", {"width": 4}, routing="task_and_side")
    export_sentence_transformers(tmp_path / "st", model)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SentenceTransformer(str(tmp_path / "st"), device="cpu")
    theirs = SentenceTransformer(str(tmp_path / "st"), device="cpu", trust_remote_code=True)
    # A folder of ours, too.
    again = load_pretrained(tmp_path / "st")
    assert again.config == model.config
    texts = strings(model)
    queries_ND = theirs.encode_query(texts, prompt_name="search")
    assert difference(queries_ND, embed(again, "search", "query")) <= 1e-5
    papers_ND = theirs.encode_document(texts, prompt_name="search")
    assert difference(papers_ND, embed(again, "search", "candidate")) <= 1e-5
    theirs.save(str(tmp_path / "saved"))
    saved = SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    assert np.array_equal(saved.encode(texts, task="search"), theirs.encode(texts, task="search"))


# XLM-R is RoBERTa under another name; BERT has tests of its own.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_onnx_of_other_families(tmp_path: Path, family: str) -> None:
    last = {"pooling": "position", "pooling_position": -1}
    model = routed_model(tmp_path, "mha_expert", family=family, routing="task_and_side", **last)
    found = export_onnx(tmp_path / "o", model, "search", "candidate")
    assert found is not None
    assert found <= 1e-5
    vectors_ND = in_onnxruntime(tmp_path / "o", strings(model))
    assert difference(vectors_ND, embed(model, "search", "candidate")) <= 1e-5
