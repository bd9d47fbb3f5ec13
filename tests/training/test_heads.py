"""Heads and learned weights in a run: over ranks, chunks, ZeRO stages and resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, r2_score
from torch import Tensor

from scimult import distributed
from scimult.checkpoints import load_pretrained
from scimult.checkpoints.heads import load_heads
from scimult.errors import DataError, SciMultError
from scimult.files import read_json, write_json
from scimult.inference import SciMult
from scimult.models import embed_tokens
from scimult.tasks import default_tasks
from scimult.training import build
from scimult.training.callbacks import Checkpoints
from scimult.training.learned import learned_parts
from scimult.training.negatives import shared_negatives
from scimult.training.objective import Objective
from scimult.training.plan import plan_run
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
from tests.training.heads import BY_TASK, LOSSES, config_of, micro_batches_of, stir
from tests.training.test_ranks import (
    CHUNK,
    OwnGradients,
    assert_equal_gradients,
    mean_gradients,
    run_pass,
)

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads")
    prepare_corpus(path, TARGETS)
    return path


def gradients(
    folder: Path, loss: dict[str, Any], chunk_tokens: int | None
) -> tuple[list[float], dict[str, Tensor]]:
    """Return the loss of two micro-batches and their gradients, in float64, averaged over ranks."""
    config = config_of(folder, "unused", loss=loss)
    plan, pretrained = plan_run(config), build.build_model(config)
    sampler, builder = micro_batches_of(config, plan, pretrained.tokenizer)
    learned = learned_parts(config, pretrained.model, plan.loss_weights, plan.head_outputs)
    model = pretrained.model.double()
    stir(model)
    group_of = shared_negatives(config.batch.negatives_across, pretrained.routes)
    objective = Objective("l2", config.loss, group_of=group_of)
    weighting = Weighting(config.loss, plan.loss_weights)
    engine = OwnGradients(model)
    losses = []

    def weigh(*arguments: Any) -> Tensor:
        loss = weighting(*arguments)
        losses.append(float(loss.detach()))
        return loss

    for number in range(2):
        micro_batch = builder.micro_batch(sampler.plan(number), distributed.rank())
        routes = pretrained.routes
        run_pass(engine, objective, micro_batch, routes, learned, chunk_tokens, weigh)
    return losses, mean_gradients(model)


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
            # A text on both ranks has two embeddings, and so a different norm than in one process.
            continue
        for way in range(2):
            ranks = [rank[way][number] for rank in both]
            assert np.mean([rank[0] for rank in ranks], axis=0) == pytest.approx(losses, rel=1e-10)
            assert_equal_gradients(ranks[0][1], reference, loss)


def both_ways(folder: Path) -> list[list[tuple[list[float], dict[str, Tensor]]]]:
    return [all_gradients(folder, None), all_gradients(folder, CHUNK)]


STAGES = (0, 1, 2, 3)


def run_every_stage(
    folder: Path, label: str, chunk_tokens: int | None = None
) -> list[tuple[list[float], list[dict[str, float]], dict[str, Tensor]]]:
    """Train under every ZeRO stage, one task per pass: heads rest while others learn."""
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
        # Float32 rounding, amplified by six Adam steps with a large eps.
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


def test_kept_heads_reproduce_the_scores_of_the_run(folder: Path) -> None:
    """Heads on embeddings of the exported encoder, against the last dev scores of the run."""
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
            # Numbers before scaling: a linear map changes neither R2 nor the order.
            head = heads["count"].description
            read = (targets - head.offset) / head.factor
            score = r2_score(read.numpy(), found.double().numpy())
            assert last["dev/world.count/r2"] == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_kept_heads_predict_numbers_as_they_were_read(tmp_path: Path, similarity: str) -> None:
    """As documented: the arrays of `SciMult.encode` in, original numbers out."""
    target = {"task": "reads", "kind": "regression", "file": "reads.tsv", "scale": "log"}
    prepare_corpus(tmp_path, [target])
    config = run_config(
        tmp_path,
        "run",
        tasks=[
            *(task.model_dump() for task in default_tasks()),
            {"name": "reads", "format": "regression"},
        ],
        data={"max_length": 64},  # as the model encodes
        model={"similarity": similarity, "dropout": 0.0, "attention_dropout": 0.0},
        loss={"by_task": {"reads": "regression"}},
        optimizer={"lr": 1e-3, "learned_lr": 1e-2},
        schedule={"steps": 12},
        checkpoint={"keep_heads": True},
    )
    saved = pretrain(config)
    head, plan = load_heads(saved)["reads"], plan_run(config)
    (file,) = plan.dev_targets
    papers = [plan.data.texts.text(int(row)) for row in file.rows]
    raw_ND = SciMult.from_pretrained(saved, normalise=False).encode(papers, task="reads")
    numbers = head.predict(raw_ND)
    assert torch.equal(numbers, head.predict(torch.from_numpy(raw_ND)))
    logs = torch.from_numpy(raw_ND) @ head.weight_KD[0] + head.bias_K[0]
    torch.testing.assert_close(numbers, logs.exp() - 1, rtol=1e-5, atol=1e-5)
    read = [float(plan.data.texts.ids[int(row)].removeprefix("world:p")) for row in file.rows]
    score = r2_score(np.log1p(read), np.log1p(numbers.numpy()))
    reported = metrics(tmp_path / "run")[-1]["metrics"]["dev/world.reads/r2"]
    assert reported == pytest.approx(score, abs=1e-4)
    encoded_ND = SciMult.from_pretrained(saved).encode(papers, task="reads")
    if similarity == "dot":
        assert torch.equal(head.predict(encoded_ND), numbers)
    else:
        for scaled_ND in (encoded_ND, encoded_ND[:1], encoded_ND.astype(np.float16)):
            with pytest.raises(DataError, match=r"length 1.*normalise=False"):
                head.predict(scaled_ND)
    with pytest.raises(DataError, match=r"reads embeddings of width 16 .*shape \(16,\)"):
        head.predict(raw_ND[0])
    # Heads of older versions do not say whether their numbers are logarithms.
    described = read_json(saved / "heads.json")
    del described["reads"]["log"]
    write_json(saved / "heads.json", described)
    torch.testing.assert_close(load_heads(saved)["reads"].predict(raw_ND), logs)


def test_without_keeping_them_no_head_is_written(folder: Path) -> None:
    model = pretrain(config_of(folder, "dropped", schedule={"steps": 1}))
    assert not list(model.glob("heads*"))
    with pytest.raises(SciMultError, match="no heads were saved.*keep_heads: true"):
        load_heads(model)


@pytest.mark.parametrize("chunk_tokens", [None, 20], ids=["whole", "chunks"])
def test_experts_without_rows_are_not_stepped(folder: Path, chunk_tokens: int | None) -> None:
    """Papers with targets are queries; weight decay used to move the expert of their candidates."""
    config = run_config(
        folder,
        f"no_rows_{chunk_tokens}",
        tasks=ALL_TASKS,
        model={"variant": "ffn_expert", "routing": "task_and_side"},
        data={"sources": ["world.venue", "world.count", "world.search"], "sampling": "equal"},
        loss={"by_task": {name: KINDS[name] for name in ("venue", "count")}},
        batch={"pairs_per_step": 4, "chunk_tokens": chunk_tokens},
        schedule={"steps": 3},
        optimizer={"lr": 1e-2, "weight_decay": 0.5},
        dev={"every": 0},
    )
    trained = load_pretrained(pretrain(config))
    (base,) = (
        weight
        for name, weight in load_pretrained(folder / "base").model.state_dict().items()
        if name.endswith("1.feed_forward.experts.0.intermediate.weight")
    )
    expert = "blocks.1.feed_forward.experts.{}.intermediate.weight"
    weights = trained.model.state_dict()
    moved = {
        route
        for number, route in enumerate(trained.config.routes)
        if not torch.equal(weights[expert.format(number)], base)
    }
    assert moved == {"venue/query", "count/query", "search/query", "search/candidate"}
