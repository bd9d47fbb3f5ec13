"""Whole runs against plain PyTorch: transformers' BERT, its schedule, AdamW and cross-entropy.

Only the choice of pairs is ours. Texts are tokenised, encoded, compared and trained here, one query
at a time, in float64. Experts are copies of BERT that share all other modules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
    get_linear_schedule_with_warmup,
)

from scimult.checkpoints import load_pretrained
from scimult.checkpoints.exports import export_folded
from scimult.data.pair_streams import Rows
from scimult.data.prepared import PreparedData
from scimult.tasks import default_tasks
from scimult.training.config import PretrainConfig
from scimult.training.plan import build_sampler, plan_run
from scimult.training.run import pretrain
from tests.base_models import save_base_model
from tests.training.corpus import metrics, prepare_corpus, run_config

pytestmark = pytest.mark.ranks

STEPS, LENGTH = 6, 32
TASKS = [task.name for task in default_tasks()]
ROUTED_BLOCKS = (1, 3)
# With the default of 1e-8 Adam would move weights without a gradient by what is mere rounding.
ADAM = {"lr": 2e-3, "eps": 1e-4, "weight_decay": 0.1, "clip": 0.5}


class Reference:
    """BERT by transformers for each task, trained on the pairs of our plan."""

    def __init__(self, config: PretrainConfig) -> None:
        base, self._config = str(config.model.base), config
        model = AutoModel.from_pretrained(base).double().eval()
        self._routed = ROUTED_BLOCKS if config.model.variant == "mha_expert" else ()
        self.models = {task: _with_own_attention(model, self._routed) for task in TASKS}
        self._tokenizer = AutoTokenizer.from_pretrained(base)
        self._data = PreparedData.open(config.data.prepared)
        self._weights = list(
            {id(p): p for model in self.models.values() for p in model.parameters()}.values()
        )
        decay = config.optimizer.weight_decay
        groups = [
            {"params": [p for p in self._weights if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in self._weights if p.dim() == 1], "weight_decay": 0.0},
        ]
        # Skips what has no gradient: the experts of other tasks.
        self._adam = torch.optim.AdamW(groups, lr=config.optimizer.lr, eps=config.optimizer.eps)
        self._schedule = get_linear_schedule_with_warmup(self._adam, 0, STEPS)
        # By query, over all tasks and splits.
        self._positives: dict[int, set[int]] = defaultdict(set)
        for file in [*self._data.pairs("train"), *self._data.pairs("dev")]:
            bounds = file.positives.offsets.tolist()
            for query, first, last in zip(file.queries, bounds, bounds[1:], strict=False):
                positives = file.positives.values[first:last].tolist()
                self._positives[int(query)] |= set(positives)
                # A paper that cites the query is no negative of it either.
                for positive in positives if file.part == "citations" else ():
                    self._positives[positive].add(int(query))

    def step(self, parts: Sequence[tuple[str, Rows]]) -> tuple[float, float]:
        """Train on the parts of a batch; return its loss and the gradients' norm before clipping.

        A query sees the candidates of all parts that are encoded as it is.
        """
        losses = [loss for part in parts for loss in self._losses(*part, parts)]
        loss = torch.stack(losses).mean()
        self._adam.zero_grad()
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(self._weights, self._config.optimizer.clip)
        self._adam.step()
        self._schedule.step()
        return loss.item(), norm.item()

    def _losses(self, task: str, rows: Rows, parts: Sequence[tuple[str, Rows]]) -> Iterator[Tensor]:
        seen = [rows for other, rows in parts if other == task or not self._routed]
        texts = [row for part in seen for row in (*part.positives_R, *part.negatives_R) if row >= 0]
        candidates = list(map(int, dict.fromkeys(texts)))
        queries, positives = rows.queries_R.tolist(), rows.positives_R.tolist()
        model = self.models[task]
        vectors = {row: self._vector(model, row) for row in {*candidates, *queries}}
        for query, positive, own in zip(queries, positives, rows.negatives_R.tolist(), strict=True):
            others = self._positives[query] | {query}
            kept = [row for row in candidates if row in (positive, own) or row not in others]
            scores = torch.stack([self._score(vectors[query], vectors[row]) for row in kept])
            target = torch.tensor(kept.index(positive))
            yield torch.nn.functional.cross_entropy(scores, target)

    def _score(self, one: Tensor, other: Tensor) -> Tensor:
        if self._config.model.similarity == "cosine":
            product = torch.nn.functional.cosine_similarity(one, other, dim=0)
        else:
            product = one @ other
        return product / (self._config.loss.temperature or 1.0)

    def _vector(self, model: PreTrainedModel, row: int) -> Tensor:
        text = self._data.texts.text(row)
        words = f"{text.title} {self._tokenizer.sep_token} {text.body}" if text.body else text.title
        tokens = self._tokenizer(words, truncation=True, max_length=LENGTH)
        hidden: Tensor = model(torch.tensor([tokens["input_ids"]])).last_hidden_state[0]
        return hidden.mean(dim=0) if self._config.model.pooling == "mean" else hidden[0]


def _with_own_attention(model: PreTrainedModel, blocks: tuple[int, ...]) -> PreTrainedModel:
    """Return a model that shares everything with another but the attention of these blocks."""
    copy = deepcopy(model)
    copy.embeddings = model.embeddings
    for number, (own, shared) in enumerate(
        zip(copy.encoder.layer, model.encoder.layer, strict=True)
    ):
        own.intermediate, own.output = shared.intermediate, shared.output
        own.attention.output.LayerNorm = shared.attention.output.LayerNorm
        if number not in blocks:
            own.attention = shared.attention
    return copy


DOT = {"variant": "vanilla", "pooling": "cls", "similarity": "dot"}
COSINE = {"variant": "vanilla", "pooling": "mean", "similarity": "cosine"}
EXPERTS = {"variant": "mha_expert", "options": {"blocks": list(ROUTED_BLOCKS)}}


@pytest.mark.parametrize(
    ("model", "temperature", "batch"),
    [
        (DOT, 4.0, {"chunk_tokens": None}),
        (COSINE, 0.05, {"chunk_tokens": 40, "mix": "in_batch"}),
        (EXPERTS, 4.0, {"chunk_tokens": 40}),
        (EXPERTS, 4.0, {"chunk_tokens": None, "mix": "in_batch"}),
    ],
    ids=["dot", "cosine, mixed, by chunks", "experts, by chunks", "experts, mixed"],
)
def test_a_run_is_what_plain_pytorch_makes_of_its_pairs(
    model: dict[str, Any], temperature: float, batch: dict[str, Any], tmp_path: Path
) -> None:
    prepare_corpus(tmp_path)
    base = save_base_model(tmp_path / "bert", "bert")
    config = run_config(
        tmp_path,
        "run",
        model={"base": str(base), "dropout": 0, "attention_dropout": 0} | model,
        data={"max_length": LENGTH},
        loss={"temperature": temperature},
        optimizer=ADAM,
        schedule={"steps": STEPS, "warmup": 0},
        batch={"pairs_per_step": 8} | batch,
        dev={"every": 0},
        checkpoint={"every": STEPS},
    )
    output = pretrain(config)
    reference = Reference(config)
    plan = plan_run(config)
    sampler, _ = build_sampler(config, plan, np.full(10_000, LENGTH, dtype=np.int32))
    lines = metrics(tmp_path / "run")
    assert len(lines) == STEPS
    for number, line in enumerate(lines):
        parts = [(plan.sources[part.source].task, part.rows) for part in sampler.plan(number)]
        loss, norm = reference.step(parts)
        # Sums of some thousand float32 numbers; steps add up their differences.
        assert line["loss"] == pytest.approx(loss, rel=1e-5)
        assert line["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    before = AutoModel.from_pretrained(base).state_dict()
    for task in TASKS:
        routed = task if model["variant"] == "mha_expert" else None
        export_folded(tmp_path / task, load_pretrained(output), routed)
        trained = AutoModel.from_pretrained(tmp_path / task).state_dict()
        wanted, moved = reference.models[task].state_dict(), 0.0
        for name, weight in trained.items():
            if not name.startswith("pooler"):  # no part of an embedding
                # The steps add up to at most 7e-3.
                assert torch.allclose(weight.double(), wanted[name], rtol=0, atol=2e-6), name
                moved = max(moved, float((weight - before[name]).abs().max()))
        assert moved > 1e-3
