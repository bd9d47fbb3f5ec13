"""What a run folder accepts to continue."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scimult.errors import CheckpointError, ConfigError
from scimult.files import write_json
from scimult.training import build
from scimult.training.folder import CHECKPOINTS, CONFIG_NAME, RunFolder, check_same_config
from scimult.training.state import CheckpointStore
from tests.tiny import save_tiny_model
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


def test_batches_by_tokens_belong_to_a_number_of_ranks(tmp_path: Path) -> None:
    """Pairs are planned for the whole batch and then divided; a budget is each rank's own."""
    save_tiny_model(tmp_path / "base", variant="vanilla")
    by_tokens = {"pairs_per_step": None, "max_tokens": 200}
    for name, batch in (("pairs", {}), ("tokens", by_tokens)):
        config = run_config(tmp_path, name, batch=batch)
        output = Path(config.output)
        output.mkdir()
        tree = config.model_dump(mode="json")
        (output / CONFIG_NAME).write_text(yaml.safe_dump(tree), encoding="utf-8")
        info = {"data": "x", "precision": "fp32", "ranks": 2, "zero_stage": 1}
        store = CheckpointStore(output / CHECKPOINTS, 1)
        store.save(3, lambda folder: write_json(folder / "state.json", {}), info)
        settings = {"zero_optimization": {"stage": 1}}
        model = build.build_model(config).model
        if batch:
            with pytest.raises(CheckpointError, match="written with ranks 2, this run has 1"):
                RunFolder(config, "x", settings).open(True, model)
        else:
            found = RunFolder(config, "x", settings).open(True, model)
            assert found is not None
            assert found.step == 3
