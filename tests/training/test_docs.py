"""docs/training.md, losses.md and runs.md: their keys and metrics are those of the code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from scimult.training.config import PretrainConfig
from scimult.training.loop import StepReport
from scimult.training.meter import Work, usage
from scimult.training.metrics import STATISTICS, means_by_task


@pytest.fixture(scope="module")
def pages(repository: Path) -> dict[str, str]:
    names = ("training", "losses", "runs")
    return {name: (repository / "docs" / f"{name}.md").read_text("utf-8") for name in names}


def _keys(annotation: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a section, or of the sections in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield prefix + name
            yield from _keys(field.annotation, f"{prefix}{name}.")
    else:
        for inner in get_args(annotation):
            yield from _keys(inner, prefix)


def test_every_key_in_the_pages_exists(pages: dict[str, str]) -> None:
    known = set(_keys(PretrainConfig))
    sections = "|".join(key for key in PretrainConfig.model_fields)
    named = {
        key
        for page in pages.values()
        for key in re.findall(rf"`((?:{sections})(?:\.[a-z_]+)+)(?::[^`]*)?`", page)
    }
    assert len(named) > 50
    assert named - known == {"model.safetensors"}  # a file


def test_every_number_of_a_step_is_in_the_table(pages: dict[str, str]) -> None:
    table = pages["runs"].partition("| in `metrics.jsonl` |")[2].partition("\n\n")[0]
    listed = re.findall(r"`([\w.]+)`", " ".join(re.findall(r"^\|([^|]*)\|", table, re.M)))
    names = {name.split(".")[-1] for name in listed}
    fields = {field.name for field in dataclasses.fields(StepReport)} - {"step", "sums"}
    assert fields - {name.split(".")[0] for name in listed} == set()
    assert means_by_task({"": [1.0] * len(STATISTICS)})[""].keys() - names == set()
    # R2 needs numbers that differ, utilisation a peak.
    assert {"r2", *usage([Work(1, 1, 1, 1, 1, 1)], 1.0, 1.0)} - names == set()
