"""One pre-training run, from its configuration to a saved model; read it top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scimult import distributed
from scimult.checkpoints import Pretrained, save_pretrained
from scimult.config import read_yaml, save_config
from scimult.data.batches import Batch, BatchBuilder, all_known_positives
from scimult.data.pairs import KnownPositives, PairFile
from scimult.data.prepared import PreparedData
from scimult.data.sampler import Sampler
from scimult.data.token_store import TokenStore
from scimult.errors import CheckpointError, ConfigError, UnknownNameError
from scimult.files import require_room
from scimult.models import Encoder
from scimult.progress import note
from scimult.tasks import TaskSet
from scimult.training import build, dev
from scimult.training.callbacks import (
    Checkpoints,
    Console,
    DevScores,
    MetricsFile,
    TensorBoard,
)
from scimult.training.config import PretrainConfig
from scimult.training.engine import (
    DeepSpeedEngine,
    Precision,
    process_group,
    read_full_weights,
    resolve_deepspeed,
    resolve_precision,
)
from scimult.training.failure import write_failure
from scimult.training.loop import Callback, Trainer
from scimult.training.objective import ContrastiveObjective, loss_function
from scimult.training.selection import Selection
from scimult.training.state import Checkpoint, CheckpointStore
from scimult.training.stopping import StopRequest
from scimult.training.watchdog import Watchdog

# Sections that decide which batches a run sees and what it computes: a resumed run must
# not change them.
_FIXED_AT_RESUME = ("seed", "tasks", "data", "model", "loss", "optimizer", "schedule", "batch")
# What may change: a checkpoint holds whole tensors.
_FREE_AT_RESUME = ("ranks", "zero_stage")


def pretrain(config: PretrainConfig, *, resume: bool = True) -> Path:
    """Pre-train an encoder under DeepSpeed and save it; every rank calls this.

    Parameters
    ----------
    config : PretrainConfig
        The whole configuration; a copy is saved in the run folder.
    resume : bool
        Continue from the newest whole checkpoint of ``config.output``, if there is one.
        Otherwise a folder that holds a run is refused.

    Returns
    -------
    Path
        The saved model: ``<output>/model``.

    Raises
    ------
    SciMultError
        If configuration, data, checkpoint or storage do not allow the run.
    LostRankError
        If another rank ended or hangs.
    StoppedError
        If SIGTERM or SIGINT ended it early; the same call continues it.
    """
    data = PreparedData.open(config.data.prepared)
    sources = build.select_sources(data, config.data, TaskSet(config.tasks))
    known = all_known_positives(data)
    dev_sets = _dev_sets(config, data, sources, known)
    length = build.run_length(config, sources)
    sampler = build.build_sampler(config, sources, length)
    weights = build.loss_weights(config, sources)
    pretrained = build.build_model(config)
    timeout = config.engine.timeout_minutes * 60
    with process_group(timeout) as device, distributed.naming_lost_ranks():
        precision = resolve_precision(config.engine.precision, device)
        config = config.model_copy(deep=True)
        config.engine.precision = precision
        settings = _deepspeed_settings(config, precision)
        run = _RunFolder(config, data.fingerprint, settings)
        checkpoint = run.open(resume, pretrained.model)
        tokens = data.tokens(pretrained.tokenizer, config.data.max_length)
        loss = loss_function(config.loss, build.add_temperature(config, pretrained.model))
        optimizer, schedule = build.build_optimizer(config, pretrained.model, length.steps)
        first_step = checkpoint.step if checkpoint is not None else 0
        engine = DeepSpeedEngine(
            pretrained.model.to(device),
            optimizer,
            schedule,
            settings,
            resume=checkpoint.path if checkpoint is not None else None,
        )
        if checkpoint is not None:
            note(f"resuming after step {first_step} from {checkpoint.path}")
        selection = Selection(config.dev.metric, config.dev.patience, config.checkpoint.keep_best)
        if checkpoint is not None:
            selection.restore(checkpoint.info["selection"])
        scores = _dev_scores(config, dev_sets, tokens, pretrained, engine)
        stop_request, watchdog = StopRequest(), Watchdog(timeout)
        trainer = Trainer(
            engine,
            ContrastiveObjective(config.model.similarity, loss, config.loss, device),
            _batches(config, sampler, tokens, known),
            pretrained.routes,
            weight_of_task=weights.__getitem__,
            keep_failure=lambda failed: write_failure(run.path, failed, data.texts.ids_at),
            stop_request=stop_request,
            is_over=lambda: selection.is_over,
            rows_per_unit=length.rows_per_unit,
            accumulation=config.batch.accumulation,
            seed=config.seed,
            callbacks=[
                *run.callbacks(scores, engine, selection, first_step, length.steps),
                watchdog,
            ],
        )
        with stop_request.listening(), watchdog.watching():
            last_step = trainer.run(first_step, length.steps)
        run.export(engine, selection, last_step, pretrained)
        engine.close()
        return run.model


def _batches(
    config: PretrainConfig,
    sampler: Sampler,
    tokens: TokenStore,
    known: Mapping[str, KnownPositives],
) -> Callable[[int], Batch]:
    """Return the function from a unit's number to this rank's batch of it."""
    builder = BatchBuilder(
        sampler.sources,
        tokens,
        known,
        max_length=config.data.max_length,
        hard_negatives=config.data.hard_negatives,
        by_side=config.model.routing == "task_and_side",
    )
    rank, world_size = distributed.rank(), distributed.world_size()
    return lambda unit: builder.build(sampler.plan(unit).shard(rank, world_size))


def _deepspeed_settings(config: PretrainConfig, precision: Precision) -> dict[str, Any]:
    return resolve_deepspeed(
        config.engine.deepspeed,
        pairs_per_step=config.batch.pairs_per_step,
        accumulation=config.batch.accumulation,
        world_size=distributed.world_size(),
        precision=precision,
        clip=config.optimizer.clip,
    )


def _dev_sets(
    config: PretrainConfig,
    data: PreparedData,
    sources: list[PairFile],
    known: Mapping[str, KnownPositives],
) -> list[dev.DevSet]:
    """Return the dev sets of the run's sources.

    Raises
    ------
    ConfigError, UnknownNameError
        If dev scores decide about the run, and there are none or not the one that is named.
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
    if config.selects and not dev_sets:
        raise ConfigError(
            "dev.patience and checkpoint.keep_best need dev pairs, and the sources have none",
            path=config.data.prepared,
            fix="prepare with dev pairs, or leave both out",
        )
    scores = [dev.mrr_name(name) for name in ("mean", *(dev_set.name for dev_set in dev_sets))]
    if dev_sets and config.dev.metric not in scores:
        raise UnknownNameError("score in dev.metric", config.dev.metric, scores)
    return dev_sets


def _dev_scores(
    config: PretrainConfig,
    dev_sets: list[dev.DevSet],
    tokens: TokenStore,
    pretrained: Pretrained,
    engine: DeepSpeedEngine,
) -> Callable[[], dict[str, float]] | None:
    """Return the evaluation on the dev sets; ``None`` if it is off."""
    if not (config.dev.every and dev_sets):
        return None

    def scores() -> dict[str, float]:
        mrr = {
            dev.mrr_name(dev_set.name): dev.mean_reciprocal_rank(
                engine.model,
                dev_set,
                tokens,
                routes=pretrained.routes(dev_set.task),
                similarity=config.model.similarity,
                max_length=config.data.max_length,
            )
            for dev_set in dev_sets
        }
        return mrr | {dev.mrr_name("mean"): sum(mrr.values()) / len(mrr)}

    return scores


class _RunFolder:
    """The folder of one run: config, checkpoints, metrics, TensorBoard, model."""

    def __init__(
        self, config: PretrainConfig, data_fingerprint: str, settings: dict[str, Any]
    ) -> None:
        self.path = Path(config.output)
        self.model = self.path / "model"
        self._config = config
        self._store = CheckpointStore(self.path / "checkpoints", config.checkpoint.keep)
        self._state = {
            "data": data_fingerprint,
            "precision": config.engine.precision,
            "ranks": distributed.world_size(),
            "zero_stage": settings.get("zero_optimization", {}).get("stage", 0),
        }

    def open(self, resume: bool, model: Encoder) -> Checkpoint | None:
        """Create the folder or find the checkpoint to continue from; every rank must call it.

        Raises
        ------
        ConfigError
            If the folder holds a run and ``resume`` is off, or one of another configuration.
        CheckpointError
            If the checkpoint is of other data or precision, or all are damaged.
        StorageError
            If the folder cannot be written, or its disk has no room for what the run keeps.
        """
        return distributed.on_main(lambda: self._open(resume, model))

    def _open(self, resume: bool, model: Encoder) -> Checkpoint | None:
        saved = self.path / "config.yaml"
        if saved.exists() and not resume:
            raise ConfigError(
                "folder already holds a run", path=self.path, fix="choose another output or resume"
            )
        checkpoint = self._store.newest()
        if checkpoint is not None:
            self._check_same_run(saved, checkpoint)
        self._check_room(model)
        save_config(self._config, saved)
        return checkpoint

    def _check_room(self, model: Encoder) -> None:
        """Meet a full or read-only disk now rather than at the first checkpoint."""
        section = self._config.checkpoint
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        weights = 4 * sum(p.numel() for p in model.parameters())
        # Two moments per trained weight; the newest is written before the oldest goes.
        checkpoints = section.keep + section.keep_best + 1
        needed = checkpoints * (weights + 8 * trained) + weights - self._store.size()
        require_room(self.path, needed, f"{checkpoints} checkpoints and the model")

    def _check_same_run(self, saved: Path, checkpoint: Checkpoint) -> None:
        before, now = read_yaml(saved), self._config.model_dump(mode="json")
        changed = [name for name in _FIXED_AT_RESUME if before.get(name) != now[name]]
        if changed:
            raise ConfigError(
                f"the run here was started with another {', '.join(changed)}",
                path=saved,
                fix="resume with the saved config, or choose another output",
            )
        for name, value in self._state.items():
            written = checkpoint.info.get(name)
            if written == value:
                continue
            if name in _FREE_AT_RESUME:
                note(f"resuming with {name} {value}, written with {written}: sums round otherwise")
                continue
            raise CheckpointError(
                f"checkpoint was written with {name} {written!r}, this run has {value!r}",
                path=checkpoint.path,
                fix="resume with the same setting, or warm-start a new run from it",
            )

    def export(
        self, engine: DeepSpeedEngine, selection: Selection, last_step: int, pretrained: Pretrained
    ) -> None:
        """Write the trained model once; every rank returns when it is there."""
        step = last_step
        if self._config.checkpoint.export == "best" and selection.best is not None:
            step = selection.best.step
            note(f"the model is that of step {step}, the best by {selection.metric}")
        # Every rank holds a part of the last step's weights; others lie in a file.
        weights = engine.full_weights() if step == last_step else {}

        def write() -> None:
            full = weights or read_full_weights(self._store.at(step).path)
            learned = build.take_temperature(full, self._config)
            config = self._config.model_dump(mode="json")
            provenance = {"config": config, "data": self._state["data"], "step": step}
            pretrained.config.provenance |= learned | provenance
            save_pretrained(self.model, full, pretrained.tokenizer, pretrained.config)

        distributed.on_main(write)

    def callbacks(
        self,
        scores: Callable[[], dict[str, float]] | None,
        engine: DeepSpeedEngine,
        selection: Selection,
        first_step: int,
        steps: int,
    ) -> list[Callback]:
        """Return the callbacks in order: dev scores come before those that report them."""
        config = self._config
        callbacks: list[Callback] = []
        if scores is not None:
            callbacks.append(DevScores(scores, config.dev.every, steps))
        callbacks.append(selection)
        if distributed.is_main():
            callbacks.append(Console(first_step, steps, config.log.every))
            callbacks.append(MetricsFile(self.path / "metrics.jsonl", first_step))
            if config.log.tensorboard:
                callbacks.append(TensorBoard(self.path / "tensorboard", config.log.every))

        def save(step: int) -> None:
            best = selection.best.step if selection.best and config.checkpoint.keep_best else None
            info = self._state | {"selection": selection.state}
            self._store.save(step, engine.save, info, best)

        every = config.checkpoint.every
        callbacks.append(Checkpoints(save, every, steps, selection.wants_checkpoint))
        return callbacks
