"""Shape legend: N rows on this rank, S rows of all ranks, D width."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scimult import distributed
from scimult.errors import ConfigError
from tests.ranks import run_ranks
from tests.training.engines import do_step, tiny_engine

ROWS = {1: [3], 2: [2, 5], 3: [4, 0, 1]}


def _rows(world: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(world)
    return [torch.randn(rows, 4, generator=generator) for rows in ROWS[world]]


class _NotedCollectives:
    """Records the collectives of torch that are called."""

    names = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor")

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        self._before = {name: getattr(torch.distributed, name) for name in self.names}
        for name, collective in self._before.items():
            setattr(torch.distributed, name, partial(self._noted, name, collective))

    def _noted(self, name: str, collective: Any, *args: Any, **options: Any) -> Any:
        self._calls.append(name)
        return collective(*args, **options)

    def __exit__(self, *_: object) -> None:
        for name, collective in self._before.items():
            setattr(torch.distributed, name, collective)


def _local_loss(x_ND: Tensor, gathered_SD: Tensor, first: int) -> Tensor:
    """Return the summed softmax loss of local rows against the rows of all ranks."""
    scores_NS = x_ND @ gathered_SD.T
    targets_N = (torch.arange(len(x_ND)) + first + 1) % len(gathered_SD)
    return torch.nn.functional.cross_entropy(scores_NS, targets_N, reduction="sum")


def _gather_on_rank(world: int) -> dict[str, Any]:
    x_ND = _rows(world)[distributed.rank()].requires_grad_()
    calls: list[str] = []
    with _NotedCollectives(calls):
        gathered_SD, first = distributed.gather_rows(x_ND, ROWS[world])
        _local_loss(x_ND, gathered_SD, first).backward()
    found = {"rows": gathered_SD.detach(), "first": first, "gradient": x_ND.grad}
    return found | {"calls": calls}


@pytest.mark.ranks
@pytest.mark.parametrize("world", [1, 2, 3])
def test_gathered_rows_and_gradients_equal_one_process(tmp_path: Path, world: int) -> None:
    whole_SD = torch.cat(_rows(world)).requires_grad_()
    _local_loss(whole_SD, whole_SD, 0).backward()
    assert whole_SD.grad is not None
    gradients = whole_SD.grad.split(ROWS[world])
    firsts = [sum(ROWS[world][:rank]) for rank in range(world)]
    results = run_ranks(_gather_on_rank, world, tmp_path, world)
    for result, first, gradient in zip(results, firsts, gradients, strict=True):
        assert torch.equal(result["rows"], whole_SD.detach())
        assert result["first"] == first
        torch.testing.assert_close(result["gradient"], gradient, rtol=0, atol=1e-6)
        # One there and one back: nobody asks how many rows the others have.
        there_and_back = ["all_gather_into_tensor", "reduce_scatter_tensor"]
        assert result["calls"] == (there_and_back if world > 1 else [])


def _collectives_on_rank() -> dict[str, Any]:
    rank = distributed.rank()
    distributed.barrier()
    return {
        "place": (rank, distributed.local_rank(), distributed.world_size(), distributed.is_main()),
        "objects": distributed.all_gather_objects({"rank": rank}),
        "broadcast": distributed.broadcast_object(f"from {rank}"),
        "on main": distributed.on_main(lambda: f"from {rank}"),
        "refused": _refusal(),
    }


def _refusal() -> tuple[str, Any]:
    """Return each rank's error after a failure on the main rank only."""

    def refuse() -> None:
        raise ConfigError("not so", path="place", value=distributed.rank())

    try:
        distributed.on_main(refuse)
    except ConfigError as error:
        return str(error), error.value
    raise AssertionError("the error was lost")


@pytest.mark.ranks
def test_collectives_on_two_ranks(tmp_path: Path) -> None:
    results = run_ranks(_collectives_on_rank, 2, tmp_path)
    for rank, result in enumerate(results):
        assert result == {
            "place": (rank, rank, 2, rank == 0),
            "objects": [{"rank": 0}, {"rank": 1}],
            "broadcast": "from 0",
            "on main": "from 0",
            "refused": ("place: not so (value: 0)", 0),
        }


def _collectives_beside_a_gpu() -> tuple[dict[str, Any], float]:
    """Join the group of GPU ranks, in which nothing sent to a GPU arrives.

    Return what objects become in it, and the norm of a step that DeepSpeed makes in it.
    """
    # Its import makes it known: collectives of this backend do nothing.
    import torch.testing._internal.distributed.fake_pg

    distributed.shut_down()
    distributed._BACKENDS_OF_GPUS = "cpu:gloo,cuda:fake"
    assert distributed.initialise(torch.device("cuda", distributed.rank()), timeout_seconds=60)
    objects = _collectives_on_rank()
    engine = tiny_engine(2)
    do_step(engine)
    norm = engine.gradient_norm
    engine.close()
    return objects, float(norm)


@pytest.mark.ranks
def test_objects_stay_on_the_host_beside_a_gpu(tmp_path: Path) -> None:
    (first, norm), (second, other_norm) = run_ranks(_collectives_beside_a_gpu, 2, tmp_path)
    assert first["objects"] == second["objects"] == [{"rank": 0}, {"rank": 1}]
    assert first["broadcast"] == second["broadcast"] == "from 0"
    assert norm == other_norm > 0


def test_collectives_without_a_process_group() -> None:
    x_ND = torch.ones(2, 3)
    distributed.barrier()
    assert distributed.gather_rows(x_ND, [2]) == (x_ND, 0)
    assert distributed.all_gather_objects("x") == ["x"]
    assert distributed.broadcast_object("x") == "x"
    assert distributed.is_main()


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_half_of_a_launchers_variables_are_refused(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    values = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    with pytest.raises(ConfigError, match=f"variable {missing} expected, but not set.*Fix: start"):
        distributed.initialise(torch.device("cpu"), 1)


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be the first of two ranks, which find no store of an earlier test."""
    environment = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    distributed._launchers_store.cache_clear()
    yield
    distributed._launchers_store.cache_clear()


@pytest.mark.usefixtures("two_ranks")
def test_a_port_in_use_is_named_with_the_option_that_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        message = r"in use \(value: 'MASTER_PORT=.*--master_port"
        with pytest.raises(ConfigError, match=message) as raised:
            distributed.initialise(torch.device("cpu"), 5)
    assert str(raised.value).count("Fix: ") == 1


@pytest.mark.usefixtures("two_ranks")
def test_a_rank_that_nobody_joins_says_where_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    meet = torch.distributed.rendezvous  # type: ignore[attr-defined]
    short = partial(meet, timeout=timedelta(seconds=1))
    monkeypatch.setattr(torch.distributed, "rendezvous", short)
    monkeypatch.setenv("MASTER_PORT", str(distributed.free_port()))
    with pytest.raises(ConfigError, match=r"1/2 clients.*MASTER_ADDR=127.*Fix: let MASTER_ADDR be"):
        distributed.initialise(torch.device("cpu"), 5)


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # set again by the call, and restored
    message = r"connect: Unable .*: nope \(value: 'GLOO_SOCKET_IFNAME=nope'\). Fix: set GLOO_SOCKET"
    with pytest.raises(ConfigError, match=message):
        distributed.initialise(torch.device("cpu"), 5)


def test_launcher_variables_are_read_before_the_group_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (distributed.rank(), distributed.local_rank(), distributed.world_size()) == (3, 1, 4)
    assert not distributed.is_main()


def test_empty_launcher_variables_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    assert (distributed.rank(), distributed.local_rank(), distributed.world_size()) == (0, 0, 1)


@pytest.mark.parametrize(
    ("local_rank", "gpus", "chosen"), [(3, 8, [3]), (0, 2, [0]), (3, 1, []), (1, 0, [])]
)
def test_each_process_of_a_machine_takes_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, local_rank: int, gpus: int, chosen: list[int]
) -> None:
    taken: list[int] = []
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for named in ("cpu", "cuda:1"):
        distributed.use_own_gpu(named)
    assert taken == []
    distributed.use_own_gpu()
    assert taken == chosen


@pytest.mark.parametrize(("gpus", "chosen"), [(8, [3]), (2, [1]), (1, []), (0, [])])
def test_tasks_of_srun_take_turns_on_the_gpus_they_see(
    monkeypatch: pytest.MonkeyPatch, gpus: int, chosen: list[int]
) -> None:
    taken: list[int] = []
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("SLURM_LOCALID", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    distributed.use_own_gpu()
    assert taken == chosen


@pytest.mark.parametrize(("gpus", "may_share"), [(2, True), (2, False), (1, False)])
def test_a_process_without_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: int, may_share: bool
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    message = rf"process 2 .* no GPU: torch sees {gpus} .*CUDA_VISIBLE_DEVICES=0.*at most {gpus}"
    with pytest.raises(ConfigError, match=message):
        distributed.use_own_gpu(may_share=may_share)
