"""The only place that knows DeepSpeed: sharded steps, state on disk, full weights."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from scimult import distributed
from scimult.errors import CheckpointError, ConfigError
from scimult.files import read_json
from scimult.hardware import keep_freed_memory, multiplies_bfloat16
from scimult.models import Encoder, PackedTexts
from scimult.progress import note
from scimult.training.optim import RoutedAdamW

Precision = Literal["fp32", "bf16", "fp16"]
PrecisionChoice = Literal["auto", "fp32", "bf16", "fp16"]
_STATE = "state"
# What DeepSpeed's own state asks for when it is unpickled; nothing else is let through.
_DEEPSPEED_GLOBALS = frozenset(
    {
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    }
)


@contextmanager
def process_group(timeout_seconds: float) -> Iterator[torch.device]:
    """Join the process group of the launcher, or make one; yield this rank's device.

    The group is left at the end, cleanly, unless it was there before.
    """
    if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR", "cuda") == "cuda":
        device = torch.device("cuda", distributed.local_rank())
        torch.cuda.set_device(device)
        made = distributed.initialise("nccl", timeout_seconds)
    else:
        os.environ["DS_ACCELERATOR"] = "cpu"
        device = torch.device("cpu")
        made = distributed.initialise("gloo", timeout_seconds)
        _share_cores()
        keep_freed_memory()
    try:
        yield device
    finally:
        if made:
            distributed.shut_down()


def _share_cores() -> None:
    """Divide the cores among the ranks of this machine, unless the user has decided."""
    if "OMP_NUM_THREADS" not in os.environ:
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", distributed.world_size()))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks_here))


def resolve_precision(choice: PrecisionChoice, device: torch.device) -> Precision:
    """Return the precision of a run; ``auto`` is what the device is fast in."""
    fast = multiplies_bfloat16(device)
    if choice == "bf16" and not fast:
        note("bf16 products are emulated on this device, slower than fp32: use precision auto")
    if choice != "auto":
        return choice
    return "bf16" if fast else "fp32"


def resolve_deepspeed(
    source: str | dict[str, Any],
    *,
    pairs_per_step: int,
    accumulation: int,
    world_size: int,
    precision: Precision,
    clip: float,
) -> dict[str, Any]:
    """Fill in a DeepSpeed configuration and refuse what contradicts ours.

    Parameters
    ----------
    source : str or dict
        Path of a JSON file, or its content. Values ``"auto"`` are filled in.
    pairs_per_step, accumulation, world_size : int
        Decide the three batch sizes of DeepSpeed.
    precision : str
        Decides ``bf16.enabled`` and ``fp16.enabled``.
    clip : float
        Largest gradient norm; 0 is none. (DeepSpeed clips at 1.0 when the key is absent.)

    Raises
    ------
    ConfigError
        If a given value contradicts ours, the batch cannot be divided, or the file
        chooses an optimizer or scheduler of its own.
    """
    path = source if isinstance(source, str) else None
    given = read_json(source) if isinstance(source, str) else dict(source)
    if not isinstance(given, dict):
        raise ConfigError("a DeepSpeed configuration is a JSON object", path=path)
    _refuse(given, path, precision)
    if pairs_per_step % (accumulation * world_size):
        raise ConfigError(
            f"batch.pairs_per_step {pairs_per_step} cannot be split over {world_size} ranks "
            f"and {accumulation} accumulation steps",
            fix=f"use a multiple of {accumulation * world_size}",
        )
    ours: dict[str, Any] = {
        "train_batch_size": pairs_per_step,
        "train_micro_batch_size_per_gpu": pairs_per_step // accumulation // world_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
    }
    extras = {"steps_per_print": 1_000_000_000, "zero_allow_untested_optimizer": True}
    return extras | _fill(given, ours, path, prefix="")


def _refuse(given: dict[str, Any], path: str | None, precision: Precision) -> None:
    """Refuse what a DeepSpeed configuration may say but a run must not do."""
    for section in ("optimizer", "scheduler"):
        if section in given:
            raise ConfigError(
                f"{section} in the DeepSpeed configuration is not used",
                path=path,
                fix=f"remove it and set the section {section!r} of the run's config",
            )
    if given.get("zero_optimization", {}).get("compute_grad_norm", True) is False:
        raise ConfigError(
            "zero_optimization.compute_grad_norm false would hide gradients that are not finite",
            path=path,
            fix="leave it out",
        )
    stage = given.get("zero_optimization", {}).get("stage", 0)
    if precision != "fp32" and stage == 0:
        raise ConfigError(
            f"{precision} at ZeRO stage 0 trains without float32 master weights or a scaled loss",
            path=path,
            value={"zero_optimization.stage": stage},
            fix="use ZeRO stage 1, 2 or 3, or engine.precision fp32",
        )


def _fill(
    given: dict[str, Any], ours: dict[str, Any], path: str | None, prefix: str
) -> dict[str, Any]:
    filled = dict(given)
    for key, value in ours.items():
        if isinstance(value, dict):
            filled[key] = _fill(given.get(key, {}), value, path, f"{prefix}{key}.")
        elif given.get(key, "auto") not in ("auto", value):
            raise ConfigError(
                f"{prefix}{key} in the DeepSpeed configuration contradicts the run, "
                f"which needs {value}",
                path=path,
                value=given[key],
                fix='write "auto" or leave it out',
            )
        else:
            filled[key] = value
    return filled


class DeepSpeedEngine:
    """An encoder and its optimizer, sharded as the DeepSpeed configuration says.

    Parameters
    ----------
    model : Encoder
        The encoder, on the host, in float32.
    optimizer : RoutedAdamW
        Optimizer over ``model``'s parameters, one group per expert.
    schedule : LRScheduler
        Stepped once per optimizer step.
    settings : dict
        A resolved DeepSpeed configuration.
    """

    def __init__(
        self,
        model: Encoder,
        optimizer: RoutedAdamW,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        settings: dict[str, Any],
    ) -> None:
        import deepspeed

        accelerator = deepspeed.accelerator.get_accelerator()
        if settings["fp16"]["enabled"] and not accelerator.is_fp16_supported():
            raise ConfigError("fp16 needs a GPU", fix="use engine.precision bf16 or fp32")
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        # Between CPU ranks of one machine DeepSpeed would compile an operator of its own at
        # first use; gloo needs no compiler and saves the minute (docs/decisions.md).
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # DeepSpeed calls collectives by names that newer torch versions warn about.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        self._optimizer = optimizer
        self._schedule = schedule
        # DeepSpeed reports the norm of sharded and of half-precision gradients only.
        self._unsharded_norm = float("nan")
        # What is frozen is saved as it came, not as the half-precision module holds it.
        self._frozen = {
            name: parameter.detach().float().cpu().clone()
            for name, parameter in model.named_parameters()
            if not parameter.requires_grad
        }
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=schedule,
            config=settings,
            dist_init_required=False,
        )

    @property
    def model(self) -> Encoder:
        """The encoder as DeepSpeed holds it; its parameters may be partitioned."""
        module: Encoder = self._engine.module
        return module

    def forward(self, texts: PackedTexts, routes: int | list[int]) -> Tensor:
        """Embed packed texts, by one route or one per row, shape ``(B, D)``."""
        embeddings: Tensor = self._engine(texts, routes)
        return embeddings

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of ``loss`` divided by the accumulation steps."""
        self._engine.backward(loss)

    def step(self, active_experts: frozenset[int]) -> None:
        """End a unit; after the last one of a step, clip and update.

        Parameters
        ----------
        active_experts : frozenset of int
            Experts that saw rows, on any rank, since the last update.
        """
        self._optimizer.active = active_experts
        if self._engine.zero_optimization_stage() == 0:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            self._unsharded_norm = float(torch.nn.utils.get_total_norm(gradients))
        ends_step = self._engine.is_gradient_accumulation_boundary()
        self._engine.step()
        # ZeRO-3 overwrites the gradients of a step only where the next one has some: those
        # of experts without rows would stay, and count in the norm that clipping uses.
        kept = getattr(self._engine.optimizer, "grad_partitions_flat_buffer", None)
        if kept is not None and ends_step:
            kept.zero_()

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update, before layers and added parts change it."""
        factor = self._schedule.get_last_lr()[0] / self._schedule.base_lrs[0]
        return float(self._optimizer.defaults["lr"] * factor)

    @property
    def scales_loss(self) -> bool:
        """Whether gradients may overflow in the course of things: their step is skipped."""
        return bool(self._engine.fp16_enabled())

    @property
    def gradient_norm(self) -> float:
        """Norm of the last update's gradient before clipping; NaN before the first."""
        norm = self._engine.get_global_grad_norm()
        return self._unsharded_norm if norm is None else float(norm)

    def gradient_norms(self) -> dict[str, float]:
        """Return the norms by part of the last update, before clipping, if they are kept.

        Empty if they are not, or the step was skipped. Every rank must call it.
        """
        # The optimizer sees gradients that DeepSpeed has already clipped, by this factor.
        limit = float(self._engine.gradient_clipping())
        clipped_by = max(1.0, (self.gradient_norm + 1e-6) / limit) if limit else 1.0
        norms = self._optimizer.take_norms(sharded=self._engine.zero_optimization_stage() > 0)
        return {part: norm * clipped_by for part, norm in norms.items()}

    @property
    def skipped_steps(self) -> int:
        """Updates left out so far because a gradient overflowed under fp16."""
        return int(self._engine.skipped_steps)

    @property
    def loss_scale(self) -> float | None:
        """What the loss is multiplied with under fp16; ``None`` in other precisions."""
        return float(self._engine.optimizer.loss_scale) if self.scales_loss else None

    def save(self, folder: Path) -> None:
        """Write the sharded state of all ranks below ``folder``; every rank must call it."""
        self._engine.save_checkpoint(str(folder), tag=_STATE, save_latest=False)

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote, on the same number of ranks and ZeRO stage."""
        path, _ = self._engine.load_checkpoint(str(folder), tag=_STATE)
        assert path is not None, f"DeepSpeed found no state in {folder}"

    def full_weights(self) -> dict[str, Tensor]:
        """Return all weights in float32 on the host; every rank must call it."""
        from deepspeed.utils import safe_get_full_fp32_param

        weights = {}
        for name, parameter in self.model.named_parameters():
            if name in self._frozen:
                weights[name] = self._frozen[name]
                continue
            full = safe_get_full_fp32_param(parameter)
            weights[name] = (parameter if full is None else full).detach().float().cpu().clone()
        return weights

    def close(self) -> None:
        """Release DeepSpeed's hooks and buffers."""
        self._engine.destroy()


def read_full_weights(folder: Path) -> dict[str, Tensor]:
    """Return the float32 weights that ``DeepSpeedEngine.save`` wrote, in one process.

    Parameters
    ----------
    folder : Path
        What ``save`` was given; any ZeRO stage and number of ranks.

    Raises
    ------
    CheckpointError
        If files are missing or damaged, hold anything but DeepSpeed's state, or hold no
        float32 weights.
    """
    state = folder / _STATE
    files = sorted(state.glob("*.pt"))
    if not files:
        raise CheckpointError(
            "no DeepSpeed state here", path=state, fix="name a step folder of a run's checkpoints"
        )
    for file in files:
        _refuse_foreign_code(file)
    if not any("optim_states" in file.name for file in files):
        return _unsharded_weights(state)
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    # It reports on stdout, where our callers write what users pipe.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            found = get_fp32_state_dict_from_zero_checkpoint(str(folder), tag=_STATE)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise CheckpointError(
                f"DeepSpeed cannot put the weights together: {error}",
                path=state,
                fix="the checkpoint lacks a rank's files or is of another version of DeepSpeed",
            ) from error
    return {name: tensor.detach().float().clone() for name, tensor in found.items()}


def _unsharded_weights(state: Path) -> dict[str, Tensor]:
    """Read the weights of ZeRO stage 0, whole and float32 in every rank's file."""
    file = state / "mp_rank_00_model_states.pt"
    if not file.is_file():
        raise CheckpointError("file does not exist", path=file, fix="copy the whole step folder")
    weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=False)["module"]
    half = [name for name, tensor in weights.items() if tensor.dtype != torch.float32]
    if half:
        raise CheckpointError(
            "ZeRO stage 0 in half precision keeps its float32 weights elsewhere",
            path=file,
            value=half[0],
            fix="resume the run to its end, which saves them",
        )
    return {name: tensor.clone() for name, tensor in weights.items()}


def _refuse_foreign_code(file: Path) -> None:
    """Check that a file of DeepSpeed's asks for nothing that could run other code."""
    try:
        wanted = torch.serialization.get_unsafe_globals_in_checkpoint(str(file))
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"file is damaged: {str(error).splitlines()[0]}",
            path=file,
            fix="use another checkpoint of the run",
        ) from error
    if foreign := sorted(set(wanted) - _DEEPSPEED_GLOBALS):
        raise CheckpointError(
            "refused: the file asks for functions or classes that DeepSpeed's state does not need",
            path=file,
            value=foreign,
            fix="use a checkpoint that you trust",
        )
