"""The steps of the three calls, with their time limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_HERE = "benchmarks.gpu_day"


@dataclass(frozen=True)
class Step:
    """A step, run in its own process.

    Attributes
    ----------
    name : str
        Name of the step.
    box : float
        Time limit in seconds, after which it and its children are killed.
    work : str
        ``module:function`` in this package, called with the day, its own name and ``options``.
    options : dict
        Options of the function.
    """

    name: str
    box: float
    work: str
    options: dict[str, Any]

    @property
    def module(self) -> str:
        """Module of the function."""
        return f"{_HERE}.{self.work.partition(':')[0]}"

    @property
    def function(self) -> str:
        """Name of the function."""
        return self.work.partition(":")[2]


def _step(name: str, box: float, work: str, **options: Any) -> Step:
    return Step(name, box, work, options)


_PROVIDE = (
    _step("install", 60, "provide:install"),
    _step("inputs", 60, "provide:inputs"),
    _step("machine", 40, "machine:describe"),
)

# Cheap checks first, as the last steps may run out of time.
CALLS: dict[str, tuple[Step, ...]] = {
    "run": (
        *_PROVIDE,
        _step("peaks", 40, "machine:peaks"),
        _step("attention", 60, "attention:errors"),
        _step("attention_dropout", 30, "attention:dropout"),
        _step("gpu_tests", 90, "tests:gpu"),
        _step("reference", 45, "tiny_runs:reference"),
        _step("reference_cls", 45, "tiny_runs:reference", pooling="cls"),
        _step("bf16_zero1", 45, "tiny_runs:train"),
        _step("bf16_zero2", 45, "tiny_runs:train", stage=2),
        _step("fp32_zero0", 45, "tiny_runs:train", stage=0, precision="fp32"),
        _step("bf16_cache", 45, "tiny_runs:train", chunk_tokens=512),
        _step("bf16_compile", 90, "tiny_runs:train", compile=True),
        _step("bf16_cls", 45, "tiny_runs:train", pooling="cls"),
        _step("bf16_cls_compile", 90, "tiny_runs:train", pooling="cls", compile=True),
        _step("bf16_pals", 45, "tiny_runs:train", variant="pals"),
        _step("bf16_dropout", 45, "tiny_runs:train", dropout=0.1),
        _step("bf16_zero3", 45, "tiny_runs:train", stage=3),
        _step("fp16_zero1", 45, "tiny_runs:train", precision="fp16"),
        _step("bf16_recompute", 45, "tiny_runs:train", recompute=True),
        _step("bf16_cache_zero3", 45, "tiny_runs:train", stage=3, chunk_tokens=512),
        _step("tests", 150, "tests:core"),
    ),
    "speed": (
        *_PROVIDE,
        _step("peaks", 40, "machine:peaks"),
        _step("profile", 90, "speeds:profile_step"),
        _step("host", 45, "host:profile_host"),
        _step("profile_compiled", 60, "speeds:profile_step", pairs=512, compiled=True),
        _step(
            "profile_compiled_dropout",
            60,
            "speeds:profile_step",
            pairs=512,
            compiled=True,
            dropout=0.1,
        ),
        _step("sweep_bert_base", 130, "speeds:sweep", size="bert-base"),
        _step("encode", 110, "encoding:encode"),
        _step("encode_bert_base", 80, "encoding:encode", size="bert-base"),
        _step("search", 60, "searching:search"),
        _step("sweep_minilm", 80, "speeds:sweep", size="minilm"),
        _step("peer_train", 170, "speeds:peer"),
        _step("attention_speed", 30, "attention:speed"),
    ),
    "train": (
        *_PROVIDE,
        _step("first_stage", 190, "stages:train", stage="vanilla"),
        _step("second_stage_stopped", 80, "stages:stop", stage="mha_expert"),
        _step("second_stage_resumed", 130, "stages:resume", stage="mha_expert"),
        _step("evaluate", 120, "stages:evaluate"),
    ),
}


def steps_of(call: str) -> dict[str, Step]:
    """Return the steps of a call by name, in order."""
    return {step.name: step for step in CALLS[call]}
