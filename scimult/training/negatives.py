"""Decide which parts of a micro-batch share negatives, and check that every pair has some.

Shape legend: U micro-batches, S sources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from scimult.data.sampler import share_out
from scimult.data.targets import TargetFile
from scimult.errors import ConfigError
from scimult.progress import warn
from scimult.training.config import NegativesAcross, PretrainConfig
from scimult.training.loss_config import TripletConfig
from scimult.training.plan import RunPlan

# From a part's source and task to a key; parts with equal keys share their negatives.
GroupOf = Callable[[str, str], Hashable]
RoutesOfTask = Callable[[str], Sequence[int]]
# Micro-batches to search for pairs without in-batch negatives.
_CHECKED_MICRO_BATCHES = 1000


def shared_negatives(across: NegativesAcross | None, routes_of_task: RoutesOfTask) -> GroupOf:
    """Return the function that groups parts which share negatives.

    Embeddings of different routes lie in different spaces: even across a whole batch, parts
    share negatives only if the routes of their queries and of their candidates agree.
    """
    if across == "batch":
        return lambda source, task: tuple(routes_of_task(task))
    if across == "task":
        return lambda source, task: task
    return by_source


def by_source(source: str, task: str) -> Hashable:
    """Group pairs by their source."""
    return source, task


def check_negatives(config: PretrainConfig, plan: RunPlan, routes_of_task: RoutesOfTask) -> None:
    """Check that no source's pairs lack negatives in every batch.

    Raises
    ------
    ConfigError
        If they have no in-batch negatives in mixed batches, or none at all in batches of one pair.
    """
    batch, distillation = config.batch, config.loss.distillation
    if distillation is not None and distillation.contrastive_weight == 0:
        return
    if batch.mix != "in_batch":
        _check_batches_of_one_pair(config, plan)
        return
    assert batch.pairs_per_step is not None
    pairs_per_pass = batch.pairs_per_step // batch.accumulation
    rows_US = share_out(plan.rates, pairs_per_pass, _CHECKED_MICRO_BATCHES)
    group_of = shared_negatives(batch.negatives_across, routes_of_task)
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number, source in enumerate(plan.sources):
        if isinstance(source, TargetFile):
            continue
        groups[group_of(source.source, source.task)].append(number)
    for members in groups.values():
        losses = [config.loss.contrastive(plan.sources[number].task) for number in members]
        if all(isinstance(loss, TripletConfig) and loss.negatives == "own" for loss in losses):
            continue
        pairs_U = rows_US[:, members].sum(1)
        without = np.count_nonzero(pairs_U == 1) / max(1, int(pairs_U.sum()))
        names = ", ".join(plan.sources[number].name for number in members)
        if without == 1:
            raise ConfigError(
                "no batch holds two pairs of these sources, so they have no in-batch negatives",
                value=names,
                fix="raise the rate or batch.pairs_per_step, share negatives with more sources "
                "(batch.negatives_across), or set batch.mix: alternate",
            )
        if without > 0:
            warn(f"{names}: {without:.0%} of the pairs have no in-batch negatives")


def _check_batches_of_one_pair(config: PretrainConfig, plan: RunPlan) -> None:
    """Refuse pairs that are alone in their batches, without a hard negative to contrast them with.

    Batches that are filled by tokens may hold more pairs, and a teacher's vectors teach one, too.
    """
    alone = config.batch.pairs_per_step == config.batch.accumulation
    if not alone or config.loss.embedding_teacher is not None:
        return
    for source in plan.sources:
        if isinstance(source, TargetFile):
            continue
        if source.negatives.lengths.any():
            continue
        raise ConfigError(
            "every batch is one pair without a hard negative, from which nothing is learned",
            value=source.name,
            fix="set batch.pairs_per_step to at least twice batch.accumulation, or mine negatives",
        )
