"""Curricula: equal to runs by hand, resumed in the stage that was killed, refused as a whole."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from scimult.checkpoints import load_pretrained
from scimult.config import read_yaml
from scimult.distributed import free_port
from scimult.errors import ConfigError, StorageError
from scimult.files import read_json, write_json
from scimult.training import curriculum
from scimult.training.config import PretrainConfig
from scimult.training.curriculum import run_stages
from scimult.training.run import pretrain
from scimult.training.stages import load_stages
from scimult.training.stopping import StoppedError, StopRequest
from tests.ranks import Verb, rank_environment, run_ranks
from tests.training.corpus import metrics, run_config
from tests.training.test_resume import assert_same_run, wait_for_step

pytestmark = pytest.mark.ranks

STAGES: dict[str, Any] = {
    "vanilla": {"schedule": {"steps": 4}},
    "experts": {
        "model": {"variant": "mha_expert"},
        "optimizer": {"lr": 5e-4},
        "schedule": {"steps": 8},
    },
    "search": {
        "data": {"sources": ["world.search"]},
        "model": {"variant": "mha_expert"},
        "loss": {"name": "symmetric_info_nce"},
        "schedule": {"steps": 3},
    },
}


def write(folder: Path, name: str, stages: dict[str, Any] = STAGES, **sections: Any) -> Path:
    """Write a curriculum of tiny stages whose output is ``folder / name``."""
    config = run_config(folder, name, **{"model": {"variant": "vanilla"}, **sections})
    path = folder / f"{name}.yaml"
    tree = {**config.model_dump(mode="json", exclude_none=True), "stages": stages}
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return path


def train(folder: Path) -> None:
    """Run the stages on this rank: as a curriculum, by hand, and with one more stage."""
    run_stages(load_stages(folder / "finished.yaml"))
    before = times(folder / "finished")
    for stage in load_stages(folder / "by_hand.yaml"):
        pretrain(stage.config)
    # One process group for all, because DeepSpeed remembers the first one of a process.
    run_stages(load_stages(folder / "more.yaml", [f"output={folder / 'finished'}"]))
    assert times(folder / "finished") == before


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """Return the output of a curriculum that ran on two ranks."""
    write(folder, "finished")
    write(folder, "by_hand")
    write(folder, "more", {**STAGES, "more": {"after": "vanilla", "schedule": {"steps": 1}}})
    run_ranks(train, 2, folder, folder)
    return folder / "finished"


def times(output: Path) -> dict[str, int]:
    """Return when each stage's weights were written."""
    return {
        stage: (output / stage / "model" / "model.safetensors").stat().st_mtime_ns
        for stage in STAGES
        if (output / stage / "model").is_dir()
    }


def test_stages_equal_runs_by_hand(folder: Path, finished: Path) -> None:
    for name in STAGES:
        assert_same_run(finished / name, folder / "by_hand" / name)
    experts = load_pretrained(finished / "experts").model.state_dict()
    trained = load_pretrained(finished / "search").model.state_dict()
    assert any(not torch.equal(weight, trained[name]) for name, weight in experts.items())


def test_a_new_stage_joins_finished_ones(finished: Path) -> None:
    saved = read_yaml(finished / "more" / "config.yaml")
    assert (saved["seed"], saved["model"]["base"]) == (45, str(finished / "vanilla"))
    assert len(metrics(finished / "more")) == 1


def test_two_ranks_killed_in_the_second_stage_resume_in_it_elsewhere(
    folder: Path, finished: Path
) -> None:
    path = write(folder, "killed")
    ranks = start(path, "killed")
    wait_for_step(load_stages(path)[1].config, ranks[0], step=5)
    for rank in ranks:
        rank.kill()
        rank.wait()
    first = times(folder / "killed")
    assert list(first) == ["vanilla"], "the second stage ended before it could be killed"
    (folder / "killed").rename(folder / "moved")
    ranks = start(write(folder, "moved"), "resumed")
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0], ranks[0].printed()
    printed = "".join(rank.printed() for rank in ranks)
    assert printed.count("stage 1/3, vanilla: already finished") == 1, "once, not once per rank"
    assert "resuming after step 3" in printed or "resuming after step 6" in printed
    assert times(folder / "moved")["vanilla"] == first["vanilla"]
    for name in STAGES:
        assert_same_run(finished / name, folder / "moved" / name)


def start(path: Path, name: str) -> list[Verb]:
    """Start a curriculum on two ranks, as a launcher does."""
    port = free_port()
    return [
        Verb(
            ["pretrain", "--config", str(path)],
            path.with_name(f"{name}.rank{rank}.log"),
            rank_environment(rank, 2, port),
        )
        for rank in (0, 1)
    ]


def test_a_finished_curriculum_is_left_unchanged(folder: Path, finished: Path) -> None:
    before = times(finished)
    stages = load_stages(folder / "finished.yaml")
    assert run_stages(stages) == finished / "search" / "model"
    assert times(finished) == before
    with pytest.raises(ConfigError, match="vanilla: folder already holds a run"):
        run_stages(stages, resume=False)


def test_a_stage_killed_after_its_export_is_brought_to_its_end(
    folder: Path, finished: Path
) -> None:
    """The model may lack its heads, and a study waits for the record of the end."""
    record = finished / "search" / "run.json"
    before = (finished / "search" / "model" / "model.safetensors").read_bytes()
    write_json(record, read_json(record) | {"state": "running"})
    run_stages(load_stages(folder / "finished.yaml"))
    assert read_json(record)["state"] == "finished"
    assert (finished / "search" / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vanilla": {"schedule": {"steps": 5}}}, "vanilla.*started with a different schedule"),
        (
            {"search": {"model": {"variant": "mha_expert"}, "data": {"sources": ["world"]}}},
            "search.*started with a different data",
        ),
        *(
            ({"vanilla": {**STAGES["vanilla"], **sections}}, f"vanilla.*with a different {names}")
            for sections, names in [
                ({"engine": {"precision": "bf16"}}, "engine.precision"),
                ({"checkpoint": {"keep_best": True, "export": "best"}}, "checkpoint.export, dev"),
                ({"dev": {"every": 1, "patience": 1}}, "dev"),
            ]
        ),
    ],
)
def test_a_finished_stage_of_another_config_is_refused(
    folder: Path, finished: Path, changed: dict[str, Any], message: str
) -> None:
    before = times(finished)
    stages = load_stages(write(folder, "finished", {**STAGES, **changed}))
    with pytest.raises(ConfigError, match=message):
        run_stages(stages)
    assert times(finished) == before


def test_a_stage_whose_base_has_changed_is_refused(folder: Path, finished: Path) -> None:
    stages = load_stages(write(folder, "finished"))
    kept, other = (finished / name / "model" for name in ("vanilla", "search"))
    weights = (kept / "model.safetensors").read_bytes()
    (kept / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="'experts' did not start from the present model"):
        run_stages(stages)
    (kept / "model.safetensors").write_bytes(weights)
    run_stages(stages)


def test_a_finished_stage_of_other_data_is_refused(folder: Path, finished: Path) -> None:
    manifest = folder / "prepared" / "manifest.json"
    before = manifest.read_text(encoding="utf-8")
    write_json(manifest, {**read_json(manifest), "fingerprint": "another"})
    with pytest.raises(ConfigError, match="finished run was trained on other data"):
        run_stages(load_stages(write(folder, "finished")))
    manifest.write_text(before, encoding="utf-8")


def test_a_finished_stage_of_another_base_is_refused(folder: Path, finished: Path) -> None:
    base = folder / "base"
    weights, stages = (base / "model.safetensors").read_bytes(), folder / "finished.yaml"
    other = finished / "vanilla" / "model" / "model.safetensors"
    (base / "model.safetensors").write_bytes(other.read_bytes())
    with pytest.raises(ConfigError, match=r"vanilla: the finished run.* other base\. .*restore"):
        run_stages(load_stages(write(folder, "finished")))
    (base / "model.safetensors").write_bytes(weights)
    vanilla = finished / "vanilla" / "model" / "config.json"
    before = read_json(vanilla)
    provenance = {key: value for key, value in before["provenance"].items() if key != "origin"}
    write_json(vanilla, {**before, "provenance": provenance})
    run_stages(load_stages(stages))  # as finished by an earlier version
    write_json(vanilla, before)


def test_a_finished_curriculum_may_move_with_its_data_and_base(
    folder: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"
    for name in ("prepared", "base", "finished"):
        shutil.copytree(folder / name, moved / name)
    stages = load_stages(write(moved, "finished"))
    assert stages[1].config.model.base == str(moved / "finished" / "vanilla")
    run_stages(stages)
    assert capsys.readouterr().err.count("already finished") == len(STAGES)
    # Another base at the new path is none.
    shutil.copytree(finished / "vanilla" / "model", moved / "base", dirs_exist_ok=True)
    with pytest.raises(ConfigError, match=r"finished run was trained on other .*base"):
        run_stages(stages)


def test_a_signal_during_the_last_step_of_a_stage_stops_before_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []

    def told_at_its_end(config: PretrainConfig, *, resume: bool, stop_request: StopRequest) -> Path:
        began.append(Path(config.output).name)
        stop_request.signal = signal.SIGTERM
        return Path(config.output)

    monkeypatch.setattr(curriculum, "pretrain", told_at_its_end)
    with pytest.raises(StoppedError, match="stopped by SIGTERM after stage 'vanilla'"):
        run_stages(load_stages(write(folder, "told")))
    assert began == ["vanilla"]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"data": {"sources": ["wold"]}}, "stage 'search': unknown source.*'world'"),
        (
            {"data": {"prepared": "nowhere"}},
            "stage 'search': nowhere: data.prepared does not exist",
        ),
        ({"model": {"variant": "moe"}}, "stage 'search': unknown model variant"),
        ({"model": {"variant": "vanilla"}}, "stage 'search'.*experts.*that the model does not"),
        ({"model": {"variant": "fusion"}}, "stage 'search'.*mixes trained adapters"),
        (
            {"model": {"variant": "mha_expert", "freeze": ["blocks.9.*"]}},
            "stage 'search'.*matches no parameter",
        ),
        ({"tasks": [{"name": "search"}]}, "stage 'search'.*source 'world' has pairs"),
        (
            {"engine": {"deepspeed": {"gradient_clipping": 7.0}}},
            "stage 'search'.*gradient_clipping",
        ),
        ({"data": {"max_length": 65}}, "stage 'search'.*64 positions"),
        ({"loss": {"weights": {"serach": 2}}}, "stage 'search'.*task in loss.weights"),
        (
            {"after": "vanilla", "model": {"variant": "lora"}, "engine": {"compile": True}},
            "stage 'search'.*engine.compile supports neither",
        ),
        ({"log": {"tracker": "wandb"}}, "stage 'search'.*wandb is not installed"),
    ],
)
def test_contradictions_of_the_last_stage_fail_before_the_first_starts(
    folder: Path, own: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    stages = {**STAGES, "search": {"model": {"variant": "mha_expert"}, **own}}
    loaded = load_stages(write(folder, "never", stages))
    with pytest.raises(ConfigError, match=message):
        run_stages(loaded)
    assert not (folder / "never").exists()


def test_foreign_files_of_the_last_stage_stop_the_first(folder: Path) -> None:
    thesis = folder / "mine" / "search" / "model" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("mine")
    with pytest.raises(StorageError, match="not a model of ours"):
        run_stages(load_stages(write(folder, "mine")))
    assert not (folder / "mine" / "vanilla").exists()
