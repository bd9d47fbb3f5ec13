"""Vocabulary files: JSON lines, tables and SKOS."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from scimult.data.lines import read_jsonl, read_lines
from scimult.data.packed import unpacked_name
from scimult.data.records import Record, Rejects
from scimult.data.tables import delimiter_of, read_delimited
from scimult.data.text_files import find_file
from scimult.errors import DataError, one_of
from scimult.files import write_text
from scimult.progress import note
from scimult.tagging.vocabulary import Concept, Vocabulary
from scimult.terminal import counted, is_blank, is_one_line

# Names of each part of a concept in files, best first.
FIELDS = {
    "id": ("id", "uri", "_id"),
    "label": ("label", "name", "prefLabel", "subject"),
    "synonyms": ("synonyms", "altLabel"),
    "broader": ("broader", "parent"),
    "description": ("description", "definition"),
    "notation": ("notation",),
}
_TABLES = (".csv", ".tsv")
_SKOS = {".rdf": "xml", ".xml": "xml", ".ttl": "turtle", ".nt": "nt"}


def read_vocabulary(
    path: Path | str,
    *,
    columns: Mapping[str, str | None] | None = None,
    language: str = "en",
    rejects: Rejects | None = None,
) -> Vocabulary:
    """Read a vocabulary in the format of the file's extension; ``.gz`` is decompressed.

    JSON lines (``.jsonl``, ``.json``) and tables with a header (``.csv``, ``.tsv``) have the fields
    of `Concept`; ``uri``, ``name`` and ``definition`` are accepted for ``id``, ``label`` and
    ``description``. In tables, ``;`` separates synonyms or broader concepts, and ``label_en`` is
    the English label. Annif's tables without a header (``<URI>``, a tab, the label) are read too.
    SKOS is RDF/XML (``.rdf``, ``.xml``), Turtle (``.ttl``) or N-Triples (``.nt``); see
    `scimult.tagging.skos.read_skos`.

    Parameters
    ----------
    path : path
        The file, or a folder with ``labels.jsonl``.
    columns : mapping, optional
        Part of a concept to field of the file: ``{"label": "subject"}``.
    language : str
        Language of labels in SKOS and multilingual tables.
    rejects : Rejects, optional
        Collector of bad records; by default the first one is an error.

    Raises
    ------
    DataError
        If the file is missing or of an unknown format, or the vocabulary is inconsistent; and,
        through ``rejects``, at a bad record.
    """
    path = find_file(path, "label")
    rejects, columns = rejects or Rejects(), columns or {}
    for name in columns:
        one_of("part of a concept", name, FIELDS)
    kind = Path(unpacked_name(path)).suffix.lower()
    if kind in _SKOS:
        from scimult.tagging.skos import read_skos

        return read_skos(path, _SKOS[kind], language=language, rejects=rejects)
    if kind in (".jsonl", ".json"):
        records = read_jsonl(path, rejects)
    elif kind in _TABLES:
        records = _rows(path, kind, rejects)
    else:
        known = ", ".join((".jsonl", *_TABLES, *_SKOS))
        fix = f"use a file that ends in {known} (also with .gz)"
        raise DataError("unknown format of a vocabulary", path=path, fix=fix)
    return _vocabulary(path, records, columns, language, rejects)


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Write a vocabulary as JSON lines, for `read_vocabulary`."""
    lines = []
    for concept in vocabulary:
        fields = {name: getattr(concept, name) for name in FIELDS}
        known = {name: value for name, value in fields.items() if value}
        lines.append(json.dumps(known, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))


def _rows(path: Path, kind: str, rejects: Rejects) -> Iterator[Record]:
    first = next((line for _, line in read_lines(path, Rejects(skip_bad=True))), "")
    if kind == ".tsv" and first.startswith("<"):
        header = ("id", "label", "notation")[: first.count("\t") + 1]
        yield from read_delimited(path, "\t", rejects, header=header, quoted=False)
        return
    yield from read_delimited(path, "\t" if kind == ".tsv" else delimiter_of(path), rejects)


def _vocabulary(
    path: Path,
    records: Iterator[Record],
    columns: Mapping[str, str | None],
    language: str,
    rejects: Rejects,
) -> Vocabulary:
    concepts: dict[str, Concept] = {}
    lines = []
    parsed = rejects.keep(
        records,
        lambda row: (row, _concept(row, columns, language)),
        lambda row: _id_if_any(row, columns, language),
    )
    for record, concept in parsed:
        if concept.id in concepts:
            fix = "give every concept its own id, or remove the repetition"
            rejects.reject(record.error("repeated concept", value=concept.id, fix=fix))
            continue
        concepts[concept.id] = concept
        lines.append(record.line)
    return Vocabulary(linked(concepts, rejects, path), path, lines)


def linked(concepts: Mapping[str, Concept], rejects: Rejects, path: Path) -> list[Concept]:
    """Return concepts by id without links to rejected ones; links elsewhere are errors later.

    If a rejected one has no readable id, any unknown one may be it.
    """
    copies, links = [], 0
    for concept in concepts.values():
        gone = {name for name in concept.broader if name not in concepts}
        if None not in rejects.left_out:
            gone &= rejects.left_out
        broader = tuple(name for name in concept.broader if name not in gone)
        copies.append(replace(concept, broader=broader))
        links += len(gone)
    if links:
        note(f"{path}: left out {counted(links, 'link')} to concepts that are left out")
    return copies


def _id_if_any(record: Record, columns: Mapping[str, str | None], language: str) -> str | None:
    try:
        return _id(record, columns, language)
    except DataError:
        return None


def _id(record: Record, columns: Mapping[str, str | None], language: str) -> str:
    return _bare(record, record.identifier(_required(record, "id", columns, language)))


def _bare(record: Record, name: str) -> str:
    """Return an id without the angle brackets of Annif's tables."""
    in_brackets = name[0] == "<" and name[-1] == ">" and _is_table(record.path)
    return name[1:-1].strip() if in_brackets else name


def _concept(record: Record, columns: Mapping[str, str | None], language: str) -> Concept:
    name = _id(record, columns, language)
    if not is_one_line(name):
        problem = "id has a line break or control character"
        raise record.error(problem, value=name, fix="remove it")
    label = record.text(_required(record, "label", columns, language)).strip()
    if is_blank(label):
        raise record.error("concept has no label", value=name, fix="give it a label")
    parts = {part: _field(record, part, columns, language) for part in FIELDS}
    return Concept(
        name,
        label,
        synonyms=tuple(_list(record, parts["synonyms"])),
        broader=tuple(_bare(record, one) for one in _list(record, parts["broader"])),
        description=record.text(parts["description"], "").strip(),
        notation=str(record.fields.get(parts["notation"]) or "").strip(),
    )


def _field(record: Record, part: str, columns: Mapping[str, str | None], language: str) -> str:
    """Return the name of a concept's part in this record; our own name if it is absent."""
    if part in columns:
        return columns[part] or ""
    names = [name for known in FIELDS[part] for name in (f"{known}_{language}", known)]
    return next((name for name in names if name in record.fields), part)


def _required(record: Record, part: str, columns: Mapping[str, str | None], language: str) -> str:
    """Return the name of a field that every concept must have."""
    name = _field(record, part, columns, language)
    if name in record.fields:
        return name
    fix = f"add it, name its field (--field {part}=NAME), or leave it out with --skip-bad"
    raise record.error(f"missing field {name!r}", value=sorted(record.fields), fix=fix)


def _list(record: Record, name: str) -> list[str]:
    value = record.fields.get(name)
    if isinstance(value, str):
        items = value.split(";") if _is_table(record.path) else [value]
    else:
        items = record.identifiers(name)
    return [item.strip() for item in items if item.strip()]


def _is_table(path: Path) -> bool:
    return Path(unpacked_name(path)).suffix.lower() in _TABLES
