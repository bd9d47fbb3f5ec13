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


def tagged_papers(
    papers: Iterable[Mapping[str, Any]],
    vocabulary: Vocabulary,
    *,
    closed: bool,
    drop_unknown: bool,
) -> tuple[list[str], list[Text], Any]:
    """Return ids, texts and tags, a sparse array of shape ``(N, C)``.

    Tags are ids or names of concepts; if ``closed``, a paper also has all broader ones. With
    ``drop_unknown``, tags that are not in the vocabulary, or ambiguous there, are ignored and
    counted.

    Raises
    ------
    DataError
        If a paper has no id, text or list ``labels``, an id is repeated, a tag is unknown, or no
        paper has a tag.
    """
    import scipy.sparse as sparse

    ids: dict[str, None] = {}
    texts: list[Text] = []
    tags: list[list[int]] = []
    unknown: Counter[str] = Counter()
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
        named = list(map(str, labels))
        if drop_unknown:
            unknown.update(tag for tag in named if not vocabulary.knows(tag))
            named = [tag for tag in named if tag not in unknown]
        try:
            concepts = {vocabulary.row(tag) for tag in named}
        except DataError as error:
            problem = f"paper {name!r}: {error.problem}"
            fix = f"{error.fix}; drop_unknown (--drop-unknown) ignores unknown tags"
            raise DataError(problem, value=error.value, fix=fix) from None
        tags.append(sorted(vocabulary.closed(concepts) if closed else concepts))
    if unknown:
        examples = ", ".join(repr(tag) for tag, _ in unknown.most_common(_NAMED))
        count = sum(unknown.values())
        warn(f"ignored {count:,} tags that are not in the vocabulary, such as {examples}")
    counts = [len(rows) for rows in tags]
    if ids and not sum(counts):
        fix = "check that labels are ids or names in the vocabulary, or give no papers"
        raise DataError("no paper has a tag of the vocabulary", fix=fix)
    owners = np.repeat(np.arange(len(tags)), counts)
    columns = np.array([row for rows in tags for row in rows], dtype=np.int64)
    ones = np.ones(len(columns), dtype=np.float32)
    shape = (len(tags), len(vocabulary))
    return list(ids), texts, sparse.csr_array((ones, (owners, columns)), shape=shape)
