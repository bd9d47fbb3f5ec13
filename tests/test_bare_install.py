"""The wheel without extras searches without the packages of training and evaluation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from scimult.cli.extras import EXTRAS_OF
from tests.raw_corpus import write_jsonl
from tests.tiny import save_tiny_model
from tests.wheels import build_wheel

# Runs the command line where the packages of the extras cannot be imported.
_WITHOUT = """
import sys
import scimult
assert scimult.__file__.startswith(sys.prefix), scimult.__file__
for name in {names}:
    sys.modules[name] = None
from scimult.cli.main import app
app()
"""


@pytest.fixture(scope="module")
def python(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment with the wheel; its requirements are this one's."""
    folder = tmp_path_factory.mktemp("bare")
    wheel = build_wheel(repository, folder / "wheel")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", str(wheel))
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def _scimult(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["SCIMULT_CACHE"] = str(folder / "cache")
    code = _WITHOUT.format(names=sorted(EXTRAS_OF))
    command = [str(python), "-c", code, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_bare_wheel_searches(python: Path, minilm: Path, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "ours")
    titles = ["Protein folding", "Drawing of graphs", "Sparse matrices"]
    rows = [{"id": f"p{number}", "title": title} for number, title in enumerate(titles)]
    write_jsonl(tmp_path / "papers.jsonl", rows)
    for model in ("ours", str(minilm)):
        arguments = ("--model", model, "--papers", "papers.jsonl", "--json")
        done = _scimult(python, tmp_path, "search", "how proteins fold", *arguments)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 3
    assert json.loads(done.stdout.splitlines()[0])["id"] == "p0"
    done = _scimult(python, tmp_path, "pretrain", "--config", "configs/pretrain/none.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("Fix: ") == 1
