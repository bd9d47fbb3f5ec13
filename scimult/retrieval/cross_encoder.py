"""sentence-transformers cross-encoders: score a query and a document read together.

Shape legend: P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from scimult.errors import ConfigError, DataError
from scimult.types import FloatArray

PairScorer = Callable[[Sequence[tuple[str, str]]], FloatArray]


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
        If the model cannot be loaded, or gives more than one score per pair.
    DataError
        From the scorer, if a score is not finite.
    """
    from sentence_transformers import CrossEncoder

    try:
        encoder = CrossEncoder(model, device=device)
    except (OSError, ValueError) as error:
        fix = "name a folder or a model with one score per pair"
        raise ConfigError(f"cannot load cross-encoder: {error}", value=model, fix=fix) from error
    if encoder.num_labels != 1:
        fix = "use one with a single score per pair"
        problem = f"cross-encoder gives {encoder.num_labels} scores per pair"
        raise ConfigError(problem, value=model, fix=fix)

    def score(pairs: Sequence[tuple[str, str]]) -> FloatArray:
        predicted = encoder.predict(list(pairs), show_progress_bar=False) if pairs else []
        scores_P: FloatArray = np.asarray(predicted, dtype=np.float32).reshape(-1)
        if not np.isfinite(scores_P).all():
            fix = "use another cross-encoder, or float32 weights"
            raise DataError("cross-encoder gave a score that is not finite", path=model, fix=fix)
        return scores_P

    return score
