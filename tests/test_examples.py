"""The examples are small and complete, and run as a reader would run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)  # the model that all share, on a busy machine

SCRIPTS = ("search_papers", "tag_papers", "compare_systems", "prepare_own_library")
NOTEBOOKS = ("search_and_tag", "learning_curves")


def _cells(repository: Path, name: str) -> list[dict[str, Any]]:
    text = (repository / "examples" / f"{name}.ipynb").read_text(encoding="utf-8")
    cells: list[dict[str, Any]] = json.loads(text)["cells"]
    return cells


def _run(repository: Path, folder: Path, *command: str, code: str = "") -> str:
    """Run Python in ``folder``; its output is the message of the failure."""
    environment = {**os.environ, "PYTHONPATH": str(repository), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        input=code,
        text=True,
        capture_output=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_tried_and_named(repository: Path) -> None:
    examples = repository / "examples"
    assert {path.stem for path in examples.glob("*.py")} == {*SCRIPTS, "pretrain_two_stages"}
    assert {path.stem for path in examples.glob("*.ipynb")} == set(NOTEBOOKS)
    page = (examples / "README.md").read_text(encoding="utf-8")
    for path in [*examples.glob("*.py"), *examples.glob("*.ipynb")]:
        assert f"`examples/{path.name}`" in page


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_kept_without_outputs(repository: Path, name: str) -> None:
    cells = _cells(repository, name)
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
    for cell in cells:
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), f"{name}, {cell['id']}", "exec")


@pytest.fixture(scope="module")
def project(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the first example's model."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "examples").mkdir()  # where the notebooks run
    out = _run(repository, folder, str(repository / "examples" / "pretrain_two_stages.py"))
    assert (folder / "runs/examples/mha_expert/model").is_dir(), out
    return folder


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run(repository: Path, project: Path, name: str) -> None:
    out = _run(repository, project, str(repository / "examples" / f"{name}.py"))
    assert len(out.splitlines()) >= 5


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(repository: Path, project: Path, name: str) -> None:
    code = ["".join(c["source"]) for c in _cells(repository, name) if c["cell_type"] == "code"]
    out = _run(repository, project / "examples", "-", code="\n".join(code))
    assert re.search(r"\d", out)
