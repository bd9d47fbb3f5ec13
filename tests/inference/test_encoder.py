from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from scimult.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    SciMultError,
    UnknownNameError,
)
from scimult.files import read_json, write_json
from scimult.hardware import products_in_tf32
from scimult.inference import SciMult
from scimult.inference.texts import made_ahead
from scimult.tasks import TaskSet, default_tasks
from scimult.types import Role, Text, TextEncoder
from tests.tiny import save_tiny_model

LINK = "link_prediction"
TASKS = ("search", "link_prediction", "classification")
PAPERS = [
    Text("paper", "A long title about graphs", "An abstract, " * 6),
    Text("paper", "Short"),
    Text("paper", "", "Only an abstract"),
]


def test_it_is_a_text_encoder(model: SciMult) -> None:
    encoder: TextEncoder = model
    assert (encoder.name, encoder.similarity) == ("tiny", "dot")
    assert model.tasks.names == list(TASKS)
    embeddings_ND = encoder.encode(PAPERS, task="search", role="candidate")
    assert embeddings_ND.shape == (3, model.width)
    assert embeddings_ND.dtype == np.float32


def test_it_says_what_it_is(folder: Path, model: SciMult) -> None:
    known = "search, link_prediction, classification"
    assert repr(model) == f"SciMult('tiny': {known}; width 16, dot; float32 on cpu)"
    cosine = SciMult.from_pretrained(folder, similarity="cosine", dims=8, dtype="bfloat16")
    assert "width 8, cosine, unit vectors; bfloat16 on" in repr(cosine)
    assert repr(model.tasks) == f"TaskSet({known})"


def test_order_and_batch_do_not_matter(folder: Path, model: SciMult) -> None:
    together_ND = model.encode(PAPERS, task="search")
    backwards_ND = model.encode(PAPERS[::-1], task="search")
    alone_ND = np.concatenate([model.encode([paper], task="search") for paper in PAPERS])
    np.testing.assert_allclose(backwards_ND[::-1], together_ND, atol=1e-5)
    np.testing.assert_allclose(alone_ND, together_ND, atol=1e-5)


def test_every_task_has_its_own_expert(model: SciMult) -> None:
    first, second, third = (model.encode(PAPERS, task=task) for task in TASKS)
    for one_ND, other_ND in ((first, second), (first, third), (second, third)):
        assert np.abs(one_ND - other_ND).max() > 1e-2


def test_query_and_candidate_share_the_expert(model: SciMult) -> None:
    sides = [model.encode(PAPERS, task="link_prediction", role=role) for role in _ROLES]
    np.testing.assert_array_equal(*sides)


_ROLES: tuple[Role, Role] = ("query", "candidate")


@pytest.mark.parametrize(
    ("item", "task", "role", "text"),
    [
        ("graph drawing", "search", "query", Text("query", "graph drawing")),
        ("  A title ", "search", "candidate", Text("paper", "A title")),
        ("Geometry", "classification", "candidate", Text("label", "Geometry")),
        ({"title": "T", "abstract": "A"}, "link_prediction", "query", Text("paper", "T", "A")),
        ({"title": "T", "text": "A", "id": 3}, "search", "candidate", Text("paper", "T", "A")),
        ({"title": "T", "abstract": None}, "search", "candidate", Text("paper", "T")),
        ({"abstract": "A"}, "search", "candidate", Text("paper", "", "A")),
        ({"name": "N", "definition": "D"}, "classification", "candidate", Text("label", "N", "D")),
        ({"text": "graphs"}, "search", "query", Text("query", "graphs")),
    ],
)
def test_texts_are_formatted_for_the_user(
    model: SciMult, item: Any, task: str, role: Role, text: Text
) -> None:
    given_1D = model.encode([item], task=task, role=role)
    np.testing.assert_array_equal(given_1D, model.encode([text], task=task, role=role))


def test_title_and_abstract_differ_from_one_string(model: SciMult) -> None:
    apart_1D = model.encode([{"title": "graph", "abstract": "drawing"}], task=LINK)
    assert np.abs(apart_1D - model.encode(["graph drawing"], task=LINK)).max() > 1e-3


def test_no_texts_give_no_rows(model: SciMult) -> None:
    assert model.encode([], task="search").shape == (0, model.width)


def test_longer_than_the_model_is_cut(model: SciMult) -> None:
    long = Text("paper", "graph " * 500)
    cut = Text("paper", "graph " * 400)
    np.testing.assert_array_equal(
        model.encode([long], task="search"), model.encode([cut], task="search")
    )


def test_unknown_task_lists_the_known_ones(model: SciMult) -> None:
    with pytest.raises(UnknownNameError, match="classification, link_prediction, search.*'search'"):
        model.encode(["x"], task="serach")
    with pytest.raises(UnknownNameError, match="classification"):
        model.encode([], task="regression")


def test_unknown_role_lists_the_known_ones(model: SciMult) -> None:
    with pytest.raises(UnknownNameError, match="candidate, query"):
        model.encode(["x"], task="search", role="document")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["graphs", "  "], r"text 1 \(query\) is empty"),
        (["graphs", "\u200b\ufeff"], r"text 1 \(query\) is empty"),
        ([{"text": None}], r"text 0 \(query\) is empty"),
        ([{"name": "graphs"}], r"none of the fields text, query, title \(value: \['name'\]\)"),
        ([{"text": 3}], r"text 0 holds a int \(value: 3\)"),
        ([3], r"text 0 is of type int"),
        (["na\udcefve"], r"text 0 \(query\) is not a string of characters \(value: 'na.udcefve'\)"),
        ([Text("query", 3)], r"text 0 \(query\) is not a string of characters \(value: 3\)"),
        ([{"text": float("nan")}], r"holds a float \(value: nan\)\. Fix: .*pandas: frame.fillna"),
        ([{"text": pd.NA}], r"holds a NAType .*Fix: .*pandas: frame.fillna"),
        ([{"text": np.array(["a", "b"])}], r"holds a ndarray .*Fix: write text or query"),
        ({"graphs"}, "texts is of type set"),
        (3, "texts is of type int"),
        (b"graphs", "single text"),
        ("graphs", r"single text.*pass a list"),
        ({"text": "graphs"}, r"single text.*pass a list"),
    ],
)
def test_bad_texts_are_named(model: SciMult, texts: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        model.encode(texts, task="search")


@pytest.mark.parametrize(
    ("item", "side", "message"),
    [
        ({"titel": "T", "abstract": "A"}, (LINK, "query"), "'titel'.*Fix: name it 'title'"),
        ({"Title": "T", "abstract": "A"}, (LINK, "query"), "'Title'.*Fix: name it 'title'"),
        ({"title": "T", "abstrct": "A"}, (LINK, "query"), "'abstrct'.*Fix: name it 'abstract'"),
        ({"title": "T", "paperAbstract": "A"}, (LINK, "query"), "Fix: name it 'abstract'"),
        ({"title": "T", "summary": "A"}, (LINK, "query"), "Fix: name it 'abstract'"),
        ({"title": "T", "abstract": "A", "name": "N"}, (LINK, "query"), "'name'.*leave it out"),
        (
            {"title": "N", "abstract": "D"},
            ("classification", "candidate"),
            "label has text under 'abstract'.*Fix: name it 'definition'",
        ),
        (
            {"name": "N", "description": "D"},
            ("classification", "candidate"),
            "Fix: name it 'definition'",
        ),
        (
            {"title": "T", "abstract": "A"},
            ("search", "query"),
            "query has text under 'abstract'.*role 'candidate'",
        ),
    ],
)
def test_text_in_a_field_that_is_not_read_is_refused(
    model: SciMult, item: Any, side: tuple[str, Role], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        model.encode([{"title": "fine"}, item], task=side[0], role=side[1])
    assert str(caught.value).startswith("text 1: ")
    assert str(caught.value).count("Fix:") == 1


def test_other_fields_are_left_alone(model: SciMult) -> None:
    names = "id year doi authors venue journal url paper_id text_id context keywords language"
    paper = {"title": "T", "abstract": "A", "subtitle": "S", "description": "D", "summary": ""}
    given = model.encode([paper | dict.fromkeys(names.split(), "x")], task=LINK)
    assert np.array_equal(given, model.encode([Text("paper", "T", "A")], task=LINK))
    # Another name for the same part only counts if the first is absent.
    both = model.encode([{"title": "T", "abstract": "A", "text": "whole paper"}], task=LINK)
    assert np.array_equal(both, given)
    title = model.encode([{"title": "T", "query_id": "q1", "name": ""}], task=LINK)
    assert np.array_equal(title, model.encode(["T"], task=LINK))


def test_embeddings_that_are_not_finite_are_refused(folder: Path) -> None:
    model = SciMult.from_pretrained(folder)
    with torch.no_grad():
        next(model._model.parameters())[:] = torch.nan
    with pytest.raises(DataError, match="3 of 3 embeddings by tiny in float32 are not finite"):
        model.encode(PAPERS, task="search")


def test_settings_of_the_folder_hold_unless_replaced(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "m", pooling="mean", similarity="cosine", variant="vanilla")
    own = SciMult.from_pretrained(tmp_path / "m")
    replaced = SciMult.from_pretrained(tmp_path / "m", pooling="cls", similarity="l2", name="x")
    assert (own.similarity, own.name) == ("cosine", "m")
    assert (replaced.similarity, replaced.name) == ("l2", "x")
    differences = own.encode(PAPERS, task="search") - replaced.encode(PAPERS, task="search")
    assert np.abs(differences).max() > 1e-2
    assert own.fingerprint != replaced.fingerprint


def test_bfloat16_is_close_to_float32(folder: Path, model: SciMult) -> None:
    half = SciMult.from_pretrained(folder, dtype="bfloat16")
    half_ND, full_ND = half.encode(PAPERS, task="search"), model.encode(PAPERS, task="search")
    assert half_ND.dtype == np.float32
    assert 0 < np.abs(half_ND - full_ND).max() < 0.1


def test_fingerprint_follows_the_weights(folder: Path, model: SciMult, tmp_path: Path) -> None:
    same = SciMult.from_pretrained(folder)
    other = SciMult.from_pretrained(save_tiny_model(tmp_path / "other", seed=1))
    assert model.fingerprint == same.fingerprint != other.fingerprint


def test_bad_settings_are_named(folder: Path) -> None:
    with pytest.raises(UnknownNameError, match="bfloat16, float16, float32"):
        SciMult.from_pretrained(folder, dtype="int4")
    with pytest.raises(ConfigError, match="device cannot be used"):
        SciMult.from_pretrained(folder, device="abacus")
    with pytest.raises(CheckpointError, match="does not exist"):
        SciMult.from_pretrained(folder / "nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, "unknown pooling .value: 'max'.*cls, mean, position"),
        ({"similarity": 3}, "unknown similarity.*cosine, dot, l2"),
        ({"normalise": "no"}, "normalise is not a boolean"),
        ({"dtype": torch.int16}, "unknown dtype .value: 'int16'"),
        ({"dtype": None}, "unknown dtype"),
        ({"dims": -1}, "dims"),
        ({"device": 3.5}, "device cannot be used"),
        ({"path": None}, "the model's folder is not a path"),
    ],
)
def test_options_of_other_types_are_named(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SciMultError, match=message):
        SciMult.from_pretrained(**{"path": folder} | options)


def test_a_dtype_of_torch_is_a_dtype(folder: Path, model: SciMult) -> None:
    same = SciMult.from_pretrained(folder, dtype=torch.float32, device=torch.device("cpu"))
    assert same.fingerprint == model.fingerprint
    for side in ({"task": None}, {"task": ["search"]}, {"task": "search", "role": None}):
        with pytest.raises(UnknownNameError, match="unknown (task|role)"):
            model.encode(["x"], **side)  # type: ignore[arg-type]


def test_a_real_checkpoint_finds_the_obvious(minilm: Path) -> None:
    model = SciMult.from_pretrained(minilm, pooling="mean", similarity="cosine")
    papers = ["Protein folding by molecular dynamics", "Sparse matrix factorisation on GPUs"]
    papers_ND = model.encode(papers, task="search", role="candidate")
    queries_ND = model.encode(["how do proteins fold", "fast linear algebra"], task="search")
    papers_ND /= np.linalg.norm(papers_ND, axis=1, keepdims=True)
    assert (queries_ND @ papers_ND.T).argmax(axis=1).tolist() == [0, 1]


def test_instructions_of_the_caller(model: SciMult, tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path / "m", variant="instruction")
    reader = SciMult.from_pretrained(path, device="cpu")
    own = reader.tasks["search"].instruction
    default_ND = reader.encode(PAPERS, task="search")
    same_ND = reader.encode(PAPERS, task="search", instruction=own)
    assert np.array_equal(same_ND, default_ND)
    other_ND = reader.encode(PAPERS, task="search", instruction="Find data")
    assert np.abs(other_ND - default_ND).max() > 1e-3
    with pytest.raises(
        ConfigError, match=r"an instruction has \d+ tokens, the model's context is 64"
    ):
        reader.encode(PAPERS, task="search", instruction="long " * 20)
    with pytest.raises(ConfigError, match="an instruction is empty"):
        reader.encode(PAPERS, task="search", instruction=" ")
    with pytest.raises(ConfigError, match="the model reads no instructions"):
        model.encode(PAPERS, task="search", instruction="Find data")


def test_saved_instruction_beyond_the_context_is_refused(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path / "m", variant="prefix")
    config = read_json(path / "config.json")
    config["tasks"][1]["instruction"] = "long " * 20
    write_json(path / "config.json", config)
    with pytest.raises(ConfigError, match=r"tokens, the model's context is 64.*Fix: shorten it"):
        SciMult.from_pretrained(path, device="cpu")


@pytest.mark.parametrize(("has_units", "wanted"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_what_the_device_multiplies(
    folder: Path, has_units: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scimult.inference.precision.multiplies_bfloat16", lambda device: has_units)
    auto = SciMult.from_pretrained(folder, device="cpu", dtype="auto")
    named = SciMult.from_pretrained(folder, device="cpu", dtype=wanted)
    assert auto.dtype == named.dtype == wanted
    assert auto.fingerprint == named.fingerprint
    np.testing.assert_array_equal(
        auto.encode(PAPERS, task="search"), named.encode(PAPERS, task="search")
    )
    other = "float32" if has_units else "bfloat16"
    assert SciMult.from_pretrained(folder, device="cpu", dtype=other).fingerprint != (
        auto.fingerprint
    )


def test_tf32_is_for_gpus(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"tf32 needs a GPU.*'tf32'"):
        SciMult.from_pretrained(folder, device="cpu", dtype="tf32")


def test_tf32_is_left_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(RuntimeError), products_in_tf32(True):
        assert torch.get_float32_matmul_precision() == "high"
        raise RuntimeError
    assert torch.get_float32_matmul_precision() == before


def test_one_item_is_made_ahead() -> None:
    made: list[int] = []
    second = Event()

    def make(item: int) -> int:
        made.append(item)
        if item == 1:
            second.set()
        return item * item

    found = made_ahead(make, range(4))
    assert next(found) == 0
    assert second.wait(10)
    assert made == [0, 1], "one ahead, not all"
    assert list(found) == [1, 4, 9]
    assert list(made_ahead(make, [])) == []


def test_blocks_of_texts_do_not_change_embeddings(
    model: SciMult, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_ND = model.encode(PAPERS * 3, task="search")
    before = model.tokens_encoded
    with monkeypatch.context() as patched:
        patched.setattr(model, "_texts_at_once", 2)
        cut_ND = model.encode(PAPERS * 3, task="search")
    np.testing.assert_allclose(cut_ND, whole_ND, atol=1e-5)
    assert model.tokens_encoded - before > 0


@pytest.mark.parametrize("name", ["a/b", "-a", "a b", " ", "a\n", "a="])
def test_what_is_no_name_of_a_task(name: str) -> None:
    task = default_tasks()["search"].model_copy(update={"name": name})
    with pytest.raises(ConfigError, match="not a task's name.*Fix: use letters, digits"):
        TaskSet([task])
