"""``scimult import`` and ``scimult export`` on a tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.checkpoints import load_pretrained
from scimult.inference import SciMult
from tests.base_models import save_base_model
from tests.checkpoints.adapterhub import adapter_weights, save_adapter
from tests.command import invoke
from tests.released import HEADS, released_encoder, released_state, save_released
from tests.tiny import save_tiny_model, tiny_tokenizer


def run(*arguments: object) -> tuple[int, str, str]:
    result = invoke(*arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("runs") / "run" / "model").parent


def test_import_then_export_gives_the_same_model(tmp_path: Path) -> None:
    tiny_tokenizer().save(tmp_path / "tokenizer")
    encoder = released_encoder(tiny_tokenizer().vocab_size)
    file = save_released(tmp_path / "scimult_moe", released_state(encoder))
    options = ("--tokenizer", tmp_path / "tokenizer", "--num-heads", HEADS)
    code, printed, _ = run("import", "--released", file, *options, "--out", tmp_path / "m")
    assert code == 0
    for line in (
        "mha_expert (moe_type mod2:attn)",
        "0 = search",
        "of the pooler dropped",
        "epoch 20",
    ):
        assert line in printed
    code, printed, _ = run(
        "export", tmp_path / "m", "--to", "released", "--out", tmp_path / "again"
    )
    assert code == 0
    assert "released, 0.1 MB" in printed
    assert "experts 0 = search, 1 = link_prediction, 2 = classification" in printed
    options = (*options, "--out", tmp_path / "m2")
    assert run("import", "--released", tmp_path / "again", *options)[0] == 0
    first, second = (SciMult.from_pretrained(tmp_path / name) for name in ("m", "m2"))
    assert np.array_equal(first.encode(["a"], task="search"), second.encode(["a"], task="search"))


def test_a_plain_folder_is_exported_with_the_requested_pooling(tmp_path: Path) -> None:
    base = save_base_model(tmp_path / "base", "bert")
    options = ("--pooling", "mean", "--similarity", "cosine")
    code, _, problem = run("export", base, "--to", "folded", "--out", tmp_path / "f", *options)
    assert code == 0, problem
    wanted = SciMult.from_pretrained(base, pooling="mean", similarity="cosine")
    found = SciMult.from_pretrained(tmp_path / "f")
    assert found.unit_vectors
    assert np.array_equal(found.encode(["a"], task="search"), wanted.encode(["a"], task="search"))
    run_options = ("--to", "pretrained", "--out", tmp_path / "x", "--step", 3, *options)
    code, _, problem = run("export", tmp_path, *run_options)
    assert code == 1
    assert "a run's checkpoint keeps its settings" in problem


def test_a_base_with_adapterhub_adapters_becomes_a_model(tmp_path: Path) -> None:
    base = save_base_model(tmp_path / "base", "bert")
    for seed, name in enumerate(("clf", "qry")):
        save_adapter(tmp_path / name, name, adapter_weights(name, seed=seed))
    adapters = (
        f"--adapter=classification={tmp_path / 'clf'}",
        f"--adapter=search={tmp_path / 'qry'}",
    )
    options = ("--base", base, *adapters, "--similarity", "l2")
    code, printed, _ = run("import", *options, "--out", tmp_path / "m")
    assert code == 0
    assert "classification           clf, trained on someone/base, from" in printed
    model = SciMult.from_pretrained(tmp_path / "m")
    assert (model.similarity, model.tasks.names) == ("l2", ["classification", "search"])
    first, second = (model.encode(["a"], task=task) for task in model.tasks.names)
    assert not np.allclose(first, second)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "exactly one of --released and --base is needed"),
        (("--released", "a", "--base", "b"), "exactly one of --released and --base"),
        (("--released", "a"), "holds no tokenizer"),
        (("--released", "a", "--adapter", "b=c"), "--adapter can only be used with --base"),
        (("--base", "a", "--task", "b"), "--task can only be used with --released"),
        (("--base", "a"), "no adapters for the base"),
        (("--base", "a", "--adapter", "b"), "TASK=FOLDER or TASK/SIDE=FOLDER"),
        (
            ("--base", "a", "--adapter", "b=c", "--adapter", "b=d"),
            "two adapters have the same name",
        ),
    ],
)
def test_contradictory_options_of_import(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, _, error = run("import", *arguments, "--out", tmp_path / "out")
    assert (code, message in " ".join(error.split())) == (1, True), error


def test_exports_of_one_task_and_of_all(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "folded"
    code, printed, _ = run("export", model, "--to", "folded", "--task", "search", "--out", out)
    assert (code, printed.startswith(f"{out}: folded, ")) == (0, True)
    assert load_pretrained(out).tasks.names == ["search"]
    out = tmp_path / "st"
    code, printed, _ = run("export", model, "--to", "sentence-transformers", "--out", out)
    assert code == 0
    assert "repeats shared weights 3 times" in printed
    out = tmp_path / "own"
    assert run("export", model, "--to", "pretrained", "--out", out)[0] == 0
    assert load_pretrained(out).config == load_pretrained(model).config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "folded"), "only one can be folded. Fix: choose one with --task: search, link"),
        (("--to", "folded", "--task", "serach"), "did you mean 'search'"),
        (("--to", "released", "--task", "search"), "--task can only be used with folded and onnx"),
        (("--to", "pretrained", "--step", 3), "folder is not a run"),
    ],
)
def test_contradictory_options_are_one_line(
    model: Path, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    code, _, error = run("export", model, *arguments, "--out", tmp_path / "out")
    assert code == 1
    assert message in error
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    out = ("--out", tmp_path / "mine")
    assert "output exists already" in run("export", model, "--to", "released", *out)[2]
    arguments = ("--released", model, "--tokenizer", model)
    assert "exists and is not a folder" in run("import", *arguments, *out)[2]
    assert (tmp_path / "mine").read_text() == "precious"
