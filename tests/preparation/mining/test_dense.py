"""Several models in one part: each ranks by its own embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.files import read_json
from scimult.preparation.dataset import build_dataset
from scimult.preparation.mining.config import DenseConfig
from scimult.types import FloatArray, Role, Similarity, Text
from tests.raw_corpus import raw_config, write_raw


class _Hashes:
    """Encodes a text by a hash of the model's name and the text."""

    similarity: Similarity = "dot"

    def __init__(self, rule: DenseConfig) -> None:
        self.name = self.fingerprint = rule.model

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        digests = [hashlib.sha256(f"{self.name} {text}".encode()).digest() for text in texts]
        rows = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)
        return rows.astype(np.float32) - 128


@pytest.mark.long
@pytest.mark.parametrize("keep", [True, False])
def test_two_models_give_the_candidates_of_each_alone(
    root: Path, tmp_path: Path, keep: bool
) -> None:

    def pools(*models: str) -> list[set[int]]:
        rules = [{"rule": "dense", "model": model, "ranks": [0, 4]} for model in models]
        config = raw_config(root, mining={"citations": rules, "labels": [], "queries": []})
        choices: dict[str, Any] = {"steps": tmp_path / "steps"} if keep else {}
        data, _ = build_dataset(config, tmp_path / "out", open_encoder=_Hashes, **choices)
        (file,) = [file for file in data.pairs("train") if file.task == "link_prediction"]
        return [set(pool.tolist()) for pool in file.negatives]

    first, second = pools("a"), pools("b")
    assert first != second
    assert pools("a", "b") == [a | b for a, b in zip(first, second, strict=True)]


def test_only_queries_that_are_mined_are_encoded(tmp_path: Path) -> None:
    encoded: list[Text] = []

    class Listing(_Hashes):
        def encode(self, texts: Sequence[Text], *, role: Role, **options: Any) -> FloatArray:
            encoded.extend(texts if role == "query" else ())
            return super().encode(texts, role=role, **options)

    rules = {"citations": [{"rule": "dense", "model": "a"}], "labels": [], "queries": []}
    config = raw_config(write_raw(tmp_path / "raw"), mining={**rules, "max_groups": 5})
    data, _ = build_dataset(config, tmp_path / "out", open_encoder=Listing)
    files = [*data.pairs("train"), *data.pairs("dev")]
    queries = [np.unique(file.queries) for file in files if file.task == "link_prediction"]
    assert encoded == [text for rows in queries for text in data.texts.texts(rows)]


@pytest.mark.long
def test_similarities_of_one_model_do_not_rebuild_each_others_index(tmp_path: Path) -> None:
    class Choosing(_Hashes):
        def __init__(self, rule: DenseConfig) -> None:
            super().__init__(rule)
            self.similarity = rule.similarity or "dot"

    rules = [{"rule": "dense", "model": "a", "similarity": one} for one in ("dot", "l2")]
    config = raw_config(
        write_raw(tmp_path / "raw"),
        mining={"citations": rules, "labels": [], "search": {"dense": {"exact_below": 1}}},
    )
    build_dataset(config, tmp_path / "out", steps=tmp_path / "steps", open_encoder=Choosing)
    indexes = (tmp_path / "steps").glob("index.dense.*")
    assert sorted(read_json(index / "step.json")["inputs"]["similarity"] for index in indexes) == [
        "dot",
        "l2",
    ]
