"""A run's reports against hand-computed numbers, on two ranks under every stage."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scimult.data.batches import Batch, BatchBuilder
from scimult.data.pair_streams import FixedMicroBatches
from scimult.data.sampler import AlternatingSampler, BalancedSampler
from scimult.models import pack
from scimult.models.flops import EncoderFlops
from scimult.tasks import default_tasks
from scimult.training import build
from scimult.training.config import PretrainConfig
from scimult.training.objective import Objective
from scimult.training.plan import plan_run
from scimult.training.run import pretrain
from tests.ranks import run_ranks
from tests.training.corpus import metrics, run_config

pytestmark = pytest.mark.ranks

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
# Clips every step, so that norms before and after differ.
OPTIMIZER = {"lr": 1e-3, "clip": 0.01, "layer_decay": 0.9}
STEPS = 2
PEAK_TFLOPS = 0.5
NORMS = [("mha_expert", 0), ("mha_expert", 1), ("mha_expert", 2), ("mha_expert", 3)]
NORMS += [("control_codes", 2)]


def watched(folder: Path, name: str, model: dict[str, Any], **engine: Any) -> PretrainConfig:
    """Return two steps of a run; with dropout no norms are recorded."""
    stage = engine.pop("stage")
    return run_config(
        folder,
        name,
        model=model,
        optimizer=OPTIMIZER,
        schedule={"steps": STEPS},
        dev={"every": 0},
        engine={"deepspeed": {"zero_optimization": {"stage": stage}}} | engine,
        log={
            "gradient_norms": model["dropout"] == 0,
            "peak_tflops": PEAK_TFLOPS,
            "tensorboard": False,
        },
    )


def run_stages(folder: Path) -> None:
    """Train with activation checkpointing under every stage, and with dropout both ways."""
    for variant, stage in NORMS:
        model = NO_DROPOUT | {"variant": variant}
        name = f"{variant}-stage{stage}"
        pretrain(watched(folder, name, model, stage=stage, activation_checkpointing=True))
    for on in (False, True):
        model = {"variant": "instruction", "dropout": 0.1}
        name = f"dropout-{on}"
        pretrain(watched(folder, name, model, stage=3, activation_checkpointing=on))


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_ranks(run_stages, 2, tmp_path_factory.mktemp("ranks"), folder)
    return folder


def first_batches(config: PretrainConfig, ranks: int) -> list[Batch]:
    """Return the batch of every rank in the first micro-batch."""
    plan = plan_run(config)
    tokens = plan.data.tokens(build.build_model(config).tokenizer, 32)
    builder = BatchBuilder(plan.sources, tokens, plan.known, max_length=32)
    streams = [FixedMicroBatches(stream, 8) for stream in plan.streams]
    sampler = AlternatingSampler(streams, plan.rates, micro_batches=1, seed=config.seed)
    lengths_N = np.minimum(tokens.lengths_N, 32)
    planned = BalancedSampler(sampler, lengths_N, ranks=ranks).plan(0)
    return [builder.micro_batch(planned, rank).parts[0] for rank in range(ranks)]


@pytest.mark.parametrize(
    ("variant", "added"), [("mha_expert", ".experts."), ("control_codes", ".codes.")]
)
def test_norms_of_parts_equal_those_of_plain_gradients(
    runs: Path, variant: str, added: str
) -> None:
    config = watched(runs, "plain", NO_DROPOUT | {"variant": variant}, stage=0)
    pretrained = build.build_model(config)
    batch = first_batches(config, 1)[0]
    objective = Objective(config.model.similarity, config.loss)
    (route,) = set(pretrained.routes(batch.task))
    embeddings = pretrained.model.train()(pack(batch.rows), route)
    torch.autograd.backward(objective([batch], embeddings)[0].loss / len(batch.query_B))
    squares: dict[str, float] = {}
    names = dict(pretrained.model.named_parameters())
    for name, parameter in names.items():
        alone = ".experts.0." in name and name.replace(".experts.0.", ".experts.1.") not in names
        part = "shared"
        if added in name and not alone:
            part = "added" if variant == "control_codes" else f"expert/{batch.task}"
        if parameter.grad is not None:
            squares[part] = squares.get(part, 0.0) + float(parameter.grad.double().square().sum())
    for stage in [stage for name, stage in NORMS if name == variant]:
        line = metrics(runs / f"{variant}-stage{stage}")[0]
        norms = line["gradient_norms"]
        # Float32 sums in another order.
        assert norms == pytest.approx(
            dict.fromkeys(norms, 0.0) | {part: math.sqrt(s) for part, s in squares.items()},
            rel=1e-5,
        ), stage
        total = math.sqrt(sum(norm**2 for norm in norms.values()))
        assert total == pytest.approx(line["gradient_norm"], rel=1e-5)
        assert total > 10 * OPTIMIZER["clip"]
        others = {f"expert/{task.name}" for task in default_tasks()} if "expert" in added else set()
        assert set(norms) == {"shared", *squares, *others}


def test_dropout_is_reproduced_under_sharding(runs: Path) -> None:
    off, on = (metrics(runs / f"dropout-{on}") for on in (False, True))
    for ours, theirs in zip(on, off, strict=True):
        # The second loss follows an update: bit-equal gradients make it bit-equal.
        assert ours["loss"] == theirs["loss"]
        assert ours["gradient_norm"] == theirs["gradient_norm"]
        assert ours["gradient_norms"] == {}


def test_usage_is_what_the_batches_say(runs: Path) -> None:
    config = watched(runs, "plain", NO_DROPOUT | {"variant": "mha_expert"}, stage=0)
    model = build.build_model(config)
    batches = first_batches(config, 2)
    lengths = [[len(row) for row in batch.rows] for batch in batches]
    tokens = sum(map(sum, lengths))
    line = metrics(runs / "mha_expert-stage1")[0]
    assert line["tokens"] == tokens
    usage = line["usage"]
    padded = sum(len(rows) * max(rows) for rows in lengths)
    assert usage["padding_if_padded"] == pytest.approx(1 - tokens / padded)
    assert 0 <= usage["padding_in_attention"] <= usage["padding_if_padded"]
    flops = EncoderFlops(model.model, training=True)
    route = model.routes(batches[0].task)[0]
    assert usage["model_flops"] == sum(flops.of(rows, route) for rows in lengths)
    assert usage["model_flop_utilisation"] == pytest.approx(
        usage["model_flops"] / line["seconds"] / (2 * PEAK_TFLOPS * 1e12)
    )
    assert usage["tokens_per_second"] == pytest.approx(tokens / line["seconds"])
    # A process with torch loaded; in bytes, not kilobytes.
    assert 2e8 < usage["peak_memory_bytes"] < 2e10


def test_means_by_task_agree_with_the_whole(runs: Path) -> None:
    for line in metrics(runs / "mha_expert-stage1"):
        (task,) = set(line["tasks"])
        means = line["by_task"][task]
        assert means["loss"] == pytest.approx(line["loss"], abs=1e-6)
        assert means["accuracy"] == pytest.approx(line["accuracy"])
        assert 0 <= means["hard_wins"] <= 1
        assert (means["margin"] > 0) >= (means["accuracy"] == 1)
