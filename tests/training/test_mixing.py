"""Batches of several tasks as each strategy promises them, and impossible configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from torch import Tensor

from scimult.errors import ConfigError
from scimult.losses import head_losses
from scimult.models.heads import LinearHead, apply_head
from scimult.training.config import PretrainConfig
from scimult.training.negatives import check_negatives
from scimult.training.plan import build_sampler, plan_run
from scimult.training.run import pretrain
from tests.training.corpus import (
    ALL_TASKS,
    TARGETS,
    prepare_corpus,
    run_config,
)
from tests.training.heads import config_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads")
    prepare_corpus(path, TARGETS)
    return path


def tasks_of_micro_batches(config: PretrainConfig) -> list[dict[str, int]]:
    plan = plan_run(config)
    sampler, steps = build_sampler(config, plan, np.full(1000, 8, dtype=np.int32))
    return [
        {plan.sources[part.source].task: len(part.rows) for part in sampler.plan(number)}
        for number in range(steps)
    ]


def test_strategies_fill_batches_as_they_promise(folder: Path) -> None:
    equal = tasks_of_micro_batches(config_of(folder, "unused"))
    names = {task["name"] for task in ALL_TASKS}
    assert all(micro_batch == dict.fromkeys(names, 4) for micro_batch in equal)
    alternate = {"batch": {"mix": "alternate", "pairs_per_step": 4}, "schedule": {"steps": 24}}
    turns = tasks_of_micro_batches(config_of(folder, "unused", **alternate))
    assert all(len(micro_batch) == 1 and sum(micro_batch.values()) == 4 for micro_batch in turns)
    counts = {name: sum(name in micro_batch for micro_batch in turns) for name in names}
    assert counts == dict.fromkeys(names, 4)
    order = ["world.count", "world.search", "world.venue"]
    sequential = {"data": {"sampling": "sequential", "sources": order}, **alternate}
    row = [
        task
        for micro_batch in tasks_of_micro_batches(config_of(folder, "unused", **sequential))
        for task in micro_batch
    ]
    assert list(dict.fromkeys(row)) == ["count", "search", "venue"]
    assert row == sorted(row, key=["count", "search", "venue"].index)
    rates = {"count": 0.5, "venue": 0.25, "search": 0.25}
    shares = {"data": {"sampling": "explicit", "rates": rates, "sources": order}}
    mixed = tasks_of_micro_batches(config_of(folder, "unused", **shares))
    assert all(micro_batch == {"count": 12, "venue": 6, "search": 6} for micro_batch in mixed)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"loss": {"by_task": {"serach": "info_nce"}}}, "'serach', which is not among tasks"),
        (
            {"loss": {"by_task": {"search": {"name": "info_nce", "margin": 1}}}},
            "margin.*unknown key",
        ),
        ({"loss": {"by_task": {"venue": {"name": "multi_clas"}}}}, "'multi_clas'.*'multi_class'"),
        ({"loss": {"by_task": {"count": "info_nce"}}}, "format regression.*compares pairs"),
        ({"loss": {"by_task": {"count": "multi_class"}}}, "needs a task of format classification"),
        ({"loss": {"by_task": {"venue": "regression"}}}, "needs a task of format regression"),
        ({"loss": {"by_task": {"search": "multi_label"}}}, "needs a task of format classification"),
        (
            {"loss": {"by_task": {"search": "triplet"}}, "model": {"similarity": "dot"}},
            "a dot product is not one",
        ),
        (
            {"loss": {"weighting": "uncertainty", "weights": {"venue": 2}}},
            "weighting fixed, not",
        ),
        (
            {"loss": {"weighting": "uncertainty", "reduction": "pairs"}},
            "set loss.reduction to tasks",
        ),
        ({"loss": {"gradnorm_alpha": 1}}, "requires loss.weighting gradnorm"),
        (
            {"loss": {"weighting": "gradnorm"}, "batch": {"mix": "alternate"}},
            "set batch.mix to in_batch",
        ),
        ({"data": {"sampling": "sequential"}}, "set batch.mix to alternate"),
        ({"loss": {"by_task": {}}, "checkpoint": {"keep_heads": True}}, "defines no head"),
    ],
)
def test_contradictions_are_refused(folder: Path, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(folder, "never", **sections)


def test_batches_of_one_pair_need_hard_negatives(folder: Path) -> None:
    """Alone, a pair has loss 0: the run would train nothing, step after step."""
    alone = {"mix": "alternate", "pairs_per_step": 4, "accumulation": 4}
    data = {"sources": ["world.search"]}
    config = run_config(folder, "never", batch=alone, data={**data, "hard_negatives": False})
    with pytest.raises(ConfigError, match=r"one pair without a hard negative.*world\.search"):
        pretrain(config)
    for changes in ({"data": data}, {"data": config.data, "batch": {**alone, "accumulation": 2}}):
        accepted = run_config(folder, "never", **{"batch": alone, **changes})
        check_negatives(accepted, plan_run(accepted), lambda task: (0, 0))


@pytest.mark.parametrize(
    ("by_task", "data", "message"),
    [
        (
            {"classification": "multi_class"},
            {},
            "the data of this task fit info_nce",
        ),
        ({"venue": "multi_label"}, {}, "set loss.by_task.venue to multi_class"),
        ({}, {"sources": ["world.venue"]}, r"has only targets.*by_task: \{venue: multi_class\}"),
    ],
)
def test_heads_and_targets_that_do_not_fit(
    folder: Path, by_task: dict[str, Any], data: dict[str, Any], message: str
) -> None:
    config = config_of(folder, "never", loss={"by_task": by_task}, data=data)
    with pytest.raises(ConfigError, match=message) as raised:
        plan_run(config)
    assert str(raised.value).count("Fix:") == 1


def test_a_head_without_targets(folder: Path) -> None:
    tasks = [*ALL_TASKS, {"name": "year", "format": "regression"}]
    config = run_config(folder, "never", tasks=tasks, loss={"by_task": {"year": "regression"}})
    with pytest.raises(ConfigError, match="'year' a head, but no source has targets for it"):
        plan_run(config)


def test_without_heads_a_run_trains_only_pairs(folder: Path) -> None:
    plan = plan_run(run_config(folder, "never"))
    assert [source.task for source in plan.sources] == [
        "classification",
        "link_prediction",
        "search",
    ]
    assert not plan.dev_targets


def test_a_linear_head_finds_a_linear_target() -> None:
    """A regression that has converged equals least squares (sklearn)."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    targets = inputs @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 3
    targets = targets + 0.1 * torch.randn(40, generator=generator, dtype=torch.float64)
    head = LinearHead(3, 1, seed=0).double()
    optimizer = torch.optim.LBFGS(
        head.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = head_losses("regression", apply_head(head(), inputs), targets).mean()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    peer = LinearRegression().fit(inputs.numpy(), targets.numpy())
    assert head.weight[0].tolist() == pytest.approx(peer.coef_.tolist(), abs=1e-6)
    assert head.bias.item() == pytest.approx(peer.intercept_, abs=1e-6)
