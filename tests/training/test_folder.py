"""Which runs a folder lets continue."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from scimult.errors import CheckpointError, ConfigError, StorageError
from scimult.files import read_json, write_json
from scimult.training import build
from scimult.training.folder import CHECKPOINTS, CONFIG_NAME, RunFolder, check_same_config
from scimult.training.origin import origin_of
from scimult.training.plan import plan_run
from scimult.training.state import CheckpointStore, step_folders
from tests.tiny import save_tiny_model
from tests.training.corpus import prepare_corpus, run_config


def test_a_saved_configuration_of_an_older_version_has_the_defaults(tmp_path: Path) -> None:
    config = run_config(tmp_path, "run")
    tree = config.model_dump(mode="json")
    del tree["batch"]["mix"], tree["data"]["sampling_temperature"], tree["loss"]["mask_margin"]
    saved = tmp_path / "config.yaml"
    saved.write_text(yaml.safe_dump(tree), encoding="utf-8")
    check_same_config(saved, config)
    other = run_config(tmp_path, "run", batch={"mix": "in_batch"}, seed=3)
    with pytest.raises(ConfigError) as refused:
        check_same_config(saved, other)
    message = str(refused.value)
    assert "started with a different seed, batch.mix, batch.negatives_across (value: {" in message
    assert "resume with {'seed': 42, 'batch.mix': 'alternate'" in message
    tree["batch"]["colour"] = "red"
    saved.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"batch\.colour: unknown key"):
        check_same_config(saved, config)


def test_content_that_is_recorded_may_have_another_path(tmp_path: Path) -> None:
    config = run_config(tmp_path, "run")
    saved = tmp_path / "config.yaml"
    saved.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    moved = config.model_copy(
        update={
            "data": config.data.model_copy(update={"prepared": "elsewhere/prepared"}),
            "model": config.model.model_copy(update={"base": "elsewhere/base"}),
        }
    )
    check_same_config(saved, moved, ("data", "base"))
    with pytest.raises(ConfigError, match=r"different model\.base \(value: "):
        check_same_config(saved, moved, ("data",))
    with pytest.raises(ConfigError, match=r"different data\.prepared \(value: "):
        check_same_config(saved, moved, ("base", "tokenizer"))
    taught = run_config(tmp_path, "run", loss={"embedding_teacher": {"vectors": "new"}})
    tree = taught.model_dump(mode="json")
    tree["loss"]["embedding_teacher"]["vectors"] = "old"
    saved_with_teacher = tmp_path / "taught.yaml"
    saved_with_teacher.write_text(yaml.safe_dump(tree), encoding="utf-8")
    check_same_config(saved_with_teacher, taught, ("embedding_teacher",))
    with pytest.raises(ConfigError, match=r"different loss\.embedding_teacher\.vectors"):
        check_same_config(saved_with_teacher, taught, ("data",))
    # A run from nothing has no base that could have moved.
    none = moved.model_copy(update={"model": config.model.model_copy(update={"base": None})})
    with pytest.raises(ConfigError, match=r"different model\.base"):
        check_same_config(saved, none, ("data", "base"))


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
                RunFolder(config, {"data": "x"}, settings).open(True, model, ExitStack())
        else:
            found = RunFolder(config, {"data": "x"}, settings).open(True, model, ExitStack())
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
        RunFolder(config, {"data": "x"}, {}).open(True, model, held)
    assert saved.read_text(encoding="utf-8") == "# mine\nseed: 3\n"
    saved.unlink()
    for name in ("metrics.jsonl", "run.json"):
        foreign = saved.parent / name
        foreign.write_text("mine", encoding="utf-8")
        problem = rf"{name}: the run would overwrite this file.*Fix: "
        with ExitStack() as held, pytest.raises(ConfigError, match=problem):
            RunFolder(config, {"data": "x"}, {}).open(True, model, held)
        foreign.unlink()
    thesis = saved.parent / "model" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("mine", encoding="utf-8")
    with ExitStack() as held, pytest.raises(StorageError, match="not a model of ours"):
        RunFolder(config, {"data": "x"}, {}).open(True, model, held)
    thesis.unlink()
    # Prepared data, a world or shards; a library; a tagger.
    for name in ("manifest.json", "library.json", "tagger.json"):
        (saved.parent / name).write_text("{}", encoding="utf-8")
        with ExitStack() as held, pytest.raises(StorageError, match="output exists already.*Fix"):
            RunFolder(config, {"data": "x"}, {}).open(True, model, held)
        (saved.parent / name).unlink()
    for _ in range(2):  # a run that was killed before its first checkpoint starts again
        with ExitStack() as held:
            assert RunFolder(config, {"data": "x"}, {}).open(True, model, held) is None


def test_one_run_at_a_time_trains_in_a_folder(tmp_path: Path) -> None:
    config = run_config(tmp_path, "run")
    save_tiny_model(tmp_path / "base", variant="vanilla")
    model = build.build_model(config).model
    with ExitStack() as held, ExitStack() as other:
        RunFolder(config, {"data": "x"}, {}).open(True, model, held)
        with pytest.raises(StorageError, match=rf"run: another process.*{os.getpid()} on .*Fix: "):
            RunFolder(config, {"data": "x"}, {}).open(True, model, other)
    assert sorted(path.name for path in Path(config.output).iterdir()) == [CONFIG_NAME]


def test_a_start_removes_checkpoints_that_a_killed_run_should_have(tmp_path: Path) -> None:
    """Killed after its last one, it left the one before behind for good."""
    config = run_config(tmp_path, "run")
    save_tiny_model(tmp_path / "base", variant="vanilla")
    model, keep = build.build_model(config).model, config.checkpoint.keep
    info = {"data": "x", "precision": "fp32", "ranks": 1, "zero_stage": 0}
    store = CheckpointStore(Path(config.output) / CHECKPOINTS, keep + 2)
    with ExitStack() as held:
        RunFolder(config, {"data": "x"}, {}).open(True, model, held)
    for step in range(1, keep + 3):
        store.save(step, lambda folder: write_json(folder / "state.json", {}), info, best=1)
    with ExitStack() as held:
        RunFolder(config, {"data": "x"}, {}).open(True, model, held)
    left = [path.name for path in step_folders(store.folder)]
    assert left == [f"step-{step:07d}" for step in (1, *range(3, keep + 3))]


def other_tokenizer(base: Path) -> None:
    tree = read_json(base / "tokenizer.json")
    vocabulary = tree["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    write_json(base / "tokenizer.json", tree)


def other_heads(base: Path) -> None:
    tree = read_json(base / "config.json")
    tree["encoder"]["num_heads"] = 4
    write_json(base / "config.json", tree)


def other_weights(base: Path) -> None:
    shutil.rmtree(base)
    save_tiny_model(base, variant="vanilla", seed=7)


@pytest.mark.parametrize(
    ("change", "name"),
    [(other_tokenizer, "tokenizer"), (other_heads, "architecture"), (other_weights, "base")],
    ids=["tokenizer", "architecture", "base"],
)
def test_a_run_continues_only_from_the_base_that_it_started_from(
    tmp_path: Path, change: Callable[[Path], None], name: str
) -> None:
    prepare_corpus(tmp_path)
    config = run_config(tmp_path, "run")
    pretrained = build.build_model(config)
    origin = origin_of(plan_run(config), pretrained)
    with ExitStack() as held:
        assert RunFolder(config, origin, {}).open(True, pretrained.model, held) is None
    earlier = {"data": origin["data"], "precision": "fp32", "ranks": 1, "zero_stage": 0}
    store = CheckpointStore(Path(config.output) / CHECKPOINTS, 2)
    for step, info in enumerate((earlier, {**earlier, **origin}), start=1):
        store.save(step, lambda folder: write_json(folder / "state.json", {}), info)
        with ExitStack() as held:
            found = RunFolder(config, origin, {}).open(True, pretrained.model, held)
            assert found is not None
            assert found.step == step
    change(tmp_path / "base")
    other = build.build_model(config)
    folder = RunFolder(config, origin_of(plan_run(config), other), {})
    with ExitStack() as held, pytest.raises(CheckpointError, match=f"saved with {name} .*restore"):
        folder.open(True, other.model, held)
