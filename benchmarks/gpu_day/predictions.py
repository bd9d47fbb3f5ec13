"""Predictions made before any GPU run; a report shows each figure next to its range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Findings by step.
Findings = Mapping[str, Sequence[Mapping[str, Any]]]
# A figure further off than this factor needs an explanation before it is used.
MISS = 1.5


@dataclass(frozen=True)
class Prediction:
    """One figure.

    Attributes
    ----------
    what : str
        Name of the figure, with its unit.
    low, high : float or None
        Expected range; ``None`` for no bound.
    figure : callable
        Takes the figure from the findings; returns ``None`` if it is not there.
    device : str or None
        Part of the names of the devices that the range is for.
    """

    what: str
    low: float | None
    high: float | None
    figure: Callable[[Findings], float | None]
    device: str | None = None

    @property
    def range(self) -> str:
        """The range in words."""
        if self.low is None:
            return f"at most {self.high:g}"
        if self.high is None:
            return f"at least {self.low:g}"
        return f"{self.low:g} to {self.high:g}"

    def misses(self, figure: float) -> bool:
        """Return whether a figure is off the range by more than a factor of `MISS`."""
        below = self.low is not None and figure * MISS < self.low
        above = self.high is not None and figure > self.high * MISS
        return below or above


def one(step: str, key: str, **where: Any) -> Callable[[Findings], float | None]:
    """Return a function that takes ``key`` from a step's first finding with fields ``where``."""

    def figure(findings: Findings) -> float | None:
        for finding in findings.get(step, ()):
            if key in finding and all(finding.get(name) == value for name, value in where.items()):
                value = finding[key]
                return None if value is None else float(value)
        return None

    return figure


def over(
    above: Callable[[Findings], float | None], below: Callable[[Findings], float | None]
) -> Callable[[Findings], float | None]:
    """Return a function that divides two figures, if both are there."""

    def figure(findings: Findings) -> float | None:
        numerator, denominator = above(findings), below(findings)
        return None if numerator is None or not denominator else numerator / denominator

    return figure


def extreme(
    choose: Callable[[list[float]], float],
    steps: Sequence[str],
    keys: Sequence[str],
    **where: Sequence[Any],
) -> Callable[[Findings], float | None]:
    """Return a function that takes the extreme of the keys over the findings of steps.

    Only findings whose fields ``where`` have one of the listed values count.
    """

    def figure(findings: Findings) -> float | None:
        values = [
            float(finding[key])
            for step in steps
            for finding in findings.get(step, ())
            for key in keys
            if finding.get(key) is not None
            and all(finding.get(name) in values for name, values in where.items())
        ]
        return choose(values) if values else None

    return figure


_H200 = "H200"
# BERT-base's, without 768x768, whose weight gradient has too few tiles for all processors.
_SHAPES = ("768x2304", "768x3072", "3072x768")
_PRODUCTS = ("forward", "input", "weight")
_ERRORS = ("output_error", "gradient_error")
_RUNS = (
    "bf16_zero1",
    "bf16_zero2",
    "bf16_zero3",
    "fp32_zero0",
    "fp16_zero1",
    "bf16_cache",
    "bf16_compile",
    "bf16_cls",
    "bf16_cls_compile",
    "bf16_recompute",
    "bf16_cache_zero3",
)
_BASE, _MINILM = "sweep_bert_base", "sweep_minilm"


def _rate(step: str, options: str, key: str = "tokens_per_second") -> Callable[..., float | None]:
    return one(step, key, pairs=128, options=options)


_PLAIN, _CACHE = _rate(_BASE, "plain"), _rate(_BASE, "chunk_tokens 131072")
_MEAN, _FIRST = (
    one(_BASE, "tokens_per_second", pairs=512, options=f"{pooling}compiled True")
    for pooling in ("", "pooling cls, ")
)
_WIDE, _NARROW, _WIDE_FIRST = (
    one("encode", "tokens_per_second", setting=f"ours bfloat16 {budget}")
    for budget in ("65536", "8192", "65536 cls")
)

PREDICTIONS: tuple[Prediction, ...] = (
    Prediction(
        "bf16 products of BERT-base's shapes, TFLOP/s, the slowest",
        550,
        700,
        extreme(min, ("peaks",), _PRODUCTS, product=_SHAPES),
        _H200,
    ),
    Prediction(
        "bf16 product of 8,192 squared, TFLOP/s", 770, 800, one("peaks", "square_tflops"), _H200
    ),
    Prediction("copy within the device, TB/s", 4.2, 4.4, one("peaks", "copy_tb_s"), _H200),
    *(
        Prediction(
            f"attention in {dtype}, worst relative error",
            None,
            error,
            extreme(max, ("attention",), _ERRORS, dtype=(dtype,)),
        )
        for dtype, error in (("bfloat16", 0.01), ("float16", 0.0015), ("float32", 2e-6))
    ),
    Prediction(
        "losses against the CPU's, largest relative difference of any run",
        None,
        0.02,
        extreme(max, _RUNS, ("loss_difference",)),
    ),
    Prediction("waits for the GPU per step, ZeRO 1", None, 10, one("bf16_zero1", "waits_per_step")),
    Prediction("the same, ZeRO 0", None, 1, one("fp32_zero0", "waits_per_step")),
    Prediction("share of a step with a busy GPU", 0.9, 1.0, one("profile", "busy")),
    Prediction(
        "BERT-base, 128 pairs: share of the data sheet's peak",
        0.33,
        0.43,
        _rate(_BASE, "plain", "of_sheet"),
        _H200,
    ),
    Prediction("the same, compiled", 0.40, 0.43, _rate(_BASE, "compiled True", "of_sheet"), _H200),
    Prediction(
        "the same, compiled: share of the measured peak",
        0.50,
        0.54,
        _rate(_BASE, "compiled True", "of_measured"),
    ),
    Prediction(
        "dropout 0.1: share of the data sheet's peak",
        0.30,
        0.40,
        _rate(_BASE, "dropout 0.1", "of_sheet"),
        _H200,
    ),
    Prediction(
        "tokens per second with the embedding cache over without", 0.7, 0.8, over(_CACHE, _PLAIN)
    ),
    Prediction(
        "MiniLM, 512 pairs: share of the data sheet's peak",
        0.12,
        0.20,
        one(_MINILM, "of_sheet", pairs=512, options="plain"),
        _H200,
    ),
    Prediction(
        "BERT-base, 512 pairs compiled: tokens per second of cls pooling over mean",
        1.03,
        1.08,
        over(_FIRST, _MEAN),
    ),
    Prediction("encoding: the same", 1.05, 1.16, over(_WIDE_FIRST, _WIDE)),
    Prediction("encoding: 65,536 tokens per batch over 8,192", 2.5, None, over(_WIDE, _NARROW)),
    Prediction(
        "encoding: times the best of sentence-transformers, bf16",
        1.3,
        None,
        one("encode", "times_best_peer", setting="ours bfloat16 65536"),
    ),
    Prediction(
        "encoding: smallest cosine of bf16 to float32",
        0.9995,
        1.0,
        extreme(min, ("encode",), ("least_cosine",), setting=("ours bfloat16 65536",)),
    ),
    Prediction(
        "search, 1.4 million: speed over that of only the float32 product",
        0.8,
        None,
        one("search", "of_bare", candidates=1_413_087, queries=1024),
    ),
    Prediction(
        "search: share of float64's top 100 that is found",
        0.999,
        1.0,
        extreme(min, ("search",), ("of_best_in_float64",)),
    ),
    Prediction(
        "resumed run: every step once", 1, 1, one("second_stage_resumed", "every_step_once")
    ),
    Prediction(
        "first loss after resuming over the last before",
        0.9,
        1.1,
        over(one("second_stage_resumed", "loss_after"), one("second_stage_resumed", "loss_before")),
    ),
)
