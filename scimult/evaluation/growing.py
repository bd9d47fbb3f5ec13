"""A system's result grows set by set: each is written as soon as it is scored.

Earlier scores of the same system on the same suite stay in it, with the provenance of their run.
So a suite can be evaluated in parts, and a run that is killed or fails loses no finished set.
Confidence intervals are kept in the result, too.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from scimult.errors import ConfigError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.comparison import Settings, paired_samples, set_seed
from scimult.evaluation.resampling import bootstrap, interval
from scimult.evaluation.results import (
    Result,
    SetFacts,
    SetResult,
    averages,
    folder_of,
    load_result,
    provenance,
    save_result,
)

Earlier = Literal["merge", "resume", "replace"]
"""How to treat a system's existing result: ``merge`` scores requested sets again and keeps the
others, ``resume`` also keeps requested sets that are unchanged, ``replace`` discards it."""

_DIGESTS = "sha256"
_FOLDERS = ("folder", "model")
_PARTS = ("members", "first")
"""Settings of fused and reranked systems that hold those of others."""


class GrowingResult:
    """The result of one system on one suite, in memory and on disk.

    ``settings`` are those needed to run the system again, ``suite`` is in JSON values,
    ``confidence`` is that of the intervals of new scores; None: no intervals.

    Raises
    ------
    ConfigError
        If an existing result is of another system of this name or of another suite, and is not
        to be replaced.
    DataError
        If the existing result is damaged.
    """

    def __init__(
        self,
        system: str,
        settings: Mapping[str, Any],
        suite: dict[str, Any],
        out: Path,
        earlier: Earlier = "merge",
        confidence: float | None = None,
    ) -> None:
        self._out, self._resumes, self._confidence = out, earlier == "resume", confidence
        self._benchmarks: dict[str, Any] = suite["benchmarks"]
        self.result = Result(
            system=system,
            settings=json.loads(json.dumps(settings)),
            suite=suite,
            sets={},
            averages={},
            provenance=provenance(),
        )
        path = folder_of(out, system) / "result.json"
        if path.exists() and earlier != "replace":
            before = load_result(path)
            _refuse_another(before, self.result, path)
            self.result = _continued(before, self.result)

    def has(self, name: str, facts: SetFacts) -> bool:
        """Return whether a set keeps its scores: same data, same scoring, no failure, resuming."""
        entry = self.result.sets.get(name)
        if not self._resumes or entry is None or name in self.result.failed:
            return False
        if self._confidence is not None and entry.resampled_metrics:
            provenance = entry.provenance or self.result.provenance
            if not entry.intervals or provenance.get("confidence") != self._confidence:
                return False
        return self._is_unchanged(name, facts)

    def begin(self, name: str, facts: SetFacts) -> None:
        """Drop scores to which a set's new scores per query do not belong; these are written now.

        A process killed in between would leave both, to be compared as if they were of one run.
        """
        sets = self.result.sets
        if name in sets and not self._is_unchanged(name, facts):
            sets = {key: entry for key, entry in sets.items() if key != name}
            update = {"sets": sets, "averages": averages(sets) if sets else {}}
            self.result = self.result.model_copy(update=update)
            if sets:
                save_result(self.result, self._out)
        if not sets:
            (folder_of(self._out, self.result.system) / "result.json").unlink(missing_ok=True)

    def _is_unchanged(self, name: str, facts: SetFacts) -> bool:
        """Return whether a set of the result is on the same data and scored alike."""
        before = self.result.suite["benchmarks"][name]
        return self.result.sets[name].facts == facts and scored_alike(
            before, self._benchmarks[name]
        )

    def add(self, name: str, entry: SetResult) -> SetResult:
        """Add a set, whose per-query scores are already written, and save the result."""
        benchmarks = {**self.result.suite["benchmarks"], name: self._benchmarks[name]}
        sets = {**self.result.sets, name: entry}
        sets = {key: sets[key] for key in benchmarks if key in sets}
        self.result = self.result.model_copy(
            update={
                "suite": {**self.result.suite, "benchmarks": benchmarks},
                "sets": sets,
                "averages": averages(sets),
                "not_scored": _without(self.result.not_scored, name),
                "failed": _without(self.result.failed, name),
            }
        )
        if self._confidence is not None:
            self.result = with_intervals(self.result, self._out, self._confidence, [name])
        save_result(self.result, self._out)
        return self.result.sets[name]

    def leave_out(self, name: str, reason: str) -> None:
        """Record that a set is not scored, unless it has scores."""
        if name not in self.result.sets:
            update = {"not_scored": {**self.result.not_scored, name: reason}}
            self._note(update)

    def fail(self, name: str, reason: str) -> None:
        """Record that scoring a set failed; earlier scores stay."""
        self._note({"failed": {**self.result.failed, name: reason}})

    def _note(self, update: dict[str, dict[str, str]]) -> None:
        self.result = self.result.model_copy(update=update)
        if self.result.sets:
            save_result(self.result, self._out)


def scored_alike(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether two benchmarks give the same scores, wherever their files come from.

    Keys missing in results of earlier versions have their defaults.
    """
    try:
        full = Benchmark.model_validate(before).model_dump(mode="json")
    except (ConfigError, ValidationError):
        return False
    return all(full[key] == value for key, value in now.items() if key not in ("hub", "remote"))


def _refuse_another(before: Result, now: Result, path: Path) -> None:
    """Raise unless both results are of the same system and suite."""
    fix = "give this one another name or --out folder, or drop that result (evaluate --replace)"
    if before.suite["name"] != now.suite["name"]:
        problem = f"the existing result of {now.system} is for another suite"
        raise ConfigError(problem, path=path, value=before.suite["name"], fix=fix)
    differing = _differing(before.settings, now.settings)
    if differing:
        problem = f"the existing result of {now.system} differs in {', '.join(differing)}"
        before_values = {key: before.settings.get(key) for key in differing}
        raise ConfigError(problem, path=path, value=before_values, fix=fix)


def _differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the settings that tell two systems apart; folder names do not if digests can."""
    has_identity = "fingerprint" in now or _DIGESTS in now
    # A cross-encoder's files are one model; those of embeddings and dev sets may become more.
    grows = now.get("kind") != "reranked"
    return [
        key
        for key in sorted({*before, *now})
        if not (key in _FOLDERS and has_identity)
        if not _alike(key, before.get(key), now.get(key), grows)
    ]


def _alike(key: str, before: Any, now: Any, grows: bool) -> bool:
    """Return whether two values of a setting are of the same system."""
    if before is None or now is None or key not in (_DIGESTS, *_PARTS):
        return bool(before == now)
    if key == _DIGESTS:
        return _same_files(before, now) if grows else bool(before == now)
    return before.keys() == now.keys() and not any(_differing(before[n], now[n]) for n in now)


def _same_files(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Compare digests by file name; embeddings of further sets may be added later."""
    common = before.keys() & now.keys()
    if any(before[name] != now[name] for name in common):
        return False
    # A set's folder that has no file of before was written anew, in another layout.
    folders = [{posixpath.dirname(name) for name in names} for names in (before, now, common)]
    return folders[0] & folders[1] <= folders[2] | {""}


def _continued(before: Result, now: Result) -> Result:
    """Return the new result with the sets scored before."""
    sets = {
        name: entry.model_copy(update={"provenance": entry.provenance or before.provenance})
        for name, entry in before.sets.items()
    }
    scored_as = {name: before.suite["benchmarks"][name] for name in sets}
    settings = now.settings
    if _DIGESTS in settings:
        settings = {**settings, _DIGESTS: {**before.settings[_DIGESTS], **settings[_DIGESTS]}}
    return now.model_copy(
        update={
            "settings": settings,
            "suite": {**now.suite, "benchmarks": {**now.suite["benchmarks"], **scored_as}},
            "sets": sets,
            "averages": averages(sets),
            "not_scored": before.not_scored,
            "failed": before.failed,
        }
    )


def _without(notes: dict[str, str], name: str) -> dict[str, str]:
    return {key: reason for key, reason in notes.items() if key != name}


def with_intervals(
    result: Result, out: Path, confidence: float, names: Sequence[str] = ()
) -> Result:
    """Return the result with a bootstrap interval for every score that has per-query scores.

    Given ``names``, other sets keep their intervals. The provenance records confidence, resamples
    and the seed, which is null in a result without intervals.

    Raises
    ------
    DataError
        If the per-query scores below ``out`` are not those of the result.
    """
    settings = Settings(baseline=result.system, confidence=confidence)
    sets = {}
    for name, entry in result.sets.items():
        metrics = entry.resampled_metrics
        if not metrics or (names and name not in names):
            sets[name] = entry
            continue
        samples = paired_samples(out, [result], name, metrics)
        scores_RM = bootstrap(samples, settings.resamples, set_seed(settings.seed, name))[0]
        intervals = {
            metric: interval(scores_RM[:, column], confidence)
            for column, metric in enumerate(metrics)
        }
        sets[name] = entry.model_copy(update={"intervals": intervals})
    how = settings.model_dump(include={"seed", "confidence", "resamples"})
    return result.model_copy(
        update={"sets": sets, "provenance": {**result.provenance, **how}}, deep=True
    )
