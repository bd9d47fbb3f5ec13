"""The DeepSpeed configuration: 'auto' is filled in, contradictions are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scimult.errors import ConfigError
from scimult.training.deepspeed_config import bound_buckets, resolve_deepspeed

ZERO = {"zero_optimization": {"stage": 1}}
RUN: dict[str, Any] = {
    "pairs_per_step": 48,
    "accumulation": 2,
    "world_size": 3,
    "precision": "bf16",
    "clip": 0.0,
}


def test_auto_and_absent_values_are_filled_in() -> None:
    given: dict[str, Any] = {
        "train_batch_size": "auto",
        "fp16": {"enabled": "auto", "initial_scale_power": 8},
    }
    resolved = resolve_deepspeed({**given, "zero_optimization": {"stage": 2}}, **RUN)
    assert resolved["train_batch_size"] == 48
    # The engine accumulates the passes of a step itself: DeepSpeed sees one batch per step.
    assert resolved["train_micro_batch_size_per_gpu"] == 16
    assert resolved["gradient_accumulation_steps"] == 1
    assert resolved["bf16"] == {"enabled": True}
    assert resolved["fp16"] == {"enabled": False, "initial_scale_power": 8}
    # DeepSpeed takes an absent value for 1.0.
    assert resolved["gradient_clipping"] == 0.0
    assert resolved["zero_optimization"] == {"stage": 2}
    assert resolved["timers"] == {"throughput": {"enabled": False}}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_shipped_files_resolve(repository: Path, stage: int) -> None:
    file = repository / "configs" / "deepspeed" / f"zero{stage}.json"
    precision = "fp16" if stage else "fp32"
    resolved = resolve_deepspeed(str(file), **{**RUN, "precision": precision})
    assert resolved["zero_optimization"]["stage"] == stage
    assert "auto" not in json.dumps(resolved)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps .* needs 2"),
        ({"train_batch_size": 64}, "train_batch_size .* contradicts the run, which needs 48"),
        ({"bf16": True}, "bf16 in the DeepSpeed configuration is not a mapping"),
        ({"zero_optimization": None}, "zero_optimization in .* is not a mapping"),
        ({"zero_optimization": {"stage": 7}}, r"stage is not 0, 1, 2 or 3 \(value: 7\)"),
        ({"zero_optimization": {"stage": None}}, "stage is not 0, 1, 2 or 3"),
        (
            {"zero_optimization": {"stage": 1, "offload_optimizer": "cpu"}},
            r"offload_optimizer is not a mapping.*\{device: cpu\}",
        ),
        ({"bf16": {"enabled": False}}, r"bf16\.enabled .* needs True"),
        ({"fp16": {"enabled": True}}, r"fp16\.enabled .* needs False"),
        ({"optimizer": {"type": "AdamW"}}, "the DeepSpeed configuration must not set optimizer"),
        ({"scheduler": {"type": "WarmupLR"}}, "must not set scheduler"),
        (
            {"zero_optimization": {"stage": 1, "compute_grad_norm": False}},
            "hide non-finite gradients",
        ),
        (
            {"zero_optimization": {"stage": 2, "round_robin_gradients": True}},
            "round_robin_gradients true would save weights under the names of others",
        ),
        ({"zero_optimization": {"stage": 0}}, "without float32 master weights.*stage 1, 2 or 3"),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            "ZeRO stage 2 would ignore offload_param.*stage 3",
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
            "supports only the host's memory .*'nvme'.*device cpu",
        ),
        (
            {"zero_optimisation": {"stage": 3}},
            "unknown key .*'zero_optimisation'.*zero_optimization",
        ),
        (
            {"torch_autocast": {"enabled": True, "dtype": "float16"}},
            r"torch_autocast .* contradicts engine\.precision.*leave it out",
        ),
        ({"torch_autocast": True}, "torch_autocast .* is not a mapping"),
        (
            {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
            r"bf16\.bf16_master_weights_and_grads trains without float32 .*leave it out",
        ),
        ({"communication_data_type": "fp16"}, "communication_data_type .* round gradients of bf16"),
        (
            {"data_types": {"grad_accum_dtype": "fp16"}},
            r"data_types\.grad_accum_dtype .* round gradients of bf16.*write fp32",
        ),
    ],
)
def test_contradictions_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_deepspeed({**ZERO, **given}, **RUN)


def test_finer_types_than_those_of_the_run_are_allowed() -> None:
    given = {"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "bf16"}}
    resolved = resolve_deepspeed({**ZERO, **given, "torch_autocast": {"enabled": False}}, **RUN)
    assert resolved.items() >= given.items()


def test_stage_0_offloads_nothing() -> None:
    zero = {"stage": 0, "offload_optimizer": {"device": "cpu"}}
    with pytest.raises(
        ConfigError, match=r"ZeRO stage 0 would ignore offload_optimizer.*stage 1 or 2 or 3"
    ):
        resolve_deepspeed({"zero_optimization": zero}, **{**RUN, "precision": "fp32"})


def test_fp16_needs_a_stage_that_scales_the_loss() -> None:
    with pytest.raises(ConfigError, match=r"fp16 at .* a scaled loss.*stage 1, 2 or 3"):
        resolve_deepspeed({"zero_optimization": {"stage": 0}}, **{**RUN, "precision": "fp16"})


def test_batch_that_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"48 cannot be split over 5 ranks.*multiple of 10"):
        resolve_deepspeed(ZERO, **{**RUN, "world_size": 5})


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.json: file does not exist"):
        resolve_deepspeed(str(tmp_path / "absent.json"), **RUN)
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ValueError, match=r"broken\.json: not a valid JSON file"):
        resolve_deepspeed(str(broken), **RUN)


def test_the_reduction_buffer_is_no_larger_than_the_model() -> None:
    """DeepSpeed's default is room for 500 million numbers: 2 GB in float32, in every step."""
    for stage in (1, 2, 3):
        settings = {"zero_optimization": {"stage": stage}, "gradient_clipping": 1.0}
        bounded = bound_buckets(settings, 22_000_000)
        assert bounded["zero_optimization"] == {"stage": stage, "reduce_bucket_size": 22_000_000}
        assert bounded["gradient_clipping"] == 1.0
        assert settings["zero_optimization"] == {"stage": stage}
        large = bound_buckets(settings, 7_000_000_000)
        assert large["zero_optimization"]["reduce_bucket_size"] == 500_000_000
        given = {"zero_optimization": {"stage": stage, "reduce_bucket_size": 5}}
        assert bound_buckets(given, 22_000_000) == given
    assert bound_buckets({"zero_optimization": {"stage": 0}}, 9) == {
        "zero_optimization": {"stage": 0}
    }
    assert bound_buckets({}, 9) == {}
