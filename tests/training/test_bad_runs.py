"""Impossible runs: each fails before any work, with one message that names the fix."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from scimult.errors import ConfigError, DataError, SciMultError, StorageError
from scimult.hardware import MemoryFullError
from scimult.training import build
from scimult.training.config import PretrainConfig
from scimult.training.module import TrainModule
from scimult.training.record import read_record
from scimult.training.run import pretrain
from scimult.training.state import CheckpointStore
from tests.training.corpus import metrics, run_config

# At most one of eight pairs is of search.
RARE_SEARCH = {"search": 0.1, "link_prediction": 0.5, "classification": 0.4}
STAGE_1 = {"zero_optimization": {"stage": 1}}
BY_TOKENS: dict[str, Any] = {"pairs_per_step": None, "max_tokens": 200}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"max_lenght": 3}}, r"data\.max_lenght: unknown key \(did you mean 'max_length'"),
        ({"data": {"rates": {"world": 1.0}}}, "sampling: explicit require each other"),
        ({"data": {"sampling": "explicit"}}, "sampling: explicit require each other"),
        (
            {"data": {"sampling_temperature": 0}},
            "sampling_temperature.*greater than or equal to 0.05",
        ),
        (
            {"data": {"sampling": "explicit", "rates": {"search": -1}}},
            r"rates\.search.*greater than or equal to 0",
        ),
        ({"model": {"tokenizer": "x"}}, "either base, or both tokenizer and architecture"),
        ({"seed": 10**30}, "seed: Input should be less than"),
        ({"data": {"pairs_per_query": 10**30}}, "pairs_per_query: Input should be less than"),
        ({"schedule": {"epochs": 2}}, "give either schedule.steps or .*null drops"),
        ({"schedule": {"steps": 4, "warmup": 2.5}}, "neither a share nor whole steps"),
        ({"batch": {"accumulation": 3}}, "multiple of batch.accumulation"),
        ({"batch": {"max_tokens": 200}}, "pairs_per_step or batch.max_tokens, not both"),
        ({"batch": {"pool": 4}}, "batch.pool requires batch.max_tokens"),
        ({"batch": {**BY_TOKENS, "mix": "in_batch"}}, "it needs batch.pairs_per_step"),
        ({"batch": {"negatives_across": "task"}}, "requires batch.mix in_batch"),
        ({"batch": {**BY_TOKENS, "chunk_tokens": 200}}, "less than batch.max_tokens"),
        ({"batch": {**BY_TOKENS, "max_tokens": 95}}, "cannot hold 3 texts of data.max_length 32"),
        ({"optimizer": {"betas": [0.9, 1.5]}}, r"optimizer\.betas\.1.*less than 1"),
        ({"engine": {"precision": "fp8"}}, r"engine\.precision.*'fp32', 'bf16' or 'fp16'"),
        ({"loss": {"temperature": 0}}, r"loss\.temperature.*greater than 0"),
        (
            {"loss": {"by_task": {"search": {"name": "triplt"}}}},
            r"loss\.by_task\.search\.name: unknown name 'triplt' \(did you mean 'triplet'\?\); kno",
        ),
        (
            {"loss": {"by_task": {"search": {"temperature": 0.1}}}},
            r"loss\.by_task\.search: key 'name' is required",
        ),
        ({"loss": {"name": "triplet", "temperature": 0.1}}, "loss.name triplet has no temperature"),
        ({"loss": {"margin": 1.0, "negatives": "all"}}, "info_nce has no margin or negatives"),
        (
            {"loss": {"name": "triplet", "mask_margin": 1.0}, "model": {"similarity": "l2"}},
            "excludes every candidate within loss.margin 1.0",
        ),
        ({"loss": {"name": "triplet"}}, "a dot product is not one.*l2"),
        (
            {
                "loss": {"name": "triplet"},
                "model": {"similarity": "l2"},
                "data": {"hard_negatives": False},
            },
            "negatives own needs data.hard_negatives",
        ),
        ({"loss": {"name": "infonce"}}, "'info_nce', 'symmetric_info_nce' or 'triplet'"),
        ({"loss": {"weights": {"search": 0}}}, r"loss\.weights\.search.*greater than 0"),
        ({"optimizer": {"layer_decay": 1e-300}}, r"layer_decay.*greater than or equal to 0\.01"),
        ({"optimizer": {"lr": True}}, "optimizer: lr should be a number, not true"),
        ({"output": ""}, "output: String should have at least 1 character"),
        ({"data": {"sources": []}}, r"data\.sources: List should have at least 1 item"),
        ({"schedule": {"steps": 10**20}}, r"schedule\.steps.*less than or equal to 1000000000"),
        ({"schedule": {"steps": None, "epochs": 1e30}}, r"schedule\.epochs.*less than or equal"),
        (
            {"data": {"sampling": "explicit", "rates": {"search": 1e308}}},
            r"rates\.search.*less than or equal",
        ),
        ({"loss": {"matryoshka": [4, 8, 4]}}, r"matryoshka lists a number twice: \[4, 8, 4\]"),
        (
            {"loss": {"mask_margin": 2}, "model": {"similarity": "cosine"}},
            "mask_margin 2 excludes every candidate",
        ),
        (
            {"model": {"pooling": "position", "pooling_position": 32}},
            "pooling_position 32 is beyond data.max_length 32",
        ),
        ({"optimizer": {"lr": "fast"}}, r"optimizer\.lr.*value: 'fast'"),
    ],
)
def test_contradictory_configs_are_refused(
    folder: Path, sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_config(folder, "never", **sections)


def test_options_of_the_chosen_loss_are_filled_in_and_load_again(folder: Path) -> None:
    cosine = {"similarity": "cosine"}
    config = run_config(folder, "never", model=cosine, loss={"name": "triplet"})
    assert (config.loss.margin, config.loss.negatives) == (1.0, "own")
    assert config.loss.temperature is None
    assert PretrainConfig.model_validate(config.model_dump(mode="json")) == config
    assert run_config(folder, "never").loss.temperature == 1.0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"data": {"prepared": "nowhere"}},
            "nowhere: data.prepared does not exist.*make this one",
        ),
        ({"data": {"sources": ["wold"]}}, "unknown source in data.sources.*did you mean 'world'"),
        ({"data": {"max_length": 65}}, "exceeds the model's 64 positions"),
        ({"model": {"variant": "moe"}}, "unknown model variant.*mha_expert"),
        (
            {"model": {"options": {"blocks": [4]}}},
            "the blocks with experts name a block that does not exist",
        ),
        ({"model": {"base": "nowhere"}}, "nowhere: folder does not exist"),
        (
            {"engine": {"deepspeed": {"zero_optimization": {"stage": 1, "reduce_buckets": 2}}}},
            "does not understand zero_optimization: reduce_buckets: Extra inputs.*correct these",
        ),
        (
            {"engine": {"deepspeed": STAGE_1 | {"fp16": {"initial_scale": 8}}}},
            "does not understand fp16: initial_scale: Extra inputs",
        ),
        (
            {"engine": {"deepspeed": STAGE_1 | {"bf16": {"immediate_grad_update": 7}}}},
            "does not understand bf16: immediate_grad_update: Input should be a valid boolean",
        ),
        ({"loss": {"weights": {"serach": 2}}}, "task in loss.weights.*did you mean 'search'"),
        (
            {"loss": {"weights": dict.fromkeys(RARE_SEARCH, 0.5)}},
            "gives all trained tasks the same weight.*optimizer.lr",
        ),
        ({"model": {"freeze": ["pooler.*"]}}, "model.freeze matches no parameter.*names such as"),
        ({"model": {"freeze": ["*"]}}, "leaves nothing to train"),
        (
            {
                "data": {"sampling": "explicit", "rates": RARE_SEARCH},
                "batch": {"mix": "in_batch"},
                "model": {"variant": "mha_expert"},
            },
            r"no batch holds two pairs of these sources.*world\.search.*negatives_across",
        ),
        (
            {"model": {"variant": "vanilla"}, "optimizer": {"added_lr": 1e-3}},
            "variant vanilla adds no parameters",
        ),
        (
            {"model": {"freeze": ["*.experts.*"]}, "optimizer": {"added_lr": 1e-3}},
            "added_lr is set, but what variant mha_expert adds is frozen",
        ),
        (
            {"model": {"train": "added", "freeze": ["*.experts.0.*"]}},
            r"model\.freeze leaves nothing to train for these tasks \(value: \['search'\]\)",
        ),
        (
            {"tasks": [{"name": "search"}]},
            "not among tasks .*'classification'.*add {name: classification} to tasks",
        ),
        (
            {"engine": {"deepspeed": {"optimizer": {"type": "Adam"}}}},
            "the DeepSpeed configuration must not set optimizer",
        ),
        (
            {
                "engine": {
                    "compile": True,
                    "deepspeed": {"zero_optimization": {"stage": 3}},
                }
            },
            "engine.compile does not work under ZeRO stage 3",
        ),
    ],
)
def test_impossible_runs_fail_before_they_write(
    folder: Path, sections: dict[str, Any], message: str
) -> None:
    config = run_config(folder, "never", **sections)
    with pytest.raises(SciMultError, match=message):
        pretrain(config)
    assert not (folder / "never").exists()


def test_an_architecture_without_sizes_is_refused(folder: Path) -> None:
    model = {"base": None, "tokenizer": str(folder / "base"), "architecture": {"num_heads": 2}}
    with pytest.raises(ConfigError, match="num_blocks: Field required"):
        build.build_model(run_config(folder, "never", model=model))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"variant": "lora"}, "variant lora trains only what it adds"),
        (
            {"variant": "mha_expert", "train": "added"},
            "variant mha_expert trains only what it adds",
        ),
        ({"variant": "lora", "train": "all"}, ""),
        ({"variant": "mha_expert"}, ""),
    ],
)
def test_a_frozen_encoder_of_random_weights_is_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str], model: dict[str, Any], said: str
) -> None:
    sizes = {"hidden_size": 8, "num_blocks": 2, "num_heads": 2, "intermediate_size": 8}
    new = {"base": None, "tokenizer": str(folder / "base"), "architecture": sizes}
    build.build_model(run_config(folder, "never", model={**new, **model}))
    found = capsys.readouterr().err
    assert said in found if said else not found
    with pytest.raises(ConfigError, match="fusion mixes trained adapters, and a new model has non"):
        build.build_model(run_config(folder, "never", model={**new, "variant": "fusion"}))


def test_token_store_of_other_texts_is_refused(folder: Path, tmp_path: Path) -> None:
    from scimult.data.prepared import PreparedData

    copy = tmp_path / "prepared"
    shutil.copytree(folder / "prepared", copy)
    tokenizer = build.build_model(run_config(folder, "a")).tokenizer
    store = next((copy / "tokens").iterdir())
    (store / "tokens.bin").write_bytes((store / "tokens.bin").read_bytes()[:-2])
    with pytest.raises(DataError, match=r"tokens"):
        PreparedData.open(copy).tokens(tokenizer, 32)


def test_full_disk_during_a_checkpoint_keeps_the_previous_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    store.save(1, lambda path: (path / "x").write_text("one") and None, {})

    def full(path: Path) -> None:
        (path / "x").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match="No space left on device"):
        store.save(2, full, {})
    newest = store.newest()
    assert newest is not None
    assert newest.step == 1
    assert [path.name for path in store.folder.iterdir()] == ["step-0000001"]


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for step in (1, 2, 3, 4):
        store.save(step, lambda path: (path / "x").write_text("whole") and None, {"data": "d"})
    newest = store.newest()
    assert newest is not None
    assert (newest.step, newest.info) == (4, {"data": "d"})
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "step-0000003",
        "step-0000004",
    ]


@pytest.mark.long
def test_a_run_whose_memory_is_full_says_what_it_continues_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = TrainModule.launch

    def full_at_step_5(module: TrainModule, done: int, *others: Any) -> Any:
        return torch.empty(1 << 50) if done == 4 else launch(module, done, *others)

    with monkeypatch.context() as patch:
        patch.setattr(TrainModule, "launch", full_at_step_5)
        fix = r"memory is full: .*Fix: set engine\.activation_checkpointing"
        with pytest.raises(MemoryFullError, match=fix):
            pretrain(run_config(folder, "full"))
    record = read_record(folder / "full")
    assert record["state"] == "failed"
    assert record["message"].startswith("main memory is full")

    less = {"engine": {"activation_checkpointing": True}, "batch": {"chunk_tokens": 64}}
    pretrain(run_config(folder, "full", **less))
    changed = "batch.chunk_tokens 64, saved with auto: sums round differently and dropout masks"
    assert changed in capsys.readouterr().err
    assert [line["step"] for line in metrics(folder / "full")][-3:] == [4, 5, 6]
    assert read_record(folder / "full")["state"] == "finished"
