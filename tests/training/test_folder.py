"""What a run folder accepts to continue."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scimult.errors import ConfigError
from scimult.training.folder import check_same_config
from tests.training.corpus import run_config


def test_a_saved_configuration_of_an_older_version_has_the_defaults(tmp_path: Path) -> None:
    config = run_config(tmp_path, "run")
    tree = config.model_dump(mode="json")
    del tree["batch"]["mix"], tree["data"]["sampling_temperature"], tree["loss"]["mask_margin"]
    saved = tmp_path / "config.yaml"
    saved.write_text(yaml.safe_dump(tree), encoding="utf-8")
    check_same_config(saved, config)
    other = run_config(tmp_path, "run", batch={"mix": "in_batch"}, seed=3)
    with pytest.raises(ConfigError, match="started with another seed, batch"):
        check_same_config(saved, other)
    tree["batch"]["colour"] = "red"
    saved.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"batch\.colour: unknown key"):
        check_same_config(saved, config)
