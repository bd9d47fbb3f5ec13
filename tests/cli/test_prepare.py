"""``scimult prepare`` and ``scimult mine`` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from scimult.cli.main import app
from scimult.data.prepared import PreparedData
from tests.raw_corpus import raw_config, write_raw
from tests.tiny import save_tiny_model


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tree = raw_config(write_raw(tmp_path / "raw")).model_dump(mode="json", exclude_unset=True)
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump({**tree, "root": "."}))
    return path


def _run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_prepare_then_mine(config: Path, tmp_path: Path, minilm: Path) -> None:
    out = tmp_path / "out"
    place = ("--config", config, "--out", out, "--root", tmp_path / "raw")
    code, output = _run(
        "prepare", *place, "--tokenizer", minilm, "seed=3", "mining.max_negatives=2"
    )
    assert code == 0, output
    assert "20 papers" in output
    data = PreparedData.open(out)
    assert data.manifest["config"]["seed"] == 3
    assert max(file.negatives.lengths.max() for file in data.pairs("train")) == 2
    assert len(list((out / "tokens").iterdir())) == 1

    code, output = _run("mine", out, "max_negatives=1")
    assert code == 0, output
    after = PreparedData.open(out)
    assert max(file.negatives.lengths.max() for file in after.pairs("train")) == 1
    assert after.manifest["mining"] == {**data.manifest["mining"], "max_negatives": 1}

    rules = tmp_path / "rules.yaml"
    model = str(save_tiny_model(tmp_path / "model", similarity="cosine"))
    dense = {"rule": "dense", "model": model, "ranks": [0, 5]}
    rules.write_text(yaml.safe_dump({"citations": [dense, {"rule": "bm25", "count": 1}]}))
    code, output = _run("mine", out, "--config", rules, "max_negatives=3")
    assert code == 0, output
    mined = PreparedData.open(out)
    (entry,) = [
        entry
        for entry in mined.manifest["pairs"]
        if (entry["part"], entry["split"]) == ("citations", "train")
    ]
    assert list(entry["found"]) == ["dense", "bm25"]
    assert min(entry["found"].values()) > 0
    assert mined.manifest["mining"]["citations"][0]["model"] == model


def test_a_bad_record_is_one_line_and_exit_code_1_or_is_skipped(
    config: Path, tmp_path: Path
) -> None:
    with (tmp_path / "raw" / "citations.tsv").open("a") as file:
        file.write("p1\tp99\n")
    place = ("prepare", "--config", config, "--out", tmp_path / "out", "--root", tmp_path / "raw")
    code, output = _run(*place)
    assert code == 1
    assert output.startswith("error: ")
    assert "citations.tsv:" in output
    assert not (tmp_path / "out").exists()
    code, output = _run(*place, "--skip-bad")
    assert code == 0, output
    assert "left out 1: column 'cited' names an unknown paper" in output


@pytest.mark.parametrize("override", ["max_negative=1", "max_negatives=0", "max_negatives"])
def test_mine_refuses_wrong_choices(config: Path, tmp_path: Path, override: str) -> None:
    place = ("--config", config, "--out", tmp_path / "out", "--root", tmp_path / "raw")
    assert _run("prepare", *place)[0] == 0
    before = PreparedData.open(tmp_path / "out").fingerprint
    code, output = _run("mine", tmp_path / "out", override)
    assert code == 1
    assert output.startswith("error: ")
    assert PreparedData.open(tmp_path / "out").fingerprint == before
