"""The meter's counts, and the peak that utilisation relates to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scimult import hardware
from scimult.models import PackedTexts, pack
from scimult.models.flops import EncoderFlops
from scimult.training import meter
from scimult.training.meter import Meter, Work, resolve_peak, usage
from tests.models.variants import LENGTHS, ROUTE_OF_ROW, tiny_encoder, tiny_rows

CPU = torch.device("cpu")


def test_passes_without_gradients_are_not_work() -> None:
    """The first pass of an embedding cache and dev scores do not count."""
    model = tiny_encoder("mha_expert")
    meter = Meter(model, CPU, torch.float32, None)

    def forward(texts: PackedTexts, routes: int | list[int]) -> Tensor:
        return model(texts, routes)

    watched = meter.watching(forward)
    rows, routes = tiny_rows(), list(ROUTE_OF_ROW)
    with torch.no_grad():
        watched(pack(rows), routes)
    # Two chunks, each padded to its own longest row.
    watched(pack(rows[:3]), routes[:3])
    watched(pack(rows[3:]), routes[3:])
    work = meter.take()
    assert work.tokens == sum(LENGTHS)
    assert work.padded_slots == 3 * max(LENGTHS[:3]) + 5 * max(LENGTHS[3:])
    assert work.operations == EncoderFlops(model, training=True).of(LENGTHS, ROUTE_OF_ROW)
    assert meter.take().tokens == 0


def test_usage_is_over_all_ranks() -> None:
    ranks = [Work(80, 100, 90, 3 * 10**12, 5, 7), Work(20, 100, 35, 10**12, 6, 4)]
    found = usage(ranks, seconds=2.0, peak=10e12)
    assert found == pytest.approx(
        {
            "tokens_per_second": 50.0,
            "padding_if_padded": 0.5,
            "padding_in_attention": 0.2,
            "model_flops": 4e12,
            "model_flop_utilisation": 0.1,
            "peak_memory_bytes": 6,
            "peak_gpu_memory_bytes": 7,
        }
    )
    without = usage([Work(1, 1, 1, 1, 1, None)], seconds=1.0, peak=None)
    assert not {"model_flop_utilisation", "peak_gpu_memory_bytes"} & set(without)


def test_a_peak_is_known_configured_measured_or_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, half = torch.device("cuda", 0), torch.bfloat16
    names = {
        "NVIDIA H100 80GB HBM3": True,
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": False,
        "Some other GPU": False,
    }
    for name, known in names.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert (resolve_peak("auto", gpu, half) is not None) == known
        assert resolve_peak("auto", gpu, torch.float32) is None
    assert resolve_peak("auto", CPU, half) is None
    assert resolve_peak(2.5, CPU, half) == 2.5e12
    measured = hardware.measured_peak(CPU, torch.float32, seconds=0)
    assert 0 < measured < math.inf


def test_a_measured_peak_is_reported_with_the_data_sheet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Utilisation of one cannot be mistaken for that of the other."""
    monkeypatch.setattr(meter, "measured_peak", lambda *_: 791.2e12)
    monkeypatch.setattr(meter, "known_peak", lambda *_: 989e12)
    assert resolve_peak("measure", torch.device("cuda", 0), torch.bfloat16) == 791.2e12
    assert "791.200 TFLOP/s, 80% of the data sheet's" in capsys.readouterr().err
