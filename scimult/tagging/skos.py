"""Vocabularies in SKOS (https://www.w3.org/TR/skos-reference/), read by rdflib."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast
from xml.parsers import expat
from xml.sax import SAXParseException

from scimult.data.packed import open_binary
from scimult.data.records import Rejects
from scimult.errors import DataError, quoted_in_line
from scimult.progress import note
from scimult.tagging.reading import linked
from scimult.tagging.vocabulary import Concept, Vocabulary
from scimult.terminal import counted

if TYPE_CHECKING:
    from rdflib import Graph, URIRef
    from rdflib.term import Node

_XL = "http://www.w3.org/2008/05/skos-xl#"


def read_skos(path: Path, format: str, *, language: str, rejects: Rejects) -> Vocabulary:
    """Read the concepts of a SKOS file, in the order of their URIs.

    The label is ``skos:prefLabel`` in ``language`` (``en`` or ``en-GB``), else without one;
    further ones (``color`` next to ``colour``), ``altLabel`` and ``hiddenLabel`` are synonyms; the
    description is ``definition``, else ``scopeNote``. Labels may be SKOS-XL's resources.
    ``broader`` and the inverse of ``narrower`` form the hierarchy. Deprecated concepts and links
    to concepts outside the file are left out and counted; ``rejects`` collects concepts without a
    label, and blank nodes, which get other ids whenever they are read. ``format`` is rdflib's name:
    xml, turtle or nt.

    Raises
    ------
    DataError
        If the file cannot be parsed, holds no concept, or is not consistent.
    """
    from rdflib import BNode
    from rdflib.namespace import OWL, RDF, SKOS

    graph = _parsed(path, format)
    _add_plain_labels(graph)
    named = set(graph.subjects(SKOS.prefLabel))
    for kind in (SKOS.ConceptScheme, SKOS.Collection, SKOS.OrderedCollection):
        named -= set(graph.subjects(RDF.type, kind))
    named |= set(graph.subjects(RDF.type, SKOS.Concept))
    old = {node for node in named if (_words(graph, node, OWL.deprecated, "") or "") == "true"}
    concepts: dict[str, Concept] = {}
    outside = 0
    above: dict[Node, set[Node]] = {node: set(graph.objects(node, SKOS.broader)) for node in named}
    for node, narrower in graph.subject_objects(SKOS.narrower):
        above.setdefault(narrower, set()).add(node)
    current = named - old
    for node in sorted(current, key=str):
        label = _words(graph, node, SKOS.prefLabel, language)
        if label is None:
            fix = f"give it a skos:prefLabel in {language!r}, or choose another language"
            problem = f"concept has no label in {language!r}"
            rejects.reject(DataError(problem, path=path, value=str(node), fix=fix))
            continue
        if isinstance(node, BNode):
            problem, fix = "concept is a blank node", "give it a URI"
            rejects.reject(DataError(problem, path=path, value=label, fix=fix))
            continue
        outside += len(above[node] - current)
        synonyms = {
            word
            for kind in (SKOS.prefLabel, SKOS.altLabel, SKOS.hiddenLabel)
            for word in _all_words(graph, node, kind, language)
        }
        description = _words(graph, node, SKOS.definition, language)
        if description is None:
            description = _words(graph, node, SKOS.scopeNote, language)
        concepts[str(node)] = Concept(
            str(node),
            label,
            synonyms=tuple(sorted(synonyms - {label})),
            broader=tuple(sorted(map(str, above[node] & current))),
            description=description or "",
            notation=_words(graph, node, SKOS.notation, "") or "",
        )
    if old or outside:
        left_out = f"{counted(len(old), 'deprecated concept')} and {counted(outside, 'link')}"
        note(f"{path}: left out {left_out} to no concept")
    return Vocabulary(linked(concepts, rejects, path), path)


def _add_plain_labels(graph: Graph) -> None:
    """Add the labels that SKOS-XL's entail: the literal forms (the reference's appendix B.3)."""
    from rdflib import URIRef
    from rdflib.namespace import SKOS

    for kind in ("prefLabel", "altLabel", "hiddenLabel"):
        for node, label in list(graph.subject_objects(URIRef(_XL + kind))):
            for form in list(graph.objects(label, URIRef(_XL + "literalForm"))):
                graph.add((node, SKOS[kind], form))


def _parsed(path: Path, format: str) -> Graph:
    from rdflib import Graph
    from rdflib.plugins.parsers.notation3 import BadSyntax

    graph = Graph()
    if format == "xml":
        _refuse_nested_entities(path)
    fix = "check the file with an RDF validator, and that its extension fits its format"
    try:
        with open_binary(path) as file:
            graph.parse(
                source=cast(BinaryIO, file), format=format, publicID=path.resolve().as_uri()
            )
    except BadSyntax as error:
        problem = f"not valid Turtle: {quoted_in_line(error._why)}"
        raise DataError(problem, path=path, line=error.lines + 1, fix=fix) from None
    except SAXParseException as error:
        problem = f"not valid RDF/XML: {error.getMessage()}"
        raise DataError(problem, path=path, line=error.getLineNumber(), fix=fix) from None
    except (DataError, OSError):
        raise
    except Exception as error:  # bad input makes rdflib raise AttributeError and others
        problem = f"not valid RDF: {quoted_in_line(str(error))}"
        raise DataError(problem, path=path, fix=fix) from None
    return graph


class _Root(Exception):
    """The root element begins, so no more entities are declared."""


def _refuse_nested_entities(path: Path) -> None:
    """Raise a DataError if an XML file declares entities of entities, as "billion laughs" does.

    rdflib takes minutes for the megabytes of text that expat still lets through.
    """

    def declare(name: str, _: bool, value: str | None, *__: str | None) -> None:
        if re.search("&(?!#)", value or ""):
            fix = "write them out: xmllint --noent FILE > NEW"
            raise DataError("an entity consists of others", path=path, value=name, fix=fix)

    def start(*_: object) -> None:
        raise _Root

    parser = expat.ParserCreate()
    parser.EntityDeclHandler, parser.StartElementHandler = declare, start
    # What is not XML, rdflib reports.
    with suppress(_Root, expat.ExpatError, EOFError), open_binary(path) as file:
        parser.ParseFile(file)


def _all_words(graph: Graph, node: Node, predicate: URIRef, language: str) -> list[str]:
    """Return a node's literals in a language, or else those without a language.

    ``en`` takes ``en-GB`` as well, after its own; ``en-GB`` takes that first, then whatever English
    there is.
    """
    from rdflib import Literal

    literals = [word for word in graph.objects(node, predicate) if isinstance(word, Literal)]
    tagged = [((word.language or "").casefold(), " ".join(word.split())) for word in literals]
    wanted = language.casefold()
    plain = wanted.split("-")[0]
    for fitting in (
        [(tag, word) for tag, word in tagged if tag == wanted != plain],
        [(tag, word) for tag, word in tagged if tag.split("-")[0] == plain],
        [(tag, word) for tag, word in tagged if not tag],
    ):
        if fitting:
            own_first = sorted(fitting, key=lambda one: (one[0] != wanted, one[1]))
            return [word for word in dict.fromkeys(word for _, word in own_first) if word]
    return []


def _words(graph: Graph, node: Node, predicate: URIRef, language: str) -> str | None:
    return next(iter(_all_words(graph, node, predicate, language)), None)
