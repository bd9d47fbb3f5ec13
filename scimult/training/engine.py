"""Train under DeepSpeed, used only here and in `shards.py` and `deepspeed_private.py`."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scimult import distributed
from scimult.checkpoints.weights import WEIGHTS_FILE, load_strictly, read_tensors, write_tensors
from scimult.errors import ConfigError
from scimult.files import read_json, write_json
from scimult.hardware import usable_device
from scimult.heap import heap_gaps, keep_freed_memory
from scimult.models import Encoder, PackedTexts
from scimult.training import deepspeed_private
from scimult.training.deepspeed_config import bound_buckets, clips_itself, without_waits
from scimult.training.optim import GradientSums, RoutedAdamW, squared_norm
from scimult.training.shards import MOMENTS, StateShards

_COUNTERS = "counters.json"


@contextmanager
def process_group(timeout_seconds: float) -> Iterator[torch.device]:
    """Join the launcher's process group, or create one; yield this rank's device.

    The group is left cleanly at the end, unless it existed before, or an error ends one of several
    ranks on GPUs.
    """
    if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR", "cuda") == "cuda":
        distributed.use_own_gpu(may_share=False)
        device = usable_device(torch.device("cuda", distributed.local_rank()))
        created = distributed.initialise(device, timeout_seconds)
    else:
        os.environ["DS_ACCELERATOR"] = "cpu"
        device = torch.device("cpu")
        created = distributed.initialise(device, timeout_seconds)
        _share_cores()
        keep_freed_memory()
    try:
        yield device
    except BaseException:
        # NCCL's ranks leave together: one that fails would wait for those that wait for it, and
        # its error would never be shown.
        created = created and (device.type == "cpu" or distributed.world_size() == 1)
        raise
    finally:
        if created and not deepspeed_private.leave_group():
            distributed.shut_down()


def _share_cores() -> None:
    """Divide the cores among the ranks of this machine, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" not in os.environ:
        ranks_here = distributed.launched("LOCAL_WORLD_SIZE", distributed.world_size())
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks_here))


class DeepSpeedEngine:
    """An encoder and its optimizer, sharded by a resolved DeepSpeed configuration.

    The encoder comes in float32. ``schedule`` is stepped once per optimizer step. ``resume`` is a
    folder written by `save`, on any number of ranks and under any ZeRO stage.
    """

    def __init__(
        self,
        model: Encoder,
        optimizer: RoutedAdamW,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        settings: dict[str, Any],
        resume: Path | None = None,
    ) -> None:
        import deepspeed

        weights = {} if resume is None else read_tensors(resume / WEIGHTS_FILE)
        if resume is not None:
            # Before DeepSpeed copies, casts and partitions the weights.
            load_strictly(model, weights, resume)

        accelerator = deepspeed.accelerator.get_accelerator()
        if settings["fp16"]["enabled"] and not accelerator.is_fp16_supported():
            raise ConfigError("this GPU has no fp16", fix="use engine.precision fp32")
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        deepspeed_private.use_gloo_between_cpus()
        deepspeed_private.load_muon_uncompiled()
        # DeepSpeed uses names of collectives that newer torch versions warn about.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        self._optimizer = optimizer
        self._schedule = schedule
        self._sums: GradientSums | None = None
        self._clips_itself = clips_itself(settings)
        self._limit = float(settings["gradient_clipping"])
        # Of the last update, where DeepSpeed does not compute it.
        self._norm = torch.tensor(math.nan)
        # Frozen weights are saved unrounded, not as the half-precision module holds them.
        self._frozen = {
            name: parameter.detach().float().cpu().clone()
            for name, parameter in model.named_parameters()
            if not parameter.requires_grad
        }
        name_of = {parameter: name for name, parameter in model.named_parameters()}
        groups = [[name_of[p] for p in group["params"]] for group in optimizer.param_groups]
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=schedule,
            config=bound_buckets(
                without_waits(settings) if self._clips_itself else settings, trained
            ),
            dist_init_required=False,
        )
        deepspeed_private.require_names(self._engine)
        self._shards = StateShards(self._engine, optimizer, groups)
        if resume is not None:
            self._load(resume, weights)

    @property
    def model(self) -> Encoder:
        """The encoder inside DeepSpeed; its parameters may be partitioned."""
        module: Encoder = self._engine.module
        return module

    def forward(self, texts: PackedTexts, routes: int | list[int]) -> Tensor:
        """Embed packed texts with one route or one per row, shape ``(B, D)``."""
        embeddings: Tensor = self._engine(texts, routes)
        return embeddings

    @property
    def device(self) -> torch.device:
        """The model's device."""
        device: torch.device = self._engine.device
        return device

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of ``loss``."""
        if self.device.type == "cpu":
            heap_gaps().at_peak()
        self._engine.backward(loss)
        if self._sums is not None:
            self._sums.take()

    @contextmanager
    def one_reduction(self) -> Iterator[None]:
        """Accumulate the gradients of all ``backward`` calls inside; reduce them over ranks once.

        Sums are float32 in any precision. A step with a single ``backward`` does not need this,
        and without it reduction overlaps with the backward pass.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self._engine.coalesce_grad_reduction())
                self._sums = GradientSums(self.model)
            except NotImplementedError:
                # Stage 0 and some half-precision optimizers reduce only at the boundary.
                stack.enter_context(self._reduction_at_boundary())
            try:
                yield
            except BaseException:
                # DeepSpeed reduces what there is on the way out, but other ranks are elsewhere.
                deepspeed_private.drop_gradients(self._engine)
                raise
            if self._sums is not None:
                self._sums.restore()
                self._sums = None

    @contextmanager
    def _reduction_at_boundary(self) -> Iterator[None]:
        self._engine.set_gradient_accumulation_boundary(False)
        yield
        self._engine.set_gradient_accumulation_boundary(True)
        self._engine.allreduce_gradients()

    def step(self, active: frozenset[int | str]) -> None:
        """Clip and update.

        ``active`` are the experts that saw rows on any rank since the last update, and the names
        of the `LearnedParts` that were used.
        """
        self._optimizer.activate(active)
        if self._clips_itself:
            squares = squared_norm(deepspeed_private.gradients(self._engine), self.device)
            if self._engine.zero_optimization_stage() > 0:
                squares = distributed.sum_over_ranks(squares)
            self._norm = squares.sqrt()
            self._optimizer.clip(self._norm, self._limit)
        self._engine.step()
        deepspeed_private.clear_gradients(self._engine)
        if self.device.type == "cpu":
            heap_gaps().after_step()

    @property
    def learning_rate(self) -> float:
        """Base learning rate of the next update, before factors of layers and added parts."""
        factor = self._schedule.get_last_lr()[0] / self._schedule.base_lrs[0]
        return float(self._optimizer.defaults["lr"] * factor)

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled (fp16): gradients may overflow, and their step is skipped."""
        return bool(self._engine.fp16_enabled())

    @property
    def gradient_norm(self) -> Tensor:
        """Norm of the last update's gradient before clipping, float64; NaN before the first.

        It is on the device of the gradients: reading it waits.
        """
        norm = self._engine.get_global_grad_norm()
        norm = self._norm if norm is None else norm
        return torch.as_tensor(norm, dtype=torch.float64)

    def take_squares(self) -> Tensor:
        """Return this rank's share of the last update's squared gradient norms, by part.

        Empty if they are not recorded, or the step was skipped.
        """
        return self._optimizer.take_squares()

    def gradient_norms(self, norm: float, squares_WP: Sequence[list[float]]) -> dict[str, float]:
        """Return the norms by part, before clipping, from the total norm and all ranks' shares."""
        if not squares_WP[0]:
            return {}
        # Where DeepSpeed clips, the optimizer saw gradients clipped by this factor.
        clips = self._limit and not self._clips_itself
        clipped_by = max(1.0, (norm + 1e-6) / self._limit) if clips else 1.0
        # Unsharded, every rank has the whole gradient.
        shares = squares_WP if self._engine.zero_optimization_stage() > 0 else squares_WP[:1]
        norms = [math.sqrt(sum(squares)) for squares in zip(*shares, strict=True)]
        named = zip(self._optimizer.parts, norms, strict=True)
        return {part: norm * clipped_by for part, norm in named}

    @property
    def skipped_steps(self) -> int:
        """Updates skipped so far because a gradient overflowed under fp16."""
        return int(self._engine.skipped_steps)

    @property
    def loss_scale(self) -> float | None:
        """Factor of the loss under fp16; ``None`` in other precisions."""
        return float(self._engine.optimizer.loss_scale) if self.scales_loss else None

    def save(self, folder: Path) -> None:
        """Write weights, moments and counters below ``folder``; every rank must call it.

        The main rank writes whole float32 tensors (12 bytes per trained parameter), one file
        after another.
        """
        self._write(folder / WEIGHTS_FILE, self.full_weights())
        for moment in MOMENTS:
            whole = {name: self._shards.whole(name, moment) for name in self._shards.names}
            self._write(folder / f"{moment}.safetensors", whole)
        counters = {
            "updates": self._shards.updates(),
            "schedule": self._schedule.state_dict(),
            "loss_scale": deepspeed_private.loss_scale_state(self._engine),
            "steps": self._engine.global_steps,
            "skipped_steps": self._engine.skipped_steps,
        }
        distributed.on_main(lambda: write_json(folder / _COUNTERS, counters))

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Write on the main rank; if that fails, no rank enters the next collective."""
        distributed.on_main(lambda: write_tensors(path, tensors))

    def _load(self, folder: Path, weights: dict[str, Tensor]) -> None:
        counters = read_json(folder / _COUNTERS)
        for name in self._shards.names:
            # The module's weights may be rounded to half precision.
            self._shards.put(name, weights[name])
        for moment in MOMENTS:
            for name, whole in read_tensors(folder / f"{moment}.safetensors").items():
                self._shards.put(name, whole, moment)
        self._shards.put_updates(counters["updates"])
        deepspeed_private.set_loss_scale_state(self._engine, counters["loss_scale"])
        self._schedule.load_state_dict(counters["schedule"])
        rates = self._schedule.get_last_lr()
        for group, lr in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        self._engine.global_steps = counters["steps"]
        self._engine.skipped_steps = counters["skipped_steps"]

    def full_weights(self) -> dict[str, Tensor]:
        """Return all weights in float32 on the host; every rank must call it."""
        return {
            name: self._frozen[name] if name in self._frozen else self._shards.whole(name)
            for name, _ in self.model.named_parameters()
        }

    def close(self) -> None:
        """Release DeepSpeed's hooks and buffers, and what it replaced in torch."""
        self._engine.destroy()
        deepspeed_private.restore_linear()
