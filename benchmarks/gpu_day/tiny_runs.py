"""Six steps of a tiny run by ZeRO stage, precision and option, against the CPU's losses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.provide import Inputs

_STEPS = 6
_REFERENCES = {"mean": "reference", "cls": "reference_cls"}
# For six losses near 4 in bfloat16, after updates that differ in their last bits.
LOSS_WITHIN = 0.02
# The usual scale of 2^16 overflows in the first steps, which are then skipped.
_DEEPSPEED = {"fp16": {"enabled": "auto", "initial_scale_power": 10}}
_ARCHITECTURE = {
    "hidden_size": 64,
    "num_blocks": 2,
    "num_heads": 4,
    "intermediate_size": 128,
    "max_positions": 128,
}


def reference(day: Day, step: str, *, pooling: str = "mean") -> None:
    """Train on the CPU in float32, as the reference for the losses of the others."""
    environment = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    _run(day, step, config(day, step, precision="fp32", pooling=pooling), environment)
    day.note(step, losses=_losses(day, step))


def train(
    day: Day,
    step: str,
    *,
    stage: int = 1,
    precision: str = "bf16",
    variant: str = "mha_expert",
    dropout: float = 0.0,
    chunk_tokens: int | None = None,
    compile: bool = False,
    recompute: bool = False,
    pooling: str = "mean",
) -> None:
    """Train on the device; report losses, the worst difference, seconds and waits by line."""
    if precision == "fp16" and day.device == "cpu":
        day.note(step, left_out="DeepSpeed supports fp16 only on GPUs")
        return
    tree = config(day, step, precision, stage, variant, dropout, chunk_tokens, pooling)
    tree["engine"] |= {"compile": compile, "activation_checkpointing": recompute}
    _run(day, step, tree, {})
    losses = _losses(day, step)
    difference = None
    same = variant == "mha_expert" and dropout == 0.0
    reference = _REFERENCES[pooling]
    if same and (_folder(day, reference) / "metrics.jsonl").exists():
        expected = _losses(day, reference)
        difference = round(max(abs(a - b) / b for a, b in zip(losses, expected, strict=True)), 5)
    seconds = [round(line["seconds"], 3) for line in _metrics(day, step)]
    facts = {"losses": losses, "loss_difference": difference, "seconds_of_steps": seconds}
    day.note(step, **facts, **_waits(day, step))
    if difference is not None and difference > LOSS_WITHIN:
        raise SystemExit(f"losses differ from the CPU's by {difference:.1%}")


def config(
    day: Day,
    step: str,
    precision: str,
    stage: int = 1,
    variant: str = "mha_expert",
    dropout: float = 0.0,
    chunk_tokens: int | None = None,
    pooling: str = "mean",
) -> dict[str, Any]:
    """Return the configuration of a tiny run."""
    inputs = Inputs.of(day.inputs)
    return {
        "output": str(_folder(day, step)),
        "data": {"prepared": str(inputs.prepared), "max_length": 96},
        "model": {
            "tokenizer": str(inputs.model),
            "architecture": _ARCHITECTURE,
            "variant": variant,
            "pooling": pooling,
            "similarity": "cosine",
            "dropout": dropout,
            "attention_dropout": dropout,
        },
        "loss": {"temperature": 0.05},
        "optimizer": {"lr": 1e-3},
        "schedule": {"steps": _STEPS},
        "batch": {"pairs_per_step": 32, "chunk_tokens": chunk_tokens},
        "engine": {
            "precision": precision,
            "deepspeed": _DEEPSPEED | {"zero_optimization": {"stage": stage}},
        },
        "checkpoint": {"every": _STEPS},
        "dev": {"every": 0},
        "log": {"every": 1, "tensorboard": False},
    }


def _run(day: Day, step: str, tree: dict[str, Any], environment: dict[str, str]) -> None:
    """Run launch/pretrain.py and count its waits; exit with its code if it fails."""
    settings = day.work / "configs" / f"{step}.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    counts = _counts(day, step)
    counts.unlink(missing_ok=True)
    shutil.rmtree(_folder(day, step), ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.gpu_day.waits", str(counts), "launch/pretrain.py"]
    command += ["--config", str(settings)]
    rc = subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
    if rc != 0:
        raise SystemExit(rc)


def _folder(day: Day, step: str) -> Path:
    return day.work / "runs" / step


def _counts(day: Day, step: str) -> Path:
    return day.work / "configs" / f"{step}.waits.json"


def _metrics(day: Day, step: str) -> list[dict[str, Any]]:
    lines = (_folder(day, step) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["step"] > 0]


def _losses(day: Day, step: str) -> list[float]:
    return [round(line["loss"], 5) for line in _metrics(day, step)]


def _waits(day: Day, step: str) -> dict[str, Any]:
    """Return waits per step and their locations; none without a GPU."""
    if day.device == "cpu" or not _counts(day, step).exists():
        return {"waits_per_step": None, "waits": []}
    counted = json.loads(_counts(day, step).read_text(encoding="utf-8"))
    steps = counted["steps"]
    waits = [[location, round(count / steps, 2)] for location, count in counted["places"]]
    return {"waits_per_step": round(sum(count for _, count in waits), 2), "waits": waits}
