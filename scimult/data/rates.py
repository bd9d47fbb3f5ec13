"""Sampling rates: each source's share of the pairs, from sizes or given weights.

Shape legend: S sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scimult.data.pair_streams import item_count
from scimult.data.pairs import PairFile
from scimult.data.targets import TargetFile
from scimult.errors import ConfigError, UnknownNameError
from scimult.types import BoolArray

RateArray = NDArray[np.float64]
SamplingMode = Literal["proportional", "equal", "equal_tasks", "explicit", "sequential"]


def sampling_rates(
    sources: Sequence[PairFile | TargetFile],
    mode: SamplingMode,
    explicit: Mapping[str, float] | None = None,
    temperature: float = 1.0,
    sizes: Sequence[int] | None = None,
) -> RateArray:
    """Return each source's share of the pairs; shape ``(S,)``, sums to 1.

    Every mode gives weights to groups of sources: ``proportional`` and ``sequential`` have one
    group of all, ``equal`` one of weight 1 per source, ``equal_tasks`` one per task, and
    ``explicit`` those given, by task, by ``source.task`` or by single-task source; every source is
    in exactly one. The sources of a group share its weight in proportion to n^(1/T), where n is the
    number of pairs of a source (``sizes``, by default all): T = 1 is proportional, T = 2 uses the
    square root, and a large T approaches equal shares (Arivazhagan et al., 2019).

    Raises
    ------
    UnknownNameError, ConfigError
        If a name is unknown or ambiguous, a source is in no group or in two, all weights are 0,
        or a temperature other than 1 would have no effect because every source is its own group.
    """
    groups = _groups(sources, mode, explicit or {})
    are_single = all(members_S.sum() == 1 for _, members_S in groups)
    if temperature != 1 and are_single and len(sources) > 1:
        raise ConfigError(
            f"data.sampling {mode} ignores the sizes of these sources",
            value=f"data.sampling_temperature {temperature:g}",
            fix="leave the temperature out, or give rates by task",
        )
    if sizes is None:
        sizes = [item_count(file) for file in sources]
    sizes_S = np.array(sizes, dtype=np.float64)
    smoothed_S = sizes_S ** (1 / temperature)
    weights_S = np.zeros_like(sizes_S)
    for weight, members_S in groups:
        weights_S[members_S] = weight * smoothed_S[members_S] / smoothed_S[members_S].sum()
    rates: RateArray = weights_S / weights_S.sum()
    return rates


def _groups(
    sources: Sequence[PairFile | TargetFile], mode: SamplingMode, explicit: Mapping[str, float]
) -> list[tuple[float, BoolArray]]:
    """Return the weight and members of each group."""
    if mode in ("proportional", "sequential"):
        return [(1.0, np.ones(len(sources), dtype=np.bool_))]
    if mode == "equal":
        return [(1.0, one_S) for one_S in np.eye(len(sources), dtype=np.bool_)]
    if mode == "equal_tasks":
        tasks_S = np.array([file.task for file in sources])
        return [(1.0, tasks_S == task) for task in np.unique(tasks_S)]
    groups = [(weight, _named(sources, name)) for name, weight in explicit.items()]
    count_S = sum((members_S.astype(int) for _, members_S in groups), np.zeros(len(sources), int))
    wrong = [file.name for file, count in zip(sources, count_S, strict=True) if count != 1]
    if wrong or sum(explicit.values()) <= 0:
        raise ConfigError(
            "data.rates must give every source one weight, by its name or its task",
            value=wrong or dict(explicit),
            fix="give each source or task one weight, 0 to leave it out",
        )
    return groups


def _named(sources: Sequence[PairFile | TargetFile], name: str) -> BoolArray:
    """Return which sources a name in ``data.rates`` refers to."""
    of_task_S = np.array([file.task == name for file in sources])
    of_source_S = np.array([name in (file.name, file.source) for file in sources])
    members_S: BoolArray = of_task_S | of_source_S
    if not members_S.any():
        known = {part for file in sources for part in (file.source, file.name, file.task)}
        raise UnknownNameError("source or task in data.rates", name, known)
    is_both = of_task_S.any() and of_source_S.any() and (of_task_S != of_source_S).any()
    if is_both or (of_source_S.sum() > 1 and not of_task_S.any()):
        names = [file.name for file, member in zip(sources, members_S, strict=True) if member]
        reason = "is both a task and a source" if is_both else "trains several tasks"
        raise ConfigError(
            f"name in data.rates {reason}", value=name, fix=f"use one of {', '.join(names)}"
        )
    return members_S
