"""Reading of tagged papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from scimult.errors import DataError
from scimult.inference.texts import as_text
from scimult.progress import warn
from scimult.tagging.vocabulary import Vocabulary
from scimult.types import Text

_NAMED = 3


class TagReader:
    """Looks up the concepts of papers' tags; if ``closed``, with all broader ones.

    With ``drop_unknown``, tags that are not in the vocabulary, or ambiguous there, are ignored and
    counted.
    """

    def __init__(self, vocabulary: Vocabulary, *, closed: bool, drop_unknown: bool) -> None:
        self.vocabulary, self._closed, self._drop = vocabulary, closed, drop_unknown
        self.unknown: Counter[str] = Counter()

    def rows(self, tags: Iterable[str]) -> list[int]:
        """Return the rows of tags, which are ids or names of concepts.

        Raises
        ------
        DataError
            If one is unknown, unless those are ignored.
        """
        concepts: set[int] = set()
        for tag in tags:
            if self._drop and not self.vocabulary.knows(tag):
                self.unknown[tag] += 1
                continue
            concepts.add(self.vocabulary.row(tag))
        return sorted(self.vocabulary.closed(concepts) if self._closed else concepts)

    def report_unknown(self) -> None:
        """Warn about ignored tags."""
        if self.unknown:
            examples = ", ".join(repr(tag) for tag, _ in self.unknown.most_common(_NAMED))
            count = sum(self.unknown.values())
            warn(f"ignored {count:,} tags that are not in the vocabulary, such as {examples}")


def tagged_papers(
    papers: Iterable[Mapping[str, Any]], reader: TagReader
) -> tuple[list[str], list[Text], Any]:
    """Return ids, texts and tags, a sparse array of shape ``(N, C)``.

    Raises
    ------
    DataError
        If a paper has no id, text or list ``labels``, an id is repeated, or no paper has a tag.
    """
    import scipy.sparse as sparse

    ids: dict[str, None] = {}
    texts: list[Text] = []
    tags: list[list[int]] = []
    for index, paper in enumerate(papers):
        name = paper.get("id", paper.get("_id"))
        name = str(name) if isinstance(name, int) else name
        if not isinstance(name, str) or not name.strip() or name in ids:
            problem = f"paper {index} has no unique id"
            raise DataError(problem, value=name, fix="give every paper its own id")
        labels = paper.get("labels")
        if not isinstance(labels, (list, tuple)):
            fix = "give every paper a list of ids or names of concepts, which may be empty"
            raise DataError(f"paper {name!r} has no list 'labels'", value=labels, fix=fix)
        ids[name] = None
        texts.append(as_text(paper, "paper", index))
        try:
            tags.append(reader.rows(map(str, labels)))
        except DataError as error:
            problem = f"paper {name!r}: {error.problem}"
            fix = f"{error.fix}; drop_unknown (--drop-unknown) ignores unknown tags"
            raise DataError(problem, value=error.value, fix=fix) from None
    reader.report_unknown()
    counts = [len(rows) for rows in tags]
    if ids and not sum(counts):
        fix = "check that labels are ids or names in the vocabulary, or give no papers"
        raise DataError("no paper has a tag of the vocabulary", fix=fix)
    owners = np.repeat(np.arange(len(tags)), counts)
    columns = np.array([row for rows in tags for row in rows], dtype=np.int64)
    ones = np.ones(len(columns), dtype=np.float32)
    shape = (len(tags), len(reader.vocabulary))
    return list(ids), texts, sparse.csr_array((ones, (owners, columns)), shape=shape)
