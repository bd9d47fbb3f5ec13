"""Systems on the command line: how they are written, and one that fails among others."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.cli.systems import MODEL_OPTIONS, make_systems, parse_system
from scimult.errors import CheckpointError, ConfigError, UnknownNameError
from tests.benchmark_sets import write_search
from tests.command import completed, invoke
from tests.tiny import save_static_embeddings, save_tiny_model


def test_a_system_is_a_name_a_folder_and_options() -> None:
    spec = parse_system("base=models/a=b,pooling=mean,dtype=bfloat16", MODEL_OPTIONS)
    assert (spec.name, spec.folder) == ("base", Path("models/a=b"))
    assert spec.options == {"pooling": "mean", "dtype": "bfloat16"}
    with pytest.raises(UnknownNameError, match="use one of cls, mean"):
        parse_system("base=x,pooling=max", MODEL_OPTIONS)
    assert spec.normalise is None
    assert parse_system("base=x,normalise=false", MODEL_OPTIONS).normalise is False
    with pytest.raises(UnknownNameError, match="use one of false, true"):
        parse_system("base=x,normalise=no", MODEL_OPTIONS)
    for text in ("base", "=x", "base="):
        with pytest.raises(ConfigError, match="a system is NAME=FOLDER"):
            parse_system(text, MODEL_OPTIONS)


@pytest.mark.parametrize("option", ["model", "encoder"])
@pytest.mark.parametrize("name", ["c++", "a,b,c"])
def test_a_folder_with_pluses_or_commas_in_its_name_is_one(
    tmp_path: Path, option: str, name: str
) -> None:
    folder = tmp_path / name
    (save_tiny_model if option == "model" else save_static_embeddings)(folder)
    write_search(tmp_path)
    call = ["evaluate", "--suite", str(tmp_path / "search"), "--out", str(tmp_path / "out")]
    setting = ",similarity=dot" if name == "a,b,c" else ""
    found = completed(*call, f"--{option}", f"mine={folder}{setting}")
    assert "mine: search: ndcg@10" in found.stderr


def test_a_system_that_fails_on_every_set_does_not_stop_the_others(tmp_path: Path) -> None:
    """Embeddings come after BM25 and before models."""
    write_search(tmp_path)
    mine = "--embeddings", f"mine={tmp_path / 'nowhere'}"
    call = ["evaluate", "--suite", str(tmp_path / "search"), "--out", str(tmp_path / "out"), *mine]
    model = f"last={save_tiny_model(tmp_path / 'model')}"
    found = invoke(*call, "--bm25", "--model", model)
    assert found.exit_code == 1
    assert "mine: failed: " in found.stderr
    assert "BM25: search: ndcg@10" in found.stderr
    assert "last: search: ndcg@10" in found.stderr
    assert "error: 1 sets failed: mine: search" in found.stderr
    assert "| BM25 | last |" in (tmp_path / "out/table.md").read_text(encoding="utf-8")
    alone = invoke(*call)
    assert alone.exit_code == 1
    assert alone.stderr.startswith("error: ")


def test_a_missing_model_is_found_before_any_system_is_scored(tmp_path: Path) -> None:
    there = tmp_path / "model"
    there.mkdir()

    def made(*models: str) -> list[str]:
        return list(make_systems(True, [], [], models, [], None, None))

    assert made(f"a={there}", "b=organisation/name", "c=package:own") == ["BM25", "a", "b", "c"]
    for folder in ("nope", f"{there}+nope"):
        with pytest.raises(CheckpointError, match="nope: folder does not exist"):
            made(f"a={there}", f"b={folder}")
