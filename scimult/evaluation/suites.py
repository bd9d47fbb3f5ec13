"""Suites of benchmarks as data: what a data set is, how it is scored, where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from scimult.config import StrictConfig, load_config
from scimult.errors import ConfigError, UnknownNameError
from scimult.evaluation.metrics import parse

Protocol = Literal[
    "classification_fine", "classification_coarse", "link_retrieval", "rerank", "search"
]


class Expected(StrictConfig):
    """Counts that show whether the data is the edition the benchmark means."""

    queries: int
    candidates: int
    relevant: int


class Benchmark(StrictConfig):
    """One data set and the way it is scored.

    Attributes
    ----------
    task : str
        Name of the task that routes a multi-task encoder.
    protocol : str
        How candidates are ranked; see ``docs/evaluation.md``.
    folder : str
        Where the files are, relative to the folder given on the command line.
    labels : str, optional
        Label file of a classification set, relative to that folder. Without one, the labels
        are the distinct names that the papers carry.
    split : str
        Which judgments (``qrels/<split>.tsv``) or papers (``split.csv``) are scored.
    metrics : list of str
        The first one is the main metric, which averages use.
    name_matching : {"words", "tokens"}, optional
        Also score fine classification with label-name matching; ``words`` normalises raw text,
        ``tokens`` takes text and names as they are, already tokenised.
    mode : {"default", "paper"}
        In link retrieval a query paper that is a candidate is left out of its own list;
        ``paper`` leaves it in, as the code of the SciMult paper does.
    """

    task: str
    protocol: Protocol
    folder: str
    labels: str | None = None
    split: str = "test"
    metrics: list[str] = Field(min_length=1)
    name_matching: Literal["words", "tokens"] | None = None
    mode: Literal["default", "paper"] = "default"
    source: str
    licence: str
    expected: Expected | None = None

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: list[str]) -> list[str]:
        for name in names:
            parse(name)
        return names

    @model_validator(mode="after")
    def _consistent(self) -> Benchmark:
        if (self.protocol == "classification_coarse") != (self.metrics == ["macro_f1"]):
            raise ConfigError("macro_f1 and classification_coarse go together, and alone")
        if self.name_matching and self.protocol != "classification_fine":
            raise ConfigError("name_matching is for classification_fine")
        if self.mode == "paper" and self.protocol != "link_retrieval":
            raise ConfigError("mode 'paper' is for link_retrieval")
        return self

    @property
    def is_classification(self) -> bool:
        """Whether candidates are labels."""
        return self.protocol in ("classification_fine", "classification_coarse")

    @property
    def main_metric(self) -> str:
        """The metric that averages use."""
        return self.metrics[0]


class Suite(StrictConfig):
    """Benchmarks that are reported together, in this order."""

    name: str
    description: str
    how_to_get: str
    benchmarks: dict[str, Benchmark] = Field(min_length=1)

    def select(self, names: Sequence[str]) -> dict[str, Benchmark]:
        """Return the named benchmarks in the suite's order; all of them for no names.

        Raises
        ------
        UnknownNameError
            If the suite has no benchmark of that name.
        """
        for name in names:
            if name not in self.benchmarks:
                raise UnknownNameError("benchmark", name, self.benchmarks)
        return {
            name: entry for name, entry in self.benchmarks.items() if not names or name in names
        }


def suite_names() -> list[str]:
    """Return the names of the suites that come with the toolkit."""
    return sorted(path.name.removesuffix(".yaml") for path in _files())


def load_suite(name_or_path: str, overrides: Sequence[str] = ()) -> Suite:
    """Read a suite by name, or from a YAML file of one's own.

    Parameters
    ----------
    name_or_path : str
        One of :func:`suite_names`, or a path that ends in ``.yaml``.
    overrides : sequence of str
        ``benchmarks.vis_cite.mode=paper`` and the like.

    Raises
    ------
    ConfigError
        If the file is not a valid suite.
    UnknownNameError
        If there is no suite of that name.
    """
    if name_or_path.endswith((".yaml", ".yml")):
        return load_config(Suite, name_or_path, overrides)
    for path in _files():
        if path.name == f"{name_or_path}.yaml":
            with resources.as_file(path) as file:
                return load_config(Suite, Path(file), overrides)
    raise UnknownNameError("suite", name_or_path, suite_names())


def _files() -> list[Any]:
    folder = resources.files("scimult.evaluation") / "suites"
    return [path for path in folder.iterdir() if path.name.endswith(".yaml")]
