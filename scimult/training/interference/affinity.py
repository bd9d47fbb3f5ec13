"""Measure which tasks help each other when trained together.

SciRepEval, appendix H and Table 11 (appendix G and Table 9 in its first version): the same model
is trained on each task alone, on each pair of tasks and on all tasks, and each of these models is
scored on every task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from scimult.checkpoints import Pretrained, load_pretrained
from scimult.checkpoints.weights import digest_of
from scimult.data.pairs import PairFile
from scimult.data.targets import TargetFile
from scimult.data.teacher import scored_share
from scimult.errors import ConfigError
from scimult.files import read_json, write_json
from scimult.progress import note
from scimult.training.build import build_model
from scimult.training.config import DataConfig, DevConfig, PretrainConfig
from scimult.training.curriculum import check_folder
from scimult.training.dev import mean_reciprocal_rank
from scimult.training.fitting import learns, uses_default_loss
from scimult.training.loss_config import LOSS_OPTIONS, LossConfig
from scimult.training.origin import origin_of
from scimult.training.plan import RunPlan, plan_run
from scimult.training.run import pretrain
from scimult.training.stages import Stage

_START = "start.json"
# Keys of the loss of all tasks that loss.by_task does not name.
_DEFAULT_LOSS = {"name"}.union(*LOSS_OPTIONS.values())


def only_tasks(config: PretrainConfig, plan: RunPlan, tasks: Collection[str]) -> PretrainConfig:
    """Return the configuration of a run restricted to some of its tasks.

    The remaining sources keep the ratios of their shares. Settings that have nothing left to act
    on, which a run would refuse, are dropped. ``plan`` is that of ``config``.
    """
    mixture = config.model_copy(deep=True)
    sources = [source for source in plan.sources if source.task in tasks]
    names = {name for source in sources for name in (source.name, source.source, source.task)}
    data = mixture.data
    data.sources = [source.name for source in sources]
    data.rates = {name: rate for name, rate in data.rates.items() if name in names}
    if _ignores_sizes(data, sources):
        data.sampling_temperature = 1.0
    if isinstance(data.hard_negatives, list):
        data.hard_negatives = [task for task in data.hard_negatives if task in tasks] or False
    # The score by which the run selects steps may be of another task.
    mixture.dev.metric, mixture.dev.patience = DevConfig().metric, None
    mixture.checkpoint.export, mixture.checkpoint.keep_best = "last", False
    loss = _loss_of(config.loss, plan, sources)
    mixture.checkpoint.keep_heads &= bool(loss.heads)
    if not learns(loss, tasks):
        mixture.optimizer.learned_lr = None
    mixture.loss = loss
    return mixture


def _loss_of(
    loss: LossConfig, plan: RunPlan, sources: Sequence[PairFile | TargetFile]
) -> LossConfig:
    """Return what is left of a loss for some of its sources."""
    tasks = {source.task for source in sources}
    pairs = [source for source in sources if isinstance(source, PairFile)]
    tree = loss.model_dump()
    tree["by_task"] = {task: own for task, own in tree["by_task"].items() if task in tasks}
    weights = {task: weight for task, weight in plan.loss_weights.items() if task in tasks}
    tree["weights"] = weights if loss.weights and len(set(weights.values())) > 1 else {}
    if not uses_default_loss(loss, tasks):
        tree = {key: value for key, value in tree.items() if key not in _DEFAULT_LOSS}
    if loss.weighting == "gradnorm" and len(tasks) == 1:
        tree |= {"weighting": "fixed", "gradnorm_alpha": None}
    teacher, scores = loss.embedding_teacher, plan.teacher
    if teacher is not None:
        following = [task for task in tasks if teacher.tasks is None or task in teacher.tasks]
        if not any(file.view is None and file.task in following for file in pairs):
            tree["embedding_teacher"] = None
        elif teacher.tasks is not None:
            tree["embedding_teacher"]["tasks"] = sorted(following)
    if scores is not None and not any(scored_share(scores, file) for file in pairs):
        tree["distillation"] = None
    return LossConfig.model_validate(tree)


def _ignores_sizes(data: DataConfig, sources: Sequence[PairFile | TargetFile]) -> bool:
    """Return whether each source has a share of its own, whatever its size (`sampling_rates`)."""
    groups = {
        "equal": len(sources),
        "equal_tasks": len({source.task for source in sources}),
        "explicit": len(data.rates),
    }
    return groups.get(data.sampling, 1) == len(sources)


@dataclass(frozen=True)
class AffinityRow:
    """The tasks that a model was trained on, and its score on every task.

    ``scores`` are mean reciprocal ranks, averaged over the dev sets of a task; the row with empty
    ``trained_on`` is the initial model.
    """

    trained_on: tuple[str, ...]
    scores: dict[str, float]

    @property
    def mean(self) -> float:
        """Mean over tasks."""
        return sum(self.scores.values()) / len(self.scores)


def combinations_of(tasks: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each task, each pair, and all tasks, in the order of the table."""
    all_tasks = tuple(tasks)
    groups = [group for size in (1, 2) for group in combinations(all_tasks, size)]
    return groups if all_tasks in groups else [*groups, all_tasks]


def affinity_runs(
    config: PretrainConfig, plan: RunPlan, tasks: Sequence[str], steps: int, folder: Path
) -> dict[tuple[str, ...], PretrainConfig]:
    """Return the run of each combination of tasks, all checked before the first one trains.

    Each keeps the sources of its tasks, the ratios of their shares, batches and optimizer of
    ``config``, and trains for ``steps`` in a sub-folder of ``folder``.

    Raises
    ------
    SciMultError
        If there are no dev pairs to score with, a run cannot be planned, or its folder holds
        another one.
    """
    if not plan.dev_sets:
        raise ConfigError(
            "affinity scores models on dev pairs, but the sources have none",
            path=plan.data.folder,
            fix="prepare with dev pairs, or leave --affinity-steps out",
        )
    start, runs = build_model(config), {}
    for group in combinations_of(tasks):
        run = only_tasks(config, plan, group)
        run.output = str(folder / "+".join(group))
        run.schedule = run.schedule.model_copy(update={"steps": steps, "epochs": None})
        run.checkpoint.every, run.dev.every = steps, 0
        stage = Stage("+".join(group), run)
        check_folder(stage, [stage], origin_of(plan_run(run), start))
        runs[group] = run
    return runs


def train_affinity(
    config: PretrainConfig,
    plan: RunPlan,
    runs: Mapping[tuple[str, ...], PretrainConfig],
    folder: Path,
    device: torch.device | None = None,
) -> list[AffinityRow]:
    """Train all combinations of tasks from ``model.base`` and score them; skip finished runs.

    ``runs`` are those of `affinity_runs` in ``folder``. The dev sets of ``plan`` score every
    model, on ``device``, by default the CPU.

    Raises
    ------
    ConfigError
        If ``folder`` has runs that started from other weights.
    """

    def scores(pretrained: Pretrained) -> dict[str, float]:
        pretrained.model.to(device or torch.device("cpu"))
        return _scores(config, plan, pretrained)

    start = build_model(config)
    weights = check_start(folder, start)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _START, weights)
    rows = [AffinityRow((), scores(start))]
    for group, run in runs.items():
        note(f"training on {', '.join(group)}")
        rows.append(AffinityRow(group, scores(load_pretrained(pretrain(run)))))
    return rows


def check_start(folder: Path, start: Pretrained) -> dict[str, str]:
    """Refuse to mix runs that started from different weights in one table; return the digest.

    Raises
    ------
    ConfigError
        If ``folder`` has runs that started from others than those of ``start``.
    """
    path, weights = folder / _START, {"weights": digest_of(start.model.state_dict())}
    if path.is_file() and read_json(path) != weights:
        raise ConfigError(
            "the runs here started from other weights",
            path=folder,
            fix="remove this folder to train them again, or choose another --out",
        )
    return weights


def _scores(config: PretrainConfig, plan: RunPlan, pretrained: Pretrained) -> dict[str, float]:
    tokens = plan.data.tokens(pretrained.tokenizer, config.data.max_length)
    by_task: dict[str, list[float]] = {}
    for dev_set in plan.dev_sets:
        score = mean_reciprocal_rank(
            pretrained.model,
            dev_set,
            tokens,
            routes=pretrained.routes(dev_set.task),
            similarity=config.model.similarity,
            max_length=config.data.max_length,
        )
        by_task.setdefault(dev_set.task, []).append(score)
    return {task: sum(scores) / len(scores) for task, scores in by_task.items()}
