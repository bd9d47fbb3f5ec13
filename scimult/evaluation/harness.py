"""Evaluate systems on a suite: read each data set once, rank, score, write results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from scimult import distributed
from scimult.data.records import Rejects
from scimult.errors import ConfigError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.clustering import write_official_input
from scimult.evaluation.contamination import Contamination
from scimult.evaluation.datasets import missing_files, read_dataset
from scimult.evaluation.growing import Earlier, GrowingResult
from scimult.evaluation.per_query import write_per_query
from scimult.evaluation.protocols import PROTOCOLS, WITH_NAMES, Outcome, function_of, rules_of
from scimult.evaluation.results import Result, SetFacts, SetResult, folder_of
from scimult.evaluation.suites import Suite
from scimult.evaluation.systems import EmbeddingSystem, System
from scimult.evaluation.task_data import Dataset, Signatures, TaskData
from scimult.files import sha256
from scimult.retrieval.runs import write_run


@dataclass(frozen=True)
class LoadedSet:
    """A benchmark, its data, and the facts that results state about them."""

    benchmark: Benchmark
    dataset: TaskData
    facts: SetFacts


def load_sets(
    suite: Suite, root: Path, names: Sequence[str] = (), *, skip_bad: bool = False
) -> dict[str, LoadedSet]:
    """Read the named benchmarks of a suite (none named: all) before anything is encoded.

    Raises
    ------
    DataError
        If data is missing or bad; see `scimult.evaluation.datasets`.
    UnknownNameError
        If the suite has no benchmark of that name.
    """
    loaded = {}
    for name, benchmark in suite.select(names).items():
        rejects = Rejects(skip_bad)
        dataset = read_dataset(name, benchmark, root, suite.how_to_get, rejects)
        base = _base(benchmark, root)
        facts = SetFacts(
            task=benchmark.task,
            protocol=benchmark.protocol,
            rules=rules_of(benchmark),
            mode=benchmark.mode,
            average=benchmark.average,
            main_metric=benchmark.main_metric,
            columns=benchmark.columns,
            group=benchmark.group,
            counts=dataset.counts,
            left_out=dict(rejects.counts),
            remarks=dataset.remarks,
            files={os.path.relpath(path, base): sha256(path) for path in dataset.files},
        )
        loaded[name] = LoadedSet(benchmark, dataset, facts)
    return loaded


def has_files(benchmark: Benchmark, root: Path, digests: Mapping[str, str]) -> bool:
    """Return whether a benchmark's files have these SHA-256, by their paths in `SetFacts`."""
    paths = {_base(benchmark, root) / name: digest for name, digest in digests.items()}
    return all(path.is_file() and _digest(path, *_version(path)) == paths[path] for path in paths)


def _base(benchmark: Benchmark, root: Path) -> Path:
    """Return the folder to which the paths of a benchmark's files are relative."""
    # A folder with an address of its own is the same from wherever and with whatever --data.
    own = Path(benchmark.folder)
    return own.parent if own.is_absolute() else root


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4096)
def _digest(path: Path, size: int, modified: int) -> str:
    """Return the SHA-256 of a file, read once per version."""
    return sha256(path)


def missing_sets(suite: Suite, root: Path, names: Sequence[str] = ()) -> dict[str, str]:
    """Return the named benchmarks (none named: all) whose data is missing, and what is missing.

    Raises
    ------
    UnknownNameError
        If the suite has no benchmark of that name.
    """
    missing = {
        name: missing_files(benchmark, root) for name, benchmark in suite.select(names).items()
    }
    return {
        name: "its data is missing: " + ", ".join(str(path) for path in paths)
        for name, paths in missing.items()
        if paths
    }


def evaluate(
    system: System,
    suite: Suite,
    sets: Mapping[str, LoadedSet],
    out: Path,
    *,
    earlier: Earlier = "merge",
    missing: Mapping[str, str] | None = None,
    save_runs: bool = False,
    confidence: float | None = None,
    contamination: Mapping[str, Contamination] | None = None,
    on_set: Callable[[str, SetResult | Exception | None], None] = lambda name, result: None,
) -> Result:
    """Score one system on loaded sets and write its files below ``out``, set by set.

    A failing set does not stop the others: the result lists it under ``failed``.

    Parameters
    ----------
    earlier : {"merge", "resume", "replace"}
        How to treat an existing result; see `scimult.evaluation.growing`.
    missing : mapping, optional
        Sets that cannot be scored to the reason, for the result.
    save_runs : bool
        Also write the ranked lists as TREC runs.
    confidence : float, optional
        Also compute an interval of every new score.
    contamination : mapping, optional
        Each set's overlap with training data; recorded also for sets that are not scored again.
    on_set : callable
        Called with each set's result as soon as it is known, or None if the earlier one is kept;
        at the end, with the error of each failed set.

    Raises
    ------
    ConfigError
        If the system can score no set, or its name is taken.
    Exception
        The first error, if no set could be scored.
    """
    as_json = suite.model_dump(mode="json")
    growing = GrowingResult(system.name, system.describe(), as_json, out, earlier, confidence)
    for name, reason in (missing or {}).items():
        growing.leave_out(name, reason)
    errors: dict[str, Exception] = {}
    scored = False
    for name, entry in sets.items():
        if growing.has(name, entry.facts) and not (save_runs and _lacks_run(system, entry, out)):
            scored = True
            if audited := (contamination or {}).get(name):
                before = growing.result.sets[name]
                growing.add(name, before.model_copy(update={"contamination": audited}))
            on_set(name, None)
        elif needs_embeddings(entry) and not isinstance(system, EmbeddingSystem):
            growing.leave_out(name, "needs paper embeddings, which this system does not have")
        else:
            try:
                new = _scored(system, name, entry, out, save_runs, growing)
                audited = (contamination or {}).get(name)
                added = growing.add(name, new.model_copy(update={"contamination": audited}))
            except Exception as error:
                errors[name] = error
                growing.fail(name, str(error) or type(error).__name__)
            else:
                scored = True
                on_set(name, added)
    if not scored:
        fix = "evaluate a text encoder, or choose other sets"
        problem, value = f"{system.name} can score no set", growing.result.not_scored
        raise next(iter(errors.values()), ConfigError(problem, value=value, fix=fix))
    for name, failure in errors.items():
        on_set(name, failure)
    return growing.result


def _scored(
    system: System, name: str, entry: LoadedSet, out: Path, save_runs: bool, growing: GrowingResult
) -> SetResult:
    """Score one set; write its per-query scores and, if requested, its lists."""
    start = time.perf_counter()
    loaded = routed(entry, system)
    outcome = _outcome(system, loaded)
    seconds = round(time.perf_counter() - start, 3)
    growing.begin(name, entry.facts)
    write_per_query(out, system.name, name, loaded.dataset.query_ids, outcome.per_query)
    # Writing the embeddings of S2AND looks all up again, which costs nothing.
    cost = system.costs.get(name, {})
    folder = folder_of(out, system.name)
    # Lists of an earlier scoring would be taken for this one's.
    for path in _run_files(folder, name):
        path.unlink(missing_ok=True)
    if save_runs:
        _write_runs(folder, name, loaded, outcome, system)
    return SetResult(
        **loaded.facts.model_dump(),
        scores=outcome.scores,
        details=outcome.details,
        resampled=outcome.resampled,
        encoded_as=_encoded_as(entry, system),
        seconds=seconds,
        cost=cost,
    )


def encode_on_all_ranks(system: System, sets: Mapping[str, LoadedSet]) -> None:
    """Let every rank encode a share of all distinct texts into the system's store.

    Does nothing on a single rank or for a system without a store: texts are then encoded when
    needed.
    """
    if distributed.world_size() > 1:
        system.share(routed(loaded, system).dataset for loaded in sets.values())


def routed(loaded: LoadedSet, system: System) -> LoadedSet:
    """Return the set with the task for which the system encodes its texts."""
    task = _encoded_as(loaded, system)
    return loaded if task is None else replace(loaded, dataset=replace(loaded.dataset, task=task))


def _encoded_as(loaded: LoadedSet, system: System) -> str | None:
    """Return the task the system chose, if the set offers a fallback."""
    fallback = loaded.benchmark.fallback_task
    return None if fallback is None else system.task_for(loaded.benchmark.task, fallback)


def needs_embeddings(loaded: LoadedSet) -> bool:
    """Return whether the protocol fits or clusters embeddings instead of ranking."""
    return not PROTOCOLS[loaded.benchmark.protocol].ranks


def _outcome(system: System, loaded: LoadedSet) -> Outcome:
    score, dataset = function_of(loaded.benchmark.protocol), loaded.dataset
    if isinstance(dataset, Dataset):
        return score(loaded.benchmark, dataset, system.ranker(dataset))
    assert isinstance(system, EmbeddingSystem), "checked before"
    return score(loaded.benchmark, dataset, system.paper_embeddings(dataset))


def _run_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a set that `_write_runs` may write, the main one first."""
    runs = [folder / "runs" / f"{name}{kind}.run" for kind in ("", WITH_NAMES)]
    return [*runs, folder / "s2and" / f"{name}.pickle"]


def _lacks_run(system: System, entry: LoadedSet, out: Path) -> bool:
    """Return whether the ranked lists of a set of rankings were not saved."""
    run, *_ = _run_files(folder_of(out, system.name), entry.dataset.name)
    has_lists = entry.benchmark.protocol != "reviewer_matching" and not needs_embeddings(entry)
    return has_lists and not run.exists()


def _write_runs(
    folder: Path, name: str, loaded: LoadedSet, outcome: Outcome, system: System
) -> None:
    """Write ranked lists as TREC runs, and embeddings of S2AND as that project reads them."""
    dataset = loaded.dataset
    if isinstance(dataset, Dataset):
        for kind, ranking in outcome.rankings.items():
            path = folder / "runs" / f"{name}{kind}.run"
            write_run(path, ranking, dataset.query_ids, dataset.candidate_ids, folder.name)
    elif isinstance(dataset, Signatures) and isinstance(system, EmbeddingSystem):
        path = folder / "s2and" / f"{name}.pickle"
        write_official_input(path, dataset, system.paper_embeddings(dataset))
