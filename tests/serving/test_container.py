"""The container: its files, its user and its command; built if docker is available."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from scimult.cli.main import app
from tests.serving.conftest import Running


def _steps(repository: Path) -> list[tuple[str, str]]:
    text = (repository / "Dockerfile.serve").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def _only(steps: list[tuple[str, str]], name: str) -> str:
    (found,) = [value for step, value in steps if step == name]
    return found


def test_it_copies_existing_files_and_does_not_run_as_root(repository: Path) -> None:
    steps = _steps(repository)
    known = {"FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "STOPSIGNAL"}
    assert {step for step, _ in steps} <= known | {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
    copied = [name for step, value in steps if step == "COPY" for name in value.split()[:-1]]
    assert copied
    assert all((repository / name).exists() for name in copied)
    ignored = (repository / ".dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{name}" for name in copied} <= set(ignored)
    names = [step for step, _ in steps]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "root" not in _only(steps, "USER")
    base = (repository / "Dockerfile").read_text(encoding="utf-8")
    for pattern in (r"^FROM .*$", r"^ARG TORCH=.*$"):
        assert re.findall(pattern, base, re.M) == re.findall(
            pattern, (repository / "Dockerfile.serve").read_text("utf-8"), re.M
        )


def test_it_starts_an_existing_verb(repository: Path) -> None:
    steps = _steps(repository)
    program, verb, *words = json.loads(_only(steps, "ENTRYPOINT"))
    words += json.loads(_only(steps, "CMD"))
    verbs: Any = typer.main.get_command(app)
    known = {option for param in verbs.commands[verb].params for option in param.opts}
    assert program == "scimult"
    assert {word for word in words if word.startswith("--")} <= known
    health = json.loads(_only(steps, "HEALTHCHECK").partition("CMD ")[2])
    compile(health[2], "healthcheck", "exec")
    assert f":{_only(steps, 'EXPOSE')}/health" in health[2]


@pytest.mark.parametrize(("stops", "healthy"), [(False, True), (True, False)])
def test_health_is_asked_without_a_proxy(
    repository: Path, server: Running, stops: bool, healthy: bool
) -> None:
    """Docker gives containers the proxies of its own configuration."""
    port = "9" if stops else server.url.rpartition(":")[2]
    check = json.loads(_only(_steps(repository), "HEALTHCHECK").partition("CMD ")[2])
    command = [sys.executable, check[1], check[2].replace(":8000/", f":{port}/")]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode == 0) is healthy, done.stderr


def test_compose_requires_a_key_and_mounts_read_only(repository: Path) -> None:
    found = yaml.safe_load((repository / "compose.yaml").read_text(encoding="utf-8"))
    (service,) = found["services"].values()
    assert (repository / service["build"]["dockerfile"]).is_file()
    assert service["environment"]["SCIMULT_API_KEY"].startswith("${SCIMULT_API_KEY:?")
    assert service["ports"] == ["127.0.0.1:${PORT:-8000}:8000"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    assert service["read_only"] is True
    steps = _steps(repository)
    assert service["command"] == json.loads(_only(steps, "CMD"))
    mounted = {volume.split(":")[-2] for volume in service["volumes"]}
    assert {"/library", "/model"} == mounted
    assert "/library" in shlex.split(_only(steps, "ENTRYPOINT").replace(",", " ").strip("[]"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_builds_with_docker(repository: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("no docker here")
    made = subprocess.run(
        ["make", "container"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert "Serve a library" in made.stdout
