"""Away from the host: on torch's meta device.

The meta device has shapes and no numbers. A tensor left on the host, or a number that the host
wants to read back, is an error there, as it would be a mistake or a pause on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scimult.losses import Temperature
from scimult.models import PackedTexts, pack
from scimult.models.embed import embed_tokens
from scimult.training.learned import Values
from scimult.training.objective import PartResult
from scimult.training.passes import Graph, MicroBatchTexts, pass_in_chunks
from tests.models.variants import (
    CASES,
    LENGTHS,
    ROUTE_OF_ROW,
    WIDTH,
    tiny_encoder,
    tiny_rows,
)
from tests.operators import NoBlockingCopies

META = torch.device("meta")
INSTRUCTED = ("instruction", "prefix", "experts, instructions")


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "dropout"), [(torch.float32, 0.0), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("case", CASES)
def test_nothing_stays_on_the_host(case: str, dtype: torch.dtype, dropout: float) -> None:
    model = tiny_encoder(case, dropout=dropout, attention_dropout=dropout).to(META, dtype)
    learned = Temperature(0.1).to(META)
    with NoBlockingCopies() as watched:
        embedded = model(pack(tiny_rows()).to(META), ROUTE_OF_ROW)
        (embedded.sum() * learned()).backward()
    assert (embedded.shape, embedded.device, embedded.dtype) == ((8, WIDTH), META, dtype)
    # Tokens and plan, also of instructions; the plan for inserting gaps.
    assert watched.copies == 2 + 2 * (case in INSTRUCTED) + ("codes" in case)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.device == META, name


@pytest.mark.long
def test_the_embedding_cache_reads_nothing_back() -> None:
    model = tiny_encoder("mha_expert", dropout=0.1, attention_dropout=0.1).to(META)
    texts = MicroBatchTexts(tiny_rows(), list(ROUTE_OF_ROW), [0, 1, 2])
    passes: list[int] = []

    def forward(packed: PackedTexts, routes: int | list[int]) -> Tensor:
        passes.append(len(packed))
        return model(packed, routes)

    def loss_of(embeddings_UD: Tensor, _: Values) -> tuple[Tensor, list[PartResult]]:
        return embeddings_UD.square().sum(), []

    with NoBlockingCopies() as watched:
        pass_in_chunks(
            Graph(forward, torch.autograd.backward, META),
            texts,
            loss_of,
            dict,
            chunk_tokens=25,
            weigh=lambda lengths_U: lengths_U,
            seed_of_chunk=lambda chunk: chunk,
        )
    # Tokens and plan of each chunk, once for both passes, and the order of the texts.
    assert watched.copies == 2 * (len(passes) // 2) + 1
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


def test_blocking_copies_would_be_noticed() -> None:
    on_device, on_host = torch.zeros(5, device=META), torch.arange(5)
    for wrong in (
        lambda: on_host.to(META),
        lambda: on_device.copy_(on_host),
        lambda: on_device[on_host],
    ):
        with pytest.raises(AssertionError, match="host"), NoBlockingCopies():
            wrong()
    with NoBlockingCopies() as watched:
        on_host.to(META, non_blocking=True)
        on_device.copy_(on_host, non_blocking=True)
        _ = on_device + 1
    assert watched.copies == 2


def test_a_large_batch_is_two_copies() -> None:
    """Only tokens and plan are sent; formerly 7, and 3 for each group of rows of similar length."""
    lengths = np.random.default_rng(0).integers(5, 512, 220).tolist()
    rows = [np.zeros(length, dtype=np.int64) for length in lengths]
    with NoBlockingCopies() as watched:
        plan = pack(rows).to(META).plan([row % 2 for row in range(len(rows))])
        assert len(plan.groups) > 10
    assert watched.copies == 2


def test_embeddings_are_read_once_they_are_on_the_host() -> None:
    """Only CUDA's copies are waited for together: those of other devices wait themselves."""
    waits: list[bool] = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
        ) -> Any:
            if func.name() == "aten::copy_" and args[1].device == META:
                waits.append(not (len(args) > 2 and args[2]))
                return args[0]
            return func(*args, **(kwargs or {}))

    model = tiny_encoder("vanilla").to(META)
    with Copies():
        embed_tokens(model, tiny_rows())
    assert waits == [True]
