"""Parameter groups by expert, AdamW that skips unused experts, float32 gradient accumulation."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scimult.checkpoints.weights import empty_model
from scimult.models import Encoder
from scimult.models.config import ROUTED
from scimult.training.config import OptimizerConfig
from scimult.training.learned import part_of

_EXPERT = re.compile(r"^(.*\.experts)\.(\d+)\.")
_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")
_EMBEDDINGS = re.compile(r"(?:^|\.)embeddings\.")
SHARED = -1
_SMALL = 1e-6


def parameter_groups(
    model: Encoder, section: OptimizerConfig, experts: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Split the trainable parameters by (expert, decayed or not, learning rate, added or not).

    Biases and LayerNorm weights, all vectors, are not decayed. A group's entry ``expert`` is the
    expert of its parameters, ``SHARED``, or the name of a learned part; ``part`` names the same
    in words, with the names in ``experts``, and distinguishes a variant's additions for all
    routes from the plain encoder.
    """
    groups: dict[tuple[int | str, bool, float, bool], list[nn.Parameter]] = defaultdict(list)
    names = dict(model.named_parameters())
    added = added_names(model)
    for name, parameter in names.items():
        if parameter.requires_grad:
            decayed = parameter.dim() > 1
            lr = section.lr * section.layer_decay ** _depth(name, model.config.num_blocks)
            if section.added_lr is not None and name in added:
                lr = section.added_lr
            learned = part_of(name)
            if learned is not None:
                lr = section.learned_lr or section.lr
            owner = learned or expert_of(name, names)
            groups[owner, decayed, lr, name in added].append(parameter)
    return [
        {
            "params": parameters,
            "expert": expert,
            "part": _part(expert, is_added, experts),
            "weight_decay": section.weight_decay * decayed,
            "lr": lr,
        }
        for (expert, decayed, lr, is_added), parameters in sorted(
            groups.items(), key=lambda item: (isinstance(item[0][0], str), item[0])
        )
    ]


def _part(expert: int | str, is_added: bool, experts: Sequence[str]) -> str:
    if isinstance(expert, str):
        return f"learned/{expert}"
    if expert == SHARED:
        return "added" if is_added else "shared"
    return f"expert/{experts[expert] if experts else expert}"


def added_names(model: Encoder) -> frozenset[str]:
    """Return the parameters that a plain encoder of this size lacks, and those of all experts."""
    plain = model.config.model_copy(update=dict.fromkeys(ROUTED))
    names, plain_names = (
        dict(empty_model(config).named_parameters()) for config in (model.config, plain)
    )
    return frozenset(
        name for name in names if name not in plain_names or expert_of(name, names) != SHARED
    )


def _depth(name: str, num_blocks: int) -> int:
    """Return the number of blocks above a parameter; above embeddings, all of them."""
    if match := _BLOCK.search(name):
        return num_blocks - 1 - int(match[1])
    return num_blocks if _EMBEDDINGS.search(name) else 0


def expert_of(name: str, names: Collection[str]) -> int:
    """Return the expert to which a parameter belongs; ``SHARED`` in a bank of one expert."""
    match = _EXPERT.match(name)
    if match is None:
        return SHARED
    alone = not any(other.startswith(f"{match[1]}.1.") for other in names)
    return SHARED if alone else int(match[2])


_ADAM_STEP = inspect.unwrap(torch.optim.AdamW.step)


class RoutedAdamW(torch.optim.AdamW):
    """AdamW that always steps shared groups, but groups of experts and learned parts only if used.

    Sharded optimizers give every group a gradient, zero where no row was routed, and Adam
    would move those weights by momentum and decay. Skipping the group keeps them
    bit-identical. `activate` sets the used ones before each step, equally on all ranks. With
    ``keeps_norms``, `take_squares` returns the squared norms of the last step's gradients, by
    ``parts``: ``shared``, ``added``, ``expert/NAME`` and ``learned/NAME``, as `parameter_groups`
    names them. Weights are updated by torch's fused kernel, on CPUs too.
    """

    # As decorated by torch, like `step`, the first call loads its compiler: seconds at each start.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)

    def __init__(
        self, groups: list[dict[str, Any]], *, keeps_norms: bool = False, **options: Any
    ) -> None:
        super().__init__(groups, fused=True, **options)
        self._active: frozenset[int | str] = frozenset()
        self._keeps_norms = keeps_norms
        self._squares: dict[str, Tensor] = {}
        self.parts = list(dict.fromkeys(group["part"] for group in groups))
        # Read by the fused kernel, which divides gradients by the first.
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None

    def activate(self, experts: frozenset[int | str]) -> None:
        """Set the experts and learned parts that the next steps may change."""
        self._active = experts

    def clip(self, norm: Tensor, limit: float) -> None:
        """Scale the gradients of the next steps to a norm of at most ``limit``; 0 is no limit.

        ``norm`` is theirs. Nothing waits for it: the fused kernel reads it on its device, and
        changes no weight if it is not finite.
        """
        scale = ((norm + _SMALL) / limit).clamp(min=1.0) if limit else torch.ones_like(norm)
        self.grad_scale, self.found_inf = scale.float(), (~norm.isfinite()).float()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step the shared groups and the active ones."""
        all_groups = self.param_groups
        stepped = self._active | {SHARED}
        if self._keeps_norms:
            self._add_squares(all_groups)
        self.param_groups = [group for group in all_groups if group["expert"] in stepped]
        try:
            with torch.no_grad():
                return _ADAM_STEP(self, closure) if self.param_groups else None
        finally:
            self.param_groups = all_groups

    def take_squares(self) -> Tensor:
        """Return the squared norm of each part's gradient since the last call, float64.

        In the order of ``parts``; if gradients are sharded, of this rank's share. Empty if there
        was no step, or norms are not recorded.
        """
        squares, self._squares = self._squares, {}
        if not squares:
            return torch.zeros(0, dtype=torch.float64)
        zero = torch.zeros_like(next(iter(squares.values())))
        return torch.stack([squares.get(part, zero) for part in self.parts])

    def _add_squares(self, groups: list[dict[str, Any]]) -> None:
        # Sharded engines call `step` once per group, each rank with its share of gradients.
        for group in groups:
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if gradients:
                squares = squared_norm(gradients, gradients[0].device)
                self._squares[group["part"]] = self._squares.get(group["part"], 0) + squares

    def make_moments(self) -> None:
        """Create every parameter's initial moments, which checkpoints expect."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    # The fused kernel keeps its count on the parameter's device.
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


class GradientSums:
    """Accumulates a module's half-precision gradients in float32, rounding the sum only once.

    Autograd adds each pass in the parameter's own dtype; over hundreds of chunks, bfloat16
    loses more by that than within any of them. Costs four bytes per parameter during steps of
    several passes. Gradients keep their tensors, because sharded engines refuse others.
    """

    def __init__(self, module: nn.Module) -> None:
        half = (torch.float16, torch.bfloat16)
        self._parameters = [p for p in module.parameters() if p.requires_grad and p.dtype in half]
        self._sums: dict[nn.Parameter, Tensor] = {}

    def take(self) -> None:
        """Add the gradients of the last pass, and zero them for the next one."""
        for parameter in self._parameters:
            if parameter.grad is None:
                continue
            if parameter in self._sums:
                self._sums[parameter] += parameter.grad
            else:
                self._sums[parameter] = parameter.grad.float()
            parameter.grad.zero_()

    def restore(self) -> None:
        """Set the gradients to the sums over all passes."""
        for parameter, total in self._sums.items():
            assert parameter.grad is not None, "the engine dropped a gradient too early"
            parameter.grad.copy_(total)
        self._sums = {}


def squared_norm(gradients: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the squared norm of all gradients together, a float64 scalar, in a few kernels."""
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=device)
    # A CPU adds up one after another.
    dtype = torch.float64 if device.type == "cpu" else torch.float32
    norms = torch._foreach_norm(list(gradients), 2, dtype=dtype)
    return torch.stack(norms).double().square().sum()
