"""Texts of a world: titles, abstracts, definitions and queries from templates.

In templates ``{a}``, ``{b}`` and ``{c}`` are forms of concepts; ``{x}`` and ``{y}`` are everyday
nouns of the area.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from scimult.preparation.world.fields import COARSE, FieldTree, WordMaker, WorldSettings, stream
from scimult.preparation.world.papers import Paper
from scimult.types import Text

_TITLES = (
    "{a} for {b}",
    "{a} with {b}",
    "On {a} and {b}",
    "Towards {a} through {b}",
    "A study of {a} in {b}",
    "{a} and the role of {b}",
    "From {a} to {b}",
    "{a}: an approach by {b}",
)
_SENTENCES = (
    "We study {a} and show how it depends on {b}.",
    "The {x} of {a} is often explained by {b}, but the {y} remains unclear.",
    "Earlier work on {a} has ignored {b}.",
    "We propose a new {x} for {a} that builds on {b}.",
    "Our method joins {a} with {b} and needs no {x}.",
    "In this paper, {a} is used to improve {b}.",
    "Results on two kinds of {x} show that {a} gains from {b}.",
    "Without {b}, the {x} of {a} is poor.",
    "We also discuss {a}, {b} and their limits.",
    "An analysis of {a} and {b} reveals a strong {x}.",
)
_SINGLE_SENTENCES = (
    "We focus on {a} under a common {x}.",
    "The main result concerns {a}.",
    "Finally, we apply it to {a}.",
    "A large {x} of {a} is given.",
)
_FIELD_SENTENCE = "This is a problem of {field}."
_DEFINITIONS = (
    "The part of {parent} that studies {a} and {b}, with attention to {c}.",
    "Research on {a}, on {b} and on {c} within {parent}.",
    "A branch of {parent} about {a}, {b} and also {c}.",
)
_TOP_DEFINITIONS = (
    "The study of {a}, {b} and {c}, which includes {children}.",
    "All research on {a}, {b} and {c}, such as {children}.",
)
_QUERIES = ("{a} {b}", "{a} for {b}", "{a} and {b}", "effect of {b} on {a}", "how does {a} use {b}")
_SINGLE_QUERIES = ("{a}", "methods for {a}", "recent work on {a}", "what is known about {a}")
_OF_PAPERS = (*_TITLES, *_SENTENCES, *_SINGLE_SENTENCES, _FIELD_SENTENCE)
_OTHERS = (*_DEFINITIONS, *_TOP_DEFINITIONS, *_QUERIES, *_SINGLE_QUERIES)
TEMPLATE_WORDS = frozenset(re.findall(r"[a-z]+", " ".join(_OF_PAPERS + _OTHERS).lower()))

_JARGON_PER_COARSE_FIELD = 30
_FIELD_NAMED = 0.25
_OTHER_FORM_TOO = 0.1


class Writer:
    """Writes the texts of a world.

    Within one text a concept keeps its form, except that papers occasionally add a second form
    in brackets, as authors do with abbreviations.
    """

    def __init__(self, settings: WorldSettings, tree: FieldTree, words: WordMaker) -> None:
        self._tree = tree
        self._rng = stream(settings, "texts")
        self._jargon = {
            field: [words.new("noun") for _ in range(_JARGON_PER_COARSE_FIELD)]
            for field in tree.level(COARSE)
        }

    def paper(self, paper: Paper) -> Text:
        """Return a title and an abstract that together name every concept of the paper."""
        forms = {concept: self._form(concept) for concept in paper.concepts}
        jargon = self._jargon[self._tree.lineage(paper.fields[0])[-1]]
        main, second, *rest = paper.concepts
        title = self._fill(_TITLES, [forms[main], forms[second]], jargon)
        order = [main, *(rest[i] for i in self._rng.permutation(len(rest))), second]
        sentences = []
        for start in range(0, len(order), 2):
            names = [self._named(concept, forms[concept]) for concept in order[start : start + 2]]
            templates = _SENTENCES if len(names) == 2 else _SINGLE_SENTENCES
            sentences.append(self._fill(templates, names, jargon))
        if self._rng.random() < _FIELD_NAMED:
            field = self._tree.fields[paper.fields[0]]
            sentences.append(_FIELD_SENTENCE.format(field=field.name))
        return Text("paper", _capitalise(title), " ".join(map(_capitalise, sentences)))

    def label(self, field: int) -> Text:
        """Return the name and definition of a field; the definition draws its own forms."""
        fields = self._tree.fields
        own = self._rng.permutation(fields[field].concepts)
        slots = {letter: self._form(int(own[i % len(own)])) for i, letter in enumerate("abc")}
        parent = fields[field].parent
        if parent is None:
            *others, last = (child.name for child in fields if child.parent == field)
            children = f"{', '.join(others)} and {last}" if others else last
            text = self._choice(_TOP_DEFINITIONS).format(**slots, children=children)
        else:
            text = self._choice(_DEFINITIONS).format(**slots, parent=fields[parent].name)
        return Text("label", _capitalise(fields[field].name), _capitalise(text))

    def query(self, concepts: Sequence[int]) -> str:
        """Return a search query about one or two concepts."""
        forms = [self._form(concept) for concept in concepts]
        return self._fill(_QUERIES if len(forms) == 2 else _SINGLE_QUERIES, forms, [])

    def _form(self, concept: int) -> str:
        forms = self._tree.concepts[concept].forms
        return forms[self._rng.choice(len(forms), p=self._tree.concepts[concept].usage)]

    def _named(self, concept: int, form: str) -> str:
        if self._rng.random() >= _OTHER_FORM_TOO:
            return form
        other = self._form(concept)
        return form if other == form else f"{form} ({other})"

    def _fill(self, templates: Sequence[str], forms: Sequence[str], jargon: Sequence[str]) -> str:
        slots = dict(zip("ab", forms, strict=False))
        if jargon:
            slots["x"], slots["y"] = self._rng.choice(np.array(jargon), size=2, replace=False)
        return self._choice(templates).format(**slots)

    def _choice(self, options: Sequence[str]) -> str:
        return options[int(self._rng.integers(len(options)))]


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]
