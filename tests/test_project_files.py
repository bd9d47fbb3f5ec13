"""What surrounds the code: workflows, templates, version, changelog, Docker."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _classified_versions() -> list[str]:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    return re.findall(r"Python :: (3\.\d+)", settings["metadata"]["classifiers"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_make_targets_that_exist(path: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.M))
    jobs = _yaml(path)["jobs"]
    assert jobs
    for job in jobs.values():
        commands = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
        assert commands
        assert all(words[0] == "make" and set(words[1:]) <= targets for words in commands)
        assert job["steps"][0]["uses"].startswith("actions/checkout@")


def test_workflows_take_the_oldest_and_newest_python() -> None:
    known = _classified_versions()
    matrix = _yaml(GITHUB / "workflows" / "tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == [known[0], known[-1]]


def test_makefile_names_its_targets() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.M)
    assert set(phony.split()) == set(re.findall(r"^([a-z]+):", makefile, re.M))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_complete(path: Path) -> None:
    form = _yaml(path)
    assert {"name", "description", "body"} <= form.keys()
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    assert all(field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_bug_reports_ask_for_the_version() -> None:
    assert "scimult --version" in (GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8")


def test_hooks_are_pinned() -> None:
    hooks = {
        hook["id"]: source["rev"]
        for source in _yaml(REPOSITORY / ".pre-commit-config.yaml")["repos"]
        for hook in source["hooks"]
    }
    assert hooks.keys() == {"ruff-check", "ruff-format", "codespell"}
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", rev) for rev in hooks.values())
