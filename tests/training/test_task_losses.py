"""Losses of heads, and combined losses of tasks, against numpy, sklearn and autograd."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, r2_score
from torch import Tensor

from scimult.data.batches import Batch, TargetBatch
from scimult.training import build
from scimult.training.learned import head_name, learned_parts, log_variance_name
from scimult.training.metrics import means_by_task
from scimult.training.objective import Objective
from scimult.training.plan import plan_run
from scimult.training.weighting import Weighting
from tests.training.corpus import (
    KINDS,
    TARGETS,
    prepare_corpus,
)
from tests.training.heads import config_of, micro_batches_of, stir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads")
    prepare_corpus(path, TARGETS)
    return path


class Planned:
    """A micro-batch of all tasks, its texts' embeddings and learned values, in float64."""

    def __init__(self, folder: Path, **loss: Any) -> None:
        self.config = config_of(folder, "unused", loss=loss)
        self.plan = plan_run(self.config)
        pretrained = build.build_model(self.config)
        sampler, builder = micro_batches_of(self.config, self.plan, pretrained.tokenizer)
        self.micro_batch = builder.micro_batch(sampler.plan(0), 0)
        weights, outputs = self.plan.loss_weights, self.plan.head_outputs
        learned = learned_parts(self.config, pretrained.model, weights, outputs)
        stir(pretrained.model.double())
        self.values = {n: v.detach() for n, v in learned.values(self.micro_batch.tasks).items()}
        for value in self.values.values():
            value.requires_grad_()
        texts = sum(len(part.rows) for part in self.micro_batch.parts)
        generator = torch.Generator().manual_seed(0)
        self.embeddings = torch.randn(texts, 16, generator=generator, dtype=torch.float64)
        self.embeddings.requires_grad_()
        self.results = self.objective(self.micro_batch.parts, self.embeddings, self.values)

    @property
    def objective(self) -> Objective:
        # One space for all tasks, so that all pairs share their negatives.
        return Objective("l2", self.config.loss, group_of=lambda source, task: 0)

    def outputs(self, number: int) -> tuple[TargetBatch, np.ndarray]:
        """Return a part with targets and its head's outputs, without torch."""
        part = self.micro_batch.parts[number]
        assert isinstance(part, TargetBatch)
        first = sum(len(before.rows) for before in self.micro_batch.parts[:number])
        texts = self.embeddings.detach().numpy()[first + part.text_B.numpy()]
        value = self.values[head_name(part.task)].detach().numpy()
        return part, texts @ value[:, :-1].T + value[:, -1]


def test_losses_and_scores_of_heads_by_hand(folder: Path) -> None:
    planned = Planned(folder)
    seen = set()
    for number, result in enumerate(planned.results):
        if result.task not in KINDS:
            continue
        part, outputs = planned.outputs(number)
        targets = part.targets_B.numpy()
        means = means_by_task({result.task: result.statistics_S.tolist()})[result.task]
        if KINDS[result.task] == "multi_class":
            log_total = np.log(np.exp(outputs).sum(1))
            losses = log_total - outputs[np.arange(len(targets)), targets]
            score = {"class_accuracy": np.mean(outputs.argmax(1) == targets)}
        elif KINDS[result.task] == "multi_label":
            chances = 1 / (1 + np.exp(-outputs))
            terms = targets * np.log(chances) + (1 - targets) * np.log(1 - chances)
            losses = -terms.mean(1)
            score = {"micro_f1": f1_score(targets, outputs > 0, average="micro")}
        else:
            losses = (outputs[:, 0] - targets) ** 2
            score = {"r2": r2_score(targets, outputs[:, 0])}
        # Float64 sums in another order.
        assert float(result.loss.detach()) == pytest.approx(losses.sum(), rel=1e-12)
        assert means == pytest.approx({"loss": losses.mean(), **score}, rel=1e-9)
        seen.add(result.task)
    assert seen == set(KINDS)


def test_losses_of_tasks_share_their_negatives(folder: Path) -> None:
    """Compare with loops over pairs: each query sees all parts' candidates, by its own loss."""
    planned = Planned(folder)
    parts, vectors = planned.micro_batch.parts, planned.embeddings.detach().numpy()
    firsts = np.cumsum([0, *(len(part.rows) for part in parts)])
    pairs = [
        (part, row, vectors[first + part.query_B[row]], vectors[first + part.candidate_C[row]])
        for part, first in zip(parts, firsts, strict=False)
        if isinstance(part, Batch)
        for row in range(len(part.query_B))
    ]
    # All positives come before all hard negatives; of copies, which differ here, the first counts.
    columns = sorted(
        (
            (column >= len(part.query_B), number, column, part)
            for number, part in enumerate(parts)
            if isinstance(part, Batch)
            for column in range(len(part.candidate_C))
        ),
        key=lambda entry: entry[:3],
    )
    found = {result.task: float(result.loss.detach()) for result in planned.results}
    expected = dict.fromkeys(("search", "link_prediction", "classification"), 0.0)
    for part, row, query, positive in pairs:
        own = [
            len(part.query_B) + place
            for place, owner in enumerate(part.negative_rows_H.tolist())
            if owner == row
        ]
        known = part.known_ids_P[part.known_rows_P == row].tolist()
        score = -np.linalg.norm(query - positive)
        negatives: dict[int, float] = {}
        alone = part.task == "link_prediction" and bool(own)
        for _, number, column, other in columns:
            identifier, is_own = int(other.candidate_ids_C[column]), other is part and column in own
            if identifier in known or identifier == int(part.candidate_ids_C[row]):
                continue
            score_of = -np.linalg.norm(query - vectors[firsts[number] + other.candidate_C[column]])
            if is_own or (not alone and identifier not in negatives):
                negatives[identifier] = score_of
        if part.task == "link_prediction":
            hinges = [max(0.0, 2.0 + other - score) for other in negatives.values()]
            expected[part.task] += float(np.mean(hinges)) if hinges else 0.0
            continue
        temperature = 1.0
        if part.task == "search":
            temperature = float(planned.values["temperature/search"].detach())
        scores = np.array([score, *negatives.values()]) / temperature
        expected[part.task] += float(np.log(np.exp(scores - scores[0]).sum()))
    for task, loss in expected.items():
        assert found[task] == pytest.approx(loss, rel=1e-9), task


def means_of(planned: Planned) -> dict[str, Tensor]:
    """Return the mean loss of each task, with its graph."""
    found: dict[str, Tensor] = {}
    for result in planned.results:
        found[result.task] = result.loss / result.pairs
    return found


def weighted(planned: Planned) -> Tensor:
    weighting = Weighting(planned.config.loss, planned.plan.loss_weights)
    return weighting(planned.results, planned.micro_batch, planned.embeddings, planned.values)


def test_reductions_by_hand(folder: Path) -> None:
    pairs = Planned(folder, weights={"venue": 3.0})
    total = sum(float(r.loss.detach()) * (3.0 if r.task == "venue" else 1.0) for r in pairs.results)
    assert float(weighted(pairs).detach()) == pytest.approx(total / 24, rel=1e-12)
    tasks = Planned(folder, reduction="tasks", weights={"venue": 3.0})
    means = {task: float(mean.detach()) for task, mean in means_of(tasks).items()}
    assert len(means) == 6
    expected = sum(means.values()) + 2 * means["venue"]
    assert float(weighted(tasks).detach()) == pytest.approx(expected, rel=1e-12)


def test_uncertainty_by_hand(folder: Path) -> None:
    planned = Planned(folder, weighting="uncertainty")
    loss = weighted(planned)
    loss.backward()
    expected = 0.0
    for task, mean in means_of(planned).items():
        value = planned.values[log_variance_name(task)]
        factor = 0.5 if task == "count" else 1.0
        term = factor * math.exp(-float(value.detach())) * float(mean.detach())
        expected += term + float(value) / 2
        assert value.grad is not None
        assert float(value.grad) == pytest.approx(0.5 - term, rel=1e-10), task
    assert float(loss) == pytest.approx(expected, rel=1e-12)


def test_gradnorm_by_hand(folder: Path) -> None:
    planned = Planned(folder, weighting="gradnorm", gradnorm_alpha=0.5)
    weighting = Weighting(planned.config.loss, planned.plan.loss_weights)
    first = {task: float(2 + number) for number, task in enumerate(planned.plan.loss_weights)}
    weighting.restore(first)
    value = planned.values["task_weights"]
    loss = weighting(planned.results, planned.micro_batch, planned.embeddings, planned.values)
    (by_weights, by_texts) = torch.autograd.grad(
        loss, [value, planned.embeddings], retain_graph=True
    )
    tasks, means = list(first), means_of(planned)
    weights = dict(zip(tasks, value.detach().tolist(), strict=True))
    of_task = {
        task: torch.autograd.grad(mean, planned.embeddings, retain_graph=True)[0]
        for task, mean in means.items()
    }
    norms = {task: float(gradient.norm()) for task, gradient in of_task.items()}
    ratios = {task: float(means[task]) / first[task] for task in tasks}
    rate = {task: ratio / np.mean(list(ratios.values())) for task, ratio in ratios.items()}
    middle = np.mean([weights[task] * norms[task] for task in tasks])
    away = {task: weights[task] * norms[task] - middle * rate[task] ** 0.5 for task in tasks}
    expected = sum(weights[task] * float(means[task]) for task in tasks)
    assert float(loss) == pytest.approx(expected + sum(map(abs, away.values())), rel=1e-9)
    signed = [math.copysign(norms[task], away[task]) for task in tasks]
    assert by_weights.tolist() == pytest.approx(signed, rel=1e-9)
    # Texts get gradients of the weighted losses, not of the loss that trains the weights.
    texts = sum(weights[task] * of_task[task] for task in tasks)
    torch.testing.assert_close(by_texts, texts, rtol=1e-9, atol=1e-12)


def test_gradnorm_remembers_first_losses(folder: Path) -> None:
    planned = Planned(folder, weighting="gradnorm")
    weighting = Weighting(planned.config.loss, planned.plan.loss_weights)
    weighting(planned.results, planned.micro_batch, planned.embeddings, planned.values)
    means = {task: float(mean.detach()) for task, mean in means_of(planned).items()}
    assert weighting.state == pytest.approx(means)
    weighting.restore({"venue": 7.0})
    weighting(planned.results, planned.micro_batch, planned.embeddings, planned.values)
    assert weighting.state == pytest.approx(means | {"venue": 7.0})


def test_gradnorm_compares_with_no_loss_of_zero(folder: Path) -> None:
    """A task whose first pair has no negatives, so no loss, would later outweigh all others."""
    planned = Planned(folder, weighting="gradnorm")
    weighting = Weighting(planned.config.loss, planned.plan.loss_weights)
    without = [replace(r, loss=r.loss * (r.task != "search")) for r in planned.results]
    weighting(without, planned.micro_batch, planned.embeddings, planned.values)
    assert "search" not in weighting.state
    loss = weighting(planned.results, planned.micro_batch, planned.embeddings, planned.values)
    again = Weighting(planned.config.loss, planned.plan.loss_weights)
    fresh = again(planned.results, planned.micro_batch, planned.embeddings, planned.values)
    assert float(loss.detach()) == pytest.approx(float(fresh.detach()), rel=1e-12)
    assert weighting.state == pytest.approx(again.state)
