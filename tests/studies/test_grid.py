"""Study files: grids against a double loop, and everything that is refused before work starts."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scimult.config import save_config
from scimult.errors import ConfigError, SciMultError
from scimult.studies.config import StudyConfig, expand
from scimult.studies.lineage import ordered, seeds_of
from scimult.studies.study_file import load_study
from scimult.studies.trials import config_of, make_trials
from tests.conftest import REPOSITORY
from tests.training.corpus import prepare_corpus, run_config

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
LINES = st.lists(st.from_regex(r"[a-z]{1,4}\.[a-z]{1,4}=[0-9]{1,3}", fullmatch=True), max_size=2)
AXES = st.dictionaries(NAMES, LINES, min_size=1, max_size=4)
GRIDS = st.dictionaries(NAMES, AXES, max_size=3)

STUDY: dict[str, Any] = {
    "name": "tiny",
    "output": "out",
    "baseline": "vanilla",
    "config": "run.yaml",
    "grid": {"variant": {"vanilla": [], "experts": ["model.variant=mha_expert"]}},
    "evaluate": [{"suite": "demo", "data": "eval"}],
}


def study(folder: Path, **changes: Any) -> StudyConfig:
    """Write a study with changed keys and read it."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}), encoding="utf-8")
    return load_study(path)


@given(GRIDS)
def test_a_grid_has_every_combination_once(grid: dict[str, dict[str, list[str]]]) -> None:
    runs = expand(grid)
    sizes = [len(axis) for axis in grid.values()]
    wanted = 0 if not sizes else 1
    for size in sizes:
        wanted *= size
    assert len(runs) == wanted
    combinations = product(*grid.values()) if grid else []
    for chosen, (name, run) in zip(combinations, runs.items(), strict=True):
        assert name == "-".join(chosen)
        lines = [
            line for axis, value in zip(grid, chosen, strict=True) for line in grid[axis][value]
        ]
        assert run.overrides == lines


def test_a_dotted_key_is_an_axis_of_its_values() -> None:
    runs = expand({"optimizer.lr": [1e-4, 0.001], "data.hard_negatives": [True, False, None, 1]})
    assert list(runs)[:3] == [
        "lr_0.0001-hard_negatives_true",
        "lr_0.0001-hard_negatives_false",
        "lr_0.0001-hard_negatives_null",
    ]
    assert runs["lr_0.001-hard_negatives_1"].overrides == [
        "optimizer.lr=0.001",
        "data.hard_negatives=1",
    ]


def test_a_text_on_an_axis_stays_a_text() -> None:
    runs = expand({"log.project": ["010", "mine"]})
    assert [run.overrides for run in runs.values()] == [['log.project="010"'], ["log.project=mine"]]


@pytest.mark.long
def test_runs_are_in_the_output_folder_whatever_it_is_called(tmp_path: Path) -> None:
    folder = prepare_corpus(tmp_path).parent
    save_config(run_config(folder, "unused"), folder / "run.yaml")
    out = str(tmp_path / "study #1: a")
    runs = {"warm": {}, "vanilla": {"after": "warm"}}
    changes = {"output": out, "config": str(folder / "run.yaml"), "grid": {}, "runs": runs}
    trials = make_trials(study(tmp_path, **changes))
    assert trials["warm-seed0"].stages[0].config.output == f"{out}/runs/warm-seed0"
    assert trials["vanilla-seed0"].stages[0].config.model.base == f"{out}/runs/warm-seed0"


def test_names_that_meet_are_refused() -> None:
    grid = {"a": {"x": [], "x-y": []}, "b": {"y-z": [], "z": []}}
    with pytest.raises(ConfigError, match="the same name"):
        expand(grid)


def test_runs_come_after_those_that_they_are_made_of(tmp_path: Path) -> None:
    half = {"merge": {"models": ["late", "base"]}}
    late = {"after": "vanilla", "seeds": [3]}
    soup = {"merge": {"models": ["vanilla", "late", "base"], "all_seeds": True}}
    runs = {"half": half, "late": late, "base": {"model": "there"}, "soup": soup}
    found = study(tmp_path, seeds=[3, 4], runs=runs)
    every = found.all_runs()
    order = ordered(every)
    assert sorted(order) == ["base", "experts", "half", "late", "soup", "vanilla"]
    assert order.index("vanilla") < order.index("late") < order.index("half")
    assert {name: seeds_of(found, name, every) for name in order} == {
        "vanilla": [3, 4],
        "experts": [3, 4],
        "late": [3],
        "half": [3],
        "base": [],
        "soup": [],
    }


@pytest.mark.parametrize(
    ("models", "seeds"), [(["vanilla"], [3, 4]), (["vanilla", "base"], [3])], ids=["seeds", "runs"]
)
def test_two_models_can_be_merged(tmp_path: Path, models: list[str], seeds: list[int]) -> None:
    merge = {"models": models, "all_seeds": True}
    runs = {"base": {"model": "there"}, "soup": {"merge": merge}}
    found = study(tmp_path, seeds=seeds, runs=runs)
    assert seeds_of(found, "soup", found.all_runs()) == []


def test_the_environment_stands_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEWHERE", "/data")
    evaluate = [{"suite": "demo", "data": "$SOMEWHERE/eval"}]
    assert study(tmp_path, evaluate=evaluate).evaluate[0].data == "/data/eval"
    monkeypatch.delenv("SOMEWHERE")
    with pytest.raises(ConfigError, match=r"variable is not set.*Fix: export SOMEWHERE="):
        study(tmp_path, evaluate=evaluate)
    (tmp_path / "$SOMEWHERE").mkdir()  # the name of a folder
    named = [{"suite": "demo", "data": str(tmp_path / "$SOMEWHERE")}]
    assert study(tmp_path, evaluate=named).evaluate[0].data == named[0]["data"]


FILES = sorted((REPOSITORY / "configs" / "studies").glob("*.yaml"))


@pytest.mark.parametrize("path", [p for p in FILES if p.stem != "scholarly"], ids=lambda p: p.stem)
def test_the_studies_that_we_ship(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their configurations exist; their contents are checked where there is data."""
    monkeypatch.setenv("SCIMULT_DATA", "somewhere")
    found = load_study(path)
    runs = found.all_runs()
    configs = {config_of(found, run) for run in runs.values() if run.is_trained}
    assert all((REPOSITORY / config).is_file() for config in configs)
    assert path.stem in found.output


MERGE = {"models": ["vanilla", "experts"]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"baselin": "x"}, "did you mean 'baseline'"),
    ({"grid": {"variant": {}}}, "a grid axis has no value"),
    ({"grid": {"model.dims": []}}, "a grid axis has no value"),
    ({"grid": {"data.rates": [{"a": 1}]}}, "that is not a scalar"),
    ({"grid": {}}, "study has no runs"),
    ({"baseline": "vanila"}, "the baseline is not a run.*did you mean 'vanilla'"),
    ({"baseline": "a", "runs": {"a": {"evaluate": False}}}, "the baseline is never evaluated"),
    (
        {"runs": {"a": {"after": "vanilla", "overrides": ["model.base=else"]}}},
        "run 'a' starts from the model of 'vanilla', and sets another",
    ),
    ({"runs": {"a": {"merge": {"models": ["vanilla", "vanilla"]}}}}, "lists a run twice"),
    ({"launch": {"devices": [-1]}}, "launch.devices.0: .*greater than or equal to 0"),
    ({"output": ""}, "output: String should have at least 1 character"),
    ({"seeds": []}, "seeds"),
    ({"seeds": [1, 1]}, "seeds must be distinct"),
    ({"runs": {"vanilla": {}}}, "a run has the name of a grid run"),
    ({"runs": {"a/b": {}}}, "not a valid run name"),
    ({"runs": {"a": {"model": "m", "overrides": ["seed=1"]}}}, "only valid for trained runs"),
    ({"runs": {"a": {"model": "m", "merge": MERGE}}}, "not both"),
    ({"runs": {"a": {"merge": {}}}}, "a merge needs either models or experts"),
    ({"runs": {"a": {"merge": {**MERGE, "shares": [1]}}}}, "1 shares for 2 models"),
    ({"runs": {"a": {"merge": {**MERGE, "method": "task_vectors"}}}}, "task vectors and a base"),
    ({"runs": {"a": {"merge": {**MERGE, "share_experts": True}}}}, "needs exactly one model"),
    ({"runs": {"a": {"merge": {**MERGE, "variant": "ffn_expert"}}}}, "only valid with experts"),
    (
        {"runs": {"a": {"merge": {"experts": {"search": "vanilla"}, "method": "slerp"}}}},
        "only valid for whole models",
    ),
    ({"runs": {"a": {"merge": {"models": ["vanilla", "nobody"]}}}}, "needs a run that is missing"),
    ({"runs": {"a": {"after": "nobody"}}}, "needs a run that is missing"),
    ({"runs": {"a": {"merge": MERGE, "after": ""}}}, r"a\.after: String should have at least 1"),
    ({"runs": {"a": {"after": "b"}, "b": {"after": "a"}}}, "depend on each other.*a <- b <- a"),
    ({"runs": {"a": {"after": "vanilla", "seeds": [9]}}}, "has seeds that 'vanilla' lacks"),
    ({"runs": {"a": {"merge": MERGE}, "b": {"after": "a"}}}, "trained from a merged model"),
    (
        {
            "runs": {
                "a": {"merge": {"models": ["b", "vanilla"]}},
                "b": {"merge": {"models": ["a", "vanilla"]}},
            }
        },
        "depend on each other.*a <- b <- a",
    ),
    ({"runs": {"a": {"merge": {"models": ["vanilla"]}}}}, "needs at least two models"),
    (
        {"runs": {"a": {"merge": {"models": ["vanilla"], "all_seeds": True}}}},
        "merge 'a' has only one model",
    ),
    (
        {"runs": {"late": {"seeds": [9]}, "a": {"merge": {"models": ["vanilla", "late"]}}}},
        "'a' merges share no seed",
    ),
    (
        {"runs": {"a": {"merge": {**MERGE, "all_seeds": True, "method": "slerp"}}}},
        "all_seeds is only valid for whole models",
    ),
    (
        {
            "runs": {
                "a": {
                    "merge": {
                        "models": ["experts"],
                        "method": "task_vectors",
                        "base": "vanilla",
                        "all_seeds": True,
                    }
                }
            }
        },
        "base of merge 'a' has a model per seed.*vanilla",
    ),
    ({"runs": {"a": {"model": "x,y"}}}, "must not contain a comma"),
    ({"overrides": ["seed=3"]}, "sets output and seed"),
    ({"runs": {"a": {"overrides": ["output=elsewhere"]}}}, "sets output and seed"),
    ({"config": None}, "has no configuration"),
    ({"launch": {"devices": [0, 0]}}, "each GPU once"),
    ({"launch": {"devices": [0, 1, 2], "ranks": 2}}, "not a multiple"),
    ({"evaluate": []}, "evaluate"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SciMultError, match=f"(?s)study.yaml.*{message}") as caught:
        study(tmp_path, **changes)
    assert str(caught.value).count("Fix:") <= 1


def test_a_bad_baseline_hides_no_other_problem(tmp_path: Path) -> None:
    runs = {"a": {"after": "nobody"}, "b": {"model": "x,y"}, "c/d": {}}
    with pytest.raises(ConfigError) as caught:
        study(tmp_path, baseline="vanila", runs=runs)
    head, *problems = str(caught.value).splitlines()
    assert head.endswith("study.yaml: invalid study:")
    wanted = ("not a valid run name", "baseline is not a run", "is missing", "contain a comma")
    assert len(problems) == len(wanted)
    for problem, part in zip(problems, wanted, strict=True):
        assert part in problem
        assert "; " in problem, "each has its fix"
