"""unarXive 2022: citations and citing sentences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scimult.errors import DataError
from tests.data.importers import layouts
from tests.public import Content, run


def _entry(arxiv: str = "", contained: str = "", doi: str = "") -> dict[str, Any]:
    """Return a bibliography entry in the layout of unarXive 2022."""
    ids = {"open_alex_id": "", "sem_open_alex_id": "", "pubmed_id": "", "pmc_id": "", "doi": doi}
    written = [{"id": contained, "text": contained, "start": 0, "end": 9}] if contained else []
    return {
        "bib_entry_raw": "A. Author, A paper",
        "contained_arXiv_ids": written,
        "contained_links": [],
        "discipline": None,
        "ids": {**ids, "arxiv_id": arxiv},
    }


def _unarxive(identifier: str, text: str = "", **entries: dict[str, Any]) -> dict[str, Any]:
    """Return a paper in the layout of arXiv_src_*.jsonl."""
    spans = [
        {"start": m.start(), "end": m.end(), "text": m[0], "ref_id": m[1]}
        for m in re.finditer(r"\{\{cite:(\w+)\}\}", text)
    ]
    paragraph = {"section": "Introduction", "sec_number": "1", "sec_type": "section"}
    paragraph |= {"content_type": "paragraph", "text": text}
    meta = {"id": identifier, "title": f"Paper {identifier}", "abstract": "Text."}
    return {
        "paper_id": identifier,
        "_pdf_hash": None,
        "_source_hash": "x",
        "_source_name": f"{identifier}.gz",
        "metadata": {**layouts.ARXIV, **meta},
        "discipline": "Physics",
        "abstract": {"section": "Abstract", "text": "Text.", "cite_spans": [], "ref_spans": []},
        "body_text": [{**paragraph, "cite_spans": spans, "ref_spans": []}],
        "ref_entries": {},
        "bib_entries": entries,
    }


BODY = (
    "Nobody cited this first sentence. As shown by Smith et al. {{cite:a}} and later in "
    "({{cite:b}}, {{cite:c}}), the mass {{formula:1}} is large. So {{cite:a}} is short. "
    "Unknown work {{cite:d}} is said to be of some interest to us all."
)
ENTRIES = {
    "a": _entry("0704.0002"),
    "b": _entry("", "hep-th/9901001v2"),
    "c": _entry(doi="https://doi.org/10.48550/arXiv.0704.0099"),
    "d": _entry(),
}
UNARXIVE: dict[str, Content] = {
    "07/arXiv_src_0704_001.jsonl": [
        _unarxive("0704.0001", BODY, **ENTRIES),
        _unarxive("0704.0002"),
    ],
    "99/arXiv_src_9901_001.jsonl": [_unarxive("hep-th/9901001")],
}


@pytest.mark.long
def test_unarxive_as_it_is_distributed(tmp_path: Path) -> None:
    objectives = ["citations", "context2doc", "doc2doc"]
    found = run(tmp_path, "unarxive", UNARXIVE, objectives=objectives)
    papers = found.rows("unarxive", "papers")
    assert [row["id"] for row in papers] == ["0704.0001", "0704.0002", "hep-th/9901001"]
    assert papers[0]["authors"] == ["C. Balázs", "E. L. Berger"]
    cited = [("0704.0001", "0704.0002"), ("0704.0001", "hep-th/9901001")]
    assert found.pairs("unarxive", "citations") == cited
    (query,) = found.rows("unarxive", "queries")
    assert query["text"] == "As shown by Smith et al. and later in, the mass is large."
    judged = found.pairs("unarxive", "judgments")
    assert [pair[1] for pair in judged] == ["0704.0002", "hep-th/9901001"]
    assert found.pairs("unarxive-doc2doc", "links") == [("0704.0002", "hep-th/9901001", "1")]
    counts = found.counts("unarxive")
    assert counts["citing sentences"] == 2
    assert counts["citing sentences that are too short"] == 1
    assert counts["citations without a text"] == 1
    data = found.prepare(tmp_path / "out")
    named = {(file.name, file.namespace) for file in data.pairs("train")}
    assert named == {
        ("unarxive.link_prediction", "unarxive"),
        ("unarxive.search", "unarxive"),
        ("unarxive-doc2doc.link_prediction", "unarxive"),
    }
    # Three papers and a query: both sources have the same papers.
    assert len(data.texts) == 4


def test_lists_of_markers_leave_no_commas(tmp_path: Path) -> None:
    text = (
        "This goes back to the early work {{cite:a}}, {{cite:b}};{{cite:c}}, and to {{formula:1}}."
    )
    papers = [_unarxive("0704.0001", text, **ENTRIES), _unarxive("0704.0002")]
    found = run(tmp_path, "unarxive", {"arXiv_src_0704_001.jsonl": papers})
    (query,) = found.rows("unarxive", "queries")
    assert query["text"] == "This goes back to the early work, and to."


def test_one_reference_of_unarxive_may_cite_several_papers(tmp_path: Path) -> None:
    entry = _entry("0704.0002", "0704.0002v3", "10.48550/arXiv.0704.0004")
    entry["contained_arXiv_ids"] += [{"id": "hep-th/9901001"}]
    text = "As is shown in the well known work {{cite:a}} the mass is large."
    ids = ["0704.0002", "0704.0004", "hep-th/9901001"]
    papers = [_unarxive("0704.0001", text, a=entry), *map(_unarxive, ids)]
    found = run(tmp_path, "unarxive", {"arXiv_src_0704_001.jsonl": papers})
    cited = [paper for _, paper in found.pairs("unarxive", "citations")]
    assert sorted(cited) == ids
    assert sorted(paper for _, paper, _ in found.pairs("unarxive", "judgments")) == ids


def test_unarxive_papers_of_another_form_are_named(tmp_path: Path) -> None:
    paper = _unarxive("0704.0001") | {"bib_entries": ["a"]}
    with pytest.raises(DataError, match=r"001.jsonl:1: record does not fit its format"):
        run(tmp_path, "unarxive", {"arXiv_src_0704_001.jsonl": [paper]})
    paper = _unarxive("0704.0001", **ENTRIES) | {"body_text": ["Text {{cite:a}}."]}
    with pytest.raises(DataError, match=r"001.jsonl:1: paragraphs are not objects"):
        run(tmp_path, "unarxive", {"arXiv_src_0704_001.jsonl": [paper]})
    with pytest.raises(DataError, match="download unarXive 2022"):
        run(tmp_path, "unarxive", {"other.jsonl": [paper]}, files="*.gz")
