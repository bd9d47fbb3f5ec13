"""Settings of a loss that the trained tasks do not use are refused before the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scimult.errors import ConfigError
from scimult.training.config import PretrainConfig
from scimult.training.interference.affinity import only_tasks
from scimult.training.plan import plan_run
from tests.training.corpus import ALL_TASKS, KINDS, TARGETS, prepare_corpus, run_config

SEARCH = {"sources": ["world.search"]}
TRIPLET = {"name": "triplet"}
EACH = {"search": "info_nce", "link_prediction": "info_nce", "classification": "info_nce"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fitting")
    prepare_corpus(path, TARGETS)
    return path


def config_of(folder: Path, **sections: Any) -> PretrainConfig:
    sections["model"] = {"similarity": "l2"}
    return run_config(folder, "run", tasks=ALL_TASKS, **sections)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"optimizer": {"learned_lr": 1e-3}}, "learned_lr has no effect"),
        (
            {"optimizer": {"learned_lr": 1e-3}, "data": SEARCH, "loss": {"by_task": KINDS}},
            "learned_lr has no effect",
        ),
        (
            {"loss": {"weighting": "gradnorm"}, "batch": {"mix": "in_batch"}, "data": SEARCH},
            "gradnorm balances tasks, but the run trains only one",
        ),
        ({"loss": {"temperature": 0.05, "by_task": EACH}}, r"no trained task uses loss\.temperat"),
        (
            {"loss": {"learn_temperature": True, "by_task": {"search": TRIPLET}}, "data": SEARCH},
            r"no trained task uses loss\.learn_temperature",
        ),
        (
            {"loss": {**TRIPLET, "margin": 2, "negatives": "all", "by_task": EACH}},
            r"no trained task uses loss\.margin or loss\.negatives",
        ),
        (
            {
                "loss": {"by_task": {"link_prediction": TRIPLET}},
                "data": {"hard_negatives": ["search"]},
            },
            "hard_negatives does not list these tasks .*link_prediction",
        ),
        ({"loss": TRIPLET, "data": {"hard_negatives": ["search"]}}, "does not list these tasks"),
    ],
)
def test_settings_without_effect_are_refused(
    folder: Path, sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_run(config_of(folder, **sections))


@pytest.mark.parametrize(
    "sections",
    [
        {"optimizer": {"learned_lr": 1e-3}, "loss": {"learn_temperature": True}},
        {"optimizer": {"learned_lr": 1e-3}, "loss": {"by_task": KINDS}},
        {"optimizer": {"learned_lr": 1e-3}, "loss": {"weighting": "uncertainty"}},
        # The values that a saved configuration has are no settings.
        {"loss": {"temperature": 1.0, "by_task": EACH}},
        {"loss": TRIPLET, "data": {"hard_negatives": ["search"], **SEARCH}},
        {
            "loss": {"by_task": {"link_prediction": {**TRIPLET, "negatives": "all"}}},
            "data": {"hard_negatives": ["search"]},
        },
    ],
)
def test_settings_with_an_effect_are_not(folder: Path, sections: dict[str, Any]) -> None:
    plan_run(config_of(folder, **sections))


def test_a_part_of_the_tasks_drops_what_only_others_use(folder: Path) -> None:
    mixed: dict[str, Any] = {
        "data": {"hard_negatives": ["search"]},
        "loss": {**TRIPLET, "margin": 2, "weighting": "gradnorm", "by_task": {**EACH, **KINDS}},
        "optimizer": {"learned_lr": 1e-3},
        "batch": {"mix": "in_batch", "pairs_per_step": 24},
    }
    del mixed["loss"]["by_task"]["search"]
    config = config_of(folder, **mixed)
    plan = plan_run(config)
    for tasks in (["search"], ["link_prediction"], ["search", "classification"]):
        part = only_tasks(config, plan, tasks)
        part.schedule = part.schedule.model_copy()
        plan_run(PretrainConfig.model_validate(part.model_dump()))
        assert part.loss.margin == (2 if "search" in tasks else None)
        assert part.loss.weighting == ("fixed" if len(tasks) == 1 else "gradnorm")
        assert part.optimizer.learned_lr == (None if len(tasks) == 1 else 1e-3)


def test_a_pooling_position_needs_its_pooling(folder: Path) -> None:
    model = {"pooling": "position", "pooling_position": 2}
    assert run_config(folder, "run", model=model).model.pooling_position == 2
    with pytest.raises(ConfigError, match="pooling_position needs model.pooling position, not cls"):
        run_config(folder, "run", model={"pooling_position": 2})
