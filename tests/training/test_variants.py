"""Every variant under DeepSpeed: stages and ranks agree, and frozen weights stay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scimult import distributed
from scimult.checkpoints import load_pretrained, save_pretrained
from scimult.errors import ConfigError, SciMultError
from scimult.models import VARIANTS, embed_tokens
from scimult.tasks import default_tasks
from scimult.training import build
from scimult.training.config import PretrainConfig
from scimult.training.run import pretrain
from tests.ranks import run_ranks
from tests.training.corpus import metrics, run_config

pytestmark = pytest.mark.ranks

# Adam divides a gradient by its own size: with the default, one that is mere rounding would
# move a weight as far as a real one does.
ADAM = {"lr": 1e-3, "eps": 1e-4}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
# name -> section model of the run
RUNS: dict[str, dict[str, Any]] = {
    "instruction": {"variant": "instruction"},
    "prefix": {"variant": "prefix"},
    "control_codes": {"variant": "control_codes", "routing": "format"},
    "adapters": {"variant": "adapters", "options": {"width": 4}},
    "fusion": {"variant": "fusion", "options": {"width": 4}},
    "lora": {"variant": "lora", "options": {"rank": 2}},
    "pals": {"variant": "pals", "options": {"width": 8, "heads": 2}},
    "sides": {"variant": "ffn_expert", "routing": "task_and_side"},
}


def variant_config(folder: Path, name: str, output: str, **sections: Any) -> PretrainConfig:
    """Return four steps of the run ``name``; fusion starts from the adapters of the same place."""
    model = NO_DROPOUT | RUNS[name]
    if name == "fusion":
        model["base"] = str(folder / output.replace("fusion", "adapters"))
    return run_config(
        folder,
        output,
        model=model,
        optimizer=ADAM,
        schedule={"steps": 3},
        dev={"every": 0},
        checkpoint={"every": 3},
        **sections,
    )


# Trained on batches of all tasks; the others on batches of one.
MIXED = ("control_codes", "adapters", "fusion", "pals")


def run_all(
    folder: Path, ranks: int, stages: dict[int, list[str]], chunk_tokens: int | None
) -> dict[str, Any]:
    """Train variants under ZeRO stages; return losses and weights."""
    results = {}
    for stage, names in stages.items():
        for name in names:
            output = f"{name}-ranks{ranks}-stage{stage}"
            zero = {"deepspeed": {"zero_optimization": {"stage": stage}}}
            mix = "in_batch" if name in MIXED else "alternate"
            batch = {"mix": mix, "chunk_tokens": chunk_tokens}
            config = variant_config(folder, name, output, engine=zero, batch=batch)
            model = pretrain(config)
            if distributed.is_main():
                losses = [line["loss"] for line in metrics(folder / output)]
                results[f"{name} {stage}"] = (losses, load_pretrained(model).model.state_dict())
    return results


@pytest.mark.timeout(900)  # 16 runs; minutes on a busy machine
def test_two_ranks_under_zero_equal_one_process(folder: Path, tmp_path: Path) -> None:
    """With the embedding cache on two ranks, without it in one process."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    # Each once; adapters and fusion are under one stage, because one starts from the other.
    sharded = {
        2: ["instruction", "prefix", "lora", "sides"],
        3: list(MIXED),
    }
    one = run_ranks(run_all, 1, tmp_path / "one", folder, 1, {0: list(RUNS)}, None)[0]
    two = run_ranks(run_all, 2, tmp_path / "two", folder, 2, sharded, 120)[0]
    base = load_pretrained(folder / "base").model.state_dict()
    for key, (losses, weights) in two.items():
        name = key.split()[0]
        expected, reference = one[f"{name} 0"]
        # Float32 rounding, amplified by three Adam steps of up to 1e-3 each.
        assert losses == pytest.approx(expected, abs=1e-4), key
        if VARIANTS[RUNS[name]["variant"]].trains is not None:
            assert all(torch.equal(weights[n], weight) for n, weight in base.items()), key
        for n, weight in weights.items():
            assert (weight - reference[n]).abs().max() <= 2e-5, (key, n)


def test_prefix_leaves_every_text_weight_bit_identical_in_bfloat16(
    folder: Path, tmp_path: Path
) -> None:
    engine = {"precision": "bf16", "deepspeed": {"zero_optimization": {"stage": 2}}}
    config = variant_config(folder, "prefix", "prefix-bf16", engine=engine)
    run_ranks(pretrain, 1, tmp_path, config)
    before = load_pretrained(folder / "base").model.state_dict()
    after = load_pretrained(folder / "prefix-bf16").model.state_dict()
    for name, weight in before.items():
        assert torch.equal(after[name], weight), name
    prefix = [name for name in after if name.startswith("instruction_encoder.")]
    changed = [
        name
        for name in prefix
        if not torch.equal(after[name], before[name.removeprefix("instruction_encoder.")])
    ]
    assert len(changed) > len(prefix) // 2


def train_adapters_then_fusion(folder: Path) -> None:
    """Run the two steps of AdapterFusion."""
    for name in ("adapters", "fusion"):
        pretrain(variant_config(folder, name, f"{name}-alone"))


def test_fusion_leaves_the_adapters_unchanged(folder: Path, tmp_path: Path) -> None:
    run_ranks(train_adapters_then_fusion, 1, tmp_path, folder)
    adapters = load_pretrained(folder / "adapters-alone").model.state_dict()
    fused = load_pretrained(folder / "fusion-alone").model.state_dict()
    for name, weight in adapters.items():
        assert torch.equal(fused[name], weight), name
    key = "blocks.0.feed_forward.experts.0.adapter.fusion.experts.0.value_change.weight"
    assert fused[key].any()


def save_with_differing_routes(folder: Path, name: str, model: dict[str, Any]) -> Path:
    """Save a model whose routes all have different weights."""
    pretrained = build.build_model(run_config(folder, "unused", model=model))
    generator = torch.Generator().manual_seed(0)
    for parameter in pretrained.model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    weights = pretrained.model.state_dict()
    save_pretrained(folder / name, weights, pretrained.tokenizer, pretrained.config)
    return folder / name


@pytest.mark.parametrize(
    "model",
    [
        {"variant": "mha_expert"},
        {"variant": "control_codes"},
        {"variant": "adapters"},
        {"variant": "pals"},
        {"variant": "ffn_expert", "routing": "task_and_side"},
        {"variant": "lora", "routing": "format"},
    ],
)
def test_routes_go_by_name_not_by_order(folder: Path, model: dict[str, Any]) -> None:
    """A run that lists the base's tasks in another order gives each its own weights."""
    base = save_with_differing_routes(folder, f"named-{model['variant']}", model)
    tasks = [task.model_dump() for task in reversed(list(default_tasks()))]
    model = model | {"base": str(base)}
    second = build.build_model(run_config(folder, "unused", model=model, tasks=tasks))
    first = load_pretrained(base)
    rows = [first.instruction_row("some text"), first.instruction_row("another one")]
    for name in first.tasks.names:
        for ours, theirs in zip(second.routes(name), first.routes(name), strict=True):
            embedded = embed_tokens(second.model, rows, route=ours)
            assert np.array_equal(embedded, embed_tokens(first.model, rows, route=theirs)), name
    assert second.routes("search") != first.routes("search")


@pytest.mark.parametrize(
    ("base", "run", "fix"),
    [
        (
            {"variant": "adapters", "options": {"width": 4}},
            {"variant": "fusion", "options": {"width": 4, "placement": "houlsby"}},
            "placement: pfeiffer",
        ),
        (
            {"variant": "lora", "options": {"rank": 2, "alpha": 64}},
            {"variant": "lora", "options": {"rank": 2}},
            r"alpha: 64\.0",
        ),
        (
            {"variant": "pals", "options": {"width": 8, "heads": 2}},
            {"variant": "pals", "options": {"width": 8, "heads": 4, "activation": "gelu"}},
            "heads: 2, activation: null",
        ),
    ],
)
def test_options_that_would_change_trained_weights_are_refused(
    folder: Path, base: dict[str, Any], run: dict[str, Any], fix: str
) -> None:
    """Shapes agree, so the weights would load and compute something else."""
    path = save_with_differing_routes(folder, f"kept-{base['variant']}", base)
    with pytest.raises(ConfigError, match=rf"other model.options.*model.options: {{{fix}}}"):
        build.build_model(run_config(folder, "unused", model={**run, "base": str(path)}))
    assert build.build_model(run_config(folder, "unused", model={**base, "base": str(path)}))


@pytest.mark.parametrize(
    ("variant", "part"),
    [
        ("mha_expert", "blocks.1.attention."),
        ("pals", "pal"),
        ("control_codes", "embeddings.codes."),
        ("lora", ".lora."),
    ],
)
def test_only_what_a_variant_adds_is_trained(folder: Path, variant: str, part: str) -> None:
    model = {"variant": variant, "train": "added"}
    encoder = build.build_model(run_config(folder, "unused", model=model)).model
    base = load_pretrained(folder / "base").model.state_dict()
    for name, parameter in encoder.named_parameters():
        kept = name in base and ".experts.0." not in name
        assert parameter.requires_grad == (part in name and not kept), name


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"variant": "fusion"}}, "fusion mixes trained adapters, and this base has none"),
        ({"model": {"variant": "vanilla", "train": "added"}}, "variant vanilla adds no parameters"),
        (
            {"model": {"variant": "adapters", "options": {"size": 3}}},
            r"options of adapters.*\n  size: unknown key",
        ),
        (
            {"loss": {"matryoshka": [8, 16]}},
            r"lists \[16\]; embeddings have 16 dimensions.*all 16 are always trained",
        ),
        ({"model": {"dims": 17}}, "dims 17 is more than the hidden_size 16"),
        (
            {"model": {"variant": "control_codes"}, "data": {"max_length": 64}},
            "exceeds the model's 63 positions",
        ),
        (
            {"model": {"variant": "prefix"}, "tasks": [{"name": "classification"}]},
            r"an instruction is empty \(value: \['classification'\]\)",
        ),
        (
            {
                "model": {"variant": "instruction"},
                "tasks": [{"name": "classification", "instruction": "long " * 20}],
            },
            "an instruction has 82 tokens, the model's context is 64",
        ),
    ],
)
def test_contradictions_fail_before_any_work(
    folder: Path, sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(SciMultError, match=message):
        build.build_model(run_config(folder, "unused", **sections))


def test_base_without_weights_for_a_task_says_how_to_grow_one(folder: Path) -> None:
    base = save_with_differing_routes(folder, "grown", {"variant": "mha_expert"})
    tasks = [task.model_dump() for task in default_tasks()] + [{"name": "reviewing"}]
    model = {"base": str(base), "variant": "mha_expert"}
    with pytest.raises(SciMultError, match=r"not for reviewing.*scimult grow-task"):
        build.build_model(run_config(folder, "unused", model=model, tasks=tasks))


def test_matryoshka_trains_the_first_dimensions(folder: Path, tmp_path: Path) -> None:
    config = run_config(folder, "dims", loss={"matryoshka": [4, 8]})
    run_ranks(pretrain, 1, tmp_path, config)
    cut = load_pretrained(folder / "dims", dims=4)
    whole = load_pretrained(folder / "dims")
    rows = [cut.instruction_row("some text")]
    assert np.array_equal(embed_tokens(cut.model, rows), embed_tokens(whole.model, rows)[:, :4])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            {"variant": "control_codes", "pooling": "mean"},
            r"takes the state of token 1 .*, not model\.pooling mean",
        ),
        (
            {"variant": "control_codes", "pooling": "position", "pooling_position": 3},
            "takes the state of token 1 .*, not model.pooling position",
        ),
        ({"variant": "mha_expert", "base": "reads"}, "reads instructions, and variant mha_expert"),
        ({"variant": "mha_expert", "base": "reads", "options": {"instructions": True}}, ""),
        ({"variant": "control_codes"}, ""),
        ({"variant": "control_codes", "options": {"embed_at": "cls"}}, ""),
    ],
)
def test_what_a_variant_leaves_out_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], model: dict[str, Any], said: str
) -> None:
    if "base" in model:
        reads = {"variant": "mha_expert", "options": {"instructions": True}}
        model = model | {"base": str(save_with_differing_routes(folder, "reads", reads))}
    capsys.readouterr()
    build.build_model(run_config(folder, "unused", model=model))
    printed = capsys.readouterr().err
    assert re.search(said, printed) if said else not printed, printed
