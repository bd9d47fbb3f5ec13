"""Matrix products with a CPU's fastest kernels. No gradients.

Shape legend: N, M rows, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.errors import ConfigError
from scimult.hardware import multiplies_bfloat16
from scimult.listed_products import products_of_all

PackedT = TypeVar("PackedT")

FEW = 4
"""Up to this many rows of the second matrix are memory-bound: pairs are multiplied one by one."""

FEW_FOR_AVX2 = 256
"""Up to this many rows of the second matrix, oneDNN beats MKL on AVX2 too (1.1 to 1.7 times)."""

# The divisor of a row of zeros.
_TINY = torch.finfo(torch.float32).tiny
# Rows that weights are laid out for; any number works.
_USUAL_ROWS = 4096
# Rows that are rounded and multiplied at a time.
_ROUNDED_ROWS = 512
# The byte that means zero.
_ZERO = 128


def products(x_ND: Tensor, y_MD: Tensor) -> Tensor:
    """Return ``x @ y.T``, shape ``(N, M)``, contiguous.

    With up to ``FEW`` rows of y in float32 on a CPU, results equal `products_at` bit by bit.
    """
    if x_ND.device.type != "cpu" or x_ND.dtype != torch.float32 or not x_ND.numel():
        return torch.mm(x_ND, y_MD.T)
    if 0 < len(y_MD) <= FEW:
        return products_of_all(x_ND, y_MD)
    few = len(y_MD) <= FEW_FOR_AVX2 and multiplies_few_by_onednn()
    if len(y_MD) and (few or multiplies_by_onednn()):
        return linear_by_onednn(x_ND, y_MD)
    return torch.mm(x_ND, y_MD.T)


def linear_by_onednn(
    x_ND: Tensor, weight_MD: Tensor, bias_M: Tensor | None = None, gelu: str | None = None
) -> Tensor:
    """Return ``x @ weight.T + bias``, shape ``(N, M)``, or its GELU, by oneDNN.

    Parameters
    ----------
    x_ND, weight_MD : Tensor
        Of one floating type, on a CPU. Transposed matrices are read as they are; rows of x must
        not share memory. The weight may be in oneDNN's layout.
    bias_M : Tensor, optional
        Added to the products.
    gelu : {"none", "tanh"}, optional
        How GELU is approximated; None leaves it out.
    """
    then, how = ("none", "") if gelu is None else ("gelu", gelu)
    output_NM: Tensor = torch.ops.mkldnn._linear_pointwise(x_ND, weight_MD, bias_M, then, [], how)
    return output_NM


@dataclass(frozen=True)
class ByteMatrix:
    """An int8 matrix with a scale per row, for products with bytes on a CPU.

    Attributes
    ----------
    packed : Tensor
        The numbers in oneDNN's layout.
    steps_M, bias_M : Tensor
        float32, shape ``(M,)``: scale of each row, and the term added to its products.
    """

    packed: Tensor
    steps_M: Tensor
    bias_M: Tensor

    @classmethod
    def of(cls, numbers_MD: Tensor, steps_M: Tensor, bias_M: Tensor) -> ByteMatrix:
        """Pack int8 numbers, shape ``(M, D)``."""
        rows = [_USUAL_ROWS, numbers_MD.shape[1]]
        packed = torch.ops.onednn.qlinear_prepack(numbers_MD, rows)
        return cls(packed, steps_M, bias_M)

    def products(self, bytes_ND: Tensor) -> Tensor:
        """Return ``((bytes - 128) @ numbers.T) * steps + bias``: float32, shape ``(N, M)``.

        The integer sums are exact.
        """
        zeros_M = torch.zeros(len(self.steps_M), dtype=torch.int32)
        weights = self.packed, self.steps_M, zeros_M, self.bias_M
        products_NM: Tensor = torch.ops.onednn.qlinear_pointwise(
            bytes_ND, 1.0, _ZERO, *weights, 1.0, 0, torch.float32, "none", [], ""
        )
        return products_NM


@cache
def multiplies_bytes() -> bool:
    """Return whether this CPU and this torch multiply bytes fast and correctly.

    Without VNNI or AMX, oneDNN adds pairs of products in 16 bits, which overflow.
    """
    probes = ("_is_vnni_supported", "_is_amx_tile_supported")
    if not any(getattr(torch.cpu, probe, lambda: False)() for probe in probes):
        return False
    return _multiplies_correctly(127)


@cache
def largest_weight() -> int | None:
    """Return the largest int8 weight with which this CPU's products of bytes are correct.

    127 if the CPU ``multiplies_bytes``; else 64, whose pairs of products fit 16 bits: rounding
    weights more coarsely costs less than rounding inputs, which have outliers. None if no product
    is correct.
    """
    if multiplies_bytes():
        return 127
    return 64 if _multiplies_correctly(64) else None


def _multiplies_correctly(weight: int) -> bool:
    numbers_MD = torch.tensor([[weight], [-weight]], dtype=torch.int8).repeat(1, 64)
    bytes_ND = torch.tensor([[255], [1]], dtype=torch.uint8).repeat(1, 64)
    zeros_2 = torch.zeros(2, dtype=torch.float32)
    ones_2 = torch.ones_like(zeros_2)
    try:
        products_NM = ByteMatrix.of(numbers_MD, ones_2, zeros_2).products(bytes_ND)
    # These operators are internal to torch's compiler and may change in any release.
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return False
    expected = 64 * 127 * weight
    return products_NM.tolist() == [[expected, -expected], [-expected, expected]]


@cache
def multiplies_by_onednn() -> bool:
    """Return whether float32 products use oneDNN rather than torch's BLAS.

    MKL reaches two thirds of oneDNN's rate on AMD processors with AVX-512.
    """
    return _onednn_has("AVX512")


@cache
def multiplies_few_by_onednn() -> bool:
    """Return whether float32 products with few rows do, which are faster on AVX2, too."""
    return multiplies_by_onednn() or _onednn_has("AVX2")


def _onednn_has(capability: str) -> bool:
    op = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return bool(
        op is not None
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == capability
    )


def pack_linears(model: nn.Module) -> None:
    """Let the linear layers of a frozen model use copies of their weights in oneDNN's layout.

    Later changes of the original weights do not affect outputs. Does nothing on a GPU, or where
    torch's own products are as fast.
    """
    for linear in model.modules():
        if isinstance(linear, nn.Linear) and packs(linear.weight):
            linear.forward = _PackedLinear(linear)  # type: ignore[method-assign,assignment]


def packs(weight: Tensor) -> bool:
    """Return whether `packed` makes products faster: not on a GPU, or where torch is as fast."""
    if weight.device.type != "cpu" or not multiplies_by_onednn():
        return False
    half = weight.dtype == torch.bfloat16 and multiplies_bfloat16(weight.device)
    return _can_pack() and (half or weight.dtype == torch.float32)


def packs_for_few() -> bool:
    """Return whether `packed` makes a CPU's float32 products with few rows faster."""
    return _can_pack() and multiplies_few_by_onednn()


def _can_pack() -> bool:
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def packed(weight_MD: Tensor) -> Tensor:
    """Return a copy in oneDNN's layout, which only `linear_by_onednn` reads."""
    copy_MD: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_MD, _USUAL_ROWS)
    return copy_MD


class _Packed(ABC, Generic[PackedT]):
    """A linear layer's forward pass with a packed copy of its weights.

    Opaque to torch, and made for one CPU, the copy is not pickled but made again.
    """

    def __init__(self, linear: nn.Linear) -> None:
        self._linear = linear
        self._packed: PackedT | None = self._pack()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_packed": None}

    def __call__(self, x_ND: Tensor) -> Tensor:
        return self._outputs(self._held(), x_ND)

    def _held(self) -> PackedT:
        if self._packed is None:
            self._packed = self._pack()
        return self._packed

    @abstractmethod
    def _pack(self) -> PackedT: ...

    @abstractmethod
    def _outputs(self, packed: PackedT, x_ND: Tensor) -> Tensor: ...


class _PackedLinear(_Packed[Tensor]):
    def _pack(self) -> Tensor:
        return packed(self._linear.weight.detach())

    def _outputs(self, packed: Tensor, x_ND: Tensor, gelu: str | None = None) -> Tensor:
        bias = None if self._linear.bias is None else self._linear.bias.detach()
        return linear_by_onednn(x_ND, packed, bias, gelu)

    def gelu(self, x_ND: Tensor, approximate: str) -> Tensor:
        """Return the GELU of the outputs."""
        return self._outputs(self._held(), x_ND, approximate)


def gelu_between(inner: nn.Linear, output: nn.Linear, x_ND: Tensor, approximate: str) -> Tensor:
    """Return two linear layers with a GELU between them, ``output(gelu(inner(x)))``.

    ``approximate`` is "none" or "tanh", as for `torch.nn.functional.gelu`, which is part of the
    product if weights are packed. Rounded layers take some rows at a time, whose numbers stay in
    the processor's cache.
    """
    if isinstance(inner.forward, _ByteLinear):
        parts = torch.split(x_ND, _ROUNDED_ROWS)
        return torch.cat([output(F.gelu(inner(part), approximate=approximate)) for part in parts])
    if isinstance(inner.forward, _PackedLinear):
        hidden_NF = inner.forward.gelu(x_ND, approximate)
    else:
        hidden_NF = F.gelu(inner(x_ND), approximate=approximate)
    outputs_ND: Tensor = output(hidden_NF)
    return outputs_ND


def round_linears(
    model: nn.Module, largest: int, ranges: Mapping[nn.Linear, Tensor] | None = None
) -> None:
    """Let the linear layers of a frozen float32 model multiply bytes, on a CPU.

    Each row of weights is rounded to steps of ``1 / largest`` of its largest value, each row of
    inputs to 1/127 of its own, so that outputs do not depend on other rows. The original weights
    stay.

    Parameters
    ----------
    model : nn.Module
        The model.
    largest : int
        Largest rounded weight: `largest_weight`.
    ranges : mapping of layers to Tensor, optional
        About the largest input of each column, shape ``(D,)``, of layers some of whose columns are
        much larger than the others and so would decide the steps of all. Such columns are divided
        by a power of two, and their weights multiplied by it.
    """
    ranges = ranges or {}
    for linear in model.modules():
        if isinstance(linear, nn.Linear):
            rounded = _ByteLinear(linear, largest, ranges.get(linear))
            linear.forward = rounded  # type: ignore[method-assign,assignment]


class _ByteLinear(_Packed[tuple[ByteMatrix, Tensor]]):
    def __init__(self, linear: nn.Linear, largest: int, range_D: Tensor | None) -> None:
        self._largest = largest
        self._divisor_D = None if range_D is None else _divisor(range_D, linear.weight.detach())
        super().__init__(linear)

    def _pack(self) -> tuple[ByteMatrix, Tensor]:
        weight_MD, bias = self._linear.weight.detach(), self._linear.bias
        if self._largest > (largest_weight() or 0):
            problem = "an int8 model of another CPU: its products would be wrong on this one"
            raise ConfigError(problem, fix="load the model here instead of copying it")
        if self._divisor_D is not None:
            weight_MD = weight_MD * self._divisor_D
        steps_M = weight_MD.abs().amax(dim=1).clamp_min(_TINY) / self._largest
        numbers_MD = (weight_MD / steps_M[:, None]).round().to(torch.int8)
        zeros_M = torch.zeros_like(steps_M)
        matrix = ByteMatrix.of(numbers_MD, steps_M / 127, zeros_M)
        return matrix, zeros_M if bias is None else bias.detach()

    def _outputs(self, packed: tuple[ByteMatrix, Tensor], x_ND: Tensor) -> Tensor:
        matrix, bias_M = packed
        outputs_NM = x_ND.new_empty(*x_ND.shape[:-1], len(bias_M))
        parts = torch.split(x_ND.reshape(-1, x_ND.shape[-1]), _ROUNDED_ROWS)
        written = torch.split(outputs_NM.view(-1, len(bias_M)), _ROUNDED_ROWS)
        for rows_ND, part_NM in zip(parts, written, strict=True):
            if self._divisor_D is not None:
                rows_ND = rows_ND / self._divisor_D
            # `abs` and `amax` take half of `aminmax`'s time and a tenth of `vector_norm`'s.
            largest_N1 = rows_ND.abs().amax(dim=1, keepdim=True).clamp_min_(_TINY)
            numbers_ND = (rows_ND * (127 / largest_N1)).round_()
            # Eight times as fast as converting to uint8; the sum wraps around.
            bytes_ND = numbers_ND.to(torch.int8).view(torch.uint8).add_(_ZERO)
            torch.addcmul(bias_M, matrix.products(bytes_ND), largest_N1, out=part_NM)
        return outputs_NM


def _divisor(range_D: Tensor, weight_MD: Tensor) -> Tensor:
    """Return powers of two that share each column's range between inputs and weights.

    SmoothQuant (Xiao et al. 2023, equation 4) with α = 1/2. Powers of two round nothing, and hide
    the last digits of ``range_D``, which differ between processors.
    """
    size_D = weight_MD.abs().amax(dim=0)
    # Another text may have larger inputs in a column that seemed empty.
    range_D, size_D = (x_D.clamp_min(x_D.mean() / 16 + _TINY) for x_D in (range_D, size_D))
    return torch.exp2(((range_D / size_D).log2() / 2).round())
