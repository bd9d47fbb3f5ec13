"""Definitions of labels that come in a file of their own: a table, JSON lines or NLM's MeSH XML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from scimult.data.lines import CUT_OFF, Record, Rejects, open_binary
from scimult.data.rows import read_rows


class Definition(NamedTuple):
    """Name and definition of a label; the name is empty where the file gives none."""

    name: str
    text: str


def read_definitions(path: Path, rejects: Rejects) -> dict[str, Definition]:
    """Return the definitions of a label space by label id.

    ``.xml`` is a file of MeSH descriptors (``desc2022.xml``): id, name and the scope note of the
    preferred concept. Any other kind is read by ``rows.read_rows`` and has ``id`` (or
    ``label``), ``definition`` (may be empty) and, optionally, ``name``.

    Raises
    ------
    DataError
        If the file does not exist or is damaged; and, through ``rejects``, at a bad record.
    """
    definitions: dict[str, Definition] = {}
    if path.name.removesuffix(".gz").endswith(".xml"):
        definitions.update(_read_descriptors(path, rejects))
        return definitions

    def add(record: Record) -> None:
        identifier = record.identifier("id" if "id" in record.fields else "label")
        text = record.text("definition", "")
        definitions.setdefault(identifier, Definition(record.text("name", ""), text))

    for _ in rejects.keep(read_rows(path, rejects, columns=["definition"]), add):
        pass
    return definitions


def _read_descriptors(path: Path, rejects: Rejects) -> Iterator[tuple[str, Definition]]:
    try:
        with open_binary(path) as file:
            for _, element in ElementTree.iterparse(file):
                if element.tag != "DescriptorRecord":
                    continue
                identifier = element.findtext("DescriptorUI", "").strip()
                name = element.findtext("DescriptorName/String", "").strip()
                concept = "ConceptList/Concept[@PreferredConceptYN='Y']/ScopeNote"
                yield identifier, Definition(name, element.findtext(concept, "").strip())
                element.clear()
    except (ElementTree.ParseError, *CUT_OFF) as error:
        fix = "download the file again"
        problem = "XML file is cut off or damaged"
        rejects.refuse(problem, path, value=str(error), fix=fix)
