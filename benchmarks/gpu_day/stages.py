"""A real run of two stages: trained, stopped by SIGTERM, resumed, evaluated against BM25."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.provide import Inputs

_STOPPED_BY_SIGTERM = 128 + signal.SIGTERM
_COMPARED = 10
_DEV = "dev/mean/mrr"


def config(day: Day, stage: str) -> dict[str, Any]:
    """Return the configuration of a stage: shared blocks, then attention experts on them."""
    inputs = Inputs.of(day.inputs)
    first = stage == "vanilla"
    steps = day.size(300, 8) if first else day.size(150, 12)
    return {
        "output": str(_folder(day, stage)),
        "seed": 42 if first else 43,
        "data": {"prepared": str(inputs.prepared), "max_length": day.size(512, 64)},
        "model": {
            "base": str(inputs.model if first else _folder(day, "vanilla")),
            "variant": stage,
            "pooling": "mean",
            "similarity": "cosine",
            "dropout": 0.1,
            "attention_dropout": 0.1,
        },
        "loss": {"temperature": 0.05},
        "optimizer": {"lr": 1e-4 if first else 3e-5},
        "schedule": {"steps": steps},
        "batch": {"pairs_per_step": day.size(512, 16)},
        "engine": {"deepspeed": "configs/deepspeed/zero1.json"},
        "checkpoint": {"every": 10 * steps},
        "dev": {"every": day.size(100, 8), "queries": 100, "candidates": day.size(1000, 50)},
        "log": {"every": 10, "tensorboard": False},
    }


def train(day: Day, step: str, *, stage: str) -> None:
    """Run a stage from its start, or resume it."""
    rc = _start(day, stage).wait()
    _report(day, step, stage)
    raise SystemExit(rc)


def stop(day: Day, step: str, *, stage: str) -> None:
    """Stop a stage by SIGTERM after a third of its steps; it must leave a checkpoint."""
    process = _start(day, stage)
    third = config(day, stage)["schedule"]["steps"] // 3
    while process.poll() is None and len(_lines(day, stage)) < third:
        time.sleep(0.05)
    process.terminate()
    rc = process.wait()
    steps = [line["step"] for line in _lines(day, stage)]
    checkpoints = sorted(path.name for path in _folder(day, stage).glob("checkpoints/*"))
    day.note(step, exit_code=rc, last_step=max(steps, default=0), checkpoints=checkpoints)
    if rc != _STOPPED_BY_SIGTERM or not checkpoints:
        expected = f"expected {_STOPPED_BY_SIGTERM} and a checkpoint"
        raise SystemExit(f"the run ended with {rc}; {expected}")


def resume(day: Day, step: str, *, stage: str) -> None:
    """Repeat the command; every step must be logged once, and losses must continue as before."""
    before = [line["loss"] for line in _lines(day, stage)]
    rc = _start(day, stage).wait()
    steps = [line["step"] for line in _lines(day, stage)]
    after = [line["loss"] for line in _lines(day, stage)][len(before) :]
    whole = steps == list(range(1, config(day, stage)["schedule"]["steps"] + 1))
    day.note(
        step,
        resumed_after=len(before),
        every_step_once=whole,
        loss_before=round(fmean(before[-_COMPARED:]), 4),
        loss_after=round(fmean(after[:_COMPARED]), 4) if after else None,
    )
    _report(day, step, stage)
    if rc == 0 and not whole:
        raise SystemExit(f"steps of the resumed run are {steps}")
    raise SystemExit(rc)


def evaluate(day: Day, step: str) -> None:
    """Score BM25, the base and both stages on the evaluation sets."""
    inputs, results = Inputs.of(day.inputs), day.work / "results"
    models = {"base": f"{inputs.model},pooling=mean,similarity=cosine"}
    models |= {name: str(_folder(day, name)) for name in ("vanilla", "mha_expert")}
    command = [sys.executable, "launch/evaluate.py", "--suite", inputs.suite, "--bm25"]
    command += ["--data", str(inputs.evaluation), "--out", str(results), "--replace"]
    command += [part for name in inputs.sets for part in ("--sets", name)]
    command += [part for name, spec in models.items() for part in ("--model", f"{name}={spec}")]
    rc = subprocess.run([*command, "--device", day.device], check=False).returncode
    for path in sorted(results.glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        for name, scored in result["sets"].items():
            metric = scored["main_metric"]
            day.note(
                step,
                system=path.parent.name,
                set=name,
                metric=metric,
                score=round(100 * scored["scores"][metric], 2),
                seconds=round(scored["seconds"], 2),
            )
    raise SystemExit(rc)


def _start(day: Day, stage: str) -> subprocess.Popen[bytes]:
    settings = day.work / "configs" / f"{stage}.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(config(day, stage), indent=1), encoding="utf-8")
    return subprocess.Popen([sys.executable, "launch/pretrain.py", "--config", str(settings)])


def _report(day: Day, step: str, stage: str) -> None:
    """Report speed and loss from the run's own lines."""
    lines = _lines(day, stage)
    if len(lines) < 2:
        return
    steady = [line["usage"] for line in lines[len(lines) // 4 :]]
    few = min(_COMPARED, len(lines) // 2)
    facts = {
        "steps": len(lines),
        "first_loss": round(fmean(line["loss"] for line in lines[:few]), 4),
        "last_loss": round(fmean(line["loss"] for line in lines[-few:]), 4),
        "dev_mrr": [line["metrics"][_DEV] for line in lines if _DEV in line["metrics"]],
    }
    for name in ("tokens_per_second", "model_flop_utilisation", "peak_gpu_memory_bytes"):
        values = [usage[name] for usage in steady if name in usage]
        facts[name] = float(f"{median(values):.4g}") if values else None
    day.note(step, stage=stage, **facts)


def _folder(day: Day, stage: str) -> Path:
    return day.work / "runs" / stage


def _lines(day: Day, stage: str) -> list[dict[str, Any]]:
    """Return the run's lines from step 1 on, except one that is being written."""
    path = _folder(day, stage) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return [line for line in lines if line["step"] > 0]
