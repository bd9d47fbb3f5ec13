"""Configuration of a source's targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints, model_validator

from scimult.config import StrictConfig
from scimult.tasks import Task

Scale = Literal["none", "log", "unit", "standard"]


class TargetConfig(StrictConfig):
    """Location of a task's targets: a field of the source's papers, or a table.

    Parameters
    ----------
    task : str
        The task they train; it has no pairs.
    field : str, optional
        Field of ``papers`` records; a paper where it is absent, null, "" or [] has no target.
    file : str, optional
        Table with paper-id (or corpus-id); a paper with several classes has a line for each.
    column : str
        Column of the table.
    """

    task: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]
    field: str | None = None
    file: str | None = None
    column: str = "value"

    @model_validator(mode="after")
    def _one_location(self) -> TargetConfig:
        if (self.field is None) == (self.file is None):
            raise ValueError("targets come from a field of the papers or from a file; name one")
        if self.file is None and "column" in self.model_fields_set:
            raise ValueError("column needs a file; name the file, or leave column out")
        return self


class ClassTargetConfig(TargetConfig):
    """One class per paper, or several.

    Classes with fewer than ``min_papers`` papers are left out, and so are papers without
    another class. Without ``min_papers``, a class with a single paper is an error.
    """

    kind: Literal["multi_class", "multi_label"]
    min_papers: Annotated[int, Field(ge=1)] | None = None


class RegressionTargetConfig(TargetConfig):
    """A number per paper.

    ``log`` is ln(1 + n); ``unit`` scales to 0 to 1, and ``standard`` to mean 0 and standard
    deviation 1, over the papers of the train split. ``times_mean_of`` multiplies the result by
    the mean target of another task, so that their losses are comparable: SciRepEval trains on
    log citations, and on years from 0 to 1 times the mean of these (appendix A.4).
    """

    kind: Literal["regression"]
    scale: Scale = "none"
    times_mean_of: str | None = None


TargetOptions: TypeAlias = ClassTargetConfig | RegressionTargetConfig
AnyTargetConfig: TypeAlias = Annotated[TargetOptions, Field(discriminator="kind")]


def target_task(config: TargetOptions) -> Task:
    """Return the default task of targets."""
    regression = config.kind == "regression"
    return Task(name=config.task, format="regression" if regression else "classification")


def check_targets(by_source: Mapping[str, Sequence[TargetOptions]]) -> None:
    """Raise a ValueError if the targets of all sources are not consistent."""
    first: dict[str, tuple[str, dict[str, object]]] = {}
    for source, targets in by_source.items():
        tasks = [target.task for target in targets]
        if len(set(tasks)) < len(tasks):
            raise ValueError(f"source {source!r} lists a target task twice: {tasks}")
        for target in targets:
            options = target.model_dump(exclude={"field", "file", "column"})
            other, before = first.setdefault(target.task, (source, options))
            if before != options:
                raise ValueError(
                    f"sources {other!r} and {source!r} have different targets of task "
                    f"{target.task!r}: {before} and {options}"
                )
    for task, (_, options) in first.items():
        wanted = options.get("times_mean_of")
        others = {t: o for t, (_, o) in first.items() if t != task and o["kind"] == "regression"}
        if wanted is None:
            continue
        if wanted not in others or others[str(wanted)]["times_mean_of"] is not None:
            raise ValueError(
                f"times_mean_of of task {task!r} must name another regression without "
                f"times_mean_of; found {wanted!r}"
            )
