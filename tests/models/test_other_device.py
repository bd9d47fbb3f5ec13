"""Beside the host: on torch's meta device, and through the kernel that CPUs do not have.

The meta device has shapes and no numbers. A tensor left on the host, or a number that the host
wants to read back, is an error there, as it would be a mistake or a pause on a GPU.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from scimult.losses import Temperature
from scimult.models import PackedTexts, attention, pack
from scimult.training.objective import PartResult
from scimult.training.passes import Graph, UnitTexts, pass_in_chunks
from tests.models.variants import (
    CASES,
    FLOAT64,
    LENGTHS,
    ROUTE_OF_ROW,
    WIDTH,
    random_weights,
    tiny_encoder,
    tiny_rows,
)

META = torch.device("meta")
SIGNATURE = inspect.signature(varlen.varlen_attn)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_nothing_stays_on_the_host(case: str, dtype: torch.dtype, dropout: float) -> None:
    model = tiny_encoder(case, dropout=dropout, attention_dropout=dropout).to(META, dtype)
    embedded = model(pack(tiny_rows()).to(META), ROUTE_OF_ROW)
    assert (embedded.shape, embedded.device, embedded.dtype) == ((8, WIDTH), META, dtype)
    (embedded.sum() * Temperature(0.1).to(META)()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.device == META, name


def test_the_embedding_cache_reads_nothing_back() -> None:
    model = tiny_encoder("mha_expert", dropout=0.1, attention_dropout=0.1).to(META)
    texts = UnitTexts(tiny_rows(), list(ROUTE_OF_ROW), [0, 1, 2])
    passes: list[int] = []

    def forward(packed: PackedTexts, routes: int | list[int]) -> Tensor:
        passes.append(len(packed))
        return model(packed, routes)

    def loss_of(embeddings_UD: Tensor, _: Tensor | None) -> tuple[Tensor, list[PartResult]]:
        return embeddings_UD.square().sum(), []

    pass_in_chunks(
        Graph(forward, torch.autograd.backward, META),
        texts,
        loss_of,
        None,
        chunk_tokens=25,
        weigh=lambda lengths_U: lengths_U,
        seed_of_chunk=lambda chunk: chunk,
    )
    # Every text is encoded twice, in more than one chunk of each route.
    assert sum(passes) == 2 * len(LENGTHS)
    assert len(passes) > 6
    assert all(p.grad is not None for p in model.parameters())


def test_the_meta_device_would_notice() -> None:
    model = tiny_encoder("vanilla").to(META)
    with pytest.raises(RuntimeError, match="expected device meta"):
        _ = model(pack(tiny_rows()).to(META), 0) + torch.ones(WIDTH)
    with pytest.raises(RuntimeError, match="meta tensors"):
        model(pack(tiny_rows()).to(META), 0).sum().item()


class NaiveKernel:
    """Stands in for torch's kernel: the same arguments, row by row."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        self.calls += 1
        given = SIGNATURE.bind(*args, **options)
        given.apply_defaults()
        of = given.arguments
        bounds = of["cu_seq_q"]
        assert bounds.dtype == of["cu_seq_k"].dtype == torch.int32
        assert bounds.tolist() == of["cu_seq_k"].tolist()
        lengths = bounds.diff().tolist()
        assert (of["max_q"], of["max_k"]) == (max(lengths), max(lengths))
        before, after = of["window_size"]
        rows = []
        for q_LHK, k_LHK, v_LHK in zip(
            *(of[name].split(lengths) for name in ("query", "key", "value")), strict=True
        ):
            scores_HLL = torch.einsum("ihk,jhk->hij", q_LHK, k_LHK) * q_LHK.shape[-1] ** -0.5
            ahead_LL = torch.arange(len(q_LHK))[None] - torch.arange(len(q_LHK))[:, None]
            seen_LL = torch.ones_like(ahead_LL, dtype=torch.bool)
            if before >= 0:
                seen_LL &= (-ahead_LL <= before) & (ahead_LL <= after)
            weights_HLL = scores_HLL.masked_fill(~seen_LL, float("-inf")).softmax(-1)
            rows.append(torch.einsum("hij,jhk->ihk", weights_HLL, v_LHK))
        return torch.cat(rows)


@pytest.mark.parametrize("window", [None, 3])
def test_the_packed_kernel_gets_what_the_padded_attention_gets(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, object] = {}
    if window is not None:
        layout = {"global_blocks": [0, 3], "local_window": window}
        changes = {"family": "modernbert", "token_types": 0, "modern": layout}
    padded = tiny_encoder("mha_expert", **changes).double()
    packed = copy.deepcopy(padded)
    rows = pack(tiny_rows())
    expected = padded(rows, ROUTE_OF_ROW)
    kernel = NaiveKernel()
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    monkeypatch.setattr(attention, "reads_packed_rows", lambda *_, **__: True)
    ours = packed(rows, ROUTE_OF_ROW)
    # In blocks with experts, the rows of each route are a call; see `banks`.
    assert kernel.calls >= 4
    torch.testing.assert_close(ours, expected, rtol=0, atol=FLOAT64)
    weights = random_weights(len(LENGTHS), WIDTH)
    (expected * weights).sum().backward()
    (ours * weights).sum().backward()
    for (name, one), other in zip(packed.named_parameters(), padded.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        scale = max(1.0, float(other.grad.abs().max()))
        assert (one.grad - other.grad).abs().max() <= FLOAT64 * scale, name
