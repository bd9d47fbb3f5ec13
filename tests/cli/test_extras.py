"""Errors of verbs when a package of an extra is missing."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scimult.cli.extras import EXTRA_OF, not_installed
from scimult.cli.main import app

PACKAGES = {"Stemmer": "PyStemmer", "sklearn": "scikit-learn", "umap": "umap-learn"}


def _extras(repository: Path) -> dict[str, set[str]]:
    settings = configparser.ConfigParser()
    settings.read(repository / "setup.cfg", encoding="utf-8")
    found = {
        extra: set(re.findall(r"^[\w-]+", text, re.MULTILINE))
        for extra, text in settings["options.extras_require"].items()
    }
    found[""] = set(re.findall(r"^[\w-]+", settings["options"]["install_requires"], re.MULTILINE))
    return found


def test_every_package_is_in_the_named_extra(repository: Path) -> None:
    extras = _extras(repository)
    for module, extra in EXTRA_OF.items():
        package = PACKAGES.get(module, module.replace("_", "-"))
        assert package in extras[extra], module
        assert package not in extras[""], module


def test_the_extra_all_has_every_package_that_verbs_need(repository: Path) -> None:
    extras = _extras(repository)
    assert extras["all"] >= set.union(
        *(extras[extra] for extra in set(EXTRA_OF.values()) - {"ray", "spark"})
    )
    assert extras["test"] >= extras["train"] | extras["eval"]


def test_a_verb_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["curves", "."])
    assert result.exit_code == 1
    fix = "pip install 'scimult[train]' (in a checkout '.[train]')"
    assert result.stderr == f"error: matplotlib is not installed. Fix: {fix}\n"


def test_evaluation_needs_its_own_extra_and_other_packages_are_left_alone() -> None:
    scipy = ModuleNotFoundError("No module named 'scipy.stats'", name="scipy.stats")
    assert "scimult[eval]" in str(not_installed(scipy, "evaluate"))
    assert "scimult[train]" in str(not_installed(scipy, "prepare"))
    assert "scimult[tagging]" in str(not_installed(scipy, "tagger"))
    assert not_installed(ModuleNotFoundError("of the user", name="mine"), "evaluate") is None
    assert not_installed(ImportError("cannot import name"), None) is None
