"""Every shipped configuration file loads with its folder's schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.config import StrictConfig, load_config
from scimult.errors import ConfigError
from scimult.evaluation.suites import Suite
from scimult.files import read_json
from scimult.preparation.dataset import DatasetConfig
from scimult.preparation.mining.config import MiningConfig
from scimult.studies.config import StudyConfig
from scimult.training.config import PretrainConfig
from scimult.training.stages import has_stages, load_stages
from tests.conftest import REPOSITORY

SCHEMAS: dict[str, type[StrictConfig]] = {
    "data": DatasetConfig,
    "mining": MiningConfig,
    "demo": PretrainConfig,
    "evaluate": Suite,
    "pretrain": PretrainConfig,
    "papers": PretrainConfig,
    "studies": StudyConfig,
}
CONFIGS = REPOSITORY / "configs"


def _name(path: Path) -> str:
    return path.relative_to(CONFIGS).as_posix()


# What lies on top of a recipe is no run of its own; tests/training/test_recipes.py trains with it.
OVERLAYS = set(CONFIGS.glob("papers/*.yaml"))


@pytest.mark.parametrize("path", sorted({*CONFIGS.rglob("*.yaml")} - OVERLAYS), ids=_name)
def test_yaml_loads(path: Path) -> None:
    schema = SCHEMAS[path.relative_to(CONFIGS).parts[0]]

    def load(*overrides: str) -> object:
        if has_stages(path):
            return load_stages(path, overrides)
        return load_config(schema, path, overrides)

    assert load()
    with pytest.raises(ConfigError, match="no_such_key: unknown key"):
        load("no_such_key=1")


def test_the_file_to_copy_names_no_other_file_of_the_checkout() -> None:
    text = (CONFIGS / "pretrain" / "own.yaml").read_text(encoding="utf-8")
    named = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
    assert [word for word in named if (REPOSITORY / word).is_file()] == []


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.json")), ids=_name)
def test_json_loads(path: Path) -> None:
    assert path.parent.name == "deepspeed"
    assert "zero_optimization" in read_json(path)


def test_every_schema_has_a_file() -> None:
    assert {folder for folder in SCHEMAS if not any((CONFIGS / folder).rglob("*.yaml"))} == set()
