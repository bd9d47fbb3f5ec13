"""Specifications of systems on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.cli.systems import MODEL_OPTIONS, make_systems, parse_system
from scimult.errors import CheckpointError, ConfigError, UnknownNameError


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


def test_a_missing_model_is_found_before_any_system_is_scored(tmp_path: Path) -> None:
    there = tmp_path / "model"
    there.mkdir()

    def made(*models: str) -> list[str]:
        return list(make_systems(True, [], [], models, [], None, None))

    assert made(f"a={there}", "b=organisation/name", "c=package:own") == ["BM25", "a", "b", "c"]
    for folder in ("nope", f"{there}+nope"):
        with pytest.raises(CheckpointError, match="nope: folder does not exist"):
            made(f"a={there}", f"b={folder}")
