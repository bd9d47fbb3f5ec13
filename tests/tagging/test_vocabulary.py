"""Vocabularies: valid and invalid files, and SKOS against rdflib's queries."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import rdflib
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.records import Rejects
from scimult.errors import DataError, UnknownNameError
from scimult.tagging import Concept, Vocabulary, read_vocabulary
from scimult.tagging.reading import write_vocabulary

TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix e: <http://example.org/> .
e:science a skos:Concept ; skos:prefLabel "Science"@en, "Wissenschaft"@de ;
  skos:narrower e:physics .
e:physics a skos:Concept ; skos:prefLabel "Physics"@en ;
  skos:altLabel "Natural philosophy"@en, "Physik"@de ;
  skos:definition "Matter and energy."@en ; skos:notation "53" .
e:optics a skos:Concept ; skos:prefLabel "Optics"@en-GB ; skos:broader e:physics, e:elsewhere ;
  skos:hiddenLabel "Opticks"@en ; skos:scopeNote "Light."@en .
e:ether a skos:Concept ; skos:prefLabel "Ether"@en ; skos:broader e:physics ; owl:deprecated true .
e:plain a skos:Concept ; skos:prefLabel "No language" ; skos:broader e:optics, e:ether .
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def shape(vocabulary: Vocabulary) -> list[tuple[object, ...]]:
    return [(c.id, c.label, c.synonyms, c.broader, c.description, c.notation) for c in vocabulary]


def test_a_name_is_a_concept() -> None:
    assert list(Vocabulary(["Optics"])) == [Concept("Optics", "Optics")]
    with pytest.raises(DataError, match="a single name.*Fix: pass a list"):
        Vocabulary("Optics")
    with pytest.raises(DataError, match="concept 1 is of type dict.*Fix: pass names"):
        Vocabulary(["Optics", {"id": "a", "label": "b"}])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("concept", "message"),
    [
        (Concept("", "Optics"), "no id, or not one line"),
        (Concept("a\nb", "Optics"), r"no id, or not one line \(value: 'a\\nb'\)"),
        (Concept("a", "\u200b"), r"concept has no label \(value: 'a'\)"),
        ("", "no id, or not one line"),
    ],
)
def test_a_concept_without_id_or_label_is_refused(concept: Concept | str, message: str) -> None:
    """A tagger was trained with it, whose folder could not be opened."""
    with pytest.raises(DataError, match=message):
        Vocabulary(["Mechanics", concept])


@pytest.mark.long
@pytest.mark.parametrize("format", ["turtle", "xml", "nt"])
@pytest.mark.parametrize("packed", [False, True])
def test_skos_agrees_with_queries_of_rdflib(tmp_path: Path, format: str, packed: bool) -> None:
    graph = rdflib.Graph().parse(data=TURTLE, format="turtle")
    name = {"turtle": "v.ttl", "xml": "v.rdf", "nt": "v.nt"}[format]
    data = graph.serialize(format=format, encoding="utf-8")
    path = tmp_path / (name + ".gz" if packed else name)
    path.write_bytes(gzip.compress(data) if packed else data)
    vocabulary = read_vocabulary(path)
    labels = graph.query(
        """SELECT ?c ?l WHERE { ?c a skos:Concept ; skos:prefLabel ?l .
        FILTER(LANG(?l) = "" || LANGMATCHES(LANG(?l), "en"))
        FILTER NOT EXISTS { ?c owl:deprecated true } }""",
        initNs={"owl": rdflib.OWL, "skos": rdflib.SKOS},
    )
    assert {(c.id, c.label) for c in vocabulary} == {(str(c), str(label)) for c, label in labels}
    links = graph.query(
        """SELECT ?c ?b WHERE { { ?c skos:broader ?b } UNION { ?b skos:narrower ?c }
        ?c a skos:Concept . ?b a skos:Concept .
        FILTER NOT EXISTS { ?c owl:deprecated true }
        FILTER NOT EXISTS { ?b owl:deprecated true } }""",
        initNs={"owl": rdflib.OWL, "skos": rdflib.SKOS},
    )
    ours = {(c.id, broader) for c in vocabulary for broader in c.broader}
    assert ours == {(str(c), str(b)) for c, b in links}
    others = graph.query(
        """SELECT ?c ?l WHERE { ?c skos:altLabel|skos:hiddenLabel ?l .
        FILTER(LANGMATCHES(LANG(?l), "en")) }""",
        initNs={"skos": rdflib.SKOS},
    )
    ours = {(c.id, name) for c in vocabulary for name in c.synonyms}
    assert ours == {(str(c), str(name)) for c, name in others}
    physics = vocabulary[vocabulary.row("http://example.org/physics")]
    assert (physics.description, physics.notation) == ("Matter and energy.", "53")
    assert vocabulary[vocabulary.row("optics")].description == "Light."


@pytest.mark.long
@pytest.mark.parametrize("format", ["turtle", "xml", "nt"])
def test_labels_of_skos_xl_are_labels(tmp_path: Path, format: str) -> None:
    """Its concepts had no label. rdflib's query turns each label into a resource with its form."""
    graph = rdflib.Graph().parse(data=TURTLE, format="turtle")
    name = {"turtle": "v.ttl", "xml": "v.rdf", "nt": "v.nt"}[format]
    plain, extended = tmp_path / name, tmp_path / f"xl_{name}"
    graph.serialize(plain, format=format, encoding="utf-8")
    graph.update(
        """PREFIX xl: <http://www.w3.org/2008/05/skos-xl#>
        DELETE { ?c ?skos ?l }
        INSERT { ?c ?xl ?r . ?r a xl:Label ; xl:literalForm ?l }
        WHERE {
          VALUES (?skos ?xl) { (skos:prefLabel xl:prefLabel) (skos:altLabel xl:altLabel)
            (skos:hiddenLabel xl:hiddenLabel) }
          ?c ?skos ?l . BIND(IRI(CONCAT(STR(?c), "/", STRUUID())) AS ?r)
        }""",
        initNs={"skos": rdflib.SKOS},
    )
    assert not list(graph.subject_objects(rdflib.SKOS.prefLabel))
    graph.serialize(extended, format=format, encoding="utf-8")
    assert shape(read_vocabulary(extended)) == shape(read_vocabulary(plain))
    assert len(shape(read_vocabulary(plain))) == 4


def test_skos_in_another_language(tmp_path: Path) -> None:
    path = write(tmp_path / "v.ttl", TURTLE)
    with pytest.raises(DataError, match="no label in 'de'"):
        read_vocabulary(path, language="de")
    rejects = Rejects(skip_bad=True)
    vocabulary = read_vocabulary(path, language="de", rejects=rejects)
    assert [c.label for c in vocabulary] == ["No language", "Wissenschaft"]
    assert sum(rejects.counts.values()) == 2
    assert vocabulary[0].broader == ()


def test_further_preferred_labels_are_synonyms(tmp_path: Path) -> None:
    text = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
    <http://example.org/c> a skos:Concept ;
        skos:prefLabel "Colour"@en-GB, "Color"@en-US, "Couleur"@fr ."""
    path = write(tmp_path / "v.ttl", text)
    [concept] = read_vocabulary(path)
    assert [concept.label, *concept.synonyms] == ["Color", "Colour"]


def test_links_to_rejected_concepts_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``--skip-bad`` could not help: the link to what it left out was an error."""
    lines = ['{"id": "a", "label": "A", "broader": ["b"]}', '{"id": "b"}']
    path, rejects = write(tmp_path / "v.jsonl", "\n".join(lines)), Rejects(skip_bad=True)
    with caplog.at_level("INFO", "scimult"):
        assert list(read_vocabulary(path, rejects=rejects)) == [Concept("a", "A")]
    assert caplog.messages == [f"{path}: left out 1 link to concepts that are left out"]
    write(path, "\n".join([*lines, '{"id": "c", "label": "C", "broader": ["elsewhere"]}']))
    with pytest.raises(DataError, match="v.jsonl:3: broader concept of 'c' is not in the voc"):
        read_vocabulary(path, rejects=Rejects(skip_bad=True))


def test_annif_writes_brackets_in_tables_of_both_kinds(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "uri,label_en,notation\n<http://x/1>,Optics,53\n")
    write(tmp_path / "a.tsv", "<http://x/1>\tOptics\t53\n")
    for name in ("a.csv", "a.tsv"):
        (concept,) = read_vocabulary(tmp_path / name)
        assert concept == Concept("http://x/1", "Optics", notation="53")
    write(tmp_path / "a.csv", "uri,label_en,broader\n<e:1>,Optics,\n<e:2>,Lasers,<e:1>\n")
    assert [one.broader for one in read_vocabulary(tmp_path / "a.csv")] == [(), ("e:1",)]


def test_ids_in_brackets_survive_writing(tmp_path: Path) -> None:
    """A trained tagger could not be opened."""
    vocabulary = Vocabulary([Concept("<1>", "A"), Concept("2", "B", broader=("<1>",))])
    write_vocabulary(tmp_path / "v.jsonl", vocabulary)
    assert list(read_vocabulary(tmp_path / "v.jsonl")) == list(vocabulary)


def test_blank_nodes_have_no_lasting_id(tmp_path: Path) -> None:
    path = write(tmp_path / "v.ttl", TURTLE + '[] a skos:Concept ; skos:prefLabel "Anon"@en .')
    with pytest.raises(DataError, match="concept is a blank node.*'Anon'"):
        read_vocabulary(path)
    usual = read_vocabulary(write(tmp_path / "usual.ttl", TURTLE))
    assert list(read_vocabulary(path, rejects=Rejects(skip_bad=True))) == list(usual)


def test_broken_rdf_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"v\.ttl:\d+: not valid Turtle.*Fix:"):
        read_vocabulary(write(tmp_path / "v.ttl", TURTLE + "e:x ] e:y ."))
    with pytest.raises(DataError, match=r"v\.ttl: not valid RDF.*Fix:"):
        read_vocabulary(write(tmp_path / "v.ttl", TURTLE + "e:x e:y ???"))
    with pytest.raises(DataError, match=r"v\.rdf:2: not valid RDF/XML.*Fix:"):
        read_vocabulary(write(tmp_path / "v.rdf", "<?xml version='1.0'?>\n<a><b></a>"))
    with pytest.raises(DataError, match="vocabulary is empty"):
        read_vocabulary(write(tmp_path / "e.ttl", ""))


def test_json_lines_and_tables_are_equivalent(tmp_path: Path) -> None:
    concepts = [
        Concept("a", "Science", description="All of it, or most", notation="1"),
        Concept("b", "Physics", ("Natural philosophy", "Physik"), ("a",)),
        Concept("c", "Optics", (), ("a", "b")),
    ]
    write_vocabulary(tmp_path / "v.jsonl", Vocabulary(concepts))
    rows = "\n".join(
        json.dumps({"uri": c.id, "name": c.label, "synonyms": list(c.synonyms),
                    "parent": list(c.broader), "definition": c.description, "notation": c.notation})
        for c in concepts
    )  # fmt: skip
    write(tmp_path / "other.jsonl", rows)
    write(
        tmp_path / "v.csv",
        "id,label_en,label_de,synonyms,broader,description,notation\n"
        'a,Science,Wissenschaft,,,"All of it, or most",1\n'
        "b,Physics,Physik,Natural philosophy; Physik,a,,\nc,Optics,Optik,,a;b,,\n",
    )
    write(
        tmp_path / "v.tsv",
        "key\tterm\tsynonyms\tbroader\tdescription\tnotation\n"
        "a\tScience\t\t\tAll of it, or most\t1\n"
        "b\tPhysics\tNatural philosophy;Physik\ta\t\t\nc\tOptics\t\ta;b\t\t\n",
    )
    for name in ("v.jsonl", "other.jsonl", "v.csv"):
        assert list(read_vocabulary(tmp_path / name)) == concepts
    named = read_vocabulary(tmp_path / "v.tsv", columns={"id": "key", "label": "term"})
    assert list(named) == concepts
    assert [c.label for c in read_vocabulary(tmp_path / "v.csv", language="de")][2] == "Optik"
    annif = write(tmp_path / "annif.tsv", "<http://x/1>\tOne\n<http://x/2>\tTwo\n")
    assert shape(read_vocabulary(annif)) == [
        ("http://x/1", "One", (), (), "", ""),
        ("http://x/2", "Two", (), (), "", ""),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("v.jsonl", '{"id": "a", "name": "A"}\n{"id": "a", "name": "B"}\n', r":2: repeated"),
        ("v.jsonl", '{"id": "a"}\n', r"v\.jsonl:1: missing field 'label'"),
        ("v.csv", "code,label\na,A\n", r"csv:2: missing field 'id'.*--field id=NAME.*--skip-bad"),
        ("v.jsonl", '{"id": "a", "label": " "}\n', r"v\.jsonl:1: concept has no label"),
        (
            "v.jsonl",
            '{"id": "b", "label": "B"}\n{"id": "a", "label": "A", "broader": ["z"]}\n',
            r"v\.jsonl:2: broader concept of 'a' is not in the vocabulary \(value: 'z'\)",
        ),
        ("v.csv", "id,label,broader\na,A,b\nb,B,c\nc,C,a\n", r"csv:2: .*cycle.*'a > b > c > a'"),
        ("v.csv", "id,label,broader\na,A,a\n", r"cycle.*'a > a'"),
        ("v.json", "", "file is empty"),
        ("v.docx", "", r"unknown format.*\.jsonl"),
        ("v.csv", "id,subject\na\n", "wrong number of values"),
    ],
)  # fmt: skip
def test_mistakes_name_file_and_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_vocabulary(write(tmp_path / name, text))
    assert str(caught.value).count("Fix:") == 1


def test_concepts_that_are_none_are_left_out_on_request(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "label": "A"},
        {"id": "b", "label": " "},
        {"id": "c\nd", "label": "C"},
        {"id": "e", "label": "E"},
    ]
    file = write(tmp_path / "v.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    rejects = Rejects(True)
    assert read_vocabulary(file, rejects=rejects).ids == ["a", "e"]
    assert sum(rejects.counts.values()) == 2
    with pytest.raises(UnknownNameError, match="did you mean 'label'"):
        read_vocabulary(file, columns={"labl": "name"})


def test_concepts_are_found_by_id_and_by_unambiguous_names() -> None:
    vocabulary = Vocabulary(
        [
            Concept("1", "Mercury", ("planet",)),
            Concept("2", "Hg", ("mercury", "metal")),
            Concept("3", "I\u00f6"),
        ]
    )
    assert vocabulary.row("2") == 1
    assert vocabulary.row(" MERCURY ") == 0  # labels precede synonyms
    assert vocabulary.row("metal") == 1
    assert vocabulary.row("IO\u0308") == 2  # an accent of its own
    assert not vocabulary.knows("mercur")
    with pytest.raises(DataError, match="did you mean 'Mercury'"):
        vocabulary.row("Mercuri")
    shared = Vocabulary([Concept("1", "A", ("x",)), Concept("2", "B", ("x",))])
    with pytest.raises(DataError, match="several.*one of the ids: 1, 2"):
        shared.row("x")


@given(st.lists(st.sets(st.integers(0, 11), max_size=4), min_size=1, max_size=12))
def test_order_and_ancestors(links: list[set[int]]) -> None:
    """Links go to lower rows, so there are no cycles; compare with powers of the matrix."""
    parents = [{p % i for p in found} if i else set() for i, found in enumerate(links)]
    vocabulary = Vocabulary(
        Concept(str(i), str(i), broader=tuple(map(str, sorted(above))))
        for i, above in enumerate(parents)
    )
    reach = np.zeros((len(links), len(links)), dtype=np.int64)
    for row, above in enumerate(parents):
        reach[row, list(above)] = 1
    closure = sum(np.linalg.matrix_power(reach, n) for n in range(1, len(links) + 1))
    for row in range(len(links)):
        assert vocabulary.ancestors(row) == set(np.flatnonzero(np.asarray(closure)[row]))
    position = np.argsort(vocabulary.order_C)
    for row, above in enumerate(parents):
        assert all(position[p] < position[row] for p in above)


def test_language_tags_ignore_case_and_only_concepts_are_concepts(tmp_path: Path) -> None:
    others = """
e:scheme a skos:ConceptScheme ; skos:prefLabel "The scheme"@en .
e:list a skos:OrderedCollection ; skos:prefLabel "A list"@en ; skos:member e:upper .
e:upper skos:prefLabel "Upper"@EN ; skos:altLabel "Top"@En-gb, "Oben"@de .
"""
    vocabulary = read_vocabulary(write(tmp_path / "v.ttl", TURTLE + others))
    usual = read_vocabulary(write(tmp_path / "usual.ttl", TURTLE))
    upper = Concept("http://example.org/upper", "Upper", ("Top",))
    assert list(vocabulary) == sorted([*usual, upper], key=lambda concept: concept.id)
    assert list(read_vocabulary(tmp_path / "v.ttl", language="EN")) == list(vocabulary)


def test_a_region_comes_first_and_its_language_serves_where_it_is_missing(tmp_path: Path) -> None:
    lines = [
        "@prefix skos: <http://www.w3.org/2004/02/skos/core#> .",
        '<e:1> a skos:Concept ; skos:prefLabel "color"@en-US, "colour"@en-GB, "Farbe"@de .',
        '<e:2> a skos:Concept ; skos:prefLabel "red"@en, "rot"@de .',
        '<e:3> a skos:Concept ; skos:prefLabel "zucchini"@en, "courgette"@en-GB .',
    ]
    (tmp_path / "v.ttl").write_text("\n".join(lines))
    for language, labels in (
        ("en-GB", ["colour", "red", "courgette"]),
        ("en", ["color", "red", "zucchini"]),
    ):
        vocabulary = read_vocabulary(tmp_path / "v.ttl", language=language)
        assert [concept.label for concept in vocabulary] == labels
