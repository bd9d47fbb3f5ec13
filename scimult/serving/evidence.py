"""The sentence of a paper that speaks for its place in a list.

Shape legend: S sentences, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scimult.inference import SciMult
from scimult.tagging.evidence import sentences
from scimult.types import FloatArray, Text

MOST_SENTENCES, MOST_CHARACTERS = 20, 1000


def sentences_of(text: Text) -> list[str]:
    """Return the sentences of an abstract, or the title where there is none; long ones cut."""
    candidates = sentences(text.body[: MOST_SENTENCES * MOST_CHARACTERS])[:MOST_SENTENCES]
    return [part[:MOST_CHARACTERS] for part in candidates] or [text.title[:MOST_CHARACTERS]]


def evidence_for(
    model: SciMult, task: str, query_D: FloatArray, texts: Sequence[Text]
) -> list[str]:
    """Return of each paper the sentence that scores highest for a query, all in one pass.

    A sentence is encoded as a paper of its own; the score is the model's.
    """
    parts = [sentences_of(text) for text in texts]
    all_of = [Text("paper", sentence) for part in parts for sentence in part]
    if not all_of:
        return []
    vectors_SD = model.encode(all_of, task=task, role="candidate")
    scores_S = _scores(model, query_D, vectors_SD)
    ends = np.cumsum([len(part) for part in parts])
    best = [int(np.argmax(scores)) for scores in np.split(scores_S, ends[:-1])]
    return [part[place] for part, place in zip(parts, best, strict=True)]


def _scores(model: SciMult, query_D: FloatArray, vectors_SD: FloatArray) -> FloatArray:
    """Return scores whose order is that of the model's similarity, shape ``(S,)``."""
    if model.similarity == "l2":
        near_S: FloatArray = -np.linalg.norm(vectors_SD - query_D, axis=1)
        return near_S
    lengths_S = np.linalg.norm(vectors_SD, axis=1) if model.similarity == "cosine" else 1.0
    scores_S: FloatArray = (vectors_SD @ query_D) / np.maximum(lengths_S, 1e-30)
    return scores_S
