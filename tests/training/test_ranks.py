"""Two ranks against one process: gradients without DeepSpeed, whole runs under ZeRO 0 to 3."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from scimult import distributed
from scimult.checkpoints import load_pretrained
from scimult.data.batches import BatchBuilder, MicroBatch, all_known_positives
from scimult.data.prepared import PreparedData
from scimult.data.sampler import PlannedPart
from scimult.models import Encoder, PackedTexts, linear
from scimult.training import build
from scimult.training.learned import LearnedParts, Values, learned_parts
from scimult.training.negatives import shared_negatives
from scimult.training.objective import Objective, PartResult
from scimult.training.passes import MicroBatchTexts, activation_tokens, pass_in_chunks, pass_whole
from scimult.training.run import pretrain
from tests.ranks import run_ranks
from tests.training.corpus import metrics, plan_micro_batches, run_config

pytestmark = pytest.mark.ranks

STAGES = (0, 1, 2, 3)
TASKS = ("classification", "link_prediction", "search")
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


@dataclass(frozen=True)
class Case:
    """Options of a comparison; ``duplicates`` gives both ranks the same pairs."""

    similarity: str = "dot"
    duplicates: bool = False
    loss: dict[str, Any] = field(default_factory=lambda: {"temperature": 4.0})
    batch: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


LEARNED = {"name": "symmetric_info_nce", "learn_temperature": True}
# Weights of candidates alone, in chunks of which nothing is trained.
FROZEN_SIDE = {"variant": "lora", "routing": "task_and_side", "freeze": ["*.experts.[135].*"]}
CASES = (
    Case(),
    Case(duplicates=True),
    Case("cosine"),
    Case("cosine", duplicates=True),
    Case("cosine", duplicates=True, loss=LEARNED),
    Case(duplicates=True, loss={**LEARNED, "temperature": 4.0, "repeated_candidates": "each"}),
    Case(loss={"name": "symmetric_info_nce", "temperature": 4.0, "mask_margin": 0.0}),
    Case("l2", loss={"name": "triplet"}),
    Case("cosine", duplicates=True, loss={"name": "triplet", "negatives": "all"}),
    Case(batch={"mix": "in_batch"}),
    # A part with a single pair: one of two ranks has no row of it.
    Case("cosine", loss=LEARNED, batch={"mix": "in_batch", "pairs_per_step": 4}),
    Case("cosine", batch={"mix": "in_batch"}, model={"variant": "instruction"}),
    Case(batch={"mix": "in_batch"}, model={"variant": "ffn_expert", "routing": "task_and_side"}),
    Case(batch={"mix": "in_batch"}, model=FROZEN_SIDE),
    # One encoder for all tasks: their parts are compared as one batch.
    Case("cosine", loss=LEARNED, batch={"mix": "in_batch"}, model={"variant": "vanilla"}),
    Case(
        "cosine", True, LEARNED, {"mix": "in_batch", "pairs_per_step": 12}, {"variant": "vanilla"}
    ),
)


class OwnGradients:
    """An engine without DeepSpeed: gradients add up in the model."""

    device = torch.device("cpu")

    def __init__(self, model: Encoder) -> None:
        self.model = model
        self.longest_pass = 0

    def forward(self, texts: PackedTexts, routes: int | list[int]) -> Tensor:
        self.longest_pass = max(self.longest_pass, sum(texts.lengths))
        embeddings: Tensor = self.model(texts, routes)
        return embeddings

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)


def all_gradients(folder: Path, chunk_tokens: int | None) -> list[dict[str, Any]]:
    """Return ``unit_gradients`` of every case."""
    return [micro_batch_gradients(folder, case, chunk_tokens) for case in CASES]


def micro_batch_gradients(folder: Path, case: Case, chunk_tokens: int | None) -> dict[str, Any]:
    """Return this rank's share of loss and gradients of three micro-batches, a mean over ranks."""
    config = run_config(
        folder,
        "unused",
        model={"similarity": case.similarity, **NO_DROPOUT, **case.model},
        loss=case.loss,
        batch=case.batch,
    )
    data = PreparedData.open(config.data.prepared)
    sources = data.pairs("train")
    pretrained = build.build_model(config)
    tokens = data.tokens(pretrained.tokenizer, 32)
    builder = BatchBuilder(
        sources,
        tokens,
        all_known_positives(data),
        max_length=32,
        by_side=config.model.routing == "task_and_side",
    )
    sampler = plan_micro_batches(config)
    learned = learned_parts(config, pretrained.model, TASKS)
    pretrained.model.double()
    objective = Objective(
        config.model.similarity,
        config.loss,
        group_of=shared_negatives(config.batch.negatives_across, pretrained.routes),
    )
    engine = OwnGradients(pretrained.model)
    losses, masked = [], 0
    for number in range(3):
        planned = sampler.plan(number)
        if case.duplicates:
            planned = [_repeat_positives(part) for part in planned]
        micro_batch = builder.micro_batch(planned, distributed.rank())
        results = run_pass(engine, objective, micro_batch, pretrained.routes, learned, chunk_tokens)
        share = distributed.world_size() / micro_batch.pairs
        losses.append(sum(float(result.loss.detach()) * share for result in results))
        masked += sum(int(result.masked) for result in results)
    gradients = mean_gradients(pretrained.model)
    return {"losses": losses, "gradients": gradients, "masked": masked, "peak": engine.longest_pass}


def mean_gradients(model: Encoder) -> dict[str, Tensor]:
    """Return the mean over ranks of each parameter's gradient."""
    ranks, gradients = distributed.world_size(), {}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if ranks > 1:
            torch.distributed.all_reduce(gradient)
        gradients[name] = gradient / ranks
    return gradients


def run_pass(
    engine: OwnGradients,
    objective: Objective,
    micro_batch: MicroBatch,
    routes_of_task: Callable[[str], Sequence[int]],
    learned: LearnedParts,
    chunk_tokens: int | None,
    weigh: Callable[..., Tensor] | None = None,
) -> list[PartResult]:
    """Do one forward-backward, whole or in chunks; the loss is a mean over pairs by default."""
    texts = MicroBatchTexts.of(micro_batch, routes_of_task)
    scale = distributed.world_size() / micro_batch.pairs

    def loss_of(embeddings: Tensor, values: Values) -> tuple[Tensor, list[PartResult]]:
        results = objective(micro_batch.parts, embeddings, values)
        if weigh is not None:
            return weigh(results, micro_batch, embeddings, values), results
        return torch.stack([result.loss for result in results]).sum() * scale, results

    values = partial(learned.values, micro_batch.tasks)
    if chunk_tokens is None:
        return pass_whole(engine, texts, loss_of, values)
    return pass_in_chunks(
        engine,
        texts,
        loss_of,
        values,
        chunk_tokens=chunk_tokens,
        weigh=partial(activation_tokens, head_width=2),
        seed_of_chunk=lambda n: n,
    )


def _repeat_positives(part: PlannedPart) -> PlannedPart:
    """Give both ranks the same pairs: one half of them, whatever the order of the rows."""
    sorted_R = np.lexsort((part.rows.positives_R, part.rows.queries_R))
    half = len(part.rows) // 2
    return PlannedPart(part.source, part.rows.take(np.tile(sorted_R[:half], 2), part.rows.bounds))


def assert_same_gradients(
    ours: list[dict[str, Any]], reference: dict[str, Any], case: Case
) -> None:
    mean_losses = np.mean([rank["losses"] for rank in ours], axis=0)
    assert mean_losses == pytest.approx(reference["losses"], rel=1e-10), case
    assert sum(rank["masked"] for rank in ours) == reference["masked"], case
    assert_equal_gradients(ours[0]["gradients"], reference["gradients"], case)


def assert_equal_gradients(
    ours: dict[str, Tensor], reference: dict[str, Tensor], case: object
) -> None:
    """Compare to 1e-10 of each tensor's gradient: both are float64, summed in another order."""
    for name, gradient in reference.items():
        error = (ours[name] - gradient).norm()
        assert error <= 1e-10 * max(0.1, float(gradient.norm())), (case, name)


# Below the tokens of most micro-batches, above the longest text.
CHUNK = 120


def test_ranks_and_chunks_give_the_gradient_of_one_whole_pass(folder: Path, tmp_path: Path) -> None:
    whole = all_gradients(folder, None)
    chunked = all_gradients(folder, CHUNK)
    both = run_ranks(all_gradients, 2, tmp_path, folder, None)
    (tmp_path / "chunked").mkdir()
    both_chunked = run_ranks(all_gradients, 2, tmp_path / "chunked", folder, CHUNK)
    for number, (case, reference) in enumerate(zip(CASES, whole, strict=True)):
        assert_same_gradients([chunked[number]], reference, case)
        assert_same_gradients([rank[number] for rank in both], reference, case)
        assert_same_gradients([rank[number] for rank in both_chunked], reference, case)
        assert chunked[number]["peak"] <= CHUNK < reference["peak"], case
        if case.duplicates:
            assert reference["masked"] >= 3 * 8, case


def test_a_chunk_draws_the_same_dropout_twice(folder: Path) -> None:
    """Compare with the graph of all chunks at once, with the first pass's masks."""
    config = run_config(folder, "unused", model={"dropout": 0.3}, loss=LEARNED)
    data = PreparedData.open(config.data.prepared)
    sources = data.pairs("train")
    pretrained = build.build_model(config)
    learned = learned_parts(config, pretrained.model, TASKS)
    tokens = data.tokens(pretrained.tokenizer, 32)
    builder = BatchBuilder(sources, tokens, all_known_positives(data), max_length=32)
    micro_batch = builder.micro_batch(plan_micro_batches(config).plan(0), 0)
    objective = Objective("dot", config.loss)
    model = pretrained.model.double().train()

    class Recording(OwnGradients):
        passes: ClassVar[list[tuple[PackedTexts, int | list[int], Tensor]]] = []

        def forward(self, texts: PackedTexts, routes: int | list[int]) -> Tensor:
            if not torch.is_grad_enabled():
                self.passes.append((texts, routes, torch.get_rng_state()))
            return super().forward(texts, routes)

    engine = Recording(model)
    run_pass(engine, objective, micro_batch, pretrained.routes, learned, CHUNK)
    cached = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    assert len(engine.passes) > 1
    embedded = {}
    for texts, routes, state in engine.passes:
        torch.set_rng_state(state)
        rows = torch.split(texts.tokens_T, texts.lengths)
        keys = [tuple(row.tolist()) for row in rows]
        embedded |= dict(zip(keys, model(texts, routes), strict=True))
    in_order = torch.stack([embedded[tuple(row.tolist())] for row in micro_batch.parts[0].rows])
    values = learned.values(micro_batch.tasks)
    torch.autograd.backward(
        objective(micro_batch.parts, in_order, values)[0].loss / micro_batch.pairs
    )
    kept = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_equal_gradients(cached, kept, "dropout")


FROZEN = "embeddings.positions.*"


def run_every_stage(
    folder: Path, label: str, chunk_tokens: int | None = None, stages: Sequence[int] = STAGES
) -> dict[int, dict[str, Any]]:
    """Pre-train under ZeRO stages in this process; return losses, scores and weights."""
    if label == "cached":
        # By oneDNN, which other runs leave to larger products, and other CPUs to torch.
        linear._LEAST_OPERATIONS = 0
        linear.multiplies_by_onednn = lambda: True
    results = {}
    for stage in stages:
        name = f"{label}-stage{stage}"
        config = run_config(
            folder,
            name,
            model={**NO_DROPOUT, "freeze": [FROZEN]},
            loss={"temperature": 0.7, "learn_temperature": True, "weights": {"search": 0.5}},
            optimizer={"lr": 1e-3, "layer_decay": 0.9, "added_lr": 2e-3},
            batch={"accumulation": 2, "chunk_tokens": chunk_tokens},
            engine={"deepspeed": {"zero_optimization": {"stage": stage}}},
        )
        model = pretrain(config)
        if distributed.is_main():
            lines = metrics(folder / name)
            saved = load_pretrained(model)
            results[stage] = {
                "losses": [line["loss"] for line in lines],
                "norms": [line["gradient_norm"] for line in lines],
                "scores": [line["metrics"] for line in lines if line["metrics"]],
                "weights": saved.model.state_dict(),
                "temperature": saved.config.provenance["temperature"],
            }
    return results


def run_bfloat16(folder: Path) -> dict[int, list[float]]:
    """Pre-train in bfloat16 under ZeRO 1 to 3; return the losses."""
    losses = {}
    for stage in STAGES[1:]:
        name = f"bf16-stage{stage}"
        engine = {"precision": "bf16", "deepspeed": {"zero_optimization": {"stage": stage}}}
        pretrain(run_config(folder, name, model=NO_DROPOUT, engine=engine))
        losses[stage] = [line["loss"] for line in metrics(folder / name)]
    return losses


def test_bfloat16_follows_float32(folder: Path, tmp_path: Path) -> None:
    half = run_ranks(run_bfloat16, 2, tmp_path, folder)[0]
    pretrained = run_config(folder, "fp32", model=NO_DROPOUT)
    (tmp_path / "full").mkdir()
    run_ranks(pretrain, 1, tmp_path / "full", pretrained)
    full = [line["loss"] for line in metrics(folder / "fp32")]
    for stage, losses in half.items():
        # Eight bits of mantissa through two blocks; losses are between 3 and 6.
        assert losses == pytest.approx(full, abs=0.3), stage


def test_zero_stages_and_ranks_agree(folder: Path, tmp_path: Path) -> None:
    """Whole runs under ZeRO 0 to 3: one rank, two, and two with the embedding cache."""
    # Chunks need one path in the engine for stages that keep all weights, and one for stage 3.
    chunked = (CHUNK, (1, 3))
    for name in ("one", "two", "cached"):
        (tmp_path / name).mkdir()
    one = run_ranks(run_every_stage, 1, tmp_path / "one", folder, "one")[0]
    two = run_ranks(run_every_stage, 2, tmp_path / "two", folder, "two")[0]
    cached = run_ranks(run_every_stage, 2, tmp_path / "cached", folder, "cached", *chunked)[0]
    reference = one[0]
    assert len(reference["losses"]) == 6
    assert len(reference["scores"]) == 2
    # Six Adam steps of at most the learning rate each move the logarithm this far at most.
    assert 1e-4 < abs(math.log(reference["temperature"] / 0.7)) < 6e-3
    before = load_pretrained(folder / "base").model.state_dict()
    for results in (one, two, cached):
        for stage in results:
            # Float32 rounding, amplified by six Adam steps.
            assert results[stage]["losses"] == pytest.approx(reference["losses"], abs=1e-4), stage
            assert results[stage]["norms"] == pytest.approx(reference["norms"], rel=1e-3), stage
            temperature = results[stage]["temperature"]
            assert temperature == pytest.approx(reference["temperature"], abs=1e-5), stage
            for ours, theirs in zip(results[stage]["scores"], reference["scores"], strict=True):
                assert ours == pytest.approx(theirs, abs=0.05), stage
            for name, weight in results[stage]["weights"].items():
                if fnmatch(name, FROZEN):
                    assert torch.equal(weight, before[name]), (stage, name)
                difference = (weight - reference["weights"][name]).abs()
                if "qkv" in name and name.endswith("bias"):
                    # A key bias shifts all scores of a softmax alike: its gradient is zero
                    # but for rounding, which Adam blows up to full steps.
                    query, _, value = difference.chunk(3)
                    difference = torch.cat([query, value])
                assert difference.max() <= 2e-4, (stage, name)


def run_by_tokens(folder: Path) -> list[tuple[int, list[str], float]]:
    """Train on batches by tokens under ZeRO 2; return each rank's tokens, and the steps."""
    seen = []
    whole = BatchBuilder.micro_batch

    def noted(self: BatchBuilder, planned: Sequence[PlannedPart], rank: int) -> MicroBatch:
        micro_batch = whole(self, planned, rank)
        seen.append(sum(part.num_tokens for part in micro_batch.parts))
        return micro_batch

    BatchBuilder.micro_batch = noted  # type: ignore[method-assign]
    config = run_config(
        folder,
        "tokens",
        batch={"pairs_per_step": None, "max_tokens": 150, "chunk_tokens": 60},
        schedule={"steps": 20},
        dev={"every": 0},
        engine={"deepspeed": {"zero_optimization": {"stage": 2}}},
    )
    pretrain(config)
    BatchBuilder.micro_batch = whole  # type: ignore[method-assign]
    lines = metrics(folder / "tokens")
    return [(tokens, line["tasks"], line["loss"]) for tokens, line in zip(seen, lines, strict=True)]


def test_batches_by_tokens_keep_the_budget_and_balance_ranks(folder: Path, tmp_path: Path) -> None:
    ranks = run_ranks(run_by_tokens, 2, tmp_path, folder)
    tokens = np.array([[step[0] for step in rank] for rank in ranks])
    assert tokens.shape[1] > 10
    assert tokens.max() <= 150
    # Texts that pairs share are encoded once, so ranks differ by more than one pair.
    assert abs(tokens[0] - tokens[1]).mean() < 0.25 * tokens.mean()
    assert [step[1:] for step in ranks[0]] == [step[1:] for step in ranks[1]]
