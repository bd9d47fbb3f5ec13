"""Which runs a folder lets continue."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from scimult.errors import CheckpointError, ConfigError, StorageError
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
    with pytest.raises(ConfigError, match="started with a different seed, batch"):
        check_same_config(saved, other)
    tree["batch"]["colour"] = "red"
    saved.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"batch\.colour: unknown key"):
        check_same_config(saved, config)


def test_batches_by_tokens_depend_on_the_number_of_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pairs are planned for the whole batch and then divided; token budgets are per rank."""
    save_tiny_model(tmp_path / "base", variant="vanilla")
    by_tokens = {"pairs_per_step": None, "max_tokens": 200}
    head = {"by_task": {"classification": {"name": "multi_class", "dropout": 0.2}}}
    for name, batch, dropout, loss in (
        ("pairs", {}, 0.1, {}),
        ("still", {}, 0.0, {}),
        ("head", {}, 0.0, head),
        ("tokens", by_tokens, 0.0, {}),
    ):
        model_section = {"dropout": dropout, "attention_dropout": 0.0}
        config = run_config(tmp_path, name, batch=batch, model=model_section, loss=loss)
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
            with pytest.raises(CheckpointError, match="saved with ranks 2, this run has 1"):
                RunFolder(config, "x", settings).open(True, model, ExitStack())
        else:
            found = RunFolder(config, "x", settings).open(True, model, ExitStack())
            assert found is not None
            assert found.step == 3
            # Masks are drawn by rank: the note must not promise that only sums differ.
            said = capsys.readouterr()
            assert "sums round differently" in said.out + said.err
            assert ("dropout masks differ" in said.out + said.err) == (dropout > 0 or bool(loss))


def test_a_config_of_no_run_is_not_overwritten(tmp_path: Path) -> None:
    config = run_config(tmp_path, "run")
    save_tiny_model(tmp_path / "base", variant="vanilla")
    model = build.build_model(config).model
    saved = Path(config.output) / CONFIG_NAME
    saved.parent.mkdir()
    saved.write_text("# mine\nseed: 3\n", encoding="utf-8")
    with (
        ExitStack() as held,
        pytest.raises(ConfigError, match=r"config\.yaml: the run would overwrite this file.*Fix: "),
    ):
        RunFolder(config, "x", {}).open(True, model, held)
    assert saved.read_text(encoding="utf-8") == "# mine\nseed: 3\n"
    saved.unlink()
    for name in ("metrics.jsonl", "run.json"):
        foreign = saved.parent / name
        foreign.write_text("mine", encoding="utf-8")
        problem = rf"{name}: the run would overwrite this file.*Fix: "
        with ExitStack() as held, pytest.raises(ConfigError, match=problem):
            RunFolder(config, "x", {}).open(True, model, held)
        foreign.unlink()
    thesis = saved.parent / "model" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("mine", encoding="utf-8")
    with ExitStack() as held, pytest.raises(StorageError, match="not a model of ours"):
        RunFolder(config, "x", {}).open(True, model, held)
    thesis.unlink()
    for _ in range(2):  # a run that was killed before its first checkpoint starts again
        with ExitStack() as held:
            assert RunFolder(config, "x", {}).open(True, model, held) is None


def test_one_run_at_a_time_trains_in_a_folder(tmp_path: Path) -> None:
    config = run_config(tmp_path, "run")
    save_tiny_model(tmp_path / "base", variant="vanilla")
    model = build.build_model(config).model
    with ExitStack() as held, ExitStack() as other:
        RunFolder(config, "x", {}).open(True, model, held)
        with pytest.raises(StorageError, match=rf"run: another process.*{os.getpid()} on .*Fix: "):
            RunFolder(config, "x", {}).open(True, model, other)
    assert sorted(path.name for path in Path(config.output).iterdir()) == [CONFIG_NAME]
