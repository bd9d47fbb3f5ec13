"""What a run's numbers depend on besides its configuration, which holds only names of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from scimult.checkpoints import Pretrained
from scimult.training.plan import RunPlan

# Runs of earlier versions did not record these.
_LATER = ("tokenizer", "architecture", "base")


Origin = Mapping[str, str]
"""Fingerprints of what a run starts from, by name, as JSON values."""


def origin_of(plan: RunPlan, pretrained: Pretrained) -> Origin:
    """Return what a run starts from.

    ``pretrained`` is the model before the first step; shapes will do. ``base`` are the weights of
    ``model.base``, unless an earlier run in the same call makes them, and not those drawn with the
    seed, whose last bits may differ between machines.
    """
    origin = {"data": plan.data.fingerprint, **reading_of(pretrained)}
    if pretrained.base_digest:
        origin["base"] = pretrained.base_digest[:12]
    if plan.embedding_teacher is not None:
        origin["embedding_teacher"] = plan.embedding_teacher.vectors.fingerprint
    return origin


def reading_of(pretrained: Pretrained) -> dict[str, str]:
    """Return fingerprints of what gives a model's weights their meaning."""
    # Without defaults, so that a setting of a later version leaves it as it is.
    architecture = pretrained.config.encoder.model_dump_json(exclude_defaults=True)
    return {
        "tokenizer": pretrained.tokenizer.fingerprint,
        "architecture": hashlib.sha256(architecture.encode()).hexdigest()[:12],
    }


def differing(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return the names of what differs between what was recorded and what there is now."""
    return [
        name
        for name, value in now.items()
        if not (name in _LATER and name not in before) and before.get(name) != value
    ]
