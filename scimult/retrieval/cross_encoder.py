"""sentence-transformers cross-encoders: score a query and a document read together.

Shape legend: P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scimult.errors import ConfigError, DataError
from scimult.types import FloatArray

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

PairScorer = Callable[[Sequence[tuple[str, str]]], FloatArray]


_CLASSIFIER = "ForSequenceClassification"


def load_cross_encoder(model: str, device: str | None = None) -> PairScorer:
    """Return a scorer of (query, document) texts: float32, shape ``(P,)``, larger fits better.

    Parameters
    ----------
    model : str
        A folder, or a name on the hub.
    device : str, optional
        Where to compute.

    Raises
    ------
    ConfigError
        If the model cannot be loaded, is a text encoder, whose scores of pairs would be random, or
        gives more than one score per pair.
    DataError
        From the scorer, if a score is not finite.
    """
    from sentence_transformers import CrossEncoder

    try:
        encoder = CrossEncoder(model, device=device)
    except Exception as error:  # damaged folders raise RuntimeError, SafetensorError and others
        problem = f"cannot load cross-encoder: {' '.join(str(error).split())}"
        fix = "name a folder or a model with one score per pair"
        raise ConfigError(problem, value=model, fix=fix) from error
    if _has_random_head(encoder):
        fix = "name a cross-encoder, which reads a query and a document together"
        raise ConfigError("model is no cross-encoder, but a text encoder", value=model, fix=fix)
    if encoder.num_labels != 1:
        fix = "use one with a single score per pair"
        problem = f"cross-encoder gives {encoder.num_labels} scores per pair"
        raise ConfigError(problem, value=model, fix=fix)
    if encoder.device.type == "cpu":
        encoder.float()  # saved in bfloat16, near scores would be equal, and take longer

    def score(pairs: Sequence[tuple[str, str]]) -> FloatArray:
        predicted = encoder.predict(list(pairs), show_progress_bar=False) if pairs else []
        scores_P: FloatArray = np.asarray(predicted, dtype=np.float32).reshape(-1)
        if not np.isfinite(scores_P).all():
            fix = "use another cross-encoder, or float32 weights"
            raise DataError("cross-encoder gave a score that is not finite", path=model, fix=fix)
        return scores_P

    return score


def _has_random_head(encoder: CrossEncoder) -> bool:
    """Return whether the library has added a head to a model saved without one; it only warns."""
    model = encoder.transformers_model
    is_classifier = type(model).__name__.endswith(_CLASSIFIER)
    if model is None or not is_classifier or hasattr(model, "peft_config"):
        return False
    saved = model.config.architectures or []
    return not any(name.endswith(_CLASSIFIER) for name in saved)
