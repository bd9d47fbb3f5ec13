"""Fast number formats of devices, and what fills their memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scimult import hardware
from scimult.errors import ConfigError
from scimult.hardware import (
    MemoryFullError,
    full_precision_products,
    in_threads,
    independent_threads,
    naming_full_memory,
    products_in_tf32,
    usable_device,
)
from scimult.training import deepspeed_config
from tests.torch_threads import torch_threads

CPU = torch.device("cpu")


@pytest.mark.parametrize(("fast", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_auto_takes_bfloat16_only_where_the_device_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, fast: bool, chosen: str
) -> None:
    for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, probe, lambda: False, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: fast, raising=False)
    assert hardware.multiplies_bfloat16(CPU) is fast
    assert deepspeed_config.resolve_precision("auto", CPU) == chosen


def test_a_slow_choice_is_kept_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(deepspeed_config, "multiplies_bfloat16", lambda device: False)
    assert deepspeed_config.resolve_precision("bf16", CPU) == "bf16"
    assert "slower than fp32" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"fp16 needs a GPU.*engine.precision auto"):
        deepspeed_config.resolve_precision("fp16", CPU)


def test_threads_see_the_precision_that_they_set_and_leave_the_users() -> None:
    sums = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), sums.allow_bf16_reduced_precision_reduction

    def set_one(number: int) -> tuple[str, str, bool]:
        if number % 2:
            with products_in_tf32(True):
                return "high", torch.get_float32_matmul_precision(), False
        with full_precision_products(torch.device("cuda")):
            rounds = sums.allow_bf16_reduced_precision_reduction
            return "highest", torch.get_float32_matmul_precision(), rounds

    with ThreadPoolExecutor(8) as threads:
        for wanted, found, rounds in threads.map(set_one, range(400)):
            assert (found, rounds) == (wanted, False)
    with full_precision_products(CPU), products_in_tf32(False):
        after = torch.get_float32_matmul_precision(), sums.allow_bf16_reduced_precision_reduction
    assert after == before


@pytest.mark.parametrize("name", ["gpu", "mps", "xpu", "hpu", "meta", "abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_one_short_line(name: str) -> None:
    """torch lists its devices or kernels in thirty mostly useless lines."""
    with pytest.raises(ConfigError, match=r"device cannot be used.*Fix: use cpu") as caught:
        usable_device(name)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_the_cpu_is_a_device() -> None:
    assert usable_device("cpu") == CPU


@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        (
            "CUDA error: no kernel image is available for execution on the device",
            ConfigError,
            r"no kernel image .*'cuda'.*Fix: use cpu, or a torch that is built for this GPU",
        ),
        ("CUDA error: out of memory", MemoryFullError, "GPU memory is full. Fix: free it, or use"),
    ],
)
def test_a_gpu_that_does_not_work_is_named_also_by_default(
    monkeypatch: pytest.MonkeyPatch, problem: str, kind: type[Exception], message: str
) -> None:
    def fails(*_: Any, device: Any) -> None:
        raise RuntimeError(f"{problem}\nSearch for it in CUDA's manual")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", fails)
    with pytest.raises(kind, match=message):
        usable_device(None)


def test_of_two_cards_the_given_one_decides_the_type(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    def exchange(index: int) -> int:
        before, current[0] = current[0], index
        return before

    def properties(index: int) -> SimpleNamespace:
        return SimpleNamespace(major=(8, 7)[index])

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    for name in ("_exchange_device", "_maybe_exchange_device"):
        monkeypatch.setattr(torch.cuda, name, exchange)
    cards = [torch.device("cuda", index) for index in (0, 1)]
    assert [hardware.multiplies_bfloat16(card) for card in cards] == [True, False]
    assert current == [0]


@pytest.mark.parametrize(("name", "asynchronous"), [("mps", False), ("meta", True)])
def test_copies_to_apples_gpus_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, name: str, asynchronous: bool
) -> None:
    """They would read the host's memory after it was freed: pytorch#139550 and #189690."""
    seen: list[tuple[str, bool]] = []

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        seen.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    (sent,) = hardware.send([torch.arange(3)], name)
    assert sent.tolist() == [0, 1, 2]
    assert seen == [(name, asynchronous)]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of ..."
            ),
            "GPU memory is full: 2.50 GiB more were needed. Fix: buy more",
        ),
        (torch.OutOfMemoryError("out of memory"), "GPU memory is full. Fix: buy more"),
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
                "23.64 GiB of which 8.81 MiB is free. Process 4711 has 22.90 GiB memory in use."
            ),
            "GPU memory is full: 20.00 MiB more were needed, process 4711 holds 22.90 GiB. "
            "Fix: buy more",
        ),
        # Where another process fills the GPU, CUDA and its libraries fail before torch's allocator.
        (
            RuntimeError("CUDA error: out of memory\nCUDA kernel"),
            "GPU memory is full. Fix: buy more",
        ),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            "GPU memory is full. Fix: buy more",
        ),
        (
            RuntimeError(
                "MPS backend out of memory (MPS allocated: 8.9 GiB, max allowed: 9.1 GiB). "
                "Tried to allocate 768.00 MiB on private pool."
            ),
            "GPU memory is full: 768.00 MiB more were needed. Fix: buy more",
        ),
    ],
)
def test_full_memory_of_a_gpu_is_named(error: RuntimeError, message: str) -> None:
    with pytest.raises(MemoryFullError) as caught, naming_full_memory("buy more"):
        raise error
    assert str(caught.value) == message
    assert caught.value.__cause__ is error


def test_full_memory_of_a_cpu_is_named_and_other_errors_stay() -> None:
    message = "main memory is full: 16,777,216.00 GiB more were needed. Fix: buy more"
    with pytest.raises(MemoryFullError, match=message), naming_full_memory("buy more"):
        torch.empty(1 << 52)
    with pytest.raises(RuntimeError, match="shapes"), naming_full_memory("buy more"):
        torch.mm(torch.ones(1, 2), torch.ones(3, 1))


@pytest.fixture
def four_threads() -> Iterator[None]:
    with torch_threads(4):
        yield


@pytest.mark.usefixtures("four_threads")
def test_threads_work_side_by_side_with_a_share_of_torchs_threads_each() -> None:
    both = Barrier(2)

    def work(item: int) -> tuple[int, int, bool]:
        both.wait(timeout=60)
        return item, torch.get_num_threads(), torch.is_grad_enabled()

    assert list(in_threads(work, range(6), 2)) == [(item, 2, False) for item in range(6)]
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_one_item_gets_all_threads_and_this_one() -> None:
    found = list(in_threads(lambda item: (item, torch.get_num_threads(), get_ident()), [7], 4))
    assert found == [(7, 4, get_ident())]
    assert list(in_threads(str, [], 4)) == []


@pytest.mark.usefixtures("four_threads")
def test_an_error_in_a_thread_ends_the_others_work() -> None:
    done = []

    def work(item: int) -> None:
        done.append(item)
        if item == 1:
            raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        list(in_threads(work, range(100_000), 2))
    assert len(done) < 100_000
    assert torch.get_num_threads() == 4


def test_few_threads_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, workers in ((1, 1), (6, 6), (64, 16)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert independent_threads(torch.device("cpu")) == workers
        assert independent_threads(torch.device("cuda")) == 1
