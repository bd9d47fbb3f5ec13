"""Errors of verbs when a package of an extra is missing."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

import pytest

from scimult.cli.extras import EXTRAS_OF, not_installed
from tests.command import invoke

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


def test_every_package_is_in_the_named_extras(repository: Path) -> None:
    extras = _extras(repository)
    for module, named in EXTRAS_OF.items():
        package = PACKAGES.get(module, module.replace("_", "-"))
        assert all(package in extras[extra] for extra in named), module
        assert package not in extras[""], module


def test_the_extra_all_has_every_package_that_verbs_need(repository: Path) -> None:
    extras = _extras(repository)
    assert extras["all"] >= set.union(
        *(
            extras[extra]
            for named in EXTRAS_OF.values()
            for extra in named
            if extra not in ("ray", "spark")
        )
    )
    assert extras["test"] >= extras["train"] | extras["eval"]


def test_a_verb_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("curves", ".")
    assert result.exit_code == 1
    fix = "pip install 'scimult[train]' (in a checkout '.[train]')"
    assert result.stderr == f"error: matplotlib is not installed. Fix: {fix}\n"


@pytest.mark.parametrize(
    ("module", "verb", "extra"),
    [
        ("scipy.stats", "evaluate", "eval"),
        ("scipy.stats", "cross-routes", "eval"),
        ("scipy.stats", "prepare", "train"),
        ("scipy.optimize", "match-reviewers", "tagging"),
        ("sklearn", "tagger", "tagging"),
        ("rensa", "evaluate", "eval"),
        ("py3langid", "report", "train"),
    ],
)
def test_the_extra_of_the_verb_is_named_if_it_has_the_package(
    module: str, verb: str, extra: str
) -> None:
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert f"scimult[{extra}]" in str(not_installed(error, verb))


def test_other_packages_are_left_alone() -> None:
    assert not_installed(ModuleNotFoundError("of the user", name="mine"), "evaluate") is None
    assert not_installed(ImportError("cannot import name"), None) is None
