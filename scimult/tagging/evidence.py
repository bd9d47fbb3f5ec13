"""The sentence of a paper that best supports a tag or a search result.

Shape legend: S sentences, D width.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from scimult.inference import SciMult
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.faiss_indexes import for_faiss
from scimult.tagging.names import NameFinder
from scimult.tagging.signals import similarities
from scimult.tagging.vocabulary import Vocabulary
from scimult.types import FloatArray, Similarity, Text

_MOST_SENTENCES, _MOST_CHARACTERS = 20, 1000
# More characters than any of `_NO_END`, and one before it.
_LAST_WORD = 12
# The letter or digit after the space, which must not be a small letter; or an ideographic stop.
_END = re.compile(
    r"""[.!?؟।]["')\]»”’]*\ (?=["'(\[«„“‘¿¡]?([^\W_]))|[。！？][」』”’）]*""",
    re.VERBOSE,
)
_NO_END = re.compile(
    r"\b(?:e\.g|i\.e|cf|vs|al|etc|Fig|Figs|Eq|Eqs|Sec|Ref|Refs|Dr|Prof|St|No|([^\W\d_]))\.$"
)


def sentences(text: str) -> list[str]:
    """Split a text into sentences, which end at ``.``, ``?`` or ``!`` before no small letter.

    In scripts without capitals any letter may begin the next one; ``。`` needs no space.
    """
    plain = " ".join(text.split())
    parts, start = [], 0
    for match in _END.finditer(plain):
        # The end alone: where no full stop ends a sentence, all of it would be read for each.
        short = _NO_END.search(plain[max(start, match.end() - _LAST_WORD) : match.end()].strip())
        is_short = short is not None and (short[1] is None or short[1].isupper())
        if not is_short and not (match[1] or "").islower():
            parts.append(plain[start : match.end()].strip())
            start = match.end()
    return [part for part in (*parts, plain[start:].strip()) if part]


def find_evidence(
    model: SciMult,
    task: str,
    similarity: Similarity,
    vocabulary: Vocabulary,
    labels_CD: FloatArray,
    papers: Sequence[Text],
    tags: Sequence[Sequence[int]],
) -> list[Mapping[int, str]]:
    """Return for each paper a dict from concept to the sentence that supports it.

    It is a sentence that names the concept, else the one whose embedding is closest to the
    concept's; the title if there is no abstract. ``tags`` are the rows of each paper's concepts.
    Sentences of more than 1,000 characters are cut into pieces: every tag repeats its own.
    """
    parts = [
        [piece for part in sentences(text.body) or [text.title] for piece in _pieces(part)]
        if rows
        else []
        for text, rows in zip(papers, tags, strict=True)
    ]
    texts = [Text("paper", sentence) for part in parts for sentence in part]
    vectors_ND = for_faiss(model.encode(texts, task=task, role="query"), similarity)
    ends = np.cumsum([len(part) for part in parts])
    evidence: list[Mapping[int, str]] = []
    for part, rows, end in zip(parts, tags, ends, strict=True):
        if not rows:
            evidence.append({})
            continue
        part_ND = vectors_ND[end - len(part) : end]
        scores_NC = similarities(part_ND, labels_CD[list(rows)], similarity).copy()
        finder = NameFinder(vocabulary[row].names for row in rows)
        named_NC = np.zeros(scores_NC.shape, dtype=bool)
        for index, sentence in enumerate(part):
            named_NC[index, finder.find(sentence)] = True
        scores_NC[~named_NC & named_NC.any(axis=0)] = -np.inf
        best = scores_NC.argmax(axis=0)
        evidence.append({row: part[i] for row, i in zip(rows, best.tolist(), strict=True)})
    return evidence


def _pieces(sentence: str) -> list[str]:
    if len(sentence) <= _MOST_CHARACTERS:
        return [sentence]
    return textwrap.wrap(sentence, _MOST_CHARACTERS, break_on_hyphens=False)


def _first_sentences(text: Text) -> list[str]:
    """Return the first sentences of an abstract, or else the title; long ones are cut."""
    candidates = sentences(text.body[: _MOST_SENTENCES * _MOST_CHARACTERS])[:_MOST_SENTENCES]
    return [part[:_MOST_CHARACTERS] for part in candidates] or [text.title[:_MOST_CHARACTERS]]


def evidence_for(
    model: SciMult, task: str, query_D: FloatArray, papers: Sequence[Text]
) -> list[str]:
    """Return each paper's highest-scoring sentence for a query, encoding all in one pass.

    Each sentence is encoded like a paper and scored by the model's similarity.
    """
    parts = [_first_sentences(text) for text in papers]
    texts = [Text("paper", sentence) for part in parts for sentence in part]
    if not texts:
        return []
    vectors_SD = model.encode(texts, task=task, role="candidate")
    if model.similarity == "cosine":
        vectors_SD = unit_rows(vectors_SD)
    scores_S = similarities(query_D[None], vectors_SD, model.similarity)[0]
    ends = np.cumsum([len(part) for part in parts])
    best = [int(np.argmax(scores)) for scores in np.split(scores_S, ends[:-1])]
    return [part[index] for part, index in zip(parts, best, strict=True)]
