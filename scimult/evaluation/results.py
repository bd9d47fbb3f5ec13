"""A result is a file with its provenance: scores, settings, data, code and machine.

``<out>/<system>/result.json`` holds what tables need, ``<out>/<system>/per_query/`` the scores of
every query (:mod:`scimult.evaluation.per_query`), and ``<out>/<system>/runs/<set>.run``, if asked
for, the ranked lists.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError

import scimult
from scimult.config import StrictConfig
from scimult.errors import ConfigError, DataError
from scimult.files import read_json, write_json

LIBRARIES = ("torch", "numpy", "transformers", "tokenizers", "bm25s", "pydantic")

CostKind = Literal["texts", "tokens", "encode_seconds", "index_bytes"]


class SetFacts(StrictConfig):
    """What was scored: results can be compared only if these agree.

    Attributes
    ----------
    task, protocol, mode, main_metric : str
        As in the suite.
    counts : dict
        Queries, candidates and relevant pairs that were scored.
    left_out : dict
        Reason to number of records that ``--skip-bad`` left out.
    files : dict
        File name, relative to the data folder, to SHA-256.
    """

    task: str
    protocol: str
    mode: str
    main_metric: str
    counts: dict[str, int]
    left_out: dict[str, int]
    files: dict[str, str]


class SetResult(SetFacts):
    """Scores of one system on one data set.

    Attributes
    ----------
    scores : dict
        Metric to value in [0, 1].
    seconds : float
        Time to encode and rank.
    intervals : dict
        Metric to the ends of its bootstrap interval; empty unless asked for.
    cost : dict
        What the set cost the system, as far as it knows: ``texts`` and ``tokens`` that were
        encoded, ``encode_seconds``, and ``index_bytes`` that search keeps of the candidates.
    """

    scores: dict[str, float]
    seconds: float
    intervals: dict[str, tuple[float, float]] = {}
    cost: dict[CostKind, float] = {}

    @property
    def facts(self) -> SetFacts:
        """What was scored, without scores and time."""
        return SetFacts(**self.model_dump(include=set(SetFacts.model_fields)))


class Result(StrictConfig):
    """Scores of one system on a suite, and everything needed to get them again."""

    format: Literal["scimult-evaluation/1"] = "scimult-evaluation/1"
    system: str
    settings: dict[str, Any]
    suite: dict[str, Any]
    sets: dict[str, SetResult]
    averages: dict[str, float]
    provenance: dict[str, Any]

    @property
    def facts(self) -> dict[str, SetFacts]:
        """What was scored, per data set."""
        return {name: entry.facts for name, entry in self.sets.items()}


def averages(sets: Mapping[str, SetResult]) -> dict[str, float]:
    """Return the mean main metric of the sets of each task, and over all sets as ``all``."""
    groups: dict[str, list[float]] = {}
    for entry in sets.values():
        groups.setdefault(entry.task, []).append(entry.scores[entry.main_metric])
    everything = [score for scores in groups.values() for score in scores]
    means = {task: sum(scores) / len(scores) for task, scores in groups.items()}
    return {**means, "all": sum(everything) / len(everything)}


def provenance() -> dict[str, Any]:
    """Return code, command, time and machine of this process.

    ``seed`` is null because scoring draws nothing at random.
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
    """Return the folder of a system's files.

    Raises
    ------
    ConfigError
        If the name cannot be a folder's.
    """
    if not re.fullmatch(r"\w[\w.+-]*", system):
        raise ConfigError(
            "a system's name is also a folder's", value=system, fix="use letters, digits, . _ + -"
        )
    return out / system


def save_result(result: Result, out: Path) -> Path:
    """Write ``result.json`` of a system, atomically; return its path."""
    path = folder_of(out, result.system) / "result.json"
    write_json(path, result.model_dump(mode="json"))
    return path


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
            results.append(Result.model_validate(read_json(path)))
        except ValidationError as error:
            raise DataError(
                f"not a result of scimult evaluate: {error.errors()[0]['msg']}",
                path=path,
                fix="evaluate the system again",
            ) from error
    return sorted(results, key=lambda result: str(result.provenance.get("date", "")))


def _git_state() -> dict[str, Any] | None:
    """Return commit and whether tracked files differ from it; None outside a checkout."""
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
