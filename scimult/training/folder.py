"""The folder of one run: config, checkpoints, metrics, exported model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scimult import distributed
from scimult.checkpoints import Pretrained, load_pretrained, save_pretrained
from scimult.checkpoints.heads import HeadDescription, save_heads
from scimult.checkpoints.pretrained import MODEL
from scimult.checkpoints.weights import WEIGHTS_FILE, load_strictly, read_tensors
from scimult.config import load_config, read_yaml, save_config
from scimult.data.manifest import check_no_other_output
from scimult.disk_space import require_room
from scimult.errors import CheckpointError, ConfigError, shown
from scimult.files import check_replaceable, folder_bytes, only_writer
from scimult.models import Encoder
from scimult.progress import note, warn
from scimult.training import build
from scimult.training.callbacks import (
    Checkpoints,
    Console,
    DevScores,
    MetricsFile,
    TensorBoard,
    Tracker,
)
from scimult.training.config import PretrainConfig
from scimult.training.engine import DeepSpeedEngine
from scimult.training.learned import head_name, learned_numbers, take_learned
from scimult.training.loop import Callback
from scimult.training.module import TrainModule
from scimult.training.origin import Origin, differing, reading_of
from scimult.training.record import FILE as RUN_FILE
from scimult.training.record import read_record
from scimult.training.runs import METRICS, flat
from scimult.training.selection import Selection
from scimult.training.state import Checkpoint, CheckpointStore, step_folders

CONFIG_NAME = "config.yaml"
MODEL_NAME = "model"
CHECKPOINTS = "checkpoints"

# Sections that determine batches and computation, which a resumed run must not change.
_FIXED_AT_RESUME = ("seed", "tasks", "data", "model", "loss", "optimizer", "schedule", "batch")
# Of these, paths of what a run records the content of, by the record's name: it may have moved.
_MAY_MOVE = {
    "data.prepared": "data",
    "model.base": "base",
    "model.tokenizer": "tokenizer",
    "loss.embedding_teacher.vectors": "embedding_teacher",
}
# These may change, because checkpoints hold whole tensors.
_FREE_AT_RESUME = ("ranks", "zero_stage")


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run folder holds a checkpoint, intact or damaged."""
    return bool(step_folders(folder / CHECKPOINTS))


def check_same_config(
    saved: Path, config: PretrainConfig, recorded: Iterable[str] = ()
) -> PretrainConfig:
    """Check that ``config`` gives the same batches and numbers as the saved one; return that.

    Keys that an older version did not write have their defaults. ``recorded`` are the names in the
    run's `origin.Origin`: their content, which is compared elsewhere, may have another path.

    Raises
    ------
    ConfigError
        Naming the keys that differ, or one that no longer exists.
    """
    before = load_config(PretrainConfig, saved)
    # The embedding cache gives the gradient of one pass.
    batch = before.batch.model_copy(update={"chunk_tokens": config.batch.chunk_tokens})
    same = before.model_copy(update={"batch": batch})
    fixed = set(_FIXED_AT_RESUME)
    was, now = (flat(one.model_dump(mode="json", include=fixed)) for one in (same, config))
    changed = [key for key in {**was, **now} if was.get(key) != now.get(key)]
    moved = {key for key, name in _MAY_MOVE.items() if name in recorded}
    changed = [key for key in changed if not (key in moved and was.get(key) and now.get(key))]
    if changed:
        raise ConfigError(
            f"the run here was started with a different {', '.join(changed)}",
            path=saved,
            value={key: now.get(key) for key in changed},
            fix=f"resume with {shown({key: was.get(key) for key in changed})}, or choose another "
            "output",
        )
    return before


def check_nothing_foreign(folder: Path) -> None:
    """Check that a run in ``folder`` would overwrite no file but those of an earlier run.

    Raises
    ------
    ConfigError
        If a file with the name of one of a run's belongs to no run.
    StorageError
        If the folder is another verb's output, or something else is where the model goes, with
        which training ends.
    """
    saved = folder / CONFIG_NAME
    if not saved.exists():
        check_no_other_output(folder)
    foreign = [name for name in (RUN_FILE, METRICS) if (folder / name).exists()]
    if saved.exists():
        # A run writes every key, a user only a few.
        by_run = read_yaml(saved).keys() == PretrainConfig.model_fields.keys()
        foreign = [] if by_run or RUN_FILE in foreign else [CONFIG_NAME]
    if foreign:
        problem = "the run would overwrite this file, which belongs to no run here"
        fix = "choose another output, or move the file"
        raise ConfigError(problem, path=folder / foreign[0], fix=fix)
    check_replaceable(folder / MODEL_NAME, MODEL)


class RunFolder:
    """The folder of one run: config, checkpoints, metrics, TensorBoard, model."""

    def __init__(
        self,
        config: PretrainConfig,
        origin: Origin,
        settings: dict[str, Any],
    ) -> None:
        self.path = Path(config.output)
        self.model = self.path / MODEL_NAME
        self._config = config
        self._store = CheckpointStore(self.path / CHECKPOINTS, config.checkpoint.keep)
        self._origin = dict(origin)
        self._state: dict[str, Any] = {
            **origin,
            "precision": config.engine.precision,
            "ranks": distributed.world_size(),
            "zero_stage": settings.get("zero_optimization", {}).get("stage", 0),
        }

    def open(self, resume: bool, model: Encoder, locks: ExitStack) -> Checkpoint | None:
        """Create the folder or find the checkpoint to continue from; every rank must call it.

        Until ``locks`` is closed, no other process can train here.

        Raises
        ------
        ConfigError
            If the folder holds a run and ``resume`` is off, a run of another configuration, a
            finished one without checkpoints, or files that the run would overwrite.
        CheckpointError
            If the checkpoint has other data or another precision, or all are damaged.
        StorageError
            If the folder cannot be written, another process trains in it, its disk lacks room
            for checkpoints and model, or something else is where the model goes.
        """
        return distributed.on_main(lambda: self._open(resume, model, locks))

    def _open(self, resume: bool, model: Encoder, locks: ExitStack) -> Checkpoint | None:
        locks.enter_context(only_writer(self.path))
        saved = self.path / CONFIG_NAME
        if saved.exists() and not resume:
            raise ConfigError(
                "folder already holds a run", path=self.path, fix="choose another output, or resume"
            )
        checkpoint = self._store.newest()
        if checkpoint is not None:
            heads = [head.dropout for head in self._config.loss.heads.values()]
            shares = [model.config.dropout, model.config.attention_dropout, *heads]
            self._check_same_run(saved, checkpoint, max(shares) > 0)
        elif self._has_finished():
            raise ConfigError(
                "the run here has finished, but its checkpoints are gone: it would start over",
                path=self.path,
                fix="choose another output, or remove the folder",
            )
        check_nothing_foreign(self.path)
        self._check_room(model)
        save_config(self._config, saved)
        if checkpoint is not None:
            self._store.prune(checkpoint.step)  # which a killed run may not have come to
        return checkpoint

    def _has_finished(self) -> bool:
        is_exported = (self.model / WEIGHTS_FILE).is_file()
        return is_exported and read_record(self.path).get("state") == "finished"

    def is_kept(self, step: int) -> bool:
        """Return whether the model of a step can be exported; every rank must call it."""
        return distributed.on_main(lambda: self._store.has(step))

    def _check_room(self, model: Encoder) -> None:
        """Detect a full or read-only disk before the first checkpoint."""
        section = self._config.checkpoint
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        weights = 4 * sum(p.numel() for p in model.parameters())
        # Two moments per trained weight; the newest is written before the oldest is removed.
        checkpoints = section.keep + section.keep_best + 1
        needed = checkpoints * (weights + 8 * trained) + weights - folder_bytes(self._store.folder)
        require_room(self.path, needed, f"{checkpoints} checkpoints and the model")

    def _check_same_run(self, saved: Path, checkpoint: Checkpoint, drops: bool) -> None:
        before = check_same_config(saved, self._config, checkpoint.info).batch.chunk_tokens
        now = self._config.batch.chunk_tokens
        if now != before:
            masks = " and dropout masks differ" if drops else ""
            note(
                f"resuming with batch.chunk_tokens {now or 'off'}, saved with {before or 'off'}: "
                f"sums round differently{masks}"
            )
        for name in differing(checkpoint.info, self._state):
            value, saved_value = self._state[name], checkpoint.info.get(name)
            # Batches with a token budget are planned for a number of ranks.
            by_tokens = name == "ranks" and self._config.batch.max_tokens is not None
            if name in _FREE_AT_RESUME and not by_tokens:
                masks = " and dropout masks differ" if drops and name == "ranks" else ""
                note(
                    f"resuming with {name} {value}, saved with {saved_value}: "
                    f"sums round differently{masks}"
                )
                continue
            raise CheckpointError(
                f"checkpoint was saved with {name} {saved_value!r}, this run has {value!r}",
                path=checkpoint.path,
                fix=(
                    "restore what the run started from, or choose another output"
                    if name in self._origin
                    else "resume with the same setting, or warm-start a new run from it"
                ),
            )

    def export(
        self,
        engine: DeepSpeedEngine,
        selection: Selection,
        last_step: int,
        pretrained: Pretrained,
        heads: Mapping[str, HeadDescription],
    ) -> None:
        """Save the trained model, and its heads if configured; every rank must call it."""
        step = last_step
        if self._config.checkpoint.export == "best":
            if selection.best is None:
                warn(f"exporting the last step: none has a score of {selection.metric}")
            else:
                step = selection.best.step
                note(f"exporting step {step}, the best by {selection.metric}")
        # The last step's weights are spread over ranks; those of other steps are in a file.
        weights = engine.full_weights() if step == last_step else {}

        def write() -> None:
            full = weights or read_tensors(self._store.at(step).path / WEIGHTS_FILE)
            learned = take_learned(full)
            config = self._config.model_dump(mode="json")
            origin = {"data": self._origin["data"], "origin": self._origin}
            provenance = {"config": config, **origin, "step": step}
            pretrained.config.provenance |= learned_numbers(self._config, learned) | provenance
            save_pretrained(self.model, full, pretrained.tokenizer, pretrained.config)
            if self._config.checkpoint.keep_heads:
                prefix = head_name("")
                by_task = {name.removeprefix(prefix): learned[name] for name in learned}
                save_heads(self.model, by_task, heads)

        distributed.on_main(write)

    def callbacks(
        self,
        scores: Callable[[], dict[str, float]] | None,
        module: TrainModule,
        selection: Selection,
        first_step: int,
        steps: int,
    ) -> list[Callback]:
        """Return the callbacks in order: dev scores before those that report them."""
        config = self._config
        callbacks: list[Callback] = []
        if scores is not None:
            callbacks.append(DevScores(scores, config.dev.every, steps))
        callbacks.append(selection)
        if distributed.is_main():
            callbacks.append(Console(first_step, steps, config.log.every))
            callbacks.append(MetricsFile(self.path / METRICS, first_step))
            if config.log.tensorboard:
                board = self.path / "tensorboard"
                callbacks.append(TensorBoard(board, first_step, config.log.every, steps))
            if config.log.tracker is not None:
                tracker = Tracker(
                    config.log.tracker,
                    self.path,
                    config.log.project,
                    every=config.log.every,
                    steps=steps,
                    config=config.model_dump(mode="json"),
                )
                callbacks.append(tracker)

        def save(step: int) -> None:
            best = selection.best.step if selection.best and config.checkpoint.keep_best else None
            info = self._state | {"selection": selection.state, "weighting": module.weighting.state}
            self._store.save(step, module.engine.save, info, best)

        every = config.checkpoint.every
        callbacks.append(Checkpoints(save, every, steps, selection.wants_checkpoint))
        return callbacks


def load_step(run: Path | str, step: int) -> Pretrained:
    """Load a run's model as it was after ``step``, whose checkpoint is kept, in float32.

    The run may have finished or not, on any number of ranks and under any ZeRO stage. Until it
    has finished, its base model must still exist.

    Raises
    ------
    CheckpointError
        If there is no such run or checkpoint, it is damaged, or the base has changed.
    """
    run = Path(run)
    if not (run / CONFIG_NAME).is_file():
        problem = "folder is not a run" if run.is_dir() else "folder does not exist"
        raise CheckpointError(
            problem, path=run, fix="name the folder that holds config.yaml and checkpoints"
        )
    config = load_config(PretrainConfig, run / CONFIG_NAME)
    checkpoint = CheckpointStore(run / CHECKPOINTS, config.checkpoint.keep).at(step)
    exported = (run / MODEL_NAME / "config.json").is_file()
    described = load_pretrained(run) if exported else build.build_model(config)
    if others := differing(checkpoint.info, reading_of(described)):
        raise CheckpointError(
            f"the run's base has another {' and '.join(others)} than at this step",
            path=config.model.base or config.model.tokenizer,
            fix="restore what the run started from",
        )
    model = Encoder(described.config.encoder)
    weights = read_tensors(checkpoint.path / WEIGHTS_FILE)
    learned = learned_numbers(config, take_learned(weights))
    load_strictly(model, weights, checkpoint.path)
    described.config.provenance |= {
        "config": config.model_dump(mode="json"),
        "data": checkpoint.info.get("data"),
        "step": step,
        **learned,
    }
    return Pretrained(model.eval(), described.tokenizer, described.config)
