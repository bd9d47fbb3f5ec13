"""Reading of tagged papers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.data.importers import ImportedPaper
from scimult.errors import DataError
from scimult.evaluation.name_matching import words
from scimult.inference.texts import paper_of, rows_of
from scimult.progress import warn
from scimult.tagging.vocabulary import Vocabulary
from scimult.terminal import counted
from scimult.types import Text

Hashes = NDArray[np.uint64]
_NAMED = 3


def text_hashes(texts: Iterable[Text]) -> Hashes:
    """Return a hash of the words of each text; copies from other sources have the same."""
    digests = (hashlib.sha256(words(text.joined).encode()).digest()[:8] for text in texts)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def tagged_papers(
    papers: Iterable[object],
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
    for index, item in enumerate(rows_of(papers) or papers):
        paper, text = paper_of(item, index)
        name, labels = paper["id"], paper.get("labels")
        if labels is None and isinstance(item, ImportedPaper):
            labels = []
        if name in ids:
            problem = f"paper {index} has the id of an earlier one"
            raise DataError(problem, value=name, fix="give every paper its own id")
        if not isinstance(labels, (list, tuple)):
            fix = "give every paper a list of ids or names of concepts, which may be empty"
            raise DataError(f"paper {name!r} has no list 'labels'", value=labels, fix=fix)
        ids[name] = None
        texts.append(text)
        named = list(map(str, labels))
        if drop_unknown:
            unknown.update(tag for tag in named if not vocabulary.knows(tag))
            named = [tag for tag in named if tag not in unknown]
        try:
            concepts = {vocabulary.row(tag) for tag in named}
        except DataError as error:
            file, line = item.location if isinstance(item, ImportedPaper) else (None, None)
            problem = f"paper {name!r}: {error.problem}"
            fix = f"{error.fix}; drop_unknown (--drop-unknown) ignores unknown tags"
            raise DataError(problem, path=file, line=line, value=error.value, fix=fix) from None
        tags.append(sorted(vocabulary.closed(concepts) if closed else concepts))
    if unknown:
        examples = ", ".join(repr(tag) for tag, _ in unknown.most_common(_NAMED))
        count = sum(unknown.values())
        ignored = counted(count, "tag")
        warn(f"ignored {ignored}, unknown to the vocabulary or ambiguous, such as {examples}")
    counts = [len(rows) for rows in tags]
    if ids and not sum(counts):
        fix = "give papers with labels, or name the field that has them (--column labels=NAME)"
        raise DataError("no paper has a tag of the vocabulary", fix=fix)
    owners = np.repeat(np.arange(len(tags)), counts)
    columns = np.array([row for rows in tags for row in rows], dtype=np.int64)
    ones = np.ones(len(columns), dtype=np.float32)
    shape = (len(tags), len(vocabulary))
    return list(ids), texts, sparse.csr_array((ones, (owners, columns)), shape=shape)
