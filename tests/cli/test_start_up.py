"""Modules that verbs with a model load, and those they do without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scimult.library import Library
from tests.base_models import save_base_model
from tests.raw_corpus import write_jsonl
from tests.tiny import save_tiny_model
from tests.training.corpus import prepare_corpus, run_config

# Packages of the extras, and modules of others that take most of a second to import.
NOT_FOR_USE = (
    "accelerate",
    "bm25s",
    "datasets",
    "deepspeed",
    "duckdb",
    "huggingface_hub",
    "matplotlib",
    "pandas",
    "scipy",
    "sentencepiece",
    "sklearn",
    "tensorboard",
    "torch._dynamo",
    "transformers",
)
# Searching a library needs no torch if scimult.models.one_text covers its model.
_OF_A_LIBRARY = {"torch", "scimult.inference.encoder", "scimult.models.encoder"}
# One process for all verbs: each line lists what was loaded up to then.
_VERBS = """
import json, sys
from typer.testing import CliRunner
from scimult.cli.main import app
for verb, unwanted in json.loads(sys.argv[1]).items():
    result = CliRunner().invoke(app, verb.split())
    print(result.output, file=sys.stderr)
    print(verb, result.exit_code, sorted(set(unwanted) & sys.modules.keys()))
"""
# Ordered: later verbs may load more.
VERBS = (
    "search graphs --library library --top 2",
    "search graphs --library library --where year>2000 --exclude p1 --offset 1 --percentile",
    "search graphs --library library --min-score -9",
    "recommend --id p1 --library library --top 2",
    "recommend --title Graphs --abstract None --library library --top 2",
    "search graphs --library foreign --top 2",
    "search graphs --model model --papers papers.jsonl",
    "recommend --id p1 --model model --papers papers.jsonl",
    "tag --model model --papers papers.jsonl --labels labels.jsonl",
    "encode papers.jsonl --model model --task search --out embeddings",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    save_tiny_model(folder / "model")
    papers = [{"id": f"p{n}", "title": f"Graphs {n}", "year": 2000 + n} for n in range(5)]
    labels = [{"id": "l1", "name": "Geometry"}]
    for name, rows in (("papers", papers), ("labels", labels)):
        write_jsonl(folder / f"{name}.jsonl", rows)
    Library.create(folder / "library", papers, model=folder / "model")
    Library.create(folder / "foreign", papers, model=save_base_model(folder / "base", "bert"))
    return folder


@pytest.mark.ranks
def test_use_of_a_model_loads_no_package_of_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCIMULT_CACHE", str(tmp_path))
    unwanted = {verb: {*NOT_FOR_USE} for verb in VERBS}
    for number, verb in enumerate(VERBS):
        unwanted[verb] |= _OF_A_LIBRARY if "--library" in verb else set()
        # Filters need it, and later verbs run in the same process.
        unwanted[verb] -= {"duckdb"} if number else set()
    # If pandas is installed, pyarrow imports it to build a column from a list.
    unwanted[VERBS[-1]] -= {"pandas"}
    command = [
        sys.executable,
        "-c",
        _VERBS,
        json.dumps({verb: sorted(names) for verb, names in unwanted.items()}),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{verb} 0 []" for verb in VERBS], done.stderr


@pytest.mark.ranks
def test_training_loads_no_compiler_and_no_pandas(tmp_path: Path) -> None:
    """Torch's takes half of the start; under stage 3, DeepSpeed uses it for each module.

    Nor pandas, which Arrow's ``to_numpy`` would import.
    """
    prepare_corpus(tmp_path)
    config = run_config(tmp_path, "run", schedule={"steps": 2})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    verb = "pretrain --config run.yaml"
    verbs = json.dumps({verb: ["torch._dynamo", "torch._inductor", "pandas"]})
    command = [sys.executable, "-c", _VERBS, verbs]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{verb} 0 []", done.stderr
