"""One pre-training run, from its configuration to a saved model; read it top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from scimult import distributed
from scimult.checkpoints import Pretrained
from scimult.data.batches import BatchBuilder
from scimult.data.token_store import TokenStore
from scimult.hardware import naming_full_memory
from scimult.models.compiled import compile_blocks
from scimult.progress import note, warn
from scimult.tasks import tells_sides
from scimult.training import build, dev
from scimult.training.callbacks import open_tracker
from scimult.training.config import PretrainConfig
from scimult.training.deepspeed_config import deepspeed_settings, resolve_precision
from scimult.training.embedding_teacher import make_projection
from scimult.training.engine import DeepSpeedEngine, process_group
from scimult.training.failure import FailureFile, Watchdog
from scimult.training.fitting import learns
from scimult.training.folder import RunFolder
from scimult.training.learned import LearnedPart, head_name, learned_parts
from scimult.training.loop import Trainer
from scimult.training.meter import Meter, resolve_peak
from scimult.training.module import MicroBatchesAhead, TrainModule
from scimult.training.negatives import check_negatives, shared_negatives
from scimult.training.objective import Objective, PartsObjective
from scimult.training.origin import origin_of
from scimult.training.passes import resolve_chunk_tokens
from scimult.training.plan import RunPlan, build_sampler, plan_run
from scimult.training.record import recorded
from scimult.training.selection import Selection
from scimult.training.state import Checkpoint
from scimult.training.stopping import StopRequest
from scimult.training.taught import TaughtObjective
from scimult.training.weighting import Weighting

_LESS_MEMORY = (
    "set engine.activation_checkpointing or a lower batch.chunk_tokens, with which this run "
    "continues; or in another output lower batch.pairs_per_step"
)
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pretrain(
    config: PretrainConfig, *, resume: bool = True, stop_request: StopRequest | None = None
) -> Path:
    """Pre-train an encoder under DeepSpeed, save it and return its path; every rank calls this.

    Parameters
    ----------
    config : PretrainConfig
        The whole configuration; a copy is saved in the run folder.
    resume : bool
        Continue from the newest intact checkpoint of ``config.output``, if there is one.
        Otherwise refuse a folder that holds a run.
    stop_request : StopRequest, optional
        Checked after every step; a caller with further work can check it after the last.

    Raises
    ------
    SciMultError
        If configuration, data, checkpoint or storage do not allow the run.
    LostRankError
        If another rank ended or hangs.
    StoppedError
        If SIGTERM, SIGINT or SIGHUP ended it early; the same call continues it.
    """
    if config.log.tracker is not None:
        open_tracker(config.log.tracker)
    plan = plan_run(config)
    pretrained = build.build_model(config)
    check_negatives(config, plan, pretrained.routes)
    build.check_tasks_train(pretrained, plan.loss_weights)
    timeout = config.engine.timeout_minutes * 60
    with (
        naming_full_memory(_LESS_MEMORY),
        process_group(timeout) as device,
        distributed.naming_lost_ranks(),
        ExitStack() as locks,
    ):
        precision = resolve_precision(config.engine.precision, device)
        engine = config.engine.model_copy(update={"precision": precision})
        config = config.model_copy(update={"engine": engine})
        settings = deepspeed_settings(config, precision)
        run = RunFolder(config, origin_of(plan, pretrained), settings)
        checkpoint = run.open(resume, pretrained.model, locks)
        tokens = plan.data.tokens(pretrained.tokenizer, config.data.max_length)
        sampler, steps = build_sampler(config, plan, tokens.lengths_N)
        pretrained.model.to(device)
        module = _train_module(config, plan, pretrained, tokens, steps, settings, checkpoint)
        first_step = checkpoint.step if checkpoint is not None else 0
        selection = Selection(config.dev, config.checkpoint.keep_best)
        if checkpoint is not None:
            note(f"resuming after step {first_step} from {checkpoint.path}")
            selection.restore(checkpoint.info["selection"], run.is_kept)
            module.weighting.restore(checkpoint.info.get("weighting", {}))
        scores = _dev_scores(config, plan, tokens, pretrained, module)
        stop_request, watchdog = stop_request or StopRequest(), Watchdog(timeout)
        callbacks = run.callbacks(scores, module, selection, first_step, steps)
        builder, rank = batch_builder(config, plan, tokens), distributed.rank()
        trainer = Trainer(
            module,
            MicroBatchesAhead(
                lambda number: builder.micro_batch(sampler.plan(number), rank), len(sampler)
            ),
            stop_request,
            [*callbacks, FailureFile(run.path, plan.data.texts.ids_at), watchdog],
            reports_late=device.type != "cpu",
        )
        with recorded(run.path, steps), naming_full_memory(_LESS_MEMORY):
            with stop_request.listening(), watchdog.watching():
                last_step = trainer.run(first_step, steps)
            run.export(module.engine, selection, last_step, pretrained, plan.heads)
        module.engine.close()
        return run.model


def _train_module(
    config: PretrainConfig,
    plan: RunPlan,
    pretrained: Pretrained,
    tokens: TokenStore,
    steps: int,
    settings: dict[str, Any],
    checkpoint: Checkpoint | None,
) -> TrainModule:
    """Put the model under DeepSpeed, with its learned parts, objective and optimizer."""
    model, device = pretrained.model, next(pretrained.model.parameters()).device
    teacher, fit = plan.embedding_teacher, checkpoint is None
    projection = make_projection(config, teacher, plan.sources, tokens, pretrained, fit=fit)
    learned_lr, projects = config.optimizer.learned_lr, projection is not None
    if learned_lr is not None and not learns(config.loss, plan.loss_weights, projects):
        warn(
            f"optimizer.learned_lr {learned_lr:g} has no effect: the teacher's vectors are as wide "
            "as the embeddings, so no projection is learned, nor is anything else; leave it out, "
            "or set loss.embedding_teacher.projection"
        )
    learned = learned_parts(
        config,
        model,
        plan.loss_weights,
        plan.head_outputs,
        LearnedPart(projection, teacher.tasks) if projection and teacher else None,
    )
    optimizer, schedule = build.build_optimizer(config, model, steps, plan.loss_weights, learned)
    dtype = _DTYPES[config.engine.precision]
    meter = Meter(model, device, dtype, resolve_peak(config.log.peak_tflops, device, dtype))
    if config.engine.compile:
        compile_blocks(model)
    resume = None if checkpoint is None else checkpoint.path
    return TrainModule(
        DeepSpeedEngine(model, optimizer, schedule, settings, resume),
        pretrained.routes,
        _objective(config, pretrained, device),
        Weighting(config.loss, plan.loss_weights),
        learned,
        meter,
        accumulation=config.batch.accumulation,
        chunk_tokens=resolve_chunk_tokens(config.batch.chunk_tokens, model, device),
        seed=config.seed,
    )


def _objective(
    config: PretrainConfig, pretrained: Pretrained, device: torch.device
) -> PartsObjective:
    section = config.loss
    group_of = shared_negatives(config.batch.negatives_across, pretrained.routes)
    objective = Objective(config.model.similarity, section, device, group_of)
    if section.embedding_teacher is None:
        return objective
    return TaughtObjective(
        objective, section.embedding_teacher, section.matryoshka, device, group_of
    )


def batch_builder(config: PretrainConfig, plan: RunPlan, tokens: TokenStore) -> BatchBuilder:
    """Return the builder of a run's batches."""
    share = config.data.title_only
    return BatchBuilder(
        plan.sources,
        tokens,
        plan.known,
        max_length=config.data.max_length,
        by_side=tells_sides(config.model.routing),
        teacher=plan.teacher,
        vectors_of=plan.embedding_teacher.of if plan.embedding_teacher else lambda source: None,
        title_only_N=plan.data.texts.drawn_papers(share, config.seed) if share else None,
        seed=config.seed,
    )


def _dev_scores(
    config: PretrainConfig,
    plan: RunPlan,
    tokens: TokenStore,
    pretrained: Pretrained,
    module: TrainModule,
) -> Callable[[], dict[str, float]] | None:
    """Return the evaluation on the dev sets; ``None`` if it is disabled."""
    if not (config.dev.every and (plan.dev_sets or plan.dev_targets)):
        return None

    def scores() -> dict[str, float]:
        mrr = {
            dev.mrr_name(dev_set.name): dev.mean_reciprocal_rank(
                module.engine.model,
                dev_set,
                tokens,
                routes=pretrained.routes(dev_set.task),
                similarity=config.model.similarity,
                max_length=config.data.max_length,
            )
            for dev_set in plan.dev_sets
        }
        if mrr:
            mrr[dev.mrr_name("mean")] = sum(mrr.values()) / len(mrr)
        return mrr | scores_of_heads()

    def scores_of_heads() -> dict[str, float]:
        head_scores: dict[str, float] = {}
        for file in plan.dev_targets:
            with torch.no_grad():
                head_KD1 = module.learned.value(head_name(file.task))
            head_scores |= dev.target_scores(
                module.engine.model,
                file,
                head_KD1,
                tokens,
                route=pretrained.routes(file.task)[0],
                max_length=config.data.max_length,
            )
        return head_scores

    return scores
