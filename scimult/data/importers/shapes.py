"""Convert records of public dumps: each function returns fields under our names.

Dumps have years such as -1, 0 and 9999: those that cannot be years are unknown.

References, checked against the layouts of November 2026: OpenAlex works
(https://docs.openalex.org), Semantic Scholar's API, datasets and S2ORC
(https://api.semanticscholar.org), AMiner's DBLP citation network v10 to v14
(https://www.aminer.org/citation), Crossref's REST API and CSL JSON, unarXive 2022, Zotero's API v3
(https://www.zotero.org/support/dev/web_api), Europe PMC's (https://europepmc.org/RestfulWebService)
and DBLP's (https://dblp.org/faq/13501473).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from functools import partial
from itertools import chain
from typing import Any

from scimult.data.formats import restore_abstract, text_of_index
from scimult.data.importers.doi import linked_doi, short_doi
from scimult.data.importers.names import person
from scimult.data.importers.plain_table import NO_WORKS, plain
from scimult.data.importers.tagged import LAYOUTS, paper_of
from scimult.data.importers.values import first, keywords_in, year_in

Fields = Mapping[str, Any]
Shape = Callable[[Fields], dict[str, Any]]
_ARXIV_DOI = re.compile(r"(?:https?://doi\.org/)?10\.48550/arxiv\.(.+)", re.I)
_VERSION = re.compile(r"v\d+$")
# An element of a JATS abstract's own, after others that open. Not a first word: of "Abstract Wiener
# spaces" it is part of the sentence.
_HEADING = re.compile(
    r"^((?:\s*<[^<>/]*>)*?)\s*<([\w:]+)>\s*(?:abstract|summary)[.:]?\s*</\2>", re.IGNORECASE
)
_ZOTERO_VENUES = (
    *("publicationTitle", "proceedingsTitle", "bookTitle", "conferenceName", "university"),
    *("institution", "repository", "websiteTitle"),
)
_EXTRA_DOI = re.compile(r"^doi:\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_HOMONYM = re.compile(r" \d{4}$")
_OPENALEX_ID = re.compile(r"https?://(?:api\.)?openalex\.org/(?:works/)?", re.I)


def openalex(work: Fields) -> dict[str, Any]:
    """Convert an OpenAlex work: short ids, the abstract as text, topics as labels.

    In its tables the columns are paths, and a bar separates what is a list elsewhere.
    """
    work = restore_abstract(dict(work))
    source = at(work, "primary_location.source.display_name")
    return {
        "id": _short(work.get("id")),
        "title": first(work, "title", "display_name"),
        "abstract": work.get("abstract"),
        "authors": _several(at(work, "authorships.author.display_name")),
        "venue": source or at(work, "host_venue.display_name"),
        "year": year_in(first(work, "publication_year", "publication_date")),
        "doi": work.get("doi"),
        "references": _short(_several(work.get("referenced_works"))),
        "labels": _several(at(work, "topics.display_name")),
    }


def _several(value: Any) -> Any:
    return value.split("|") if isinstance(value, str) and "|" in value else value


def semantic_scholar(paper: Fields) -> dict[str, Any]:
    """Convert a paper of Semantic Scholar's datasets or API, S2ORC or the Open Research Corpus."""
    # The API's lists of a paper's references and citations wrap each paper.
    paper = first(paper, "citedPaper", "citingPaper") or paper
    ids = first(paper, "externalids", "externalIds") or {}
    cited = first(paper, "outbound_citations", "outCitations")
    if cited is None:
        kind = "paperId" if paper.get("paperId") else "corpusId"
        cited = at(paper, f"references.{kind}")
    fields = first(paper, "fieldsOfStudy", "mag_field_of_study")
    # An object, or in S2ORC of 2020 the name, where "venue" is usually empty.
    journal = paper.get("journal")
    name = journal.get("name") if isinstance(journal, Mapping) else journal
    abstract = first(paper, "abstract", "paperAbstract")
    if isinstance(abstract, str):
        abstract = abstract.replace(":::", "\n")  # S2ORC's mark for a line break
    return {
        "id": first(paper, "corpusid", "paperId", "corpusId", "paper_id", "id"),
        "title": paper.get("title"),
        "abstract": abstract,
        "authors": _names(paper.get("authors")),
        "venue": first(paper, "venue", "journalName") or name,
        "year": year_in(first(paper, "year", "publicationdate", "publicationDate")),
        "doi": first(ids, "DOI", "doi") or paper.get("doi"),
        "references": cited,
        "labels": fields or at(first(paper, "s2fieldsofstudy", "s2FieldsOfStudy"), "category"),
    }


def aminer(paper: Fields) -> dict[str, Any]:
    """Convert a paper of AMiner's DBLP citation network."""
    venue, abstract = paper.get("venue"), paper.get("abstract")
    if isinstance(venue, Mapping):
        venue = first(venue, "raw", "name_d", "name", "sid")
    index = paper.get("indexed_abstract")
    if not abstract and index:
        abstract = text_of_index(index.get("InvertedIndex") or {})
    return {
        "id": first(paper, "id", "_id"),
        "title": paper.get("title"),
        "abstract": abstract,
        "authors": _names(paper.get("authors")),
        "venue": venue,
        "year": year_in(paper.get("year")),
        "doi": paper.get("doi"),
        "references": paper.get("references"),
        # Objects with a weight, or in v13 the names alone.
        "labels": _names(paper.get("fos")) or paper.get("keywords"),
    }


def crossref(work: Fields) -> dict[str, Any]:
    """Convert a work of Crossref or CSL JSON; references are DOIs."""
    work = work["message"] if isinstance(work.get("message"), Mapping) else work
    parts = (at(work, f"{name}.date-parts") for name in ("issued", "published"))
    dates = [date[0] for date in parts if date and date[0] not in (None, [], [None])]
    year = dates[0][0] if dates and isinstance(dates[0], list) else dates[0] if dates else None
    doi = work.get("DOI")
    cited = [short_doi(doi) for doi in at(work, "reference.DOI") or ()]
    # CSL's schema prefers a date in one text, "2001-05", to an object.
    issued = work.get("issued")
    literal = issued if isinstance(issued, str) else first(issued or {}, "literal", "raw")
    venue, keywords = work.get("container-title"), work.get("keyword")
    return {
        "id": first(work, "id") or short_doi(doi or ""),
        "title": _titled(_joined(work.get("title")), _joined(work.get("subtitle"))),
        "abstract": _HEADING.sub(r"\1", _joined(work.get("abstract"))),
        "authors": _names(work.get("author")),
        "venue": venue[0] if isinstance(venue, list) and venue else venue or "",
        "year": year_in(year if year is not None else literal),
        "doi": doi,
        "references": cited,
        "labels": work.get("subject")
        or (keywords_in(keywords) if isinstance(keywords, str) else keywords),
    }


def arxiv(paper: Fields) -> dict[str, Any]:
    """Convert a line of arXiv's metadata snapshot, or a paper of unarXive, which contains one."""
    metadata = paper.get("metadata")
    meta = metadata if isinstance(metadata, Mapping) else paper
    parsed = meta.get("authors_parsed")
    names = parsed if isinstance(parsed, list) else ()
    versions = at(meta, "versions.created")
    return {
        "id": first(meta, "id") or paper.get("paper_id"),
        "title": meta.get("title"),
        "abstract": meta.get("abstract"),
        # Family, given, suffix; affiliations may follow.
        "authors": [" ".join(filter(None, (*name[1:2], *name[:1], *name[2:3]))) for name in names],
        "venue": meta.get("journal-ref"),
        "year": year_in(versions[0] if versions else meta.get("update_date")),
        "doi": meta.get("doi"),
        "references": list(chain.from_iterable(cited_arxiv_ids(paper).values())),
        "labels": (meta.get("categories") or "").split(),
    }


def cited_arxiv_ids(paper: Fields) -> dict[str, list[str]]:
    """Return the arXiv ids of an unarXive paper's references, by their key in its text.

    One entry may cite several papers, as is usual in physics.
    """
    ids = {}
    for key, entry in (paper.get("bib_entries") or {}).items():
        doi = _ARXIV_DOI.match(at(entry, "ids.doi") or "")
        names = [at(entry, "ids.arxiv_id"), *(at(entry, "contained_arXiv_ids.id") or ())]
        names += [doi[1]] if doi else []
        ids[key] = list(dict.fromkeys(_VERSION.sub("", name) for name in names if name))
    return ids


def zotero(item: Fields) -> dict[str, Any]:
    """Convert an item of Zotero's API or of Better BibTeX's JSON; empty for what is no work."""
    item = first(item, "data") or item
    if item.get("itemType") in NO_WORKS:
        return {}
    creators, tags = item.get("creators") or [], item.get("tags") or []
    doi = _EXTRA_DOI.search(item.get("extra") or "")
    return {
        "id": first(item, "key", "citationKey", "itemID"),
        "title": item.get("title"),
        "abstract": item.get("abstractNote"),
        "authors": list(map(_creator, [c for c in creators if c.get("creatorType") == "author"]))
        or list(map(_creator, creators)),
        "venue": first(item, *_ZOTERO_VENUES),
        "year": year_in(item.get("date")),
        "doi": item.get("DOI") or (doi[1] if doi else linked_doi(item.get("url") or "")),
        # Where there are none by hand, those that a database gave, as from Zotero's CSV.
        "labels": at([tag for tag in tags if not tag.get("type")] or tags, "tag"),
    }


def europe_pmc(paper: Fields) -> dict[str, Any]:
    """Convert a paper of Europe PMC; in its ``lite`` results authors are one text."""
    authors = _all(at(paper, "authorList.author"))
    names = (paper.get("authorString") or "").rstrip(".").split(", ")
    mesh = _all(at(paper, "meshHeadingList.meshHeading.descriptorName"))
    return {
        "id": first(paper, "id", "pmid"),
        "title": paper.get("title"),
        "abstract": paper.get("abstractText"),
        "authors": list(map(_creator, authors)) or names,
        "venue": at(paper, "journalInfo.journal.title") or paper.get("journalTitle"),
        "year": year_in(first(paper, "pubYear", "firstPublicationDate")),
        "doi": paper.get("doi"),
        "labels": mesh + _all(at(paper, "keywordList.keyword")),
    }


def dblp(hit: Fields) -> dict[str, Any]:
    """Convert a hit of DBLP's search, which numbers people of one name and ends titles."""
    info = hit["info"]
    venue = info.get("venue")
    return {
        "id": info.get("key"),
        "title": (info.get("title") or "").removesuffix("."),
        "authors": [_HOMONYM.sub("", name) for name in _all(at(info, "authors.author.text"))],
        "venue": venue[0] if isinstance(venue, list) else venue,
        "year": year_in(info.get("year")),
        "doi": info.get("doi"),
    }


def _all(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _creator(author: Fields) -> str | None:
    name = " ".join(filter(None, (author.get("firstName"), author.get("lastName"))))
    return first(author, "name", "collectiveName") or name or author.get("fullName")


def at(value: Any, path: str) -> Any:
    """Return the value at a dotted path, or a list of values if lists are on the way.

    >>> at({"authorships": [{"author": {"display_name": "A"}}]}, "authorships.author.display_name")
    ['A']
    """
    name, _, rest = path.partition(".")
    if isinstance(value, list):
        values = [at(item, path) for item in value]
        return [item for item in values if item is not None]
    if not isinstance(value, Mapping):
        return None
    if path in value:
        return value[path]
    inner = value.get(name)
    return at(inner, rest) if rest else inner


def _names(authors: Any) -> Any:
    """Return the names of a list of authors; names in one text are split later."""
    return list(map(person, authors)) if isinstance(authors, list) else authors


def _short(ids: Any) -> Any:
    """Return OpenAlex ids without their address, in a list or in one text."""
    if isinstance(ids, list):
        return [_short(one) for one in ids if one]
    return _OPENALEX_ID.sub("", ids or "")


def _joined(value: Any) -> str:
    return ": ".join(filter(None, value)) if isinstance(value, list) else value or ""


def _titled(title: str, subtitle: str) -> str:
    """Return a title with its subtitle, which some publishers repeat in the title."""
    is_known = subtitle.casefold() in title.casefold()
    return title if is_known else ": ".join(filter(None, (title, subtitle)))


SHAPES: Mapping[str, Shape] = {
    "openalex": openalex,
    "s2ag": semantic_scholar,
    "aminer": aminer,
    "crossref": crossref,
    "arxiv": arxiv,
    "zotero": zotero,
    "europepmc": europe_pmc,
    "dblp": dblp,
    "plain": plain,
    **{name: partial(paper_of, layout) for name, layout in LAYOUTS.items()},
}


# Names of fields that tell a shape.
_TELLING: Mapping[str, Set[str]] = {
    "zotero": {"itemType"},
    "openalex": {"referenced_works", "abstract_inverted_index", "authorships"},
    "s2ag": {
        *("corpusid", "corpusId", "paperId", "citingcorpusid", "externalIds"),
        *("outbound_citations", "outCitations", "citedPaper", "citingPaper"),
    },
    "aminer": {"indexed_abstract", "n_citation"},
    "europepmc": {"authorString", "firstPublicationDate"},
    "crossref": {"container-title", "issued"},
    "arxiv": {"bib_entries", "authors_parsed"},
}


def guess_shape(fields: Fields) -> str | None:
    """Return the name of a record's shape; ``None`` if it is unknown."""
    inner = {name: value for name, value in fields.items() if isinstance(value, Mapping)}
    identifier = fields.get("id")
    if "DOI" in inner.get("message", ()):
        return "crossref"
    if "itemType" in inner.get("data", ()):
        return "zotero"
    if "info" in inner and "@id" in fields:
        return "dblp"
    if isinstance(identifier, str) and _OPENALEX_ID.match(identifier):
        return "openalex"
    told = (shape for shape, names in _TELLING.items() if names & fields.keys())
    return next(told, "crossref" if isinstance(fields.get("title"), list) else None)
