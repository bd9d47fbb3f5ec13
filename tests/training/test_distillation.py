"""Distillation in a run: equal on any number of ranks, effective, refused without scores."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult import distributed
from scimult.config import validate
from scimult.data.batches import Batch
from scimult.data.prepared import PreparedData
from scimult.data.teacher import TeacherScores
from scimult.errors import ConfigError
from scimult.training.loss_config import LossConfig
from scimult.training.objective import Objective
from scimult.training.plan import plan_run
from scimult.training.run import pretrain
from tests.ranks import run_ranks
from tests.training.corpus import metrics, run_config

NAN = float("nan")
# Each query's positive, its hard negative if it has one, and the scores of both.
ROWS: list[tuple[int, int | None, float, float]] = [
    (10, 20, 3.0, 1.0),
    (11, None, 2.0, NAN),
    (12, 21, NAN, 0.5),
    (13, 22, 0.2, 1.5),
]
TEXTS = [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22]


def batch(queries: list[int]) -> Batch:
    """Return the batch of some queries of ``ROWS``; every query knows itself and its positive."""
    hard = [row for row, query in enumerate(queries) if ROWS[query][1] is not None]
    negatives = [ROWS[queries[row]][1] for row in hard]
    candidates = [ROWS[query][0] for query in queries] + negatives
    scores = [ROWS[query][2] for query in queries] + [ROWS[queries[row]][3] for row in hard]
    known = [(row, text) for row, query in enumerate(queries) for text in (query, ROWS[query][0])]
    return Batch(
        source="s",
        task="t",
        rows=[np.array([1, 2]) for _ in TEXTS],
        sides=[0] * len(TEXTS),
        query_B=torch.tensor(queries),
        candidate_C=torch.tensor([TEXTS.index(text) for text in candidates]),
        query_ids_B=torch.tensor(queries),
        candidate_ids_C=torch.tensor(candidates),
        negative_rows_H=torch.tensor(hard),
        known_rows_P=torch.tensor([row for row, _ in known]),
        known_ids_P=torch.tensor([text for _, text in known]),
        teacher_C=torch.tensor(scores),
        sizes_W=[(2, 1), (2, 2)],
    )


def losses(options: dict[str, Any]) -> tuple[float, Tensor]:
    """Return this rank's loss, and the gradient of the texts' embeddings."""
    section = validate(LossConfig, options)
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(len(TEXTS), 6, generator=generator, dtype=torch.float64)
    embeddings.requires_grad_()

    rank, world = distributed.rank(), distributed.world_size()
    queries = list(range(4))[4 * rank // world : 4 * (rank + 1) // world]
    objective = Objective("dot", section)
    # The mean over ranks equals the mean over all four queries.
    loss = objective([batch(queries)], embeddings * 1.0)[0].loss * (world / 4)
    loss.backward()
    assert embeddings.grad is not None
    return float(loss.detach()), embeddings.grad


CHOICES: list[dict[str, Any]] = [
    {"name": "kl", "weight": 0.5, "temperature": 0.7},
    {"name": "kl", "contrastive_weight": 0.0, "teacher_temperature": 2.0},
    {"name": "margin_mse", "weight": 0.5, "temperature": 0.7},
    {"name": "margin_mse", "contrastive_weight": 0.0, "teacher_temperature": 2.0},
]


def all_losses() -> list[tuple[float, Tensor]]:
    return [losses({"distillation": choice}) for choice in CHOICES]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_teachers_part_is_the_chosen_loss_by_hand(choice: dict[str, Any]) -> None:
    """Two candidates have scores: the softmax over them is a sigmoid of the margin."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(len(TEXTS), 6, generator=generator, dtype=torch.float64)
    by_hand = []
    for query, (positive, negative, *scores) in enumerate(ROWS):
        if negative is None or math.isnan(sum(scores)):
            continue
        of_texts = embeddings[[TEXTS.index(positive), TEXTS.index(negative)]] @ embeddings[query]
        student = float(of_texts[0] - of_texts[1]) / choice.get("temperature", 1)
        teacher = (scores[0] - scores[1]) / choice.get("teacher_temperature", 1)
        if choice["name"] == "kl":
            chances = [(1 / (1 + math.exp(-m)), 1 / (1 + math.exp(m))) for m in (teacher, student)]
            by_hand.append(sum(p * math.log(p / q) for p, q in zip(*chances, strict=True)))
        else:
            by_hand.append((student - teacher) ** 2)
    assert len(by_hand) == 2
    loss, _ = losses({"distillation": choice})
    plain, _ = losses({})
    expected = choice.get("contrastive_weight", 1) * plain
    expected += choice.get("weight", 1) * sum(by_hand) / 4
    assert loss == pytest.approx(expected, rel=1e-7)  # the teacher's scores are float32


@pytest.mark.ranks
def test_two_ranks_follow_the_teacher_like_one(tmp_path: Path) -> None:
    ranks = run_ranks(all_losses, 2, tmp_path)
    for one, parts in zip(all_losses(), zip(*ranks, strict=True), strict=True):
        loss, gradient = (sum(part) / 2 for part in zip(*parts, strict=True))
        assert loss == pytest.approx(one[0], rel=1e-10)
        torch.testing.assert_close(gradient, one[1], rtol=0, atol=1e-10)


def test_weights_add_up_and_queries_without_scores_have_only_the_other_loss() -> None:
    plain, _ = losses({})
    teacher, gradient = losses({"distillation": {"name": "margin_mse", "contrastive_weight": 0}})
    both, _ = losses({"distillation": {"name": "margin_mse", "weight": 3, "contrastive_weight": 2}})
    assert both == pytest.approx(2 * plain + 3 * teacher, rel=1e-10)
    # Queries 1 and 2 lack a score: the teacher moves only texts of queries 0 and 3.
    moved = [TEXTS[row] for row in gradient.abs().sum(1).nonzero()[:, 0].tolist()]
    assert moved == [0, 3, 10, 13, 20, 22]


def score_search(prepared: Path) -> None:
    """Add equal teacher scores to all search pairs of a prepared folder."""
    data = PreparedData.open(prepared)
    file = next(file for file in data.pairs("train") if file.task == "search")
    parts = (file.positives, file.negatives)
    queries = np.concatenate([file.queries[lists.owners] for lists in parts])
    papers = np.concatenate([lists.values for lists in parts])
    TeacherScores(queries, papers, np.ones(len(papers))).write(data.folder)
    data.manifest.write(data.folder)


FOLLOW: dict[str, Any] = {"distillation": {"name": "margin_mse", "contrastive_weight": 0}}
SEARCH: dict[str, Any] = {"sources": ["world.search"]}


def test_data_without_scores_are_refused_before_the_first_step(
    folder: Path, tmp_path: Path
) -> None:
    prepared = tmp_path / "prepared"
    shutil.copytree(folder / "prepared", prepared)
    (prepared / "teacher.arrow").unlink(missing_ok=True)
    PreparedData.open(folder / "prepared").manifest.write(prepared)
    data = {"prepared": str(prepared)}
    config = run_config(folder, "never", data=data, loss={"distillation": {"name": "kl"}})
    with pytest.raises(ConfigError, match="needs teacher scores of a query"):
        pretrain(config)
    score_search(prepared)
    plan_run(config)
    with pytest.raises(ConfigError, match=r"world\.classification.*world\.link_prediction"):
        pretrain(run_config(folder, "never", data=data, loss=FOLLOW))
    assert not (folder / "never").exists()


def follow(folder: Path) -> None:
    config = run_config(
        folder,
        "run",
        data=SEARCH,
        loss=FOLLOW,
        schedule={"steps": 30, "name": "constant"},
        optimizer={"lr": 3e-3},
        dev={"every": 0},
        checkpoint={"every": 100},
    )
    pretrain(config)


@pytest.mark.ranks
def test_a_model_learns_the_margins_of_its_teacher(folder: Path) -> None:
    """A teacher that scores all papers equally disagrees with every margin of a random model."""
    score_search(folder / "prepared")
    run_ranks(follow, 1, folder, folder)
    steps = [line["loss"] for line in metrics(folder / "run")]
    assert np.mean(steps[-5:]) < 0.5 * np.mean(steps[:5]), steps


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"loss": {"distillation": {"name": "l2"}}}, "'kl' or 'margin_mse'"),
        (
            {"loss": {"distillation": {"name": "kl"}}, "data": {"hard_negatives": False}},
            "loss.distillation needs data.hard_negatives",
        ),
        (
            {"loss": {**FOLLOW, "learn_temperature": True}},
            "loss.learn_temperature: without effect, because loss.distillation.contrastive_weight",
        ),
        (
            {"loss": {**FOLLOW, "temperature": 0.05, "mask_margin": 0.1, "matryoshka": [4]}},
            r"loss\.temperature and loss\.mask_margin and loss\.matryoshka: without effect",
        ),
        (
            {"loss": {**FOLLOW, "by_task": {"search": "symmetric_info_nce"}}},
            r"loss\.by_task\.search: without effect",
        ),
    ],
)
def test_contradictions_are_refused(folder: Path, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_config(folder, "never", **sections)
