from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scimult.errors import DataError
from scimult.files import read_json, write_json
from scimult.inference import SciMult
from scimult.inference.collection import Collection
from scimult.inference.embeddings import (
    encode_collection,
    load_embeddings,
    provenance,
    save_embeddings,
)
from scimult.types import Text
from tests.tiny import save_tiny_model

PAPERS = Collection(
    Path("papers.jsonl"),
    ["b", "a", "ü\u2028c"],
    [Text("paper", "Graphs", "Drawn"), Text("paper", "Trees"), Text("paper", "", "Forests")],
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SciMult:
    return SciMult.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def _save(folder: Path, model: SciMult) -> None:
    embeddings_ND = model.encode(PAPERS.texts, task="search", role="candidate")
    made_by = provenance(model, PAPERS, "search", "candidate")
    save_embeddings(folder, PAPERS, embeddings_ND, made_by, model)


def test_a_folder_holds_embeddings_ids_and_what_made_them(tmp_path: Path, model: SciMult) -> None:
    _save(tmp_path / "e", model)
    ids, embeddings_ND, meta = load_embeddings(tmp_path / "e")
    assert ids == PAPERS.ids
    wanted_ND = model.encode(PAPERS.texts, task="search", role="candidate")
    np.testing.assert_array_equal(embeddings_ND, wanted_ND)
    assert (meta["task"], meta["role"], meta["rows"], meta["width"]) == (
        "search",
        "candidate",
        3,
        16,
    )
    assert meta["model"] == model.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


def test_what_made_them_tells_every_difference_apart(model: SciMult) -> None:
    def key(collection: Collection, task: str = "search") -> str:
        return provenance(model, collection, task, "candidate").key

    swapped = replace(PAPERS, ids=["a", "b", PAPERS.ids[2]])
    moved = replace(PAPERS, texts=[Text("paper", "GraphsDrawn"), *PAPERS.texts[1:]])
    keys = [key(PAPERS), key(swapped), key(moved), key(PAPERS, "link_prediction")]
    assert len(set(keys)) == 4
    assert key(PAPERS) == key(replace(PAPERS, path=Path("elsewhere.jsonl")))


def test_the_cache_spares_the_second_encoding(
    tmp_path: Path, model: SciMult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(role: str = "candidate") -> np.ndarray:
        return encode_collection(model, PAPERS, task="link_prediction", role=role, cache=tmp_path)  # type: ignore[arg-type]

    first_ND = encode()
    with monkeypatch.context() as context:
        context.setattr(SciMult, "encode", lambda *_, **__: pytest.fail("encoded again"))
        np.testing.assert_array_equal(encode(), first_ND)
    encode("query")
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_cache_nothing_is_written(tmp_path: Path, model: SciMult) -> None:
    encode_collection(model, PAPERS, task="search", role="candidate", cache=None)
    assert list(tmp_path.iterdir()) == []


def test_papers_on_the_side_of_labels_are_refused(model: SciMult) -> None:
    with pytest.raises(DataError, match="candidate of task 'classification' is a label"):
        encode_collection(model, PAPERS, task="classification", role="candidate", cache=None)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no meta", "file does not exist"),
        ("other format", "not an embedding folder of version 1"),
        ("fewer ids", r"2 ids for \(3, 16\)"),
        ("cut array", "damaged embedding folder"),
        ("no array", "damaged embedding folder"),
    ],
)
def test_damage_is_named(tmp_path: Path, model: SciMult, damage: str, message: str) -> None:
    folder = tmp_path / "e"
    _save(folder, model)
    if damage == "no meta":
        (folder / "meta.json").unlink()
    elif damage == "other format":
        write_json(folder / "meta.json", {**read_json(folder / "meta.json"), "version": 2})
    elif damage == "fewer ids":
        (folder / "ids.txt").write_text("a\nb\n", encoding="utf-8")
    elif damage == "cut array":
        (folder / "embeddings.npy").write_bytes((folder / "embeddings.npy").read_bytes()[:-8])
    else:
        (folder / "embeddings.npy").unlink()
    with pytest.raises(DataError, match=message):
        load_embeddings(folder)
