"""Plan a run: its sources, batches and number of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scimult import distributed
from scimult.checkpoints.heads import HeadDescription
from scimult.data.batches import all_known_positives
from scimult.data.manifest import TargetEntry
from scimult.data.pair_streams import (
    FixedMicroBatches,
    ItemStream,
    MicroBatchStream,
    TokenMicroBatches,
    pair_streams,
)
from scimult.data.pairs import KnownPositives, PairFile
from scimult.data.prepared import PreparedData
from scimult.data.rates import RateArray, sampling_rates
from scimult.data.sampler import (
    AlternatingSampler,
    BalancedSampler,
    MixingSampler,
    Sampler,
    epoch_micro_batches,
)
from scimult.data.targets import TargetFile
from scimult.data.teacher import TeacherScores, scored_share
from scimult.errors import ConfigError, one_of
from scimult.progress import note, warn
from scimult.tasks import TaskSet
from scimult.training import dev
from scimult.training.config import PretrainConfig
from scimult.training.embedding_teacher import EmbeddingTeacher, open_embedding_teacher
from scimult.training.fitting import check_fit
from scimult.training.sources import select_sources


@dataclass(frozen=True)
class RunPlan:
    """A run's sources, as streams of pairs or targets, and their shares.

    ``known`` has the known positives of every query by task; ``dev_sets`` and ``dev_targets`` are
    held out.
    """

    data: PreparedData
    sources: list[PairFile | TargetFile]
    streams: list[ItemStream]
    rates: RateArray
    loss_weights: dict[str, float]
    teacher: TeacherScores | None
    known: dict[str, KnownPositives]
    dev_sets: list[dev.DevSet]
    dev_targets: list[TargetFile]
    embedding_teacher: EmbeddingTeacher | None

    @property
    def head_outputs(self) -> dict[str, int]:
        """Number of outputs of each head, by task."""
        targets = [source for source in self.sources if isinstance(source, TargetFile)]
        return {file.task: file.outputs for file in targets}

    @property
    def heads(self) -> dict[str, HeadDescription]:
        """Meaning of each head's outputs, by task."""
        return {
            entry.task: HeadDescription(
                kind=entry.kind,
                classes=list(self.data.open_targets(entry).classes),
                factor=entry.factor,
                offset=entry.offset,
                log=_is_log(self.data, entry),
            )
            for entry in self.data.manifest.targets
            if entry.task in self.head_outputs
        }


def _is_log(data: PreparedData, entry: TargetEntry) -> bool:
    """Return whether targets are logarithms, which the folder's own configuration says."""
    return any(
        source.get("name") == entry.source
        and target.get("task") == entry.task
        and target.get("scale") == "log"
        for source in data.manifest.config.get("sources", [])
        for target in source.get("targets", [])
    )


def plan_run(config: PretrainConfig) -> RunPlan:
    """Open the prepared data of a run and select its sources.

    Raises
    ------
    SciMultError
        If the folder, a source, a task or a rate does not exist or does not fit.
    """
    section = config.data
    if not Path(section.prepared).exists():
        command = f"scimult prepare --config FILE --out {section.prepared}"
        raise ConfigError(
            "data.prepared does not exist",
            path=section.prepared,
            fix=config.how_to_get.data.strip()
            or f"name a prepared folder, or make this one: {command} (configs/data has such files)",
        )
    data = PreparedData.open(section.prepared)
    selected = select_sources(data, section, TaskSet(config.tasks), config.loss.heads)
    all_streams = pair_streams(selected, config.seed, section.pairs_per_query)
    all_rates = sampling_rates(
        selected,
        section.sampling,
        section.rates,
        section.sampling_temperature,
        sizes=[len(stream) for stream in all_streams],
    )
    # A rate of 0 leaves a source out.
    sampled = np.flatnonzero(all_rates)
    sources = [selected[number] for number in sampled]
    streams = [all_streams[number] for number in sampled]
    rates = all_rates[sampled]
    paired = [source for source in sources if isinstance(source, PairFile)]
    known = all_known_positives(data)
    check_fit(config, sources)
    return RunPlan(
        data,
        sources,
        streams,
        rates,
        loss_weights(config, sources),
        teacher_scores(config, data, paired),
        known,
        *build_dev_sets(config, data, sources, known),
        open_embedding_teacher(config, data, sources),
    )


def build_dev_sets(
    config: PretrainConfig,
    data: PreparedData,
    sources: list[PairFile | TargetFile],
    known: Mapping[str, KnownPositives],
) -> tuple[list[dev.DevSet], list[TargetFile]]:
    """Return the dev sets of the run's sources, and dev papers with targets.

    Raises
    ------
    ConfigError
        If the run selects steps by dev scores, and there are none.
    UnknownNameError
        If ``dev.metric`` is not one of the scores.
    """
    names = {source.name for source in sources}
    files = [file for file in data.pairs("dev") if file.name in names]
    dev_sets = dev.build_dev_sets(
        files,
        known,
        queries=config.dev.queries,
        candidates=config.dev.candidates,
        seed=config.dev.seed,
    )
    targets = [file for file in data.targets("dev") if file.name in names and len(file)]
    targets = [dev.sample_targets(file, config.dev.queries, config.dev.seed) for file in targets]
    if config.selects and not (dev_sets or targets):
        raise ConfigError(
            "dev.patience and checkpoint.keep_best need dev pairs, but the sources have none",
            path=config.data.prepared,
            fix="prepare with dev pairs, or leave both out",
        )
    scores = [dev.mrr_name(dev_set.name) for dev_set in dev_sets]
    scores += [name for file in targets for name in dev.target_score_names(file)]
    scores += [dev.mrr_name("mean")] if dev_sets else []
    # Without dev pairs the default metric does not exist, which matters only if it is used.
    if dev_sets or config.selects:
        one_of("score in dev.metric", config.dev.metric, scores)
    return dev_sets, targets


def loss_weights(
    config: PretrainConfig, sources: Sequence[PairFile | TargetFile]
) -> dict[str, float]:
    """Return the loss weight of every trained task.

    Raises
    ------
    UnknownNameError, ConfigError
        If a weight is given for another task, or all weights are equal but not 1.
    """
    weights = dict.fromkeys((file.task for file in sources), 1.0)
    for task, weight in config.loss.weights.items():
        weights[one_of("task in loss.weights", task, weights)] = weight
    if len(set(weights.values())) == 1 and 1.0 not in weights.values():
        raise ConfigError(
            "loss.weights gives all trained tasks the same weight, which Adam cancels out",
            value=weights,
            fix="leave it out and set optimizer.lr, or give tasks different weights",
        )
    return weights


def teacher_scores(
    config: PretrainConfig, data: PreparedData, sources: list[PairFile]
) -> TeacherScores | None:
    """Return the teacher scores for distillation; ``None`` if there is no distillation.

    Raises
    ------
    ConfigError
        If the data have no scores, or a source has neither scores nor a contrastive loss.
    """
    section = config.loss.distillation
    if section is None:
        return None
    teacher = data.teacher_scores()
    shares = {
        file.name: 0.0 if teacher is None else scored_share(teacher, file) for file in sources
    }
    without = [name for name, share in shares.items() if share == 0]
    if len(without) == len(shares) or (without and section.contrastive_weight == 0):
        raise ConfigError(
            "loss.distillation needs teacher scores of a query's positive and hard negative",
            path=data.folder,
            value=without,
            fix="give the answers of these sources a column teacher (docs/formats.md) and prepare "
            "again, or leave out the sources or loss.distillation",
        )
    for name, share in shares.items():
        if share < 1:
            note(f"{name}: {share:.1%} of the queries have teacher scores")
    return teacher


def build_sampler(
    config: PretrainConfig, plan: RunPlan, lengths_N: NDArray[np.int32]
) -> tuple[Sampler, int]:
    """Return the plan of every micro-batch of the run, and the number of its optimizer steps.

    ``lengths_N`` are the tokens of every text, as stored.
    """
    batch, ranks = config.batch, distributed.world_size()
    encoded_N = np.minimum(lengths_N, config.data.max_length).astype(np.int64)
    if batch.max_tokens is None:
        assert batch.pairs_per_step is not None
        rows = batch.pairs_per_step // batch.accumulation
        if batch.mix == "alternate":
            _warn_of_repeats(plan, rows)
        micro_batches: list[MicroBatchStream] = [
            FixedMicroBatches(stream, rows) for stream in plan.streams
        ]
    else:
        assert batch.pool is not None
        micro_batches = [
            TokenMicroBatches(
                stream, encoded_N, max_tokens=batch.max_tokens, ranks=ranks, pool=batch.pool
            )
            for stream in plan.streams
        ]
    steps = _steps(config, epoch_micro_batches(micro_batches, plan.rates))
    length = steps * batch.accumulation
    sampler: Sampler
    if batch.mix == "in_batch":
        sampler = MixingSampler(plan.streams, plan.rates, rows=rows, micro_batches=length)
    else:
        sequential = config.data.sampling == "sequential"
        sampler = AlternatingSampler(
            micro_batches, plan.rates, micro_batches=length, seed=config.seed, sequential=sequential
        )
    if batch.max_tokens is None and ranks > 1:
        sampler = BalancedSampler(sampler, encoded_N, ranks=ranks)
    return sampler, steps


def _warn_of_repeats(plan: RunPlan, rows: int) -> None:
    for source, stream in zip(plan.sources, plan.streams, strict=True):
        if isinstance(source, PairFile) and len(stream) < rows:
            warn(
                f"{source.name} has {len(stream):,} pairs, fewer than a micro-batch of {rows:,}: "
                "each repeats some, which are no negatives; lower batch.pairs_per_step"
            )


def _steps(config: PretrainConfig, micro_batches_per_epoch: float) -> int:
    """Return ``schedule.steps``, or the steps of ``schedule.epochs``, which see each pair once."""
    if config.schedule.steps is not None:
        return config.schedule.steps
    assert config.schedule.epochs is not None
    steps = config.schedule.epochs * micro_batches_per_epoch / config.batch.accumulation
    # Rounding errors of the rates must not add a step.
    return max(1, ceil(round(steps, 6)))
