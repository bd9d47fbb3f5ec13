"""Self-supervised pairs: each paper is its own positive, under two views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scimult.data.pairs import SPLITS, PairFile
from scimult.data.prepared import papers_of, read_aliases
from scimult.data.ragged import Ragged
from scimult.data.text_store import TextStore
from scimult.errors import ConfigError
from scimult.preparation.config import PrepareConfig, SelfSupervisionConfig
from scimult.types import BoolArray, IntArray, Text, ViewName


@dataclass(frozen=True)
class ViewedPapers:
    """The papers of a self-supervised source; those ``too_short`` make no pair."""

    choice: SelfSupervisionConfig
    namespace: str
    rows: IntArray
    too_short: IntArray

    def pairs(self, dev_N: BoolArray) -> Iterator[tuple[PairFile, int]]:
        """Yield the pairs of each split, with the number of papers too short for one."""
        for split in SPLITS:
            is_dev = split == "dev"
            rows = self.rows[dev_N[self.rows] == is_dev]
            pairs = PairFile(
                f"{self.choice.source}-{self.choice.view}",
                self.choice.task,
                split,
                rows,
                Ragged(rows, np.arange(len(rows) + 1, dtype=np.int64)),
                Ragged.empty(len(rows)),
                view=self.choice.view,
                namespace=self.namespace,
                part="views",
            )
            yield pairs, int((dev_N[self.too_short] == is_dev).sum())


def viewed_papers(config: PrepareConfig, store: TextStore, folder: Path) -> list[ViewedPapers]:
    """Return the papers of each entry of ``self_supervision``.

    Raises
    ------
    ConfigError
        If no paper of a source is long enough.
    """
    viewed = []
    for choice in config.self_supervision:
        namespace = next(s.space for s in config.sources if s.name == choice.source)
        papers = papers_of(store, read_aliases(folder), namespace)
        counts = (_words(store.text(row), choice.view) for row in papers.tolist())
        words = np.fromiter(counts, dtype=np.int64, count=len(papers))
        enough = words >= choice.min_words
        if not enough.any():
            fix = "lower min_words or name another source"
            raise ConfigError("no paper is long enough", value=choice.source, fix=fix)
        viewed.append(ViewedPapers(choice, namespace, papers[enough], papers[~enough]))
    return viewed


def _words(text: Text, view: ViewName) -> int:
    if view == "title_to_abstract":
        return len(text.body.split()) if text.title.strip() else 0
    return len(text.title.split()) + len(text.body.split())
