"""Files with stages: what each stage becomes, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scimult.config import load_config
from scimult.errors import SciMultError
from scimult.training.config import PretrainConfig
from scimult.training.stages import has_stages, load_stages, stages_up_to

SHARED: dict[str, Any] = {
    "output": "runs/x",
    "seed": 7,
    "data": {"prepared": "data"},
    "model": {"tokenizer": "words", "architecture": {"hidden_size": 8}, "pooling": "mean"},
    "optimizer": {"lr": 0.1, "clip": 2.0},
    "schedule": {"steps": 10},
}
STAGES: dict[str, Any] = {
    "first": None,
    "experts": {"model": {"variant": "mha_expert"}, "optimizer": {"lr": 0.01}},
    "search": {"data": {"sources": ["clicks"]}, "schedule": {"steps": None, "epochs": 2}},
}


def write(folder: Path, stages: Any = STAGES, **shared: Any) -> Path:
    path = folder / "curriculum.yaml"
    path.write_text(yaml.safe_dump({**SHARED, **shared, "stages": stages}, sort_keys=False))
    return path


def test_a_stage_is_the_run_that_one_would_have_written_by_hand(tmp_path: Path) -> None:
    by_hand = tmp_path / "experts.yaml"
    model = {"base": "runs/x/first", "pooling": "mean", "variant": "mha_expert"}
    own = {"output": "runs/x/experts", "seed": 8, "model": model}
    optimizer = {"lr": 0.01, "clip": 2.0}
    by_hand.write_text(yaml.safe_dump({**SHARED, **own, "optimizer": optimizer}))
    first, experts, search = load_stages(write(tmp_path))
    assert experts.config == load_config(PretrainConfig, by_hand)
    assert first.config.model.tokenizer == "words"
    # A stage's overrides do not affect the next.
    assert search.config.optimizer.lr == 0.1
    assert search.config.model.variant == "vanilla"
    assert search.config.schedule.epochs == 2
    assert [stage.after for stage in (first, experts, search)] == [None, "first", "experts"]


def test_seeds_differ_unless_a_stage_sets_its_own(tmp_path: Path) -> None:
    assert [stage.config.seed for stage in load_stages(write(tmp_path))] == [7, 8, 9]
    path = write(tmp_path, {"a": None, "b": {"seed": 7}, "c": None})
    assert [stage.config.seed for stage in load_stages(path)] == [7, 7, 9]


def test_a_stage_may_start_from_an_earlier_one(tmp_path: Path) -> None:
    stages = load_stages(write(tmp_path, {**STAGES, "search": {"after": "first"}}))
    assert stages[2].config.model.base == "runs/x/first"
    assert [stage.name for stage in stages_up_to(stages, "search")] == ["first", "search"]
    assert [stage.name for stage in stages_up_to(stages, "experts")] == ["first", "experts"]
    with pytest.raises(SciMultError, match="unknown stage.*did you mean 'experts'"):
        stages_up_to(stages, "expert")


def test_overrides_reach_all_stages_or_one(tmp_path: Path) -> None:
    overrides = ["batch.pairs_per_step=32", "stages.experts.optimizer.lr=0.5", "output=there"]
    stages = load_stages(write(tmp_path), overrides)
    assert {stage.config.batch.pairs_per_step for stage in stages} == {32}
    assert [stage.config.optimizer.lr for stage in stages] == [0.1, 0.5, 0.1]
    assert stages[1].config.model.base == "there/first"


def test_a_file_with_stages_can_be_included(tmp_path: Path) -> None:
    write(tmp_path)
    top = tmp_path / "top.yaml"
    top.write_text("include: curriculum.yaml\nstages: {experts: {schedule: {steps: 3}}, last: }\n")
    assert has_stages(top)
    stages = load_stages(top)
    assert [stage.name for stage in stages] == ["first", "experts", "search", "last"]
    assert stages[1].config.schedule.steps == 3
    assert stages[1].config.model.variant == "mha_expert"


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("search", {"model": {"varient": "x"}}, "stage 'search'.*model.varient: unknown key"),
        ("search", {"modle": {}}, "stage 'search'.*modle: unknown key.*'model'"),
        (
            "search",
            {"schedule": {"epochs": 1}},
            "stage 'search'.*schedule.steps or schedule.epochs",
        ),
        ("search", {"loss": {"margin": 1.0}}, "stage 'search'.*info_nce has no margin"),
        ("search", {"after": "serach"}, "earlier stage in after.*use one of experts, first"),
        ("search", {"after": "search"}, "earlier stage in after"),
        ("search", {"output": "elsewhere"}, "stage 'search'.*sub-folder of its name"),
        ("search", {"model": {"base": "other"}}, "starts from the model of stage 'experts'"),
        ("search", {"engine": {"timeout_minutes": 1}}, "share engine.timeout_minutes"),
        ("search", ["x"], "stage 'search' is not a mapping"),
        ("se/arch", {}, "invalid name of a stage.*'se/arch'"),
    ],
)
def test_every_stage_is_checked_when_the_file_is_read(
    tmp_path: Path, name: str, own: Any, message: str
) -> None:
    stages = {key: value for key, value in STAGES.items() if key != "search"} | {name: own}
    with pytest.raises(SciMultError, match=f"(?s){message}"):
        load_stages(write(tmp_path, stages))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "optimizer.lr=1",
            r"these stages set optimizer\.lr.*experts.*stages\.experts\.optimizer\.lr=1",
        ),
        ("optimizer={lr: 1}", "these stages set optimizer themselves"),
        ("stages.expert.seed=1", "unknown stage.*did you mean 'experts'"),
        ("stages=null", "stages is not a mapping"),
    ],
)
def test_overrides_without_effect_are_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(SciMultError, match=message):
        load_stages(write(tmp_path), [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=true", "stage 'first'.*seed should be a number, not true or false"),
        ("output=''", "stage 'first'.*output: String should have at least 1 character"),
    ],
)
def test_what_a_stage_derives_is_checked_first(tmp_path: Path, override: str, message: str) -> None:
    """Neither becomes a number, nor a folder below the current one."""
    with pytest.raises(SciMultError, match=f"(?s){message}"):
        load_stages(write(tmp_path), [override])


def test_later_files_are_laid_over_stages_too(tmp_path: Path) -> None:
    """An overlay's keys win over a stage's; keys that only the stage sets stay."""
    stages = {**STAGES, "search": {**STAGES["search"], "optimizer": {"clip": 1.0}}}
    path, top, more = write(tmp_path, stages), tmp_path / "top.yaml", tmp_path / "more.yaml"
    top.write_text("schedule: {steps: 3, epochs: null}\noptimizer: {lr: 0.5}\n")
    more.write_text("optimizer: {lr: 0.25}\nmodel: {tokenizer: pieces}\n")
    first, experts, search = load_stages(path, ["seed=1"], [top, more])
    for stage in (first, experts, search):
        assert (stage.config.schedule.steps, stage.config.schedule.epochs) == (3, None)
        assert stage.config.optimizer.lr == 0.25
    assert experts.config.model.variant == "mha_expert"
    assert (search.config.data.sources, search.config.optimizer.clip) == (["clicks"], 1.0)
    assert (first.config.model.tokenizer, first.config.seed) == ("pieces", 1)
    # A single run's files are laid over each other, too.
    single = tmp_path / "single.yaml"
    single.write_text(yaml.safe_dump(SHARED))
    written = ["seed=1", "schedule.steps=3", "optimizer.lr=0.25", "model.tokenizer=pieces"]
    laid_over = load_config(PretrainConfig, single, ["seed=1"], [top, more])
    assert laid_over == load_config(PretrainConfig, single, written)
    top.write_text("optimiser: {lr: 1}\n")
    with pytest.raises(SciMultError, match=r"(?s)curriculum\.yaml with .*top\.yaml.*unknown key"):
        load_stages(path, (), [top])
