"""A model as a wheel: installed, found by its name, and unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest

from scimult.checkpoints import load_pretrained
from scimult.checkpoints.package import write_wheel
from scimult.errors import CheckpointError, ConfigError
from scimult.inference import SciMult
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def test_an_installed_model_is_found_by_its_name(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpack the wheel on Python's path, which is all that installing it would do."""
    wheel = write_wheel(tmp_path, load_pretrained(folder), "my-model", "1.2")
    assert wheel.name == "scimult_model_my_model-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    model, before = SciMult.from_pretrained("package:my-model"), SciMult.from_pretrained(folder)
    assert (model.name, model.fingerprint) == ("my-model", before.fingerprint)
    assert np.array_equal(model.encode(["x"], task="search"), before.encode(["x"], task="search"))
    assert "scimult_model_my_model" not in sys.modules
    with pytest.raises(CheckpointError, match=r"package:my-modl: no installed.*did you mean 'my-m"):
        load_pretrained("package:my-modl")


def test_the_same_model_gives_the_same_bytes(tmp_path: Path, folder: Path) -> None:
    wheels = [
        write_wheel(tmp_path / name, load_pretrained(folder), "m", "1.0") for name in ("a", "b")
    ]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("My Model", "1.0", "not a valid package name .value: 'My Model'.. Fix: "),
        ("a/../b", "1.0", "not a valid package name"),
        ("m", "latest", "not a valid package version .value: 'latest'.. Fix: "),
    ],
)
def test_names_and_versions(
    tmp_path: Path, folder: Path, name: str, version: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        write_wheel(tmp_path, load_pretrained(folder), name, version)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_pip_installs_it_and_the_command_line_uses_it(tmp_path: Path, folder: Path) -> None:
    code = ["-m", "scimult.cli.main"]
    make = [sys.executable, *code, "package", str(folder), "--name", "my-model", "--out", "dist"]
    subprocess.run(make, cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = ("install", "--quiet", "--no-deps", "--no-index", str(wheel))
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    (tmp_path / "papers.jsonl").write_text('{"id": "p1", "title": "Graphs"}\n', encoding="utf-8")
    search = [
        "search",
        "graphs",
        "--model",
        "package:my-model",
        "--papers",
        "papers.jsonl",
        "--json",
    ]
    repository = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": repository, "SCIMULT_CACHE": str(tmp_path / "c")}
    done = subprocess.run(
        [python, *code, *search], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert '"id": "p1"' in done.stdout
