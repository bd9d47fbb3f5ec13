"""BibTeX and BibLaTeX: joined values, parents, names and addresses."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.importers import read_papers
from scimult.data.importers.bibtex import _joined
from scimult.data.records import Rejects
from scimult.errors import DataError
from tests.data.importers.written import read, written

STRINGS = {"nips": "Advances in Systems", "ai": "Artificial Intelligence"}
WORDS = st.text("ab, #{}", max_size=6).filter(lambda text: "{" not in text and "}" not in text)
# How BibTeX may write a piece, and its text: braces, quotes, a string, a number.
PIECES = st.one_of(
    WORDS.map(lambda text: (f"{{{text}}}", text)),
    WORDS.map(lambda text: (f'"{text}"', text)),
    WORDS.map(lambda text: (f'{{"{text}" {{#}} \\"o}}', f'"{text}" {{#}} \\"o')),
    WORDS.map(lambda text: (f'"{{"}}{text}{{#}}"', f'{{"}}{text}{{#}}')),
    st.sampled_from([("nips", STRINGS["nips"]), ("AI", STRINGS["ai"]), ("2012", "2012")]),
)


@given(st.lists(PIECES, min_size=1), st.sampled_from(["#", " # ", "\n  #  "]))
def test_a_value_is_what_its_pieces_say(pieces: list[tuple[str, str]], mark: str) -> None:
    value = mark.join(written for written, _ in pieces)
    assert _joined(value, STRINGS) == "".join(text for _, text in pieces)


def test_joined_values_are_read_as_bibtex_does(tmp_path: Path) -> None:
    """BibTeX joins at ``#`` outside braces and quotes; names of strings ignore case."""
    text = r"""@string{nips = "Advances in " # {Neural }}
@string(vol = NIPS # "Systems")
@article{a, title = "Part one " # "and two", journal = vol # { 12}, year = 20 # 12,
  abstract = "A # {b}" # { in C\#}}
@article{b, title = {C# and "F#"}, journal = acmcs, keywords = "x, " # {y}}
"""
    first, second = read(written(tmp_path, "a.bib", text))
    assert (first.title, first.venue) == ("Part one and two", "Advances in Neural Systems 12")
    assert (first.year, first.abstract) == (2012, "A # b in C#")
    assert (second.title, second.venue) == ('C# and "F#"', "acmcs")
    assert second.labels == ["x", "y"]


def test_a_paper_has_the_venue_and_year_of_its_proceedings(tmp_path: Path) -> None:
    text = """@inproceedings{child, title = {A}, author = {Ann Lee}, crossref = {Parent}}
@inproceedings{own, title = {B}, booktitle = {Its own}, date = {1999-05}, crossref = "parent"}
@inproceedings{of_title, title = {C}, crossref = {plain}}
@article{of_issue, title = {D}, crossref = {issue}}
@inproceedings{lost, title = {E}, crossref = {nowhere}}
@inproceedings{round, title = {F}, crossref = {again}}
@proceedings{again, title = {G}, booktitle = {G}, crossref = {round}}
@proceedings{parent, title = {Proceedings of {Tests}}, booktitle = {Proc. of {Tests}},
  editor = {Ed Itor}, doi = {10.1000/whole}, keywords = {tests}, crossref = {series}}
@proceedings{plain, title = {Proceedings of Plain}, year = 2001}
@periodical{issue, title = {A Journal}, date = {2002-03}}
@misc{series, title = {A Series}, year = 2003, key = {sorted by}}
@misc{, title = {Without a key}}
"""
    papers = {paper.id: paper for paper in read(written(tmp_path, "a.bib", text))}
    assert len(papers) == 12
    found = {name: (paper.venue, paper.year) for name, paper in papers.items()}
    assert found["child"] == ("Proc. of Tests", 2003)
    assert found["own"] == ("Its own", 1999)
    assert found["of_title"] == ("Proceedings of Plain", 2001)
    assert found["of_issue"] == ("A Journal", 2002)
    assert found["lost"] == ("", None)
    assert found["round"] == found["again"] == ("G", None)
    assert "series" in papers
    child = papers["child"]
    assert (child.title, child.doi, child.labels, child.authors) == ("A", "", [], ["Ann Lee"])


def test_of_a_field_that_an_entry_has_twice_the_first_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BibTeX warns and ignores "extra" fields, whose names have no case."""
    text = """@misc{a, title = {A}}
@misc{b, title = {B},
  Title = {Other}, year = 2001, year = 2002}
@misc{c, title = {C}, note = {one}, note = {two}, note = {three}}
"""
    path = written(tmp_path, "a.bib", text)
    assert [(paper.title, paper.year) for paper in read(path)] == [
        ("A", None),
        ("B", 2001),
        ("C", None),
    ]
    kept = "the first value counts, as in BibTeX; so it is in 1 more entry"
    assert caplog.messages == [f"{path}:2: entry has title, year twice; {kept}"]


def test_an_entry_with_a_field_twice_still_has_a_key_of_its_own(tmp_path: Path) -> None:
    for first, second in (("year = 1, year = 2", "year = 1"), ("year = 1", "year = 1, year = 2")):
        text = f"@misc{{a, title = {{A}}, {first}}}\n@misc{{a, title = {{B}}, {second}}}\n"
        with pytest.raises(DataError, match=r"a\.bib:2: key occurs twice"):
            read(written(tmp_path, "a.bib", text))


def test_entries_that_are_no_papers_give_theirs_to_papers(tmp_path: Path) -> None:
    text = """@xdata{ACL, booktitle = {Proc. of Tests}, doi = {10.1000/1}, xdata = {year, acl}}
@xdata{year, date = {2019-07}, title = {Of the data}}
@set{both, entryset = {a, b}}
@IEEEtranBSTCTL{IEEEexample:BSTcontrol, CTLuse_forced_etal = "yes"}
@CONTROL{REVTEX42Control}
@control{apsrev42Control, author = "08", editor = "1"}
@inproceedings{a, title = {A}, xdata = {acl, lost}}
@article{b, title = {B}, xdata = {a}}
@inbook{c, title = {C}, crossref = {whole}}
@book{whole, title = {A Book}, xdata = { acl , own }}
@xdata{own, title = {A whole Book}, booktitle = {}}
"""
    found = {
        paper.id: (paper.title, paper.venue, paper.year, paper.doi)
        for paper in read(written(tmp_path, "a.bib", text))
    }
    assert found == {
        "a": ("Of the data", "Proc. of Tests", 2019, "10.1000/1"),
        "b": ("B", "", None, ""),
        "c": ("C", "A whole Book", 2019, ""),
        "whole": ("A whole Book", "", 2019, "10.1000/1"),
    }


def test_a_circle_of_xdata_is_the_same_wherever_it_is_read_first(tmp_path: Path) -> None:
    """The second paper that named one lacked the fields of where the first had begun."""
    circle = """@xdata{a, title = {A}, abstract = {Of a}, xdata = {b}}
@xdata{b, title = {B}, doi = {10.1000/2}, xdata = {c}, note = {xdata=a-title}}
@xdata{c, title = {C}, year = 2003, xdata = {alone, a}}
@xdata{alone, journal = {J}}
"""
    papers = [f"@article{{of_{name}, xdata = {{{name}}}}}\n" for name in "abc"]
    found = [
        {
            paper.id: (paper.title, paper.abstract, paper.doi, paper.venue, paper.year, paper.extra)
            for paper in read(written(tmp_path, "a.bib", "".join([*order, circle])))
        }
        for order in permutations(papers)
    ]
    assert all(each == found[0] for each in found)
    for paper in found[0].values():
        assert paper[1:5] == ("Of a", "10.1000/2", "J", 2003)


@pytest.mark.timeout(60)
def test_xdata_that_all_name_each_other_are_refused(tmp_path: Path) -> None:
    keys = [f"k{n}" for n in range(30)]
    text = "".join(f"@xdata{{{key}, xdata = {{{','.join(keys)}}}}}\n" for key in keys)
    path = written(tmp_path, "a.bib", text + "@article{a, title = {A}, xdata = {k1}}")
    with pytest.raises(DataError, match=r"a\.bib:31: .*xdata entries name each other"):
        read(path)


@pytest.mark.parametrize(
    ("author", "names"),
    [
        ("Simon Smith and xdata=two-author-1", ["Simon Smith", "Brian Bloom"]),
        ("xdata=two-author and Simon Smith", ["Brian Bloom", "Arthur Anderson", "Simon Smith"]),
        ("XDATA=Two-Author-2", ["Arthur Anderson"]),
        ("xdata=with-mark-author-2", ["Frank Frill"]),
        # Left as they are: no such field, name or entry, one that is no xdata, a circle.
        ("xdata=two-editor", ["xdata=two-editor"]),
        ("xdata=two-author-3", ["xdata=two-author-3"]),
        ("xdata=two-author-0", ["xdata=two-author-0"]),
        ("xdata=missing-author-1", ["xdata=missing-author-1"]),
        ("xdata=book-author-1", ["xdata=book-author-1"]),
        ("xdata=loop-author-1", ["xdata=loop-author-1"]),
    ],
)
def test_names_of_xdata_entries_as_in_the_tests_of_biber(
    tmp_path: Path, author: str, names: list[str]
) -> None:
    text = f"""@book{{a, title = {{xdata=title-title}}, author = {{{author}}}}}
@xdata{{two, author = {{Brian Bloom and Anderson, Arthur}}}}
@xdata{{with-mark, author = {{William Wool and xdata=title-author-1}}}}
@xdata{{title, author = {{Frank Frill}}, title = {{Some title}}}}
@xdata{{loop, author = {{xdata=again-author-1}}}}
@xdata{{again, author = {{xdata=loop-author-1}}}}
@book{{book, title = {{B}}, author = {{Ann Lee}}}}
"""
    paper = read(written(tmp_path, "a.bib", text))[0]
    assert (paper.title, paper.authors) == ("Some title", names)


@pytest.mark.parametrize(
    ("author", "names"),
    [
        ("family=Doe, given=John, prefix=von", ["John von Doe"]),
        (
            "given=Hans, given-i={HC}, family={van Beethoven}, useprefix=true and Ann Lee",
            ["Hans van Beethoven", "Ann Lee"],
        ),
        ("family={Robert and {S}ons, Inc.}", ["Robert and Sons, Inc."]),
        ('"family=O\'Neil, given=Tim, suffix=Jr."', ["Tim O'Neil Jr."]),
        ("O'Neil, Jr., Tim", ["Tim O'Neil Jr."]),
        (
            r"Ann Lee and \'Emile Zola and \L{}ukasz \O dum",
            ["Ann Lee", "Émile Zola", "Łukasz Ødum"],
        ),
        (r"Jo\~ao Pe\~{n}a and Mu\~noz, I\~n{\'\i}go~J.", ["João Peña", "Iñígo J. Muñoz"]),
        ("{Simon and Schuster} AND others", ["Simon and Schuster"]),
    ],
)
def test_names_in_the_forms_of_bibtex_and_biblatex(
    tmp_path: Path, author: str, names: list[str]
) -> None:
    (paper,) = read(written(tmp_path, "a.bib", f"@misc{{k, title={{A}}, author={{{author}}}}}\n"))
    assert paper.authors == names


@pytest.mark.parametrize(
    ("address", "doi"),
    [
        ("https://doi.org/10.1002/ABC.123", "10.1002/abc.123"),
        ("http://dx.doi.org/10.1002/abc.123", "10.1002/abc.123"),
        ("https://onlinelibrary.wiley.com/doi/10.1002/abc.123/full", ""),
        ("https://example.org/article?id=10.1371/journal.1&type=printable", ""),
    ],
)
def test_only_addresses_of_the_resolver_tell_the_doi(
    tmp_path: Path, address: str, doi: str
) -> None:
    (paper,) = read(written(tmp_path, "a.bib", f"@misc{{k, title={{A}}, url={{{address}}}}}\n"))
    assert paper.doi == doi
    text = f"@misc{{k, title={{A}}, doi={{10.1/x}}, url={{{address}}}}}\n"
    (paper,) = read(written(tmp_path, "b.bib", text))
    assert paper.doi == "10.1/x"


def test_a_subtitle_belongs_to_the_title(tmp_path: Path) -> None:
    text = "@book{a, title = {Main}, subtitle = {What of it}}\n@misc{b, subtitle = {Alone}}"
    assert [paper.title for paper in read(written(tmp_path, "a.bib", text))] == [
        "Main: What of it",
        "Alone",
    ]


@pytest.mark.parametrize(
    ("field", "doi"),
    [
        (r"doi = {10.1007/978-3-319{\_}28}", "10.1007/978-3-319_28"),
        (r"doi = {10.1000/a\_b\%2}", "10.1000/a_b%2"),
        (r"doi = {\url{https://doi.org/10.1000/a_b}}", "10.1000/a_b"),
        (r"doi = {{10.1000/A--b~c}}", "10.1000/a--b~c"),
        (r"doi = {10.1002/(SICI){\textless}69::AID-A4{\textgreater}3.0.CO;2-O}",
         "10.1002/(sici)<69::aid-a4>3.0.co;2-o"),
        (r"url = {https://doi.org/10.1000/x{\_}y}", "10.1000/x_y"),
    ],
)  # fmt: skip
def test_a_doi_is_read_without_its_latex(tmp_path: Path, field: str, doi: str) -> None:
    (paper,) = read(written(tmp_path, "a.bib", f"@misc{{a, title = {{A}}, {field}}}"))
    assert paper.doi == doi


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ("keywords={Index term}, author_keywords={graphs;  trees}", ["graphs", "trees"]),
        ("Keywords-Plus={NETWORKS; MODEL}, keywords={graphs}", ["graphs"]),
        ("Keywords-Plus={NETWORKS; MODEL}", ["NETWORKS", "MODEL"]),
    ],
)
def test_keywords_of_scopus_and_web_of_science(
    tmp_path: Path, fields: str, labels: list[str]
) -> None:
    (paper,) = read(written(tmp_path, "a.bib", f"@misc{{a, title = {{A}}, {fields}}}"))
    assert paper.labels == labels


def test_the_institution_of_a_thesis_or_report_is_its_venue(tmp_path: Path) -> None:
    """BibLaTeX's manual, 2.2.5: ``school`` is another name of ``institution``."""
    text = "@thesis{a, title={A}, institution={MIT}}\n@phdthesis{b, title={B}, school={MIT}}"
    assert [paper.venue for paper in read(written(tmp_path, "a.bib", text))] == ["MIT", "MIT"]


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("@online-resource{k, title = {A}}", "@online-resource{k"),
        ("some text\n@ article{k, title = {A}}", "@ article{k"),
        ("@article\n{k, title = {A}}", "@article"),
        ("@articlek, title = {A}}", "@articlek"),
        # Without its comma, the title would be "A year = 2000", and the year unknown.
        ("@article{k, title = {A}\n year = 2000}", "{A}\n year = 2000"),
        ('@article{k, title = "A" author = "B"}', '"A" author = "B"'),
        ("@article{k, year = 2000 title = {A}}", "2000 title = {A}"),
    ],
)
def test_an_entry_that_is_none_is_told(tmp_path: Path, entry: str, value: str) -> None:
    path = written(
        tmp_path, "a.bib", f"@misc{{a, title = {{B}}}}\n{entry}\n@misc{{b, title={{C}}}}"
    )
    rejects = Rejects(skip_bad=True)
    assert [paper.id for paper in read_papers(path, rejects=rejects)] == ["a", "b"]
    assert dict(rejects.counts) == {"entry is not valid BibTeX": 1}
    ((example,),) = rejects.examples.values()
    line = 1 + f"\n{entry}".partition("@")[0].count("\n")
    assert f"a.bib:{line}: " in example
    assert repr(value)[1:-1] in example


@pytest.mark.parametrize("start", ["@article{\n", "@Article { ", "\t@article(\n\t", "@article{,"])
def test_an_entry_may_lack_its_key(tmp_path: Path, start: str) -> None:
    """As in files of EndNote; Better BibTeX reads them, too."""
    end = ")" if "(" in start else "}"
    entry = f"{start} author = {{Lee, Ann}},\n  title = {{A}}, year = 2012\n{end}\n"
    text = f"{entry}@misc{{b, title = {{B}}}}\n{entry.replace('{A}', '{C}')}"
    papers = read(written(tmp_path, "a.bib", text))
    assert [paper.title for paper in papers] == ["A", "B", "C"]
    assert (papers[0].authors, papers[2].year, papers[1].id) == (["Ann Lee"], 2012, "b")
    assert [paper.id_from for paper in papers] == ["text", "record", "text"]


def test_a_comment_above_a_field_hides_nothing(tmp_path: Path) -> None:
    text = "@misc{a, title = {A},\n  % the year of the proceedings\n  year = 2000}"
    (paper,) = read(written(tmp_path, "a.bib", text))
    assert paper.year == 2000
