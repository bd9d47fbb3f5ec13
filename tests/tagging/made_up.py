"""Synthetic papers whose tags follow from their words."""

from __future__ import annotations

from typing import Any

import numpy as np

from scimult.tagging import Concept, Vocabulary

SUBJECTS = "graph protein matrix kernel vision speech token network plasma quantum".split()
FILLER = "we study the use of many new ways in large sets with results that hold".split()
VOCABULARY = Vocabulary(
    [
        Concept("top", "Science"),
        *(Concept(f"c/{word}", word.title(), (f"{word} study",), ("top",)) for word in SUBJECTS),
        *(Concept(f"c/{word}/deep", f"Deep {word}", (), (f"c/{word}",)) for word in SUBJECTS),
        Concept("c/none", "Nothing at all"),
    ]
)


def papers(count: int, seed: int = 0, noise: float = 0.1) -> list[dict[str, Any]]:
    """Return papers on one to three subjects each, with a share of ``noise`` tags missing."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        subjects = rng.choice(SUBJECTS, rng.integers(1, 4), replace=False).tolist()
        words = [*rng.choice(FILLER, 12).tolist(), *subjects[1:]]
        rng.shuffle(words)
        tags = [f"c/{word}" for word in subjects if rng.random() > noise]
        found.append(
            {
                "id": f"p{seed}-{number}",
                "title": f"On {subjects[0]} {rng.choice(FILLER)}",
                "abstract": f"{' '.join(words[:7]).capitalize()}. {' '.join(words[7:])}.",
                "labels": tags,
            }
        )
    return found
