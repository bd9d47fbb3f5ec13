"""MTEB tasks as a suite: MTEB scores them, and its numbers become a result.

MTEB keeps its own files in its result cache; this module converts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from scimult.config import StrictConfig
from scimult.errors import DataError
from scimult.evaluation.growing import GrowingResult
from scimult.evaluation.results import CostKind, Result, SetResult
from scimult.reach import offline_if_cut_off

NAME = "mteb"
_EMPTY = "texts without a word, encoded as a full stop"
# Reported next to a task's main metric where MTEB has them: papers on these sets print them.
FURTHER_METRICS = ("ndcg_at_10", "recall_at_5", "recall_at_20", "recall_at_100", "f1")


class Encoder(Protocol):
    """What an encoder must have beyond MTEB's own interface."""

    @property
    def work(self) -> Mapping[str, Any]:
        """Task name to the ``texts``, ``tokens`` and ``encode_seconds`` it cost."""

    def route(self, task_metadata: Any, prompt_type: Any = None) -> tuple[str, Any]:
        """Return our task and the side."""


class MtebSet(StrictConfig):
    """One MTEB task: our task that routes its texts, its data on the hub, the parts averaged."""

    task: str
    protocol: Literal["mteb"] = "mteb"
    type: str
    main_metric: str
    source: str
    revision: str
    subsets: list[str]
    splits: list[str]


class MtebSuite(StrictConfig):
    """The requested tasks."""

    name: str = NAME
    description: str = "tasks of MTEB, scored by MTEB"
    how_to_get: str = "MTEB downloads the data from the hub"
    benchmarks: dict[str, MtebSet]


def make_suite(encoder: Encoder, tasks: Iterable[Any]) -> MtebSuite:
    """Describe MTEB tasks as a suite."""
    return MtebSuite(
        benchmarks={
            task.metadata.name: MtebSet(
                task=encoder.route(task.metadata)[0],
                type=task.metadata.type,
                main_metric=as_ours(task.metadata.main_score),
                source=task.metadata.dataset["path"],
                revision=task.metadata.dataset["revision"],
                subsets=list(task.hf_subsets),
                splits=list(task.eval_splits),
            )
            for task in tasks
        }
    )


def score(
    system: str,
    settings: Mapping[str, Any],
    encoder: Encoder,
    tasks: Sequence[Any],
    out: Path,
    cache: Path,
    *,
    again: bool = False,
    on_task: Callable[[str, SetResult | Exception], None] = lambda name, result: None,
) -> Result:
    """Let MTEB score the tasks, and write its numbers below ``out`` task by task.

    A failing task does not stop the others: the result lists it under ``failed``, and ``on_task``
    is called with its error, else with the scores. ``settings`` are what scores depend on,
    ``cache`` is the folder of MTEB's result cache, and ``again`` scores cached tasks again.

    Raises
    ------
    ConfigError
        If ``out`` has a result of another model of this name, or of another suite.
    Exception
        The first error, if no task could be scored.
    """
    import mteb

    suite = make_suite(encoder, tasks)
    as_json = suite.model_dump(mode="json")
    growing = GrowingResult(system, {"kind": NAME, **settings}, as_json, out)
    results = mteb.ResultCache(cache_path=cache)
    mteb_encoder: Any = encoder  # MTEB's type demands more than is used here
    options: Any = {"batch_size": 1024}
    errors = []

    def scored(task: Any, overwrite: str) -> dict[str, Any]:
        with offline_if_cut_off(task.metadata.dataset["path"], "dataset"):
            evaluated = mteb.evaluate(
                mteb_encoder,
                task,
                cache=results,
                overwrite_strategy=overwrite,
                encode_kwargs=options,
                show_progress_bar=False,
            )
        task_result: dict[str, Any] = evaluated.task_results[0].to_dict()
        return task_result

    for task in tasks:
        name = task.metadata.name
        try:
            task_result = scored(task, "always" if again else "only-missing")
            if task_result["dataset_revision"] != suite.benchmarks[name].revision:
                # MTEB keeps whole results of other data; an update may have changed a task's.
                task_result = scored(task, "always")
            entry = set_result(task_result, suite.benchmarks[name])
            before = growing.result.sets.get(name)
            counts = _counts(task.metadata.descriptive_stats or {}, suite.benchmarks[name])
            measured = _measured(encoder.work.get(name), entry, before)
            entry = entry.model_copy(update={"counts": counts, **measured})
        except Exception as error:  # data sets fail in many ways
            failure = error if task.data_loaded else _no_data(task, error)
            errors.append(failure)
            growing.fail(name, str(failure) or type(failure).__name__)
            if len(tasks) > 1:
                on_task(name, failure)
        else:
            on_task(name, growing.add(name, entry))
    if len(errors) == len(tasks):
        raise errors[0]
    return growing.result


def set_result(task_result: Mapping[str, Any], entry: MtebSet) -> SetResult:
    """Convert MTEB's result of a task (its JSON).

    A score is the mean over the splits and subsets of ``entry``, as MTEB's own is.

    Raises
    ------
    DataError
        If a split or subset is missing.
    """
    parts = {
        f"{split}/{subset}": scores
        for split in entry.splits
        for subset in entry.subsets
        for scores in task_result["scores"].get(split, ())
        if scores["hf_subset"] == subset
    }
    wanted = len(entry.splits) * len(entry.subsets)
    if len(parts) < wanted:
        problem = f"MTEB's result of {task_result['task_name']} has {len(parts)} of {wanted} parts"
        raise DataError(problem, value=sorted(parts), fix="score the task again (--again)")
    scores = {entry.main_metric: _mean(parts, "main_score")}
    for name in FURTHER_METRICS:
        if as_ours(name) not in scores and all(name in part for part in parts.values()):
            scores[as_ours(name)] = _mean(parts, name)
    details: dict[str, Any] = {"mteb": task_result["mteb_version"]}
    if len(parts) > 1:
        details["by_part"] = {key: part["main_score"] for key, part in parts.items()}
    return SetResult(
        task=entry.task,
        protocol=entry.protocol,
        mode="default",
        main_metric=entry.main_metric,
        group=f"MTEB {entry.type}",
        counts={},
        left_out={},
        files={entry.source: entry.revision},
        scores=scores,
        seconds=round(task_result["evaluation_time"] or 0.0, 3),
        details=details,
        resampled=[],
    )


def as_ours(measure: str) -> str:
    """Return our name of an MTEB metric: ``recall@20`` for ``recall_at_20``."""
    name, at, depth = measure.partition("_at_")
    return f"{name}@{depth}" if at and depth.isdecimal() else measure


def _mean(parts: Mapping[str, Mapping[str, Any]], name: str) -> float:
    return float(sum(part[name] for part in parts.values()) / len(parts))


def _measured(work: Any, entry: SetResult, before: SetResult | None) -> dict[str, Any]:
    """Return what encoding cost in this or the earlier scoring, and how many texts were empty.

    Neither is known of a score from MTEB's cache, so they are no facts of the set.
    """
    if work is None:
        if before is None:
            return {"cost": {}, "details": entry.details}
        empty = {name: count for name, count in before.details.items() if name == _EMPTY}
        return {"cost": before.cost, "details": {**entry.details, **empty}}
    kinds: tuple[CostKind, ...] = ("texts", "tokens", "encode_seconds")
    empty = {_EMPTY: work.empty} if work.empty else {}
    cost = {kind: float(getattr(work, kind)) for kind in kinds}
    return {"cost": cost, "details": {**entry.details, **empty}}


def _counts(published: Mapping[str, Any], entry: MtebSet) -> dict[str, int]:
    """Return queries, candidates and relevant pairs of all parts; 0 where MTEB has no count."""
    parts: list[Mapping[str, Any]] = []
    for split in entry.splits:
        whole = published.get(split, {})
        by_subset = whole.get("hf_subset_descriptive_stats")
        parts += [by_subset[subset] for subset in entry.subsets] if by_subset else [whole]

    def total(kind: str, key: str) -> int:
        return sum((part.get(kind) or {}).get(key, 0) for part in parts)

    queries = total("queries_text_statistics", "unique_texts")
    return {
        "queries": queries or sum(part.get("num_samples", 0) for part in parts),
        "candidates": total("documents_text_statistics", "unique_texts"),
        "relevant": total("relevant_docs_statistics", "num_relevant_docs"),
    }


def _no_data(task: Any, error: Exception) -> DataError:
    """Return the error for data that MTEB could not load."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return DataError(
        f"MTEB cannot load the data of {task.metadata.name} ({task.metadata.dataset['path']}): "
        f"{type(error).__name__}: {lines[0]}",
        fix="check the connection and $HF_HOME, then run the command again",
    )
