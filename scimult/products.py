"""Products by the fastest kernels of a CPU. No gradients.

Shape legend: N, M rows, D width, P listed pairs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import torch
from torch import Tensor, nn

from scimult.hardware import multiplies_bfloat16

FEW = 3
"""Rows of the second matrix for which memory is the bound: each product is taken by itself."""

# Rows of the second matrix up to which oneDNN is faster than MKL with AVX2 too (1.1 to 1.7 times).
_FEW_FOR_AVX2 = 256
# Rows for which weights are laid out; any number may come.
_USUAL_ROWS = 4096
# The byte that stands for zero.
_ZERO = 128


def products(x_ND: Tensor, y_MD: Tensor) -> Tensor:
    """Return ``x @ y.T``, shape ``(N, M)``, contiguous.

    With up to ``FEW`` rows of y in float32 on a CPU, the numbers are those of
    :func:`products_at`, bit by bit.
    """
    if x_ND.device.type != "cpu" or x_ND.dtype != torch.float32 or not x_ND.numel():
        return torch.mm(x_ND, y_MD.T)
    if 0 < len(y_MD) <= FEW:
        starts, columns = _all_pairs(len(x_ND), len(y_MD))
        return products_at(x_ND, y_MD, starts, columns).view(len(x_ND), len(y_MD))
    if len(y_MD) and (multiplies_by_onednn() or (len(y_MD) <= _FEW_FOR_AVX2 and _has_avx2())):
        found_NM: Tensor = torch.ops.mkldnn._linear_pointwise(x_ND, y_MD, None, "none", [], "")
        return found_NM
    return torch.mm(x_ND, y_MD.T)


def products_at(x_ND: Tensor, y_MD: Tensor, starts: Tensor, columns_P: Tensor) -> Tensor:
    """Return ``x[n] · y[m]`` of listed pairs, shape ``(P,)``: float32, on a CPU.

    Each number depends on its two rows alone, whatever else is listed. Nothing is gathered.

    Parameters
    ----------
    x_ND, y_MD : Tensor
        float32, of equal width, contiguous.
    starts, columns_P : Tensor
        Integers of one type; row n of x is paired with the rows
        ``columns_P[starts[n]:starts[n + 1]]`` of y.
    """
    _warn_of_sparse_tensors_no_more()
    shape = len(x_ND), len(y_MD)
    zeros_P = torch.zeros(len(columns_P))
    pairs = torch.sparse_csr_tensor(starts, columns_P, zeros_P, shape, check_invariants=False)
    found_P: Tensor = torch.sparse.sampled_addmm(pairs, x_ND, y_MD.T, beta=0.0).values()
    return found_P


@dataclass(frozen=True)
class ByteMatrix:
    """Rows of whole numbers, of which each counts a step, for products with bytes on a CPU.

    Attributes
    ----------
    packed : Tensor
        The numbers, as oneDNN multiplies them.
    steps_M, bias_M : Tensor
        float32, shape ``(M,)``: what a number of each row counts, and what is added to its
        products.
    """

    packed: Tensor
    steps_M: Tensor
    bias_M: Tensor

    @classmethod
    def of(cls, numbers_MD: Tensor, steps_M: Tensor, bias_M: Tensor) -> ByteMatrix:
        """Lay out int8 numbers, shape ``(M, D)``."""
        rows = [_USUAL_ROWS, numbers_MD.shape[1]]
        packed = torch.ops.onednn.qlinear_prepack(numbers_MD, rows)
        return cls(packed, steps_M, bias_M)

    def products(self, bytes_ND: Tensor) -> Tensor:
        """Return ``((bytes - 128) @ numbers.T) * steps + bias``: float32, shape ``(N, M)``.

        The sums themselves are exact.
        """
        zeros_M = torch.zeros(len(self.steps_M), dtype=torch.int32)
        weights = self.packed, self.steps_M, zeros_M, self.bias_M
        found_NM: Tensor = torch.ops.onednn.qlinear_pointwise(
            bytes_ND, 1.0, _ZERO, *weights, 1.0, 0, torch.float32, "none", [], ""
        )
        return found_NM


@cache
def multiplies_bytes() -> bool:
    """Return whether this CPU and this torch multiply bytes fast, and rightly.

    Without the unit for it (VNNI, AMX) oneDNN adds pairs of products in 16 bits, which overflow.
    """
    probes = ("_is_vnni_supported", "_is_amx_tile_supported")
    if not any(getattr(torch.cpu, probe, lambda: False)() for probe in probes):
        return False
    numbers_MD = torch.tensor([[127], [-127]], dtype=torch.int8).repeat(1, 64)
    bytes_ND = torch.tensor([[255], [1]], dtype=torch.uint8).repeat(1, 64)
    try:
        found_NM = ByteMatrix.of(numbers_MD, torch.ones(2), torch.zeros(2)).products(bytes_ND)
    # The operators are those of torch's own compiler; no release promises them.
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return False
    wanted = 64 * 127 * 127
    return found_NM.tolist() == [[wanted, -wanted], [-wanted, wanted]]


@cache
def multiplies_by_onednn() -> bool:
    """Return whether float32 products are taken by oneDNN and not by torch's BLAS.

    MKL reaches two thirds of oneDNN's rate on AMD's processors with AVX-512.
    """
    return _onednn_has("AVX512")


@cache
def _has_avx2() -> bool:
    return _onednn_has("AVX2")


def _onednn_has(capability: str) -> bool:
    op = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return bool(
        op is not None
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == capability
    )


def pack_linears(model: nn.Module) -> None:
    """Let the linears of a model that is only read use a second copy of their weights.

    It is laid out as oneDNN multiplies fastest. The weights themselves stay what they are: what
    changes them later changes no output. Does nothing on a GPU, and where torch's own products are
    as fast.
    """
    for linear in model.modules():
        if isinstance(linear, nn.Linear) and _packs(linear.weight):
            weight = linear.weight.detach()
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, _USUAL_ROWS)
            bias = None if linear.bias is None else linear.bias.detach()
            linear.forward = partial(_packed_linear, packed, bias)  # type: ignore[method-assign]


def _packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not multiplies_by_onednn():
        return False
    half = weight.dtype == torch.bfloat16 and multiplies_bfloat16(weight.device)
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and (
        half or weight.dtype == torch.float32
    )


def _packed_linear(packed: Tensor, bias: Tensor | None, x_ND: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x_ND, packed, bias, "none", [], "")
    return found


@lru_cache(maxsize=4)
def _all_pairs(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    starts = torch.arange(0, rows * columns + 1, columns, dtype=torch.int32)
    return starts, torch.arange(columns, dtype=torch.int32).repeat(rows)


@cache
def _warn_of_sparse_tensors_no_more() -> None:
    """Let torch say once that they are in beta, to nobody."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zero = torch.zeros(1, dtype=torch.int32)
        torch.sparse_csr_tensor(torch.tensor([0, 1]).int(), zero, torch.zeros(1), (1, 1))
