"""Measure the hardware's useful work: tokens, padding, operations, memory.

Shape legend: B rows of one forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scimult.hardware import known_peak, measured_peak, peak_gpu_memory, peak_memory
from scimult.models import Encoder, PackedTexts
from scimult.models.flops import EncoderFlops
from scimult.models.packed_attention import reads_packed_rows
from scimult.models.packing import attention_slots
from scimult.progress import note
from scimult.training.config import Peak
from scimult.training.passes import Forward


@dataclass(frozen=True)
class Work:
    """One rank's work in one step: real tokens, slots, operations and peak bytes so far.

    ``padded_slots`` are the token slots, had each forward pass padded its rows to the longest;
    ``attention_slots`` those of our attention, equal to ``tokens`` where nothing is padded.
    ``operations`` count forward and backward pass (`models.flops`); ``gpu_memory`` is ``None`` on
    a CPU.
    """

    tokens: int
    padded_slots: int
    attention_slots: int
    operations: int
    memory: int
    gpu_memory: int | None


def usage(ranks: Sequence[Work], seconds: float, peak: float | None) -> dict[str, float]:
    """Return one step's numbers from the work of all ranks.

    ``padding_if_padded`` is the share of padding, had each rank padded its rows to the longest;
    ``padding_in_attention`` the actual share in our attention (linears run over packed tokens
    and have none). ``model_flop_utilisation`` is the operations per second and rank over
    ``peak``; it is omitted without a peak.
    """
    tokens = sum(rank.tokens for rank in ranks)
    operations = sum(rank.operations for rank in ranks)
    numbers = {
        "tokens_per_second": tokens / seconds,
        "padding_if_padded": _empty(tokens, sum(rank.padded_slots for rank in ranks)),
        "padding_in_attention": _empty(tokens, sum(rank.attention_slots for rank in ranks)),
        "model_flops": float(operations),
        "peak_memory_bytes": float(max(rank.memory for rank in ranks)),
    }
    if peak is not None:
        numbers["model_flop_utilisation"] = operations / seconds / len(ranks) / peak
    gpu_memories = [rank.gpu_memory for rank in ranks if rank.gpu_memory is not None]
    if gpu_memories:
        numbers["peak_gpu_memory_bytes"] = float(max(gpu_memories))
    return numbers


def _empty(tokens: int, slots: int) -> float:
    return 1 - tokens / slots if slots else 0.0


class Meter:
    """Counts the work of this rank's forward passes that have a backward pass.

    Passes without gradients (the first one of an embedding cache, dev scores) are overhead and
    do not count. ``model`` is not sharded yet; ``dtype`` is that of its products, and ``peak`` the
    result of `resolve_peak`.
    """

    def __init__(
        self, model: Encoder, device: torch.device, dtype: torch.dtype, peak: float | None
    ) -> None:
        self.peak = peak
        self._flops = EncoderFlops(model, training=True)
        self._device = device
        head_width = model.config.hidden_size // model.config.num_heads
        # The unpadded kernel does not support instructions as extra context.
        has_context = model.config.instructions is not None
        self._pads = has_context or not reads_packed_rows(device, dtype, head_width)
        self._passes: list[tuple[list[int], int | list[int]]] = []

    def watching(self, forward: Forward) -> Forward:
        """Return ``forward``, with its passes counted."""

        def watched(texts: PackedTexts, routes: int | list[int]) -> Tensor:
            if torch.is_grad_enabled() and texts.lengths:
                self._passes.append((texts.lengths, routes))
            return forward(texts, routes)

        return watched

    def take(self) -> Work:
        """Return the work since the last call."""
        passes, self._passes = self._passes, []
        tokens = sum(sum(lengths) for lengths, _ in passes)
        pads = self._pads
        return Work(
            tokens=tokens,
            padded_slots=sum(len(lengths) * max(lengths) for lengths, _ in passes),
            attention_slots=sum(attention_slots(*each) for each in passes) if pads else tokens,
            operations=sum(self._flops.of(*each) for each in passes),
            memory=peak_memory(),
            gpu_memory=peak_gpu_memory(self._device),
        )


def resolve_peak(choice: Peak, device: torch.device, dtype: torch.dtype) -> float | None:
    """Return a device's peak operations per second; ``None`` if utilisation is not reported.

    ``choice`` is TFLOP/s, or ``auto`` for the data sheet's number, if known, or ``measure`` for a
    measurement made now.
    """
    if choice == "auto":
        return known_peak(device, dtype)
    if choice == "measure":
        peak, listed = measured_peak(device, dtype), known_peak(device, dtype)
        share = "" if listed is None else f", {peak / listed:.0%} of the data sheet's"
        note(f"measured peak of {device.type} in {dtype}: {peak / 1e12:.3f} TFLOP/s{share}")
        return peak
    return choice * 1e12
