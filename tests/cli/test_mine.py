"""The shard of a process, by its launcher."""

from __future__ import annotations

import pytest

from scimult.cli.mine import _shard
from scimult.errors import ConfigError


@pytest.mark.parametrize("numbers", [range(4), range(1, 5), range(1, 8, 2), range(3, 4)])
def test_an_array_mines_every_shard_once(monkeypatch: pytest.MonkeyPatch, numbers: range) -> None:
    _enter(monkeypatch, ARRAY_TASK_MIN=numbers[0], ARRAY_TASK_MAX=numbers[-1])
    shards = []
    for number in numbers:
        _enter(monkeypatch, ARRAY_TASK_ID=number, ARRAY_TASK_COUNT=len(numbers))
        shards.append(_shard("auto"))
    assert [shard.index for shard in shards] == list(range(len(numbers)))
    assert {shard.count for shard in shards} == {len(numbers)}


def test_the_tasks_of_srun_divide_that_of_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    # A batch script without srun is a single process, however many tasks the job has.
    _enter(monkeypatch, ARRAY_TASK_ID=2, ARRAY_TASK_MIN=1, ARRAY_TASK_MAX=3, ARRAY_TASK_COUNT=3)
    _enter(monkeypatch, PROCID=0, NTASKS=4)
    assert (_shard("auto").index, _shard("auto").count) == (1, 3)
    _enter(monkeypatch, PROCID=2, STEP_NUM_TASKS=4)
    assert (_shard("auto").index, _shard("auto").count) == (6, 12)


def test_an_uneven_array_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _enter(monkeypatch, ARRAY_TASK_ID=2, ARRAY_TASK_MIN=1, ARRAY_TASK_MAX=9, ARRAY_TASK_COUNT=4)
    with pytest.raises(ConfigError, match="unevenly spaced"):
        _shard("auto")


def _enter(monkeypatch: pytest.MonkeyPatch, **variables: int) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
