"""Heads and learned weights in a run: against plain autograd, over ranks, chunks and resumption."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import f1_score, r2_score
from torch import Tensor

from scimult import distributed
from scimult.checkpoints import load_pretrained
from scimult.checkpoints.heads import load_heads
from scimult.data.batches import Batch, BatchBuilder, TargetBatch, Unit, all_known_positives
from scimult.errors import ConfigError, SciMultError
from scimult.losses import head_losses
from scimult.models import embed_tokens
from scimult.models.heads import LinearHead, apply_head
from scimult.training import build
from scimult.training.callbacks import Checkpoints
from scimult.training.config import PretrainConfig
from scimult.training.learned import head_name, learned_parts, log_variance_name
from scimult.training.metrics import means_by_task
from scimult.training.negatives import shared_negatives
from scimult.training.objective import Objective, PartResult
from scimult.training.passes import UnitTexts, activation_tokens, pass_in_chunks, pass_whole
from scimult.training.plan import RunPlan, build_sampler, plan_run
from scimult.training.run import pretrain
from scimult.training.weighting import Weighting
from tests.ranks import run_ranks
from tests.training.corpus import (
    ALL_TASKS,
    KINDS,
    TARGETS,
    assert_same_run,
    metrics,
    prepare_corpus,
    run_config,
)
from tests.training.test_ranks import CHUNK, OwnGradients, assert_equal_gradients

pytestmark = pytest.mark.ranks

MIXED = {"mix": "in_batch", "pairs_per_step": 24}
BY_TASK = {
    **KINDS,
    "search": {"name": "info_nce", "temperature": 0.5, "learn_temperature": True},
    "link_prediction": {"name": "triplet", "margin": 2.0},
}
# Two ranks, or chunks, are compared with one pass of one process under each of these.
LOSSES: tuple[dict[str, Any], ...] = (
    {},
    {"reduction": "tasks", "weights": {"venue": 2.0}},
    {"weighting": "uncertainty"},
    {"weighting": "gradnorm", "gradnorm_alpha": 0.7},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads")
    prepare_corpus(path, TARGETS)
    return path


def config_of(folder: Path, name: str, **sections: Any) -> PretrainConfig:
    """Return a run on all tasks whose passes mix them, without dropout."""
    own = sections.pop("loss", {})
    still = {"dropout": 0.0, "attention_dropout": 0.0, "similarity": "l2"}
    sections["model"] = still | sections.get("model", {})
    sections["batch"] = MIXED | sections.get("batch", {})
    return run_config(folder, name, tasks=ALL_TASKS, loss={"by_task": BY_TASK, **own}, **sections)


def units_of(config: PretrainConfig, plan: RunPlan, tokenizer: Any) -> tuple[Any, BatchBuilder]:
    tokens = plan.data.tokens(tokenizer, 32)
    sampler, _ = build_sampler(config, plan, tokens.lengths_N)
    known = all_known_positives(plan.data)
    return sampler, BatchBuilder(plan.sources, tokens, known, max_length=32)


def gradients(
    folder: Path, loss: dict[str, Any], chunk_tokens: int | None
) -> tuple[list[float], dict[str, Tensor]]:
    """Return the loss of two units and their gradients, in float64, averaged over ranks."""
    config = config_of(folder, "unused", loss=loss)
    plan, pretrained = plan_run(config), build.build_model(config)
    sampler, builder = units_of(config, plan, pretrained.tokenizer)
    learned = learned_parts(config, pretrained.model, plan.loss_weights, plan.head_outputs)
    model = pretrained.model.double()
    _stir(model)
    group_of = shared_negatives(config.batch.negatives_across, pretrained.routes)
    objective = Objective("l2", config.loss, group_of=group_of)
    weighting = Weighting(config.loss, plan.loss_weights)
    engine = OwnGradients(model)
    losses = []
    for number in range(2):
        unit = builder.unit(sampler.plan(number), distributed.rank())
        texts = UnitTexts.of(unit, pretrained.routes)

        def loss_of(
            embeddings_UD: Tensor, values: Any, unit: Unit = unit
        ) -> tuple[Tensor, list[PartResult]]:
            results = objective(unit.parts, embeddings_UD, values)
            value = weighting(results, unit, embeddings_UD, values)
            losses.append(float(value.detach()))
            return value, results

        values = partial(learned.values, unit.tasks)
        if chunk_tokens is None:
            pass_whole(engine, texts, loss_of, values)  # type: ignore[arg-type]
        else:
            pass_in_chunks(
                engine,  # type: ignore[arg-type]
                texts,
                loss_of,
                values,
                chunk_tokens=chunk_tokens,
                weigh=partial(activation_tokens, head_width=2),
                seed_of_chunk=lambda chunk: chunk,
            )
    ranks = distributed.world_size()
    found = {}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if ranks > 1:
            torch.distributed.all_reduce(gradient)
        found[name] = gradient / ranks
    return losses, found


def _stir(model: torch.nn.Module) -> None:
    """Move what is learned beside the encoder away from its start, where much is 0."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("learned."):
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter += 0.3 * noise


def all_gradients(
    folder: Path, chunk_tokens: int | None
) -> list[tuple[list[float], dict[str, Tensor]]]:
    return [gradients(folder, loss, chunk_tokens) for loss in LOSSES]


def test_ranks_and_chunks_give_the_gradient_of_one_whole_pass(folder: Path, tmp_path: Path) -> None:
    whole = all_gradients(folder, None)
    chunked = all_gradients(folder, CHUNK)
    both = run_ranks(both_ways, 2, tmp_path, folder)
    for number, (loss, (losses, reference)) in enumerate(zip(LOSSES, whole, strict=True)):
        heads = [name for name in reference if name.startswith("learned.head/")]
        assert len(heads) == 2 * len(KINDS)
        assert all(reference[name].norm() > 0 for name in heads)
        assert chunked[number][0] == pytest.approx(losses, rel=1e-10)
        assert_equal_gradients(chunked[number][1], reference, loss)
        if loss.get("weighting") == "gradnorm":
            # A text of both ranks has two embeddings, and so another norm than in one process.
            continue
        for way in range(2):
            ranks = [rank[way][number] for rank in both]
            assert np.mean([rank[0] for rank in ranks], axis=0) == pytest.approx(losses, rel=1e-10)
            assert_equal_gradients(ranks[0][1], reference, loss)


def both_ways(folder: Path) -> list[list[tuple[list[float], dict[str, Tensor]]]]:
    return [all_gradients(folder, None), all_gradients(folder, CHUNK)]


class Planned:
    """A unit of all tasks, the embeddings of its texts and what is learned, in float64."""

    def __init__(self, folder: Path, **loss: Any) -> None:
        self.config = config_of(folder, "unused", loss=loss)
        self.plan = plan_run(self.config)
        pretrained = build.build_model(self.config)
        sampler, builder = units_of(self.config, self.plan, pretrained.tokenizer)
        self.unit = builder.unit(sampler.plan(0), 0)
        weights, outputs = self.plan.loss_weights, self.plan.head_outputs
        learned = learned_parts(self.config, pretrained.model, weights, outputs)
        _stir(pretrained.model.double())
        self.values = {n: v.detach() for n, v in learned.values(self.unit.tasks).items()}
        for value in self.values.values():
            value.requires_grad_()
        texts = sum(len(part.rows) for part in self.unit.parts)
        generator = torch.Generator().manual_seed(0)
        self.embeddings = torch.randn(texts, 16, generator=generator, dtype=torch.float64)
        self.embeddings.requires_grad_()
        self.results = self.objective(self.unit.parts, self.embeddings, self.values)

    @property
    def objective(self) -> Objective:
        # One space for all tasks, so that all pairs share their negatives.
        return Objective("l2", self.config.loss, group_of=lambda source, task: 0)

    def outputs(self, number: int) -> tuple[TargetBatch, np.ndarray]:
        """Return a part with targets and what its head gives, without torch."""
        part = self.unit.parts[number]
        assert isinstance(part, TargetBatch)
        first = sum(len(before.rows) for before in self.unit.parts[:number])
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
        means = means_by_task(result.sums)[result.task]
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
    """Against loops over pairs: each query sees the candidates of all parts, by its own loss."""
    planned = Planned(folder)
    parts, vectors = planned.unit.parts, planned.embeddings.detach().numpy()
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
    return weighting(planned.results, planned.unit, planned.embeddings, planned.values)


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
        term = factor * math.exp(-float(value)) * float(mean)
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
    loss = weighting(planned.results, planned.unit, planned.embeddings, planned.values)
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
    # Texts feel the weighted losses, and nothing of what trains the weights.
    texts = sum(weights[task] * of_task[task] for task in tasks)
    torch.testing.assert_close(by_texts, texts, rtol=1e-9, atol=1e-12)


def test_gradnorm_remembers_first_losses(folder: Path) -> None:
    planned = Planned(folder, weighting="gradnorm")
    weighting = Weighting(planned.config.loss, planned.plan.loss_weights)
    weighting(planned.results, planned.unit, planned.embeddings, planned.values)
    means = {task: float(mean.detach()) for task, mean in means_of(planned).items()}
    assert weighting.state == pytest.approx(means)
    weighting.restore({"venue": 7.0})
    weighting(planned.results, planned.unit, planned.embeddings, planned.values)
    assert weighting.state == pytest.approx(means | {"venue": 7.0})


STAGES = (0, 1, 2, 3)


def run_every_stage(
    folder: Path, label: str, chunk_tokens: int | None = None
) -> list[tuple[list[float], list[dict[str, float]], dict[str, Tensor]]]:
    """Train under every ZeRO stage, one task in a pass: heads rest while others learn."""
    results = []
    for stage in STAGES:
        config = config_of(
            folder,
            f"{label}-{stage}",
            loss={"weighting": "uncertainty"},
            batch={"mix": "alternate", "pairs_per_step": 8, "chunk_tokens": chunk_tokens},
            optimizer={"lr": 1e-3, "learned_lr": 1e-2, "eps": 1e-4},
            engine={"deepspeed": {"zero_optimization": {"stage": stage}}},
            checkpoint={"keep_heads": True, "every": 6},
        )
        model = pretrain(config)
        if distributed.is_main():
            lines = metrics(folder / f"{label}-{stage}")
            heads = {task: head.weight_KD for task, head in load_heads(model).items()}
            scores = [line["metrics"] for line in lines if line["metrics"]]
            results.append(([line["loss"] for line in lines], scores, heads))
    return results


def test_zero_stages_and_ranks_train_the_same_heads(folder: Path, tmp_path: Path) -> None:
    one = run_every_stage(folder, "one")
    two = run_ranks(run_every_stage, 2, tmp_path, folder, "two", CHUNK)[0]
    losses, scores, heads = one[0]
    assert {"dev/world.venue/accuracy", "dev/world.count/kendall"} <= set(scores[-1])
    assert all(
        "learned" not in name for name in load_pretrained(folder / "one-0").model.state_dict()
    )
    for found in (*one, *two):
        # Float32 rounding, carried through six Adam steps with a large eps.
        assert found[0] == pytest.approx(losses, abs=1e-4)
        for task, weight in heads.items():
            assert (found[2][task] - weight).abs().max() <= 1e-4, task


def test_a_resumed_run_is_an_uninterrupted_one(folder: Path, monkeypatch: Any) -> None:
    settings: dict[str, Any] = {
        "model": {"dropout": 0.1, "attention_dropout": 0.1},
        "loss": {
            "weighting": "gradnorm",
            "by_task": BY_TASK | {"venue": {"name": "multi_class", "dropout": 0.2}},
        },
        "batch": {"chunk_tokens": CHUNK},
        "checkpoint": {"keep_heads": True, "every": 3},
    }
    whole = pretrain(config_of(folder, "whole", **settings))
    config = config_of(folder, "stopped", **settings)

    class Stopped(Exception):
        pass

    save = Checkpoints.on_step

    def stop(self: Checkpoints, report: Any) -> None:
        save(self, report)
        if report.step == 4:
            raise Stopped

    monkeypatch.setattr(Checkpoints, "on_step", stop)
    with pytest.raises(Stopped):
        pretrain(config)
    monkeypatch.undo()
    stopped = pretrain(config)
    assert_same_run(folder / "whole", folder / "stopped")
    theirs = load_heads(whole)
    for task, head in load_heads(stopped).items():
        assert torch.equal(head.weight_KD, theirs[task].weight_KD), task
        assert torch.equal(head.bias_K, theirs[task].bias_K), task


def test_kept_heads_give_what_the_run_scored(folder: Path) -> None:
    """A head on what the exported encoder embeds, against the last dev score of the run."""
    config = config_of(folder, "kept", checkpoint={"keep_heads": True})
    model = pretrain(config)
    pretrained, heads = load_pretrained(model), load_heads(model)
    plan = plan_run(config)
    tokens = plan.data.tokens(pretrained.tokenizer, 32)
    last = metrics(folder / "kept")[-1]["metrics"]
    for file in plan.dev_targets:
        rows = [tokens.tokens(int(row), 32) for row in file.rows]
        route = pretrained.routes(file.task)[0]
        found = heads[file.task].predict(
            torch.from_numpy(embed_tokens(pretrained.model, rows, route=route))
        )
        targets = file.targets(file.rows)
        if file.kind == "multi_class":
            score = float((found.argmax(1) == targets).double().mean())
            assert last["dev/world.venue/accuracy"] == pytest.approx(score)
        elif file.kind == "multi_label":
            score = f1_score(targets.numpy(), (found > 0.5).numpy(), average="micro")
            assert last["dev/world.topics/micro_f1"] == pytest.approx(score)
        else:
            # Numbers as they were read: a linear map changes neither R2 nor the order.
            head = heads["count"].described
            read = (targets - head.offset) / head.factor
            score = r2_score(read.numpy(), found.double().numpy())
            assert last["dev/world.count/r2"] == pytest.approx(score, abs=1e-4)


def test_without_keeping_them_no_head_is_written(folder: Path) -> None:
    model = pretrain(config_of(folder, "dropped", schedule={"steps": 1}))
    assert not list(model.glob("heads*"))
    with pytest.raises(SciMultError, match="no heads were kept.*keep_heads: true"):
        load_heads(model)


def tasks_of_units(config: PretrainConfig) -> list[dict[str, int]]:
    plan = plan_run(config)
    sampler, steps = build_sampler(config, plan, np.full(1000, 8, dtype=np.int32))
    return [
        {plan.sources[part.source].task: len(part.rows) for part in sampler.plan(number)}
        for number in range(steps)
    ]


def test_strategies_fill_batches_as_they_promise(folder: Path) -> None:
    equal = tasks_of_units(config_of(folder, "unused"))
    names = {task["name"] for task in ALL_TASKS}
    assert all(unit == dict.fromkeys(names, 4) for unit in equal)
    alternate = {"batch": {"mix": "alternate", "pairs_per_step": 4}, "schedule": {"steps": 24}}
    turns = tasks_of_units(config_of(folder, "unused", **alternate))
    assert all(len(unit) == 1 and sum(unit.values()) == 4 for unit in turns)
    counts = {name: sum(name in unit for unit in turns) for name in names}
    assert counts == dict.fromkeys(names, 4)
    order = ["world.count", "world.search", "world.venue"]
    sequential = {"data": {"sampling": "sequential", "sources": order}, **alternate}
    row = [
        task for unit in tasks_of_units(config_of(folder, "unused", **sequential)) for task in unit
    ]
    assert list(dict.fromkeys(row)) == ["count", "search", "venue"]
    assert row == sorted(row, key=["count", "search", "venue"].index)
    rates = {"count": 0.5, "venue": 0.25, "search": 0.25}
    shares = {"data": {"sampling": "explicit", "rates": rates, "sources": order}}
    mixed = tasks_of_units(config_of(folder, "unused", **shares))
    assert all(unit == {"count": 12, "venue": 6, "search": 6} for unit in mixed)


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
        ({"loss": {"gradnorm_alpha": 1}}, "belongs to weighting gradnorm"),
        (
            {"loss": {"weighting": "gradnorm"}, "batch": {"mix": "alternate"}},
            "set batch.mix to in_batch",
        ),
        ({"data": {"sampling": "sequential"}}, "set batch.mix to alternate"),
        ({"loss": {"by_task": {}}, "checkpoint": {"keep_heads": True}}, "gives no task a head"),
    ],
)
def test_contradictions_are_refused(folder: Path, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(folder, "never", **sections)


@pytest.mark.parametrize(
    ("by_task", "data", "message"),
    [
        (
            {"classification": "multi_class"},
            {},
            "the data of this task fit info_nce",
        ),
        ({"venue": "multi_label"}, {}, "set loss.by_task.venue to multi_class"),
        ({}, {"sources": ["world.venue"]}, r"targets alone.*by_task: \{venue: multi_class\}"),
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
    with pytest.raises(ConfigError, match="'year' a head, and no source has targets of it"):
        plan_run(config)


def test_without_heads_a_run_trains_pairs_alone(folder: Path) -> None:
    plan = plan_run(run_config(folder, "never"))
    assert [source.task for source in plan.sources] == [
        "classification",
        "link_prediction",
        "search",
    ]
    assert not plan.dev_targets


def test_a_linear_head_finds_a_linear_target() -> None:
    """Trained to the end, a regression is least squares (sklearn)."""
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
    assert float(head.bias) == pytest.approx(peer.intercept_, abs=1e-6)
