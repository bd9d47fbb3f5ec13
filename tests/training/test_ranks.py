"""Two ranks against one process: gradients without DeepSpeed, whole runs under ZeRO 0 to 3."""

from __future__ import annotations

import math
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scimult import distributed
from scimult.checkpoints import load_pretrained
from scimult.data.batches import BatchBuilder, all_known_positives
from scimult.data.prepared import PreparedData
from scimult.data.sampler import PlannedRows
from scimult.training import build
from scimult.training.objective import ContrastiveObjective, loss_function
from scimult.training.run import pretrain
from tests.ranks import run_ranks
from tests.training.corpus import metrics, prepare_corpus, run_config

STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    prepare_corpus(path)
    return path


# Similarity, whether both ranks hold the same pairs, loss.
CASES: tuple[tuple[str, bool, dict[str, Any]], ...] = (
    ("dot", False, {"temperature": 0.7}),
    ("dot", True, {"temperature": 0.7}),
    ("cosine", False, {"temperature": 0.7}),
    ("cosine", True, {"temperature": 0.7}),
    ("cosine", True, {"name": "symmetric_info_nce", "learn_temperature": True}),
    ("dot", False, {"name": "symmetric_info_nce", "temperature": 0.7, "mask_margin": 0.0}),
    ("l2", False, {"name": "triplet"}),
    ("cosine", True, {"name": "triplet", "negatives": "all"}),
)


def all_gradients(folder: Path) -> list[dict[str, Any]]:
    """Return ``unit_gradients`` of every case."""
    return [unit_gradients(folder, *case) for case in CASES]


def unit_gradients(
    folder: Path, similarity: str, duplicates: bool, loss: dict[str, Any]
) -> dict[str, Any]:
    """Return this rank's share of loss and gradients of three units, averaged over ranks."""
    model = {"similarity": similarity, "dropout": 0.0, "attention_dropout": 0.0}
    config = run_config(folder, "unused", model=model, loss=loss)
    data = PreparedData.open(config.data.prepared)
    sources = data.pairs("train")
    pretrained = build.build_model(config)
    tokens = data.tokens(pretrained.tokenizer, 32)
    builder = BatchBuilder(sources, tokens, all_known_positives(data), max_length=32)
    sampler = build.build_sampler(config, sources, build.run_length(config, sources))
    learned = build.add_temperature(config, pretrained.model)
    objective = ContrastiveObjective(
        config.model.similarity, loss_function(config.loss, learned), config.loss
    )
    losses, masked = [], 0
    for unit in range(3):
        planned = sampler.plan(unit)
        if duplicates:
            planned = _repeat_positives(planned)
        batch = builder.build(planned.shard(distributed.rank(), distributed.world_size()))
        routes = pretrained.routes(batch.task)
        result = objective(pretrained.model, batch, routes, len(planned.queries_R))
        result.loss.backward()
        losses.append(float(result.loss.detach()))
        masked += result.masked
    ranks = distributed.world_size()
    gradients = {}
    for name, parameter in pretrained.model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if ranks > 1:
            torch.distributed.all_reduce(gradient)
        gradients[name] = gradient / ranks
    return {"losses": losses, "gradients": gradients, "masked": masked}


def _repeat_positives(planned: PlannedRows) -> PlannedRows:
    """Give the second half of the rows, which rank 1 holds, the pairs of the first."""
    half = len(planned.queries_R) // 2
    columns = (planned.queries_R, planned.positives_R, planned.negatives_R, planned.epochs_R)
    return PlannedRows(planned.source, *(np.tile(column[:half], 2) for column in columns))


def test_two_ranks_give_the_gradient_of_one_process(folder: Path, tmp_path: Path) -> None:
    alone = all_gradients(folder)
    both = run_ranks(all_gradients, 2, tmp_path, folder)
    for case, one, *two in zip(CASES, alone, *both, strict=True):
        mean_losses = np.mean([rank["losses"] for rank in two], axis=0)
        assert mean_losses == pytest.approx(one["losses"], abs=1e-6), case
        assert sum(rank["masked"] for rank in two) == one["masked"], case
        if case[1]:
            assert one["masked"] >= 3 * 8, case
        for name, gradient in one["gradients"].items():
            # Float32 sums in another order: relative to the tensor's largest entry.
            scale = max(1.0, float(gradient.abs().max()))
            difference = (two[0]["gradients"][name] - gradient).abs().max()
            assert difference <= 1e-6 * scale, (case, name)


FROZEN = "embeddings.positions.*"


def run_every_stage(folder: Path, ranks: int) -> dict[int, dict[str, Any]]:
    """Pre-train under every ZeRO stage in this process; return losses, scores and weights."""
    results = {}
    for stage in STAGES:
        name = f"ranks{ranks}-stage{stage}"
        config = run_config(
            folder,
            name,
            model={"dropout": 0.0, "attention_dropout": 0.0, "freeze": [FROZEN]},
            loss={"temperature": 0.7, "learn_temperature": True, "weights": {"search": 0.5}},
            optimizer={"lr": 1e-3, "layer_decay": 0.9, "added_lr": 2e-3},
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
        dropout = {"dropout": 0.0, "attention_dropout": 0.0}
        pretrain(run_config(folder, name, model=dropout, engine=engine))
        losses[stage] = [line["loss"] for line in metrics(folder / name)]
    return losses


def test_bfloat16_follows_float32(folder: Path, tmp_path: Path) -> None:
    half = run_ranks(run_bfloat16, 2, tmp_path, folder)[0]
    pretrained = run_config(folder, "fp32", model={"dropout": 0.0, "attention_dropout": 0.0})
    (tmp_path / "full").mkdir()
    run_ranks(pretrain, 1, tmp_path / "full", pretrained)
    full = [line["loss"] for line in metrics(folder / "fp32")]
    for stage, losses in half.items():
        # Eight bits of mantissa through two blocks; losses are between 3 and 6.
        assert losses == pytest.approx(full, abs=0.3), stage


def test_zero_stages_and_ranks_agree(folder: Path, tmp_path: Path) -> None:
    """Whole runs of DeepSpeed: 2 ranks under ZeRO 0 to 3 against one rank under each."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = run_ranks(run_every_stage, 1, tmp_path / "one", folder, 1)[0]
    two = run_ranks(run_every_stage, 2, tmp_path / "two", folder, 2)[0]
    reference = one[0]
    assert len(reference["losses"]) == 6
    assert len(reference["scores"]) == 2
    # Six Adam steps of at most the learning rate each move the logarithm this far at most.
    assert 1e-4 < abs(math.log(reference["temperature"] / 0.7)) < 6e-3
    before = load_pretrained(folder / "base").model.state_dict()
    for results in (one, two):
        for stage in STAGES:
            # Float32 rounding, carried through six Adam steps.
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
