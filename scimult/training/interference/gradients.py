"""Gradients of each task on its own batches, and their inner products by parameter.

Shape legend: T tasks, P parameters of the encoder, N numbers of one parameter, U distinct texts
of a micro-batch, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scimult.checkpoints import Pretrained
from scimult.data.batches import MicroBatch
from scimult.data.sampler import Sampler
from scimult.errors import ConfigError, DataError
from scimult.models import Encoder, pack
from scimult.progress import progress
from scimult.training.config import PretrainConfig
from scimult.training.negatives import shared_negatives
from scimult.training.objective import Objective
from scimult.training.passes import MicroBatchTexts
from scimult.training.plan import RunPlan, build_sampler
from scimult.training.run import batch_builder

TaskLosses = Callable[[MicroBatch, Tensor], dict[str, Tensor]]
# Batches per task in a round: two, so that a task can be compared with itself.
HALVES = 2
# Maximum number of micro-batches to search per batch that is needed.
_PATIENCE = 64


class Location(NamedTuple):
    """Position of a parameter: a block's number (-1: the embeddings) and its sub-layer."""

    block: int
    sublayer: str


@dataclass(frozen=True)
class RoundProducts:
    """Inner products of the G = 2 T gradients of a round, and whether each reaches a parameter.

    Gradients are ordered by task, then by batch: 2 t and 2 t + 1 are those of task t. ``batch_G``
    is equal for gradients of one batch: in mixed batches tasks share them.
    """

    products_PGG: NDArray[np.float64]
    reached_PG: NDArray[np.bool_]
    batch_G: Sequence[int]


def location_of(parameter: str, num_blocks: int) -> Location:
    """Return the location of an encoder's parameter, by its name."""
    parts = parameter.split(".")
    if parts[0] == "blocks":
        norm = any(part == "norm" or part.endswith("_norm") for part in parts)
        return Location(int(parts[1]), "norms" if norm else parts[2])
    if parts[0] == "embeddings":
        return Location(-1, "norms" if "norm" in parts else "embeddings")
    return Location(num_blocks, "norms" if parts[0] == "final_norm" else parts[0])


def measure(
    model: Encoder,
    objective: TaskLosses,
    tasks: Sequence[str],
    routes_of_task: Callable[[str], Sequence[int]],
    rounds: Sequence[Sequence[Sequence[MicroBatch]]],
) -> Iterator[RoundProducts]:
    """Yield the inner products of every round.

    The encoder has no dropout; its parameters with ``requires_grad`` are measured. ``objective``
    maps a micro-batch and its embeddings to the loss of each task in it. ``rounds`` has, for each
    round and task, two micro-batches that hold the task; tasks may share them.

    Raises
    ------
    DataError
        If a gradient is not finite, with the task.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    for halves_of_tasks in progress(rounds, "gradients"):
        by_micro_batch: dict[int, dict[str, list[Tensor | None]]] = {}
        for micro_batch in (each for halves in halves_of_tasks for each in halves):
            if id(micro_batch) not in by_micro_batch:
                texts = MicroBatchTexts.of(micro_batch, routes_of_task)
                losses = objective(micro_batch, _embed(model, texts))
                by_micro_batch[id(micro_batch)] = {
                    task: _gradient(loss, parameters)
                    for task, loss in losses.items()
                    if task in tasks
                }
        batch_G = [id(micro_batch) for halves in halves_of_tasks for micro_batch in halves]
        task_G = [task for task in tasks for _ in range(HALVES)]
        gradients = [
            by_micro_batch[batch][task] for batch, task in zip(batch_G, task_G, strict=True)
        ]
        products_PGG, reached_PG = _products(gradients, parameters)
        squares_PG = np.diagonal(products_PGG, axis1=1, axis2=2)
        overflowed = np.flatnonzero(~np.isfinite(squares_PG).all(axis=0))
        if len(overflowed):
            raise DataError(
                "a gradient is not finite",
                value=task_G[overflowed[0]],
                fix="check the model: its weights, activations or loss overflowed",
            )
        yield RoundProducts(products_PGG, reached_PG, batch_G)


def _embed(model: Encoder, texts: MicroBatchTexts) -> Tensor:
    packed = pack(texts.rows).to(next(model.parameters()).device)
    several = len(set(texts.routes)) > 1
    embeddings_UD: Tensor = model(packed, texts.routes if several else texts.routes[0])
    return embeddings_UD


def _gradient(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient of each parameter; None where the loss does not depend on it."""
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    if not loss.any():
        return list(gradients)
    # In a mixed batch autograd has zeros for experts of other routes.
    return [None if grad is None or not grad.any() else grad for grad in gradients]


def _products(
    gradients: Sequence[Sequence[Tensor | None]], parameters: Sequence[Tensor]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    count = len(gradients)
    products_PGG = np.zeros((len(parameters), count, count))
    reached_PG = np.zeros((len(parameters), count), dtype=bool)
    for number in range(len(parameters)):
        present = {
            index: gradient
            for index, by_parameter in enumerate(gradients)
            if (gradient := by_parameter[number]) is not None
        }
        if not present:
            continue
        indices = list(present)
        flat_GN = torch.stack([gradient.flatten() for gradient in present.values()])
        reached_PG[number, indices] = True
        products = (flat_GN @ flat_GN.T).double().cpu().numpy()
        products_PGG[number][np.ix_(indices, indices)] = products
    return products_PGG, reached_PG


def training_objective(
    config: PretrainConfig,
    routes_of_task: Callable[[str], Sequence[int]],
    device: torch.device,
) -> TaskLosses:
    """Return the loss of a run, summed over the queries of each task in a micro-batch.

    Learned temperatures have their initial values.
    """
    group_of = shared_negatives(config.batch.negatives_across, routes_of_task)
    objective = Objective(config.model.similarity, config.loss, device, group_of)

    def losses(micro_batch: MicroBatch, embeddings_UD: Tensor) -> dict[str, Tensor]:
        by_task: dict[str, Tensor] = {}
        for result in objective(micro_batch.parts, embeddings_UD):
            loss = by_task.get(result.task)
            by_task[result.task] = result.loss if loss is None else loss + result.loss
        return by_task

    return losses


def training_rounds(
    config: PretrainConfig, plan: RunPlan, pretrained: Pretrained, tasks: Sequence[str], rounds: int
) -> list[list[list[MicroBatch]]]:
    """Return, for each round and task, the next two batches of a run that hold the task.

    Raises
    ------
    ConfigError
        If a task is too rare in the mixture.
    """
    tokens = plan.data.tokens(pretrained.tokenizer, config.data.max_length)
    builder = batch_builder(config, replace(plan, embedding_teacher=None), tokens)
    sampler, numbers = _enough_micro_batches(config, plan, tokens.lengths_N, tasks, HALVES * rounds)
    micro_batches: dict[int, MicroBatch] = {}

    def micro_batch(number: int) -> MicroBatch:
        if number not in micro_batches:
            micro_batches[number] = builder.micro_batch(sampler.plan(number), 0)
        return micro_batches[number]

    return [
        [
            [micro_batch(numbers[task][HALVES * index + half]) for half in range(HALVES)]
            for task in tasks
        ]
        for index in range(rounds)
    ]


def _enough_micro_batches(
    config: PretrainConfig,
    plan: RunPlan,
    lengths_N: NDArray[np.int32],
    tasks: Sequence[str],
    needed: int,
) -> tuple[Sampler, dict[str, list[int]]]:
    """Return a sampler with ``needed`` micro-batches of each task, and their numbers."""
    for steps in (needed * factor for factor in (len(tasks), 4 * len(tasks), _PATIENCE)):
        schedule = config.schedule.model_copy(update={"steps": steps, "epochs": None})
        enough = config.model_copy(update={"schedule": schedule})
        sampler, _ = build_sampler(enough, plan, lengths_N)
        numbers: dict[str, list[int]] = {task: [] for task in tasks}
        for number in range(len(sampler)):
            present = {plan.sources[part.source].task for part in sampler.plan(number)}
            for task in present.intersection(tasks):
                numbers[task].append(number)
        if min(map(len, numbers.values())) >= needed:
            return sampler, numbers
    rare = min(numbers, key=lambda task: len(numbers[task]))
    raise ConfigError(
        f"task {rare} is in {len(numbers[rare])} of the first {len(sampler):,} batches of this "
        f"mixture; {needed} are needed",
        fix="raise its rate (data.sampling=equal_tasks), or use fewer --rounds",
    )
