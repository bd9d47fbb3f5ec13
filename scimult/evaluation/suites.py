"""Suites of benchmarks as data: files, scoring and origin of each set."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from scimult.config import StrictConfig, apply_overrides, read_yaml, validate
from scimult.data.packed import packed_or_plain
from scimult.errors import ConfigError, one_of
from scimult.evaluation.benchmark import Benchmark

_FOLDER = resources.files("scimult.evaluation") / "suites"


class Suite(StrictConfig):
    """Benchmarks that are reported together, in this order.

    ``nothing_relevant`` is the default for its benchmarks.
    """

    name: str
    description: str
    how_to_get: str
    nothing_relevant: Literal["error", "zero"] = "error"
    benchmarks: dict[str, Benchmark] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _set_default(cls, values: Any) -> Any:
        """Pass ``nothing_relevant`` on to the benchmarks that do not set it."""
        if not (isinstance(values, dict) and isinstance(values.get("benchmarks"), dict)):
            return values
        default = {"nothing_relevant": values.get("nothing_relevant", "error")}
        benchmarks = {
            name: {**default, **entry} if isinstance(entry, dict) else entry
            for name, entry in values["benchmarks"].items()
        }
        return {**values, "benchmarks": benchmarks}

    @field_validator("benchmarks")
    @classmethod
    def _are_file_names(cls, benchmarks: dict[str, Benchmark]) -> dict[str, Benchmark]:
        """Refuse names of sets that cannot name their files of results."""
        for name in benchmarks:
            if "/" in name or not name.isprintable() or name in ("", ".", ".."):
                raise ValueError(f"{name!r} cannot be the name of a set, which its files carry")
        return benchmarks

    def select(self, names: Sequence[str]) -> dict[str, Benchmark]:
        """Return the named benchmarks in the suite's order (none named: all).

        Raises
        ------
        UnknownNameError
            If the suite has no benchmark of that name.
        """
        for name in names:
            one_of("benchmark", name, self.benchmarks)
        return {
            name: entry for name, entry in self.benchmarks.items() if not names or name in names
        }


def suite_names() -> list[str]:
    """Return the names of the suites that ship with the toolkit."""
    files = [path.name for path in _FOLDER.iterdir()]
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml"))


def load_suite(name_or_path: str, overrides: Sequence[str] = ()) -> Suite:
    """Load a suite by name, from a path ending in ``.yaml``, or from a folder in BEIR layout.

    Such a folder becomes a suite of one search set. ``overrides`` are lines such as
    ``benchmarks.vis_cite.mode=paper``.

    Raises
    ------
    ConfigError
        If the file is not a valid suite, or the folder not in BEIR layout.
    UnknownNameError
        If there is no suite of that name, or an override is of a set that it lacks.
    """
    if name_or_path.endswith((".yaml", ".yml")):
        return _suite(read_yaml(name_or_path), overrides, name_or_path)
    if packed_or_plain(Path(name_or_path) / "corpus.jsonl").exists():
        return _suite(_folder_suite(Path(name_or_path)), overrides)
    if name_or_path not in suite_names() and Path(name_or_path).is_dir():
        fix = "name the folder of one set, with corpus.jsonl, queries.jsonl and qrels"
        raise ConfigError("a folder, but not in BEIR layout", path=name_or_path, fix=fix)
    name = one_of("suite", name_or_path, suite_names())
    with resources.as_file(_FOLDER / f"{name}.yaml") as file:
        return _suite(read_yaml(file), overrides, str(file))


def _suite(tree: dict[str, Any], overrides: Sequence[str], source: str | None = None) -> Suite:
    changed = apply_overrides(tree, overrides)
    try:
        return validate(Suite, changed, source)
    except ConfigError:
        known, names = tree.get("benchmarks"), changed.get("benchmarks")
        if isinstance(known, dict) and isinstance(names, dict):
            for name in names:
                # A misspelt set lacks its other fields, as if the file were wrong.
                if any(one.strip().startswith(f"benchmarks.{name}.") for one in overrides):
                    one_of("benchmark", name, known)
        raise


def _folder_suite(folder: Path) -> dict[str, Any]:
    """Describe a BEIR folder as a suite; its absolute path overrides ``--data``."""
    name = folder.resolve().name
    entry = {
        "task": "search",
        "protocol": "search",
        "folder": str(folder.resolve()),
        "metrics": ["ndcg@10", "map", "recall@100"],
        "source": "a folder in BEIR layout",
        "licence": "not known",
    }
    return {
        "name": name,
        "description": name,
        "how_to_get": "the folder needs corpus.jsonl, queries.jsonl and qrels/test.tsv",
        "nothing_relevant": "zero",
        "benchmarks": {name: entry},
    }
