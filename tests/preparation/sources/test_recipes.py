"""Every command of docs/recipes.md, on a small download in its layout."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scimult.data.prepared import PreparedData
from tests.command import completed
from tests.data.importers import layouts, test_services
from tests.data.importers.written import lines

PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"
COMMANDS = re.findall(r"^scimult (prepare table .*)$", PAGE.read_text(encoding="utf-8"), re.M)
SCOPUS = (
    "Authors,Title,Year,Source title,DOI,Abstract,Author Keywords,EID\n"
    '"Núñez, A.; Li, B.",Graphs,2012,J. Graphs,10.1234/abc,We draw.,graphs; mice,2-s2.0-1\n'
    '"Li, B.",Mice,2013,J. Mice,,They run.,mice,2-s2.0-2\n'
)
WORKS: list[dict[str, Any]] = [
    {
        "key": f"urn:{i}",
        "headline": f"Work {i}",
        "body": "Text.",
        "published": "2012-05-01",
        "cites": "|".join(str(j) for j in range(i)),
        "subjects": [{"name": "Graphs"}],
    }
    for i in range(3)
]


def _crossref() -> str:
    cited = {**layouts.CROSSREF, "DOI": "10.5555/OLD", "title": ["Old"], "reference": []}
    untitled = {"DOI": "10.5555/untitled", "title": [], "issued": {"date-parts": [[None]]}}
    return json.dumps({"items": [untitled, layouts.CROSSREF, cited]})


def _keyed() -> list[dict[str, Any]]:
    """Return the works for the recipe with edges, whose citations name their keys."""
    return [{**work, "key": work["key"].removeprefix("urn:")} for work in WORKS]


def _downloads(folder: Path, edges: bool) -> None:
    """Write a download in every layout, in the folders named on the page."""
    keywords = [{**work, "keywords": [{"display_name": "mice"}]} for work in layouts.OPENALEX]
    untitled = {"id": "https://openalex.org/W9", "title": None, "display_name": None}
    files = {
        "OPENALEX/works/updated_date=2024-01-01/part_000.gz": lines(keywords[0], untitled),
        "OPENALEX/works/updated_date=2024-01-02/part_000.gz": lines(keywords[1]),
        "S2AG/papers-0.gz": lines(*layouts.S2AG_PAPERS),
        "S2AG/abstracts-0.gz": lines(*layouts.S2AG_ABSTRACTS),
        "S2AG/citations-0.gz": lines(*layouts.S2AG_CITATIONS),
        "S2ORC/metadata_0.jsonl": lines(layouts.S2ORC),
        "S2ORC/metadata_1.jsonl": lines({**layouts.S2ORC, "paper_id": "78"}),
        "AMINER/dblp.v12.json": layouts.AMINER_V12,
        "CROSSREF/0.json.gz": _crossref(),
        "PUBMED/pubmed25n0001.xml.gz": layouts.PUBMED,
        "ARXIV/arxiv-metadata-oai-snapshot.json": lines(layouts.ARXIV),
        "LIBRARY/library.bib": layouts.BIBTEX,
        "LIBRARY/library.ris": layouts.RIS,
        "LIBRARY/library.csv": layouts.ZOTERO,
        "LIBRARY/pubmed.nbib": layouts.NBIB,
        "LIBRARY/scholar.enw": layouts.ENW,
        "LIBRARY/savedrecs (1).txt": layouts.WOS,
        "ANSWERS/search.json": test_services.CASES["europe pmc"][1],
        "ANSWERS/feed.xml": test_services.FEED,
        "TABLES/scopus.csv": SCOPUS,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    works = _keyed() if edges else WORKS
    pq.write_table(pa.Table.from_pylist(works), folder / "TABLES" / "works.parquet")


# Papers, labels and pairs of each, by the name after --out.
EXPECTED = {
    "openalex": (2, 1, {"classification": 1, "link_prediction": 1}),
    "keywords": (2, 1, {"classification": 2, "link_prediction": 1}),
    "s2ag": (2, 1, {"classification": 1, "link_prediction": 1}),
    "s2orc": (2, 1, {"classification": 2, "link_prediction": 1}),
    "aminer": (2, 1, {"classification": 1}),
    "crossref": (2, 1, {"classification": 2, "link_prediction": 1}),
    "pubmed": (2, 2, {"classification": 2}),
    "nbib": (2, 2, {"classification": 2}),
    "enw": (2, 3, {"classification": 4}),
    "wos": (3, 3, {"classification": 3, "link_prediction": 1}),
    "arxiv": (1, 2, {"classification": 2}),
    "bibtex": (2, 2, {"classification": 2}),
    "ris": (2, 2, {"classification": 2}),
    "zotero": (1, 2, {"classification": 2}),
    "europepmc": (2, 3, {"classification": 3}),
    "feed": (2, 2, {"classification": 2}),
    "tables": (2, 2, {"classification": 3}),
    "sql": (3, 1, {"classification": 3, "link_prediction": 3}),
    "edges": (3, 0, {"link_prediction": 3}),
}


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_recipe(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    name = words[words.index("--out") + 1]
    _downloads(tmp_path, edges=name == "edges")
    monkeypatch.chdir(tmp_path)
    completed(*words, "prepare.dev_fraction=0")
    data = PreparedData.open(tmp_path / name)
    kinds = data.texts.kinds
    pairs = {file.task: len(file.positives.values) for file in data.pairs("train")}
    assert (kinds.count("paper"), kinds.count("label"), pairs) == EXPECTED[name]


def test_the_page_has_every_recipe() -> None:
    named = {shlex.split(command)[shlex.split(command).index("--out") + 1] for command in COMMANDS}
    assert named == EXPECTED.keys()


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "works").mkdir()
    works = lines(*layouts.OPENALEX).encode()
    (tmp_path / "works" / "part.gz").write_bytes(gzip.compress(works))
    (tmp_path / "library.bib").write_text(layouts.BIBTEX)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert "library.bib" in printed
    assert "part.gz" in printed
