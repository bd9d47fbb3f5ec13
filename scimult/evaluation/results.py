"""A result is a file with its provenance: scores, settings, data, code and machine.

``<out>/<system>/result.json`` holds what tables need, ``<out>/<system>/per_query/`` the scores of
every query (`scimult.evaluation.per_query`), and ``<out>/<system>/runs/<set>.run``, if
requested, the ranked lists.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError, model_validator

import scimult
from scimult.config import StrictConfig
from scimult.errors import ConfigError, DataError
from scimult.evaluation.contamination import Contamination
from scimult.files import read_json, write_json

LIBRARIES = ("torch", "numpy", "transformers", "tokenizers", "bm25s", "pydantic", "scikit-learn")

MACRO = "macro"
"""Name of the mean of the group averages."""
_LONGEST_NAME = 255  # bytes of a folder's name
_MOST = 1 + 1e-9  # means of ones are not exact
Score = Annotated[float, Field(ge=-_MOST, le=_MOST)]
CostKind = Literal["texts", "tokens", "encode_seconds", "index_bytes"]


class SetFacts(StrictConfig):
    """What was scored: only results that agree on it can be compared.

    ``counts`` are of queries, candidates and relevant pairs, ``left_out`` of the records that
    ``--skip-bad`` left out, by reason, and ``remarks`` of further caveats, such as a query with
    nothing relevant that counts as 0. ``files`` maps names, relative to the data folder, to their
    SHA-256. ``rules`` are those of `scimult.evaluation.protocols.rules_of`; results of earlier
    versions have none, which is 1. The other fields are as in the suite.
    """

    task: str
    protocol: str
    rules: int = 1
    mode: str
    average: str = "queries"
    main_metric: str
    columns: dict[str, list[str]] = {}
    group: str | None = None
    counts: dict[str, int]
    left_out: dict[str, int]
    remarks: dict[str, int] = {}
    files: dict[str, str]


class SetResult(SetFacts):
    """Scores of one system on one data set.

    Attributes
    ----------
    scores : dict
        Metric to its value in [0, 1]; correlations in [-1, 1].
    seconds : float
        Time to encode and rank.
    intervals : dict
        Metric to the ends of its bootstrap interval; empty unless requested.
    cost : dict
        The set's cost, as far as known: ``texts`` and ``tokens`` encoded, ``encode_seconds``, and
        ``index_bytes`` that search keeps of the candidates.
    encoded_as : str, optional
        The task used for encoding, where the suite gives a fallback.
    details : dict
        Other findings of the protocol: the chosen C, scores by group.
    provenance : dict, optional
        Of the run that scored the set, if earlier than the result's own.
    resampled : list of str, optional
        Metrics whose per-query scores can be resampled: means over queries, and macro F1 of one
        label per paper. None in older results, where all can.
    contamination : Contamination, optional
        The set's overlap with the training data given to ``--audit``.
    """

    scores: dict[str, Score]
    seconds: float
    intervals: dict[str, tuple[float, float]] = {}
    cost: dict[CostKind, float] = {}
    encoded_as: str | None = None
    details: dict[str, Any] = {}
    provenance: dict[str, Any] | None = None
    resampled: list[str] | None = None
    contamination: Contamination | None = None

    @model_validator(mode="after")
    def _has_its_columns(self) -> SetResult:
        names = {self.main_metric, *chain.from_iterable(self.columns.values())}
        if lacking := sorted(names - self.scores.keys()):
            raise ValueError(f"scores lack {lacking[0]}")
        return self

    @property
    def resampled_metrics(self) -> list[str]:
        """Metrics with per-query scores, as intervals and tests need."""
        return list(self.scores) if self.resampled is None else self.resampled

    @property
    def main_score(self) -> float:
        """The main metric's score."""
        return self.scores[self.main_metric]

    @property
    def has_samples(self) -> bool:
        """Whether the main metric has per-query scores."""
        return self.main_metric in self.resampled_metrics

    @property
    def averaged(self) -> list[float]:
        """Scores that enter averages: the main metric, or one mean per column."""
        if not self.columns:
            return [self.main_score]
        return [
            sum(self.scores[name] for name in names) / len(names) for names in self.columns.values()
        ]

    @property
    def facts(self) -> SetFacts:
        """What was scored, without scores and time."""
        return SetFacts(**self.model_dump(include=set(SetFacts.model_fields)))


class Result(StrictConfig):
    """Scores of one system on a suite, and everything needed to reproduce them.

    ``not_scored`` maps the sets without scores, and ``failed`` those whose last scoring failed,
    to the reason. ``suite`` describes every set as scored.
    """

    format: Literal["scimult-evaluation/1"] = "scimult-evaluation/1"
    system: str
    settings: dict[str, Any]
    suite: dict[str, Any]
    sets: dict[str, SetResult]
    not_scored: dict[str, str] = {}
    failed: dict[str, str] = {}
    averages: dict[str, float]
    provenance: dict[str, Any]

    @property
    def facts(self) -> dict[str, SetFacts]:
        """What was scored, per data set."""
        return {name: entry.facts for name, entry in self.sets.items()}


def averages(sets: Mapping[str, SetResult]) -> dict[str, float]:
    """Return the mean column of each task's and each group's sets, and of all sets as ``all``.

    A set's column is its main metric, unless the benchmark names others. Where every set is in
    one of several groups, ``macro`` is the mean of the group averages.
    """
    tasks: dict[str, list[float]] = {}
    groups: dict[str, list[float]] = {}
    for entry in sets.values():
        tasks.setdefault(entry.task, []).extend(entry.averaged)
        if entry.group is not None:
            groups.setdefault(entry.group, []).extend(entry.averaged)
    everything = [score for scores in tasks.values() for score in scores]
    parts = {**tasks, **groups, "all": everything}
    means = {name: sum(scores) / len(scores) for name, scores in parts.items()}
    if len(groups) > 1 and all(entry.group is not None for entry in sets.values()):
        means[MACRO] = sum(means[name] for name in groups) / len(groups)
    return means


def provenance() -> dict[str, Any]:
    """Return code, command, time and machine of this process.

    ``seed`` is null because scoring uses no random numbers.
    """
    return {
        "command": sys.argv,
        "date": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "seed": None,
        "scimult": scimult.__version__,
        "git": _git_state(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "hardware": {
            "platform": platform.platform(),
            "processor": _processor(),
            "threads": torch.get_num_threads(),
            "gpus": [
                torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
            ],
        },
    }


def folder_of(out: Path, system: str) -> Path:
    """Return the folder of a system's files; raise a ConfigError if its name is no folder name."""
    if not re.fullmatch(r"\w[\w.+-]*", system) or len(system.encode()) > _LONGEST_NAME:
        fix = f"use letters, digits, . _ + -, up to {_LONGEST_NAME} bytes"
        raise ConfigError("not a valid system name", value=system, fix=fix)
    return out / system


def save_result(result: Result, out: Path) -> Path:
    """Write ``result.json`` of a system, atomically; return its path."""
    path = folder_of(out, result.system) / "result.json"
    write_json(path, result.model_dump(mode="json"))
    return path


def load_result(path: Path) -> Result:
    """Read a system's ``result.json``; raise a DataError if it is not one."""
    try:
        result = Result.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        problem = f"not a result of scimult evaluate: {key}: {first['msg']}"
        fix = "delete it and evaluate the system again"
        raise DataError(problem, path=path, value=first["input"], fix=fix) from error
    suite, git = result.suite, result.provenance.get("git")
    known = {
        "suite.name": isinstance(suite.get("name"), str),
        "suite.description": isinstance(suite.get("description", ""), str),
        "suite.benchmarks": isinstance(suite.get("benchmarks"), dict),
        "provenance.git": git is None
        or (isinstance(git, dict) and isinstance(git.get("commit"), str) and "modified" in git),
        "provenance.hardware": isinstance(result.provenance.get("hardware", {}), dict),
    }
    if damaged := [key for key, fits in known.items() if not fits]:
        problem = f"not a result of scimult evaluate: {damaged[0]} is missing or of another type"
        raise DataError(problem, path=path, fix="delete it and evaluate the system again")
    return result


def require_results(out: Path) -> list[Result]:
    """Read all results below ``out``, oldest first; raise a DataError if there is none."""
    results = load_results(out)
    if not results:
        raise DataError("no results in this folder", path=out, fix="run scimult evaluate first")
    return results


def load_results(out: Path) -> list[Result]:
    """Read all results below ``out``, oldest first.

    Raises
    ------
    DataError
        If a file is not a result.
    """
    results = []
    for path in sorted(out.glob("*/result.json")):
        try:
            results.append(load_result(path))
        except DataError:
            # Another process may be scoring a system anew.
            if path.exists():
                raise
    return sorted(results, key=lambda result: str(result.provenance.get("date", "")))


def _git_state() -> dict[str, Any] | None:
    """Return the commit and whether tracked files differ from it; None outside a checkout."""
    root = Path(scimult.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        call = ["git", "-C", str(root), *arguments]
        return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "modified": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
