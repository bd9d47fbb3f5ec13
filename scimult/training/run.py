"""One pre-training run, from its configuration to a saved model; read it top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from scimult import distributed
from scimult.checkpoints import Pretrained, save_pretrained
from scimult.config import read_yaml, save_config
from scimult.data.batches import Batch, BatchBuilder, all_known_positives
from scimult.data.pairs import KnownPositives, PairFile
from scimult.data.prepared import PreparedData
from scimult.data.sampler import Sampler
from scimult.data.token_store import TokenStore
from scimult.errors import CheckpointError, ConfigError
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
    resolve_deepspeed,
    resolve_precision,
)
from scimult.training.failure import write_failure
from scimult.training.loop import Callback, Trainer
from scimult.training.objective import ContrastiveObjective, loss_function
from scimult.training.state import Checkpoint, CheckpointStore
from scimult.training.stopping import StopRequest

# Sections that decide which batches a run sees and what it computes: a resumed run must
# not change them.
_FIXED_AT_RESUME = ("seed", "tasks", "data", "model", "loss", "optimizer", "schedule", "batch")


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
    StoppedError
        If SIGTERM or SIGINT ended it early; the same call continues it.
    """
    data = PreparedData.open(config.data.prepared)
    sources = build.select_sources(data, config.data, TaskSet(config.tasks))
    length = build.run_length(config, sources)
    sampler = build.build_sampler(config, sources, length)
    weights = build.loss_weights(config, sources)
    pretrained = build.build_model(config)
    with process_group(config.engine.timeout_minutes * 60) as device:
        precision = resolve_precision(config.engine.precision, device)
        config = config.model_copy(deep=True)
        config.engine.precision = precision
        settings = _deepspeed_settings(config, precision)
        run = _RunFolder(config, data.fingerprint, settings)
        checkpoint = run.open(resume)
        tokens = data.tokens(pretrained.tokenizer, config.data.max_length)
        loss = loss_function(config.loss, build.add_temperature(config, pretrained.model))
        optimizer, schedule = build.build_optimizer(config, pretrained.model, length.steps)
        engine = DeepSpeedEngine(pretrained.model.to(device), optimizer, schedule, settings)
        first_step = 0
        if checkpoint is not None:
            engine.load(checkpoint.path)
            first_step = checkpoint.step
            note(f"resuming after step {first_step} from {checkpoint.path}")
        known = all_known_positives(data)
        scores = _dev_scores(config, data, sources, known, tokens, pretrained, engine)
        stop_request = StopRequest()
        trainer = Trainer(
            engine,
            ContrastiveObjective(config.model.similarity, loss, config.loss, device),
            _batches(config, sampler, tokens, known),
            pretrained.routes,
            weight_of_task=weights.__getitem__,
            keep_failure=lambda failed: write_failure(run.path, failed, data.texts.ids_at),
            stop_request=stop_request,
            rows_per_unit=length.rows_per_unit,
            accumulation=config.batch.accumulation,
            seed=config.seed,
            callbacks=run.callbacks(scores, engine, first_step, length.steps),
        )
        with stop_request.listening():
            trainer.run(first_step, length.steps)
        run.export(engine.full_weights(), pretrained)
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
        seed=config.seed,
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


def _dev_scores(
    config: PretrainConfig,
    data: PreparedData,
    sources: list[PairFile],
    known: Mapping[str, KnownPositives],
    tokens: TokenStore,
    pretrained: Pretrained,
    engine: DeepSpeedEngine,
) -> Callable[[], dict[str, float]] | None:
    """Return the evaluation on dev pairs of the run's sources; ``None`` if it is off."""
    names = {source.name for source in sources}
    files = [file for file in data.pairs("dev") if file.name in names]
    dev_sets = dev.build_dev_sets(
        files,
        known,
        queries=config.dev.queries,
        candidates=config.dev.candidates,
        seed=config.dev.seed,
    )
    if not (config.dev.every and dev_sets):
        return None

    def scores() -> dict[str, float]:
        mrr = {
            f"dev/{dev_set.name}/mrr": dev.mean_reciprocal_rank(
                engine.model,
                dev_set,
                tokens,
                routes=pretrained.routes(dev_set.task),
                similarity=config.model.similarity,
                max_length=config.data.max_length,
            )
            for dev_set in dev_sets
        }
        return mrr | {"dev/mean/mrr": sum(mrr.values()) / len(mrr)}

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
            "world_size": distributed.world_size(),
            "zero_stage": settings.get("zero_optimization", {}).get("stage", 0),
            "precision": config.engine.precision,
        }

    def open(self, resume: bool) -> Checkpoint | None:
        """Create the folder or find the checkpoint to continue from.

        Raises
        ------
        ConfigError
            If the folder holds a run and ``resume`` is off, or one of another configuration.
        CheckpointError
            If the checkpoint is of other data, ranks, ZeRO stage or precision.
        """
        checkpoint = self._store.newest()
        saved = self.path / "config.yaml"
        if saved.exists() and not resume:
            raise ConfigError(
                "folder already holds a run", path=self.path, fix="choose another output or resume"
            )
        if checkpoint is not None:
            self._check_same_run(saved, checkpoint)
        distributed.barrier()
        if distributed.is_main():
            save_config(self._config, saved)
        return checkpoint

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
            if checkpoint.info.get(name) != value:
                raise CheckpointError(
                    f"checkpoint was written with {name} {checkpoint.info.get(name)!r}, "
                    f"this run has {value!r}",
                    path=checkpoint.path,
                    fix="resume with the same setting, or warm-start a new run from it",
                )

    def export(self, weights: dict[str, Tensor], pretrained: Pretrained) -> None:
        """Write the trained model once; every rank returns when it is there."""
        learned = build.take_temperature(weights, self._config)
        if distributed.is_main():
            pretrained.config.provenance |= learned
            config = self._config.model_dump(mode="json")
            pretrained.config.provenance |= {"config": config, "data": self._state["data"]}
            save_pretrained(self.model, weights, pretrained.tokenizer, pretrained.config)
        distributed.barrier()

    def callbacks(
        self,
        scores: Callable[[], dict[str, float]] | None,
        engine: DeepSpeedEngine,
        first_step: int,
        steps: int,
    ) -> list[Callback]:
        """Return the callbacks in order: dev scores come before those that report them."""
        config = self._config
        callbacks: list[Callback] = []
        if scores is not None:
            callbacks.append(DevScores(scores, config.dev.every, steps))
        if distributed.is_main():
            callbacks.append(Console(first_step, steps, config.log.every))
            callbacks.append(MetricsFile(self.path / "metrics.jsonl", first_step))
            if config.log.tensorboard:
                callbacks.append(TensorBoard(self.path / "tensorboard", config.log.every))

        def save(step: int) -> None:
            self._store.save(step, engine.save, self._state)

        callbacks.append(Checkpoints(save, config.checkpoint.every, steps))
        return callbacks
