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
_HEAD = "ForSequenceClassification"


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
        If the model cannot be loaded, has no trained scores, or gives several per pair.
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
    if _has_new_head(encoder):
        problem = "the model encodes texts one by one: as a cross-encoder, its scores are random"
        fix = "name a cross-encoder, one trained to score pairs of texts"
        raise ConfigError(problem, value=model, fix=fix)
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


def _has_new_head(encoder: CrossEncoder) -> bool:
    """Return whether the layer that scores was not in the files: it is drawn at random then."""
    made = type(getattr(encoder[0], "model", None)).__name__
    saved = getattr(encoder.config, "architectures", None) or [made]
    return made.endswith(_HEAD) and not any(name.endswith(_HEAD) for name in saved)
