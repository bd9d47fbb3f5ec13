"""The shard and the GPU of a process, by its launcher."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scimult.cli.mine import _shard, open_encoder
from scimult.data.prepared import PreparedData
from scimult.errors import ConfigError
from scimult.preparation.dataset import build_dataset
from scimult.preparation.mining.config import DenseConfig
from tests.command import completed, refused
from tests.raw_corpus import raw_config, write_raw
from tests.tiny import save_tiny_model


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what DeepSpeed sets for a process that another test made its only rank."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("numbers", [range(4), range(1, 5), range(1, 8, 2), range(3, 4)])
def test_an_array_mines_every_shard_once(monkeypatch: pytest.MonkeyPatch, numbers: range) -> None:
    _enter(monkeypatch, ARRAY_TASK_MIN=numbers[0], ARRAY_TASK_MAX=numbers[-1])
    shards = []
    for number in numbers:
        _enter(monkeypatch, ARRAY_TASK_ID=number, ARRAY_TASK_COUNT=len(numbers))
        shards.append(_shard("auto"))
    assert [shard.index for shard in shards] == list(range(len(numbers)))
    assert {shard.count for shard in shards} == {len(numbers)}


def test_the_tasks_of_a_launcher_divide_that_of_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    # A batch script without srun is a single process, however many tasks the job has.
    _enter(monkeypatch, ARRAY_TASK_ID=2, ARRAY_TASK_MIN=1, ARRAY_TASK_MAX=3, ARRAY_TASK_COUNT=3)
    _enter(monkeypatch, PROCID=0, NTASKS=4)
    assert (_shard("auto").index, _shard("auto").count) == (1, 3)
    _enter(monkeypatch, PROCID=2, STEP_NUM_TASKS=4)
    assert (_shard("auto").index, _shard("auto").count) == (6, 12)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (_shard("auto").index, _shard("auto").count) == (3, 6)
    monkeypatch.setenv("RANK", "")  # empty is unset
    assert (_shard("auto").index, _shard("auto").count) == (6, 12)


@pytest.mark.parametrize("spec", ["", "1", "4/4", "5/4", "-1/4", "x/4", "1/x", "/4", "1/", "auto"])
def test_what_is_no_shard_is_refused(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    _enter(monkeypatch)
    with pytest.raises(ConfigError, match="not a shard.*write 0/4, 1/4"):
        _shard(spec)


def test_an_uneven_array_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _enter(monkeypatch, ARRAY_TASK_ID=2, ARRAY_TASK_MIN=1, ARRAY_TASK_MAX=9, ARRAY_TASK_COUNT=4)
    with pytest.raises(ConfigError, match="unevenly spaced"):
        _shard("auto")


def test_each_process_of_a_machine_mines_on_its_own_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    # A build for CUDA without a driver would count them, too.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    save_tiny_model(tmp_path)
    open_encoder(DenseConfig(rule="dense", model=str(tmp_path)))
    assert taken == [3]


def _enter(monkeypatch: pytest.MonkeyPatch, **variables: int) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))


def test_steps_inside_what_is_replaced_are_refused(tmp_path: Path) -> None:
    assert "--steps is inside the prepared folder" in refused(
        "mine", tmp_path, "--steps", tmp_path / "steps"
    )


@pytest.mark.long
def test_shards_say_that_they_are_mined_and_the_folder_is_shown_as_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dataset(raw_config(write_raw(tmp_path / "raw")), tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    call = ["mine", "out", "citations=[co_cited, random]", "max_negatives=5"]
    steps = tmp_path / ".out.steps"
    before = set(steps.rglob("*"))
    result = completed(*call, "--shard", "0/2")
    assert set(steps.rglob("*")) > before
    assert "shard 0/2 is mined; after all, mine without --shard" in result.output
    result = completed(*call)
    assert result.stdout.lstrip().startswith("out (texts: ")
    lines = [line.split() for line in result.stdout.splitlines()]
    for entry in PreparedData.open(tmp_path / "out").manifest.pairs:
        counts = [f"{number:,}" for number in (entry.queries, entry.groups, entry.pairs)]
        mined = f"{entry.with_negatives / entry.groups:.1%}"
        row = [entry.source, entry.task, entry.split, *counts]
        assert [*row, mined] in lines or [*row, "–"] in lines
