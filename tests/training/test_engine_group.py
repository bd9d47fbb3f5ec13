"""Joining and leaving the group of GPU ranks, without a GPU."""

from __future__ import annotations

import pytest
import torch

from scimult import distributed
from scimult.training import deepspeed_private, engine


@pytest.mark.parametrize(("ranks", "leaves_after_an_error"), [(1, True), (2, False)])
def test_a_failing_rank_on_a_gpu_does_not_wait_for_others_to_leave(
    monkeypatch: pytest.MonkeyPatch, ranks: int, leaves_after_an_error: bool
) -> None:
    """NCCL's communicators end together; the others are in a collective (torchtitan#1342)."""
    left: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: ranks)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(engine, "usable_device", lambda device: device)
    monkeypatch.setattr(distributed, "initialise", lambda *_: True)
    monkeypatch.setattr(distributed, "world_size", lambda: ranks)
    monkeypatch.setattr(deepspeed_private, "leave_group", lambda: left.append("left") or True)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    with engine.process_group(60) as device:
        assert device == torch.device("cuda", 0)
    assert left == ["left"]
    with pytest.raises(RuntimeError, match="a kernel failed"), engine.process_group(60):
        raise RuntimeError("a kernel failed")
    assert left == ["left"] * (1 + leaves_after_an_error)
