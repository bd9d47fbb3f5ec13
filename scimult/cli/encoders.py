"""Models that other layers ask for by name: mining may use an encoder, but knows none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scimult.preparation.mining.config import DenseConfig
    from scimult.preparation.mining.dense import MiningEncoder


def open_encoder(rule: DenseConfig) -> MiningEncoder:
    """Open the model of a ``dense`` rule.

    Raises
    ------
    CheckpointError
        If the folder holds no model that fits.
    """
    from scimult.inference import SciMult

    return SciMult.from_pretrained(rule.model, pooling=rule.pooling, similarity=rule.similarity)
