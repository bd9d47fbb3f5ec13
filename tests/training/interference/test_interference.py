"""Gradients of tasks against autograd by hand, constructed conflicts, and the report of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult.checkpoints.warm_start import in_bank
from scimult.data.batches import Batch, MicroBatch
from scimult.errors import ConfigError, DataError
from scimult.models import Encoder, pack
from scimult.training.build import build_model
from scimult.training.interference import (
    InterferenceMap,
    compare,
    measure,
    suggest_layout,
)
from scimult.training.interference.cosines import WHOLE
from scimult.training.interference.gradients import (
    Location,
    TaskLosses,
    location_of,
    training_objective,
    training_rounds,
)
from scimult.training.interference.report import draw
from scimult.training.plan import plan_run
from tests.models.variants import tiny_encoder
from tests.training.corpus import (
    TARGETS,
    prepare_corpus,
    run_config,
)

TASKS = ("one", "two")
# Rounding of about ten thousand products in float64.
FLOAT64 = 1e-10


def _micro_batch(task: str, seed: int) -> MicroBatch:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, 50, size=length) for length in (5, 9, 7, 6)]
    none = torch.zeros(0, dtype=torch.int64)
    ids = torch.arange(2)
    batch = Batch("s", task, rows, [0] * 4, ids, ids + 2, ids, ids + 2, none, none, none)
    return MicroBatch([batch], 2)


def _rounds(count: int) -> list[list[list[MicroBatch]]]:
    """Return rounds of micro-batches that all differ."""
    return [
        [
            [_micro_batch(task, 100 * k + 10 * t + half) for half in (0, 1)]
            for t, task in enumerate(TASKS)
        ]
        for k in range(count)
    ]


def _compare(model: Encoder, objective: TaskLosses, count: int = 4) -> InterferenceMap:
    rounds = list(measure(model, objective, TASKS, _routes(model), _rounds(count)))
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    locations = [location_of(name, model.config.num_blocks) for name in names]
    return compare(TASKS, locations, model.config.num_blocks, rounds)


def _routes(model: Encoder) -> Any:
    routed = model.config.is_routed
    return lambda task: (TASKS.index(task),) * 2 if routed else (0, 0)


def _pull_apart(model: Encoder, chosen: Sequence[str], strength: float) -> TaskLosses:
    """Return a loss that both tasks share, and opposed targets for the chosen parameters."""
    generator = torch.Generator().manual_seed(0)
    parameters = [(n, p) for n, p in model.named_parameters() if any(c in n for c in chosen)]
    assert parameters
    targets = {n: torch.randn(p.shape, generator=generator).double() for n, p in parameters}

    def losses(micro_batch: MicroBatch, embeddings_UD: Tensor) -> dict[str, Tensor]:
        (task,) = micro_batch.tasks
        sign = 1 if task == TASKS[0] else -1
        shared = (embeddings_UD**2).sum()
        pull = sum(((p - sign * targets[n]) ** 2).sum() for n, p in parameters)
        return {task: shared + strength * pull}

    return losses


@pytest.mark.parametrize(
    ("parameter", "location"),
    [
        ("embeddings.words.weight", (-1, "embeddings")),
        ("embeddings.norm.bias", (-1, "norms")),
        ("blocks.2.attention.qkv.experts.0.weight", (2, "attention")),
        ("blocks.2.attention.norm.weight", (2, "norms")),
        ("blocks.10.feed_forward.experts.1.output.bias", (10, "feed_forward")),
        ("blocks.10.feed_forward.experts.1.norm.bias", (10, "norms")),
        ("final_norm.weight", (12, "norms")),
    ],
)
def test_a_parameter_is_placed_by_its_block_and_part(
    parameter: str, location: tuple[int, str]
) -> None:
    """Norms of every block and of both ends are parts of their own."""
    assert location_of(parameter, num_blocks=12) == location


@pytest.mark.parametrize("case", ["vanilla", "mha_expert"])
def test_products_equal_autograd_by_hand(case: str) -> None:
    model = tiny_encoder(case).double()
    weights = torch.randn(24, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def losses(micro_batch: MicroBatch, embeddings_UD: Tensor) -> dict[str, Tensor]:
        (task,) = micro_batch.tasks
        return {task: (embeddings_UD @ weights if task == "one" else embeddings_UD**3).sum()}

    rounds = _rounds(1)
    (found,) = measure(model, losses, TASKS, _routes(model), rounds)
    by_hand: list[list[Tensor | None]] = []
    for number, halves in enumerate(rounds[0]):
        for micro_batch in halves:
            model.zero_grad(set_to_none=True)
            route = number if case == "mha_expert" else 0
            losses(micro_batch, model(pack(micro_batch.parts[0].rows), route))[
                TASKS[number]
            ].backward()
            by_hand.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    for row, _ in enumerate(model.parameters()):
        for a, left in enumerate(by_hand):
            assert found.reached_PG[row, a] == (left[row] is not None)
            for b, right in enumerate(by_hand):
                one, other = left[row], right[row]
                wanted = 0.0 if one is None or other is None else float((one * other).sum())
                scale = max(1.0, abs(wanted))
                assert abs(found.products_PGG[row, a, b] - wanted) <= FLOAT64 * scale
    # The cosine of a location is that of all parameters there that both reach, as one vector.
    locations = [location_of(name, 4) for name, _ in model.named_parameters()]
    for cell in compare(TASKS, locations, 4, [found]).pairs:
        rows = [row for row, location in enumerate(locations) if cell.location in (location, WHOLE)]
        cosines = [_cosine(one, other, rows) for one in by_hand[:2] for other in by_hand[2:]]
        if not np.isnan(cosines).any():
            assert cell.cosine.mean == pytest.approx(np.mean(cosines), abs=FLOAT64)
        else:
            assert (case, cell.verdict) == ("mha_expert", "routed")
            assert cell.location in (Location(1, "attention"), Location(3, "attention"))


def _cosine(one: list[Tensor | None], other: list[Tensor | None], rows: list[int]) -> float:
    """Return the cosine of two gradients over the parameters that both reach; NaN if none."""
    both = [(one[row], other[row]) for row in rows]
    reached = [(x.flatten(), y.flatten()) for x, y in both if x is not None and y is not None]
    if not reached:
        return float("nan")
    x_N, y_N = (torch.cat(side) for side in zip(*reached, strict=True))
    return float(torch.cosine_similarity(x_N, y_N, dim=0))


def test_micro_batches_of_several_tasks_are_run_once(folder: Path) -> None:
    """Mixed batches: one forward pass, and for each task the gradient of its own loss."""
    still = {"variant": "vanilla", "dropout": 0.0, "attention_dropout": 0.0}
    config = run_config(folder, "run", model=still, batch={"mix": "in_batch"})
    plan, pretrained = plan_run(config), build_model(config)
    tasks = ["search", "link_prediction", "classification"]
    rounds = training_rounds(config, plan, pretrained, tasks, 2)
    objective = training_objective(config, pretrained.routes, torch.device("cpu"))
    model = pretrained.model.double().train()
    model.checkpoints_activations = True
    found = list(measure(model, objective, tasks, pretrained.routes, rounds))
    model.checkpoints_activations = False
    for one, of_round in zip(found, rounds, strict=True):
        (micro_batches,) = {tuple(map(id, halves)) for halves in of_round}
        assert len(micro_batches) == 2
        assert one.batch_G == [*micro_batches] * len(tasks)
        flat = []
        for task in tasks:
            for micro_batch in of_round[0]:
                model.zero_grad()
                texts = [row for part in micro_batch.parts for row in part.rows]
                objective(micro_batch, model(pack(texts), 0))[task].backward()
                flat.append([p.grad.clone() for p in model.parameters()])
        for row in range(len(flat[0])):
            by_hand = torch.stack([gradient[row].flatten() for gradient in flat])
            wanted = (by_hand @ by_hand.T).numpy()
            # Sums that cancel, relative to the largest gradient.
            assert np.abs(one.products_PGG[row] - wanted).max() <= 1e-9 * max(1, wanted.max())


def test_in_mixed_batches_each_task_reaches_its_own_experts_only(folder: Path) -> None:
    """Experts of other tasks, which got zeros, had cosine 0 and could be *apart*."""
    experts = {"variant": "mha_expert", "dropout": 0.0, "attention_dropout": 0.0}
    config = run_config(folder, "run", model=experts, batch={"mix": "in_batch"})
    plan, pretrained = plan_run(config), build_model(config)
    tasks = ["search", "link_prediction", "classification"]
    rounds = training_rounds(config, plan, pretrained, tasks, 1)
    objective = training_objective(config, pretrained.routes, torch.device("cpu"))
    (found,) = measure(pretrained.model, objective, tasks, pretrained.routes, rounds)
    names = [name for name, _ in pretrained.model.named_parameters()]
    for name, reached_G in zip(names, found.reached_PG, strict=True):
        bank = in_bank(name, dict.fromkeys(names))
        route_of_task = [pretrained.routes(task)[0] for task in tasks]
        wanted = [bank is None or route == int(bank[2]) for route in route_of_task]
        assert reached_G.reshape(3, 2).tolist() == [[reached] * 2 for reached in wanted], name


@pytest.mark.long
def test_a_constructed_conflict_is_found_where_it_is(tmp_path: Path) -> None:
    model = tiny_encoder("vanilla").double()
    chosen = ["blocks.1.feed_forward.experts.0.output", "blocks.2.feed_forward.experts.0.output"]
    found = _compare(model, _pull_apart(model, chosen, 1e3), count=6)
    conflicts = {cell.location for cell in found.pairs if cell.verdict == "conflict"}
    assert conflicts - {WHOLE} == {Location(1, "feed_forward"), Location(2, "feed_forward")}
    for cell in found.pairs:
        if cell.location in conflicts:
            assert cell.cosine.high < -0.5
            assert cell.ceiling > 0.5
        else:
            # The same loss on other batches: they agree like a task with itself.
            assert cell.verdict == "alike"
            assert cell.cosine.mean > 0
    layout = suggest_layout(found)
    assert layout.model == {"variant": "ffn_expert", "options": {"blocks": [1, 2]}}
    assert layout.snippet.splitlines()[-1] == "  options: {blocks: [1, 2]}"
    draw(found, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("chosen", "model"),
    [
        (["blocks.3.attention.qkv"], {"variant": "mha_expert", "options": {"blocks": [3]}}),
        (
            ["blocks.0.attention.output", "blocks.3.feed_forward.experts.0.inter"],
            {"variant": "mha_ffn_expert", "options": {"blocks": [0, 3]}},
        ),
    ],
)
def test_the_layout_routes_what_is_in_conflict(chosen: list[str], model: dict[str, Any]) -> None:
    encoder = tiny_encoder("vanilla").double()
    found = _compare(encoder, _pull_apart(encoder, chosen, 1e4), count=6)
    assert suggest_layout(found).model == model


def test_tasks_that_agree_need_no_experts() -> None:
    model = tiny_encoder("vanilla").double()

    def losses(micro_batch: MicroBatch, embeddings_UD: Tensor) -> dict[str, Tensor]:
        return {micro_batch.tasks[0]: embeddings_UD.sum() * (1 + micro_batch.parts[0].rows[0][0])}

    found = _compare(model, losses, count=6)
    assert not [cell for cell in found.pairs if cell.verdict in ("conflict", "routed")]
    assert suggest_layout(found).model == {"variant": "vanilla"}


def test_a_gradient_that_overflows_is_an_error() -> None:
    def losses(micro_batch: MicroBatch, embeddings_UD: Tensor) -> dict[str, Tensor]:
        (task,) = micro_batch.tasks
        return {task: embeddings_UD.sum() * (np.inf if task == TASKS[1] else 1.0)}

    with pytest.raises(DataError, match=f"gradient is not finite.*{TASKS[1]}"):
        _compare(tiny_encoder("vanilla").double(), losses)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interference")
    prepare_corpus(path, TARGETS)
    return path


@pytest.mark.parametrize("mix", ["alternate", "in_batch"])
def test_batches_and_losses_are_those_of_training(folder: Path, mix: str) -> None:
    config = run_config(folder, "run", model={"dropout": 0.0}, batch={"mix": mix})
    plan, pretrained = plan_run(config), build_model(config)
    tasks = ["search", "link_prediction", "classification"]
    rounds = training_rounds(config, plan, pretrained, tasks, 3)
    assert [len(micro_batches) for of_round in rounds for micro_batches in of_round] == [2] * 9
    for of_round in rounds:
        for task, micro_batches in zip(tasks, of_round, strict=True):
            assert all(task in micro_batch.tasks for micro_batch in micro_batches)
            assert micro_batches[0] is not micro_batches[1]
    micro_batch = rounds[0][0][0]
    objective = training_objective(config, pretrained.routes, torch.device("cpu"))
    texts = [row for part in micro_batch.parts for row in part.rows]
    routes = [pretrained.routes(part.task)[0] for part in micro_batch.parts for _ in part.rows]
    losses = objective(micro_batch, pretrained.model(pack(texts), routes))
    assert set(losses) == set(micro_batch.tasks)
    for loss in losses.values():
        assert loss.ndim == 0
        assert loss.requires_grad


def test_a_rare_task_is_named(folder: Path) -> None:
    rates = {"search": 1.0, "link_prediction": 1.0, "classification": 1e-5}
    section = {"sampling": "explicit", "rates": rates}
    config = run_config(folder, "run", data=section)
    plan, pretrained = plan_run(config), build_model(config)
    with pytest.raises(ConfigError, match="task classification is in 0 of the first .*--rounds"):
        training_rounds(config, plan, pretrained, list(rates), 2)
