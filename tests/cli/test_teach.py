"""``scimult teach``, as a user calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.data.prepared import PreparedData
from scimult.inference import SciMult
from scimult.retrieval.embeddings import read_embeddings
from scimult.retrieval.teacher_vectors import TeacherVectors
from tests.command import invoke
from tests.tiny import save_tiny_model
from tests.training.corpus import prepare_corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ``prepared``, the plain model ``base``, and ``routed``."""
    path = tmp_path_factory.mktemp("teach")
    prepare_corpus(path)
    save_tiny_model(path / "routed")
    return path


def run(folder: Path, *arguments: object) -> Any:
    return invoke("teach", folder / "prepared", *arguments)


def vectors_of(folder: Path, out: Path) -> tuple[TeacherVectors, PreparedData]:
    data = PreparedData.open(folder / "prepared")
    return TeacherVectors.open(out, data.texts), data


def test_a_model_of_ours(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    spec = f"base={folder / 'base'},dtype=float32"
    result = run(folder, "--out", out, "--model", spec, "--precision", "float32")
    assert result.exit_code == 0, result.output
    vectors, data = vectors_of(folder, out)
    assert f"{len(data.texts)} vectors of width 16, in float32" in result.stdout
    model = SciMult.from_pretrained(folder / "base")
    wanted = model.encode(data.texts.slice(0, len(data.texts)), task="search", role="candidate")
    # The same model in other batches: float32 sums in another order.
    np.testing.assert_allclose(vectors.vectors_NE, wanted, rtol=0, atol=1e-5)
    assert read_embeddings(out).meta["fingerprint"] == model.fingerprint
    assert list(tmp_path.iterdir()) == [out]
    again = run(folder, "--out", out, "--model", spec)
    assert again.exit_code == 1
    assert "--overwrite to replace this one" in again.stderr
    assert run(folder, "--out", out, "--model", spec, "--overwrite").exit_code == 0
    assert vectors_of(folder, out)[0].vectors_NE.dtype == np.float16


def test_a_model_with_a_route_per_task_needs_a_task(folder: Path, tmp_path: Path) -> None:
    spec = f"routed={folder / 'routed'},dtype=float32"
    refused = run(folder, "--out", tmp_path / "out", "--model", spec)
    assert refused.exit_code == 1
    assert "--task search or link_prediction or classification" in refused.stderr
    for word in ("all", "serch"):
        refused = run(folder, "--out", tmp_path / "out", "--model", spec, "--task", word)
        assert refused.exit_code == 1
        assert f"unknown task (value: {word!r})" in refused.stderr, refused.stderr
    options = ("--model", spec, "--task", "link_prediction", "--precision", "float32")
    assert run(folder, "--out", tmp_path / "out", *options).exit_code == 0
    vectors, data = vectors_of(folder, tmp_path / "out")
    model = SciMult.from_pretrained(folder / "routed")
    text = [data.texts.text(3)]
    wanted = model.encode(text, task="link_prediction", role="candidate")
    np.testing.assert_allclose(vectors(np.array([3])), wanted, rtol=0, atol=1e-5)


def test_models_joined_end_to_end(folder: Path, tmp_path: Path) -> None:
    """Several teachers in one, as in Jasper and Stella."""
    both = f"both={folder / 'base'}+{folder / 'base'},combine=concatenation,dtype=float32"
    assert run(folder, "--out", tmp_path / "out", "--model", both).exit_code == 0
    vectors, _ = vectors_of(folder, tmp_path / "out")
    assert vectors.width == 32
    np.testing.assert_array_equal(vectors.vectors_NE[:, :16], vectors.vectors_NE[:, 16:])


@pytest.mark.long
def test_a_sentence_transformers_model(folder: Path, tmp_path: Path, minilm: Path) -> None:
    spec = f"theirs=minilm,model={minilm}"
    result = run(folder, "--out", tmp_path / "out", "--encoder", spec)
    assert result.exit_code == 0, result.output
    vectors, data = vectors_of(folder, tmp_path / "out")
    assert vectors.width == 384
    ours = SciMult.from_pretrained(minilm, pooling="mean", similarity="cosine")
    texts = [f"{text.title} {text.body}".strip() for text in data.texts.slice(0, 8)]
    wanted = ours.encode(texts, task="search", role="query")
    np.testing.assert_allclose(vectors(np.arange(8)), wanted, rtol=0, atol=1e-3)


def test_a_file_of_vectors(folder: Path, tmp_path: Path) -> None:
    data = PreparedData.open(folder / "prepared")
    matrix = np.random.default_rng(0).normal(size=(len(data.texts), 5))
    np.save(tmp_path / "v.npy", matrix[::-1])
    lines = "".join(f"{name}\n" for name in reversed(data.texts.ids))
    (tmp_path / "ids.txt").write_text(lines, encoding="utf-8")
    options = ("--out", tmp_path / "out", "--vectors", tmp_path / "v.npy")
    refused = run(folder, *options)
    assert "a file of vectors and --ids need each other" in refused.stderr
    missing = ("--vectors", tmp_path / "w.npy", "--ids", tmp_path / "ids.txt")
    refused = run(folder, "--out", tmp_path / "out", *missing)
    assert f"{tmp_path / 'w.npy'}: file does not exist" in refused.stderr
    options = (*options, "--ids", tmp_path / "ids.txt")
    refused = run(folder, *options, "--task", "any", "--store", tmp_path / "s", "--device", "cpu")
    assert "--task, --store, --device can only be used with --model or --enc" in refused.stderr
    assert run(folder, *options).exit_code == 0
    vectors, _ = vectors_of(folder, tmp_path / "out")
    np.testing.assert_allclose(vectors.vectors_NE, matrix, rtol=2.0**-11, atol=1e-7)


@pytest.mark.parametrize("options", [(), ("--model", "a=b", "--encoder", "c=minilm")])
def test_one_teacher(folder: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    refused = run(folder, "--out", tmp_path / "out", *options)
    assert "one teacher is needed. Fix: give one of --model, --encoder and --vec" in refused.stderr
