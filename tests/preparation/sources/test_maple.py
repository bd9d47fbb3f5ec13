"""MAPLE: labels with definitions, metadata, references for mining, coarse fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scimult.data.text_store import TextStore
from scimult.errors import ConfigError, DataError
from tests.data.importers.written import lines
from tests.prepared_folders import Metadata, citations
from tests.public import Content, run, table


def _paper(number: int, labels: list[str], **changes: Any) -> dict[str, Any]:
    return {
        "paper": str(number),
        "venue": "77",
        "year": "1999",
        "title": f"study {number}",
        "label": labels,
        "author": ["501", f"60{number}"],
        "reference": ["1", "999"],
        "abstract": f"about thing {number}",
        "title_raw": f"Study, {number}",
        "abstract_raw": f"About Thing {number}.",
        **changes,
    }


VENUES = table(("77", "j things", "J. of Things"))
FILES: dict[str, Content] = {
    "Art/papers.json": "",
    "Art/labels.txt": table(("11", "papyrus", "2"), ("12", "scientific writing", "2")),
    "Art/venues.txt": VENUES,
    "Bio_MeSH/papers.json": "",
    "Bio_MeSH/labels.txt": table(("D1", "Animals"), ("D2", "Body Constitution")),
    "Bio_MeSH/venues.txt": VENUES,
}
PAPERS = {
    "Art": [_paper(1, ["11"]), _paper(2, ["11", "12"]), _paper(3, ["12"], abstract_raw=None)],
    "Bio_MeSH": [_paper(1, ["D1"]), _paper(4, ["D1", "D2"])],
}
MESH_XML = """<?xml version="1.0"?><DescriptorRecordSet>
<DescriptorRecord><DescriptorUI>D1</DescriptorUI><DescriptorName><String>Animals</String>
</DescriptorName><ConceptList><Concept PreferredConceptYN="N"><ScopeNote>Another.</ScopeNote>
</Concept><Concept PreferredConceptYN="Y"><ScopeNote>
  Beings that move. </ScopeNote></Concept></ConceptList></DescriptorRecord>
<DescriptorRecord><DescriptorUI>D3</DescriptorUI><DescriptorName><String>Plants</String>
</DescriptorName></DescriptorRecord></DescriptorRecordSet>"""


def _files(**papers: list[dict[str, Any]]) -> dict[str, Content]:
    """MAPLE calls its JSON lines ``papers.json``."""
    rows = PAPERS | papers
    return FILES | {f"{folder}/papers.json": lines(*rows[folder]) for folder in rows}


def test_papers_labels_metadata_and_references(tmp_path: Path) -> None:
    found = run(tmp_path, "maple", _files(), folders=["Art", "Bio_MeSH"], coarse_fields=[])
    assert found.rows("maple-mag", "papers")[1] == {
        "id": "2",
        "title": "Study, 2",
        "abstract": "About Thing 2.",
        "authors": ["501", "602"],
        "venue": "J. of Things",
        "year": 1999,
        "labels": ["11", "12"],
    }
    assert [label["name"] for label in found.rows("maple-mesh", "labels")] == [
        "Animals",
        "Body Constitution",
    ]
    # Paper 1 refers to itself, and 999 is in no folder.
    assert found.pairs("maple-mag", "references") == [("2", "1"), ("3", "1")]
    assert found.counts("maple-mag") == {
        "labels": 2,
        "labels without definition": 2,
        "labels in Art": 2,
        "papers in Art": 3,
        "papers": 3,
        "papers with empty abstract": 1,
        "pairs of a paper with itself": 1,
        "references": 2,
        "references without a text": 3,
    }
    assert "maple-mag: papers in Art: 3, published 58,373" in found.notes


def test_a_quote_in_names_of_labels_and_venues_is_a_character(tmp_path: Path) -> None:
    files = _files() | {
        "Art/labels.txt": table(("11", '"papyrus"', "2"), ("12", 'scientific" writing', "2")),
        "Art/venues.txt": table(("76", "x", '"Y'), ("77", "j things", 'J. of "Things"')),
    }
    found = run(tmp_path, "maple", files, folders=["Art"], coarse_fields=[])
    names = [label["name"] for label in found.rows("maple-mag", "labels")]
    assert names == ['"papyrus"', 'scientific" writing']
    assert found.rows("maple-mag", "papers")[0]["venue"] == 'J. of "Things"'


def test_references_serve_mining_and_are_not_trained(tmp_path: Path) -> None:
    found = run(tmp_path, "maple", _files(), folders=["Art"], coarse_fields=[])
    data = found.prepare(tmp_path / "out")
    assert [file.task for file in data.pairs("train")] == ["classification"]
    ids = data.texts.ids
    assert [(ids[a], ids[b]) for a, b in citations(data)] == [
        ("maple-mag:2", "maple-mag:1"),
        ("maple-mag:3", "maple-mag:1"),
    ]
    metadata = Metadata.open(data.folder, len(data.texts))
    assert all(metadata.years[data.texts.row(f"maple-mag:{n}")] == 1999 for n in (1, 2, 3))
    # Paper 3 has label 12 and refers to paper 1, whose label 11 is therefore a hard negative.
    (file,) = data.pairs("train")
    pools = {
        ids[q]: [ids[n] for n in pool] for q, pool in zip(file.queries, file.negatives, strict=True)
    }
    assert pools["maple-mag:3"] == ["maple-mag/label:11"]


def test_definitions_are_joined_in_and_can_be_the_label_space(tmp_path: Path) -> None:
    xml = tmp_path / "desc2022.xml"
    xml.write_text(MESH_XML)
    options = {"folders": ["Bio_MeSH"], "coarse_fields": [], "definitions": {"mesh": str(xml)}}
    found = run(tmp_path, "maple", _files(), **options)
    assert found.rows("maple-mesh", "labels") == [
        {"id": "D1", "name": "Animals", "definition": "Beings that move."},
        {"id": "D2", "name": "Body Constitution", "definition": ""},
    ]
    files = _files(Bio_MeSH=[_paper(1, ["D1", "D2"]), _paper(4, ["D2"])])
    found = run(tmp_path, "maple", files, label_space="definitions", **options)
    assert [label["id"] for label in found.rows("maple-mesh", "labels")] == ["D1", "D3"]
    assert [(paper["id"], paper["labels"]) for paper in found.rows("maple-mesh", "papers")] == [
        ("1", ["D1"])
    ]
    counts = found.counts("maple-mesh")
    assert counts["labels outside the adopted space"] == 2
    assert counts["papers without a label of the space"] == 1


def test_definitions_from_a_table(tmp_path: Path) -> None:
    (tmp_path / "mag.csv").write_text('id,definition\n11,"Paper, of reed"\n')
    definitions = {"mag": str(tmp_path / "mag.csv")}
    options = {"folders": ["Art"], "coarse_fields": [], "definitions": definitions}
    found = run(tmp_path, "maple", _files(), **options)
    definition = {row["id"]: row["definition"] for row in found.rows("maple-mag", "labels")}
    assert definition == {"11": "Paper, of reed", "12": ""}


@pytest.mark.long
def test_coarse_papers_are_a_sample_that_the_seed_decides(tmp_path: Path) -> None:
    many = [_paper(number, ["11"]) for number in range(100, 130)]

    def drawn(seed: int, papers: list[dict[str, Any]]) -> set[str]:
        files = _files(Art=papers)
        options = {"folders": [], "coarse_fields": ["Art"], "coarse_papers": 10, "seed": seed}
        found = run(tmp_path, "maple", files, **options)
        rows = found.rows("maple-coarse", "papers")
        (file,) = found.prepare(tmp_path / "out").pairs("train")
        assert len(file.positives.values) == 10
        assert found.conversion.configs[0].max_pairs_per_label == "all"
        assert all(row["labels"] == ["Art"] for row in rows)
        return {row["id"] for row in rows}

    first = drawn(0, many)
    assert len(first) == 10
    assert drawn(0, many[::-1]) == first
    assert drawn(1, many) != first


def test_a_paper_of_two_coarse_fields_has_both(tmp_path: Path) -> None:
    shared = [_paper(number, ["11"]) for number in range(40)]
    alone = [_paper(number, ["11"]) for number in range(100, 160)]
    files = _files(Art=shared, Law=alone + shared)
    options = {"folders": [], "coarse_fields": ["Art", "Law"], "coarse_papers": 20}
    found = run(tmp_path, "maple", files, **options)
    labels = {paper["id"]: set(paper["labels"]) for paper in found.rows("maple-coarse", "papers")}
    both = {identifier for identifier, names in labels.items() if names == {"Art", "Law"}}
    # Whichever field drew them: Art draws 20 of the 40, Law fewer.
    assert len(both) == sum(int(identifier) < 40 for identifier in labels) >= 20
    assert found.counts("maple-coarse")["labels added by repeated papers"] == len(both)
    assert {found.counts("maple-coarse")[f"papers of {field}"] for field in ("Art", "Law")} == {20}


def test_references_of_a_paper_in_two_folders_are_merged(tmp_path: Path) -> None:
    first, second = _paper(1, ["D1"], reference=["2"]), _paper(1, ["D2"], reference=["3"])
    cited = [_paper(2, ["D1"], reference=[]), _paper(3, ["D1"], reference=[])]
    files = _files(Bio_MeSH=[first, *cited], Med_MeSH=[second])
    files |= {
        f"Med_MeSH/{name}": files[f"Bio_MeSH/{name}"] for name in ("labels.txt", "venues.txt")
    }
    found = run(tmp_path, "maple", files, folders=["Bio_MeSH", "Med_MeSH"], coarse_fields=[])
    assert found.rows("maple-mesh", "papers")[0]["labels"] == ["D1", "D2"]
    assert found.pairs("maple-mesh", "references") == [("1", "2"), ("1", "3")]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (_files(Art=[_paper(1, ["13"])]), "label is not in labels.txt (value: '13')"),
        (_files(Art=[_paper(1, ["11"], title_raw="", abstract_raw="")]), "both empty"),
        (_files(Art=[_paper(1, "11")]), "field 'label' is not a list of strings"),  # type: ignore[arg-type]
        (_files(Art=[_paper(1, ["11"], year="MM")]), "field 'year' is not an integer"),
        (_files() | {"Art/labels.txt": "11\tpapyrus\n"}, "wrong number of values"),
        ({k: v for k, v in _files().items() if k != "Art/venues.txt"}, "file does not exist"),
    ],
)
def test_bad_downloads(tmp_path: Path, files: dict[str, Content], problem: str) -> None:
    with pytest.raises(DataError) as caught:
        run(tmp_path, "maple", files, folders=["Art"], coarse_fields=[])
    assert problem in str(caught.value)
    assert not (tmp_path / "raw").exists()


def test_a_label_without_a_name_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    files = _files() | {"Art/labels.txt": table(("11", "papyrus", "2"), ("12", "", "2"))}
    options = {"folders": ["Art"], "coarse_fields": []}
    with pytest.raises(DataError, match=r"labels.txt:2: name of the label is empty"):
        run(tmp_path, "maple", files, **options)
    found = run(tmp_path, "maple", files, skip_bad=True, **options)
    assert [label["id"] for label in found.rows("maple-mag", "labels")] == ["11"]
    assert found.conversion.rejects.counts["name of the label is empty"] == 1


def test_a_label_space_needs_its_definitions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"definitions\.mesh=FILE"):
        run(tmp_path, "maple", {}, folders=["Bio_MeSH"], label_space="definitions")


def test_a_paper_in_two_folders_is_one_paper(tmp_path: Path) -> None:
    files = _files() | {
        name.replace("Bio", "Med"): content
        for name, content in _files().items()
        if name.startswith("Bio")
    }
    found = run(tmp_path, "maple", files, folders=["Bio_MeSH", "Med_MeSH"], coarse_fields=[])
    assert found.counts("maple-mesh")["papers repeated"] == 2
    found.prepare(tmp_path / "out")
    assert len(TextStore.open(tmp_path / "out")) == 2 + 2
