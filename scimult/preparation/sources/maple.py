"""MAPLE: papers of 19 fields with MAG or MeSH labels, venues, authors and references."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from xml.etree import ElementTree

from pydantic import Field, model_validator

from scimult.data.lines import read_jsonl
from scimult.data.packed import open_binary, unpacked_name
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_rows
from scimult.data.tables import read_delimited
from scimult.downloads import Archive, Remote
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import RawSource, distinct
from scimult.progress import progress

MESH_SUFFIX = "_MeSH"
FILES = ("papers.json", "labels.txt", "venues.txt")
# Its record at Zenodo, as named in another repository's README; folders are in MAPLE/.
ADDRESS = "https://zenodo.org/records/7611544/files/MAPLE.zip"
# Papers and labels of each folder, from the table in MAPLE's README.
PUBLISHED = {
    "Art": (58_373, 1_990),
    "Philosophy": (59_296, 3_758),
    "Geography": (73_883, 3_285),
    "Business": (84_858, 2_392),
    "Sociology": (90_208, 1_935),
    "History": (113_147, 2_689),
    "Political_Science": (115_291, 4_990),
    "Environmental_Science": (123_945, 694),
    "Economics": (178_670, 5_205),
    "CSRankings": (263_393, 13_613),
    "Engineering": (270_006, 10_683),
    "Psychology": (372_954, 7_641),
    "Computer_Science": (410_603, 15_540),
    "Geology": (431_834, 7_883),
    "Mathematics": (490_551, 14_271),
    "Materials_Science": (1_337_731, 6_802),
    "Physics": (1_369_983, 16_664),
    "Biology": (1_588_778, 64_267),
    "Chemistry": (1_849_956, 35_538),
    "Medicine": (2_646_105, 36_619),
    "Biology_MeSH": (1_379_393, 25_039),
    "Chemistry_MeSH": (762_129, 21_585),
    "Medicine_MeSH": (1_536_660, 25_188),
}
NOT_COARSE = ("CSRankings", "Computer_Science")
COARSE_FIELDS = tuple(
    name for name in PUBLISHED if name not in NOT_COARSE and not name.endswith(MESH_SUFFIX)
)


class Definition(NamedTuple):
    """Name and definition of a label; the name is empty if the file gives none."""

    name: str
    text: str


class MapleOptions(SourceOptions):
    """Options of ``scimult prepare maple``.

    The defaults are SciMult's (appendix A.1), but for ``definitions`` and ``label_space``: MAPLE
    itself has no definitions.

    Parameters
    ----------
    folders : list of str
        Folders with fine labels to train on.
    coarse_fields : list of str
        Folders whose papers are labelled with the field itself; may be empty.
    coarse_papers : int
        Papers per coarse field, drawn by a hash of seed and paper id.
    definitions : mapping
        Files with the definitions of ``mag`` and ``mesh`` labels; see ``read_definitions``.
    label_space : str
        ``folder``: the labels of ``labels.txt``. ``definitions``: the labels of the definition
        file; other labels, and papers without any label left, are left out and counted.
    text : str
        ``raw`` (title_raw, abstract_raw) or ``normalized`` (lower case, no punctuation).
    seed : int
        Seed of the coarse papers.
    """

    folders: list[str] = ["Computer_Science", "Biology_MeSH", "Medicine_MeSH"]
    coarse_fields: list[str] = list(COARSE_FIELDS)
    coarse_papers: Annotated[int, Field(ge=1)] = 50_000
    definitions: dict[Literal["mag", "mesh"], str] = {}
    label_space: Literal["folder", "definitions"] = "folder"
    text: Literal["raw", "normalized"] = "raw"
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> MapleOptions:
        if not (self.folders or self.coarse_fields):
            raise ValueError("name at least one of folders and coarse_fields")
        spaces = {_space(folder) for folder in self.folders}
        missing = spaces - set(self.definitions)
        if self.label_space == "definitions" and missing:
            raise ValueError(f"label_space=definitions needs definitions.{min(missing)}=FILE")
        return self


def _space(folder: str) -> Literal["mag", "mesh"]:
    return "mesh" if folder.endswith(MESH_SUFFIX) else "mag"


def _convert(conversion: Conversion, options: MapleOptions) -> None:
    for space in ("mag", "mesh"):
        folders = [folder for folder in options.folders if _space(folder) == space]
        if folders:
            reads = [conversion.file(f"{folder}/{name}") for folder in folders for name in FILES]
            own = [Path(path) for key, path in options.definitions.items() if key == space]
            fill = partial(_convert_fine, conversion, options, own, folders)
            conversion.write(f"maple-{space}", [*own, *reads], fill, ["labels"])
    if options.coarse_fields:
        reads = [conversion.file(f"{field}/papers.json") for field in options.coarse_fields]
        fill = partial(_convert_coarse, conversion, options)
        conversion.write("maple-coarse", reads, fill, ["labels"], max_pairs_per_label="all")


def _convert_fine(
    conversion: Conversion,
    options: MapleOptions,
    defined_in: Sequence[Path],
    folders: Sequence[str],
    raw: RawSource,
) -> None:
    """Write papers with their labels, and references for mining."""
    definitions: dict[str, Definition] = {}
    for path in defined_in:
        definitions = read_definitions(path, raw.rejects)
    adopted = options.label_space == "definitions"
    for folder in folders:
        _write_labels(conversion, raw, folder, definitions, adopted)
    for folder in progress(folders, raw.name, unit="folder"):
        table = _named(conversion.file(f"{folder}/venues.txt"), raw, ("id", "name", "original"))
        venues = {name: record.text("original") for name, record in table.items()}

        def add(record: Record, folder: str = folder, venues: dict[str, str] = venues) -> None:
            raw.counts[f"papers in {folder}"] += 1
            labels = record.strings("label", ())
            known = [label for label in distinct(labels) if raw.has_label(label)]
            for label in distinct(labels) if len(known) < len(labels) else ():
                if not raw.has_label(label):
                    _leave_out(raw, record, label, adopted)
            if not known:
                raw.counts["papers without a label of the space"] += 1
                return
            _write_paper(record, raw, options, known, venues)
            for reference in record.strings("reference", ()):
                raw.edge("references", record, record.identifier("paper"), reference)

        raw.each_row(conversion.file(f"{folder}/papers.json"), add)


def _leave_out(raw: RawSource, record: Record, label: str, adopted: bool) -> None:
    """Count a label outside the adopted space; reject one that its own folder does not list."""
    if adopted:
        raw.counts["labels outside the adopted space"] += 1
        return
    fix = "download the folder again, or leave the label out with --skip-bad"
    raw.rejects.reject(record.error("label is not in labels.txt", value=label, fix=fix))


def _write_labels(
    conversion: Conversion,
    raw: RawSource,
    folder: str,
    definitions: Mapping[str, Definition],
    adopted: bool,
) -> None:
    """Write the labels of a folder, or of the definition file, with their definitions."""
    columns = ("id", "name") if folder.endswith(MESH_SUFFIX) else ("id", "name", "depth")
    path = conversion.file(f"{folder}/labels.txt")
    labels = _named(path, raw, columns)
    raw.counts[f"labels in {folder}"] = len(labels)

    def add(record: Record) -> None:
        label = record.identifier("id")
        definition = definitions.get(label, Definition("", ""))
        if not raw.has_label(label):
            raw.label(record, label, definition.name or record.text("name"), definition.text)

    unnamed = (Record(path, 1, {"id": label, "name": ""}) for label in definitions)
    raw.each((labels.get(r.fields["id"], r) for r in unnamed) if adopted else labels.values(), add)


def _convert_coarse(conversion: Conversion, options: MapleOptions, raw: RawSource) -> None:
    """Label a sample of each field's papers with the field (SciMult: MAPLE Coarse).

    A paper in several fields gets all of them as labels, so that none becomes its negative.
    """
    sample: set[str] = set()
    for field in progress(options.coarse_fields, "draw", unit="field"):
        ids = _draw(conversion, field, options)
        raw.counts[f"papers of {field}"] = len(ids)
        sample |= ids
    for field in progress(options.coarse_fields, raw.name, unit="field"):
        path = conversion.file(f"{field}/papers.json")
        raw.label(Record(path, 1, {}), field, field.replace("_", " "))

        def add(record: Record, field: str = field) -> None:
            if record.identifier("paper") in sample:
                # No authors: with so few fields, another field of a co-author is no negative.
                slim = {name: value for name, value in record.fields.items() if name != "author"}
                _write_paper(Record(record.path, record.line, slim), raw, options, [field], {})

        raw.each_row(path, add)


def _draw(conversion: Conversion, field: str, options: MapleOptions) -> set[str]:
    """Return the ids of a field's sample: the papers with the smallest hashes."""

    def draw(record: Record) -> tuple[bytes, str]:
        identifier = record.identifier("paper")
        key = f"{options.seed}:{identifier}".encode()
        return hashlib.blake2b(key, digest_size=8).digest(), identifier

    quiet = Rejects(skip_bad=True)  # bad lines are rejected when they are read again
    rows = read_jsonl(conversion.file(f"{field}/papers.json"), quiet)
    return {paper for _, paper in heapq.nsmallest(options.coarse_papers, quiet.keep(rows, draw))}


def _write_paper(
    record: Record,
    raw: RawSource,
    options: MapleOptions,
    labels: Sequence[str],
    venues: Mapping[str, str],
) -> None:
    end = "_raw" if options.text == "raw" else ""
    venue = record.text("venue", "")
    has_year = bool(record.fields.get("year"))
    raw.paper(
        record,
        record.identifier("paper"),
        record.text(f"title{end}"),
        record.text(f"abstract{end}", ""),
        authors=record.strings("author", ()),
        venue=venues.get(venue, venue),
        year=record.integer("year") if has_year else None,
        labels=labels,
    )


def _named(path: Path, raw: RawSource, columns: Sequence[str]) -> dict[str, Record]:
    """Return the rows of a headerless table by their id."""
    named: dict[str, Record] = {}

    def add(record: Record) -> None:
        named[record.identifier("id")] = record

    raw.each(read_delimited(path, "\t", raw.rejects, header=columns, quoted=False), add)
    return named


def read_definitions(path: Path, rejects: Rejects) -> dict[str, Definition]:
    """Return the definitions of a label space, by label id.

    ``.xml`` files have MeSH descriptors (``desc2022.xml``): id, name and the scope note of the
    preferred concept. Other kinds are read by ``rows.read_rows`` and have ``id`` (or ``label``),
    ``definition`` (may be empty) and, optionally, ``name``.

    Raises
    ------
    DataError
        If the file does not exist or is damaged; and, through ``rejects``, at a bad record.
    """
    if unpacked_name(path).endswith(".xml"):
        return dict(_read_descriptors(path, rejects))
    definitions: dict[str, Definition] = {}

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
    except (ElementTree.ParseError, EOFError) as error:
        fix = "download the file again"
        problem = "XML file is cut off or damaged"
        rejects.refuse(problem, path, value=str(error), fix=fix)


def _files(options: MapleOptions) -> list[Remote]:
    """Return the archive of all fields, which has no label definitions."""
    whole = [f"{folder}/{name}" for folder in options.folders for name in FILES]
    coarse = [f"{folder}/{FILES[0]}" for folder in options.coarse_fields]
    wanted = tuple(dict.fromkeys(whole + coarse))
    return [Archive("MAPLE.zip", ADDRESS, wanted=wanted, strip=1)]


MAPLE = PublicSource(
    name="maple",
    title="papers of 19 fields with MAG fields of study or MeSH terms, and the fields",
    url="https://github.com/yuzhimanhua/MAPLE",
    licence="ODC-By 1.0",
    files=tuple(f"FOLDER/{name}" for name in FILES),
    options=MapleOptions,
    convert=_convert,
    download=_files,
    published={
        f"maple-{space}": {
            f"{what} in {folder}": count
            for folder, counts in PUBLISHED.items()
            if _space(folder) == space
            for what, count in zip(("papers", "labels"), counts, strict=True)
        }
        for space in ("mag", "mesh")
    },
)
