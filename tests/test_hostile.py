"""Small files that cost hours or gigabytes: each is read, or refused, in seconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from scimult import progress
from scimult.cli.output import print_records
from scimult.config import read_yaml
from scimult.data import formats, lines
from scimult.data.importers import read_papers
from scimult.data.importers.doi import short_doi
from scimult.data.importers.markup import plain_text
from scimult.data.importers.names import first_name_first
from scimult.data.importers.values import keywords_in
from scimult.data.records import Rejects
from scimult.errors import ConfigError, DataError
from scimult.evaluation.reporting import page
from scimult.models import EncoderConfig
from scimult.retrieval.analysis import LUCENE, Analyser
from scimult.tagging import read_vocabulary
from scimult.tagging.evidence import sentences

# What is read in one pass takes less than a second; what takes the square of its length, minutes.
pytestmark = pytest.mark.timeout(20)
_LAST = 24


def _read(tmp_path: Path, name: str, text: str) -> tuple[list[Any], str]:
    (tmp_path / name).write_text(text, encoding="utf-8")
    rejects = Rejects(skip_bad=True)
    papers = list(read_papers(tmp_path / name, rejects=rejects))
    return papers, rejects.summary()


def _chain(line: str) -> str:
    """Return a line for each of 24 entries, with the numbers of it and the next one."""
    return "".join(line.replace("NEXT", f"x{i + 1}").replace("THIS", f"x{i}") for i in range(_LAST))


BIBTEX = {
    "strings that double": (
        "@string{x0 = {0123456789}}\n"
        + "".join(f"@string{{x{i} = x{i - 1} # x{i - 1}}}\n" for i in range(1, _LAST))
        + f"@article{{k, title = x{_LAST - 1} # x9}}",
        "",
    ),
    "values of xdata that double": (
        _chain("@xdata{THIS, title = {xdata=NEXT-title xdata=NEXT-title}}\n")
        + f"@xdata{{x{_LAST}, title = {{T}}}}\n@article{{k, title = {{xdata=x0-title}}}}",
        "stands for",
    ),
    "a long chain": (
        "".join(f"@xdata{{x{i}, xdata = {{x{i + 1}}}}}\n" for i in range(3000))
        + "@article{k, title = {T}, xdata = {x0}}",
        "nested too deeply",
    ),
    "deep LaTeX": (
        "@article{k, title = {" + "\\textbf{" * 3000 + "a" + "}" * 3000 + "}}",
        "nested too deeply",
    ),
}


@pytest.mark.parametrize("what", BIBTEX)
def test_bibtex_that_grows_is_refused(tmp_path: Path, what: str) -> None:
    """Thirty lines held gigabytes, and deep ones ended in a traceback."""
    text, reason = BIBTEX[what]
    papers, summary = _read(tmp_path, "a.bib", text + "\n@article{b, title = {B}}\n")
    assert papers[-1].title == "B"
    assert reason in summary
    assert sum(len(paper.title) for paper in papers) < 20_000


def test_xdata_that_others_name_twice_is_read_once(tmp_path: Path) -> None:
    text = _chain("@xdata{THIS, xdata = {NEXT, NEXT}}\n") + f"@xdata{{x{_LAST}, title = {{T}}}}\n"
    papers, _ = _read(tmp_path, "a.bib", text + "@article{k, xdata = {x0}}\n")
    assert [paper.title for paper in papers] == ["T"]


@pytest.mark.parametrize(
    "unit",
    [
        "<![CDATA[",
        "<?CDATA ",
        "<?MML ",
        "<!--",
        "<alternatives>",
        "<tex-math>",
        "<alternatives><tex-math></tex-math>",
        "&amp;amp;",
        "amp;",
    ],
)
def test_markup_that_nothing_closes_is_read_in_one_pass(unit: str) -> None:
    plain_text("&" + unit * (200_000 // len(unit)))


def test_formulas_with_many_names_or_preambles_are_read_in_one_pass() -> None:
    plain_text("".join(f"<a{i}:alternatives><tex-math></tex-math>" for i in range(8000)))
    preambles = "\\documentclass" * 12_000
    plain_text(f"<alternatives><tex-math>{preambles}</tex-math></alternatives>")


@pytest.mark.long
def test_long_values_are_split_in_one_pass(tmp_path: Path) -> None:
    gap = "x" + " " * 100_000 + "x"
    assert keywords_in(f"a , {gap};b") == ["a", gap, "b"]
    assert first_name_first(f"Doe, {gap}") == "x x Doe"
    assert short_doi("10." * 100_000) == ""
    assert short_doi("10.1000/" + ")" * 100_000) == ""
    ris = "TY  - JOUR\nTI  - t\nAB  - a\n" + "x\n" * 1_600_000 + "ER  - \n"
    assert len(_read(tmp_path, "a.ris", ris)[0][0].abstract) == 3_200_001


def test_what_pubmed_deletes_is_found_in_one_pass(tmp_path: Path) -> None:
    _read(tmp_path, "a.xml", "<PubmedArticleSet><DeleteCitation>" + "<PMID " * 50_000)


def test_text_before_the_papers_of_a_page_is_read_in_one_pass(tmp_path: Path) -> None:
    _read(tmp_path, "a.json", '{"status":1' + ',"message":{' * 8000)


def test_a_line_or_element_that_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two megabytes of gzip hold a line of two gigabytes, which took several times as much."""
    monkeypatch.setattr(lines, "LONGEST", 1 << 20)
    monkeypatch.setattr(formats, "LONGEST", 1 << 20)
    record = json.dumps({"id": "1", "title": "a" * (1 << 22)})
    for name, text in (("a.jsonl", record), ("a.csv", record), ("a.json", f"[{record}]")):
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(text.encode()))
        with pytest.raises(DataError, match=r"(line|element) has more than 1,048,576"):
            list(read_papers(path))
    fits = tmp_path / "fits.jsonl"
    fits.write_text(json.dumps({"id": "1", "title": "a" * 1000}) + "\n")
    assert len(list(read_papers(fits))) == 1


def test_numbers_of_a_configuration_are_read_in_one_pass(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: " + "1" * 100_000 + "x\n")
    read_yaml(path)


def test_a_configuration_that_is_included_twice_is_read_once(tmp_path: Path) -> None:
    """Thirty files that include the next one twice took hours; a long chain was a traceback."""
    last = {"include": [], "a": {"b": 1, "c": 1}}
    for number in range(30):
        other = f"{number + 1}.yaml" if number < 29 else "last.yaml"
        tree = {"include": [other, f"../{tmp_path.name}/{other}"], "a": {"b": number}}
        (tmp_path / f"{number}.yaml").write_text(json.dumps(tree))
    (tmp_path / "last.yaml").write_text(json.dumps(last))
    assert read_yaml(tmp_path / "0.yaml") == {"a": {"b": 0, "c": 1}}
    assert read_yaml(tmp_path / "29.yaml") == {"a": {"b": 29, "c": 1}}
    for number in range(2000):
        (tmp_path / f"{number}.yaml").write_text(f"include: {number + 1}.yaml")
    with pytest.raises(ConfigError, match=r"100\.yaml: 100 files include each the next"):
        read_yaml(tmp_path / "0.yaml")


@pytest.mark.long
def test_quotes_that_open_in_every_line_are_read_in_one_pass(tmp_path: Path) -> None:
    """Each row seemed to go on to the end of the file: half a megabyte took an hour."""
    for name, line in (("a.csv", 'a","b\n'), ("a.csv", '"x"y","z\n'), ("a.tsv", 'a"\t"b\n')):
        text = line * 50_000
        mark = "," if name == "a.csv" else "\t"
        papers, summary = _read(tmp_path, name, f"id{mark}title\n{text}c{mark}C\n")
        assert papers[-1].title == "C"
        if name == "a.csv":
            assert "50,000" in summary


@pytest.mark.long
def test_words_of_latex_are_decoded_once(tmp_path: Path) -> None:
    """A megabyte of accents took over 20 seconds."""
    papers, _ = _read(tmp_path, "a.bib", "@article{k, title = {" + r"\'e " * 400_000 + "}}")
    assert papers[0].title == "é" + " é" * 399_999


@pytest.mark.long
def test_abbreviations_and_ruled_lines_are_read_in_one_pass() -> None:
    assert len(sentences("A. " * 33_000 + "B. See e.g. Fig. 1. It ends.")) == 2
    Analyser(tokens=LUCENE, stop_words="none", stemmer="none")(["_" * 200_000])


def test_entities_of_entities_in_skos_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.rdf"
    names = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:skos="&s;"'
    concept = (
        '<skos:Concept rdf:about="http://e/1"><skos:prefLabel>&x;</skos:prefLabel></skos:Concept>'
    )
    skos = '<!ENTITY s "http://www.w3.org/2004/02/skos/core#">'
    text = "<!DOCTYPE l [{} {}]><rdf:RDF {}>{}</rdf:RDF>"
    path.write_text(text.format(skos, '<!ENTITY x "R&#38;#38;D">', names, concept))
    assert [one.label for one in read_vocabulary(path)] == ["R&D"]
    laughs = "".join(f'<!ENTITY x{i} "{f"&x{i - 1};" * 10}">' for i in range(1, 7))
    laughs = f'<!ENTITY x0 "lol"> {laughs} <!ENTITY x "&#38;x6;">'
    path.write_text(text.format(skos, laughs, names, concept))
    with pytest.raises(DataError, match="an entity consists of others"):
        read_vocabulary(path)


def test_a_model_of_a_billion_blocks_is_refused(tmp_path: Path) -> None:
    sizes = {"num_heads": 2, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 9}
    with pytest.raises(ValidationError, match="num_blocks"):
        EncoderConfig(num_blocks=10**9, **sizes)


def test_names_do_not_leave_a_comment_of_latex_or_steer_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report: Any = SimpleNamespace(suite="a\n\\input{x}", baseline="b", tables=[], frequencies=[])
    assert page._latex(report).startswith("% Suite a \\input{x}. Needs")
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    with progress.bar("a\x1b[2J", total=1) as meter:
        assert meter.desc.startswith("a\\x1b[2J")


def test_a_folder_with_signs_of_markup_or_of_a_terminal_heads_a_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``library info`` printed its name as it is, and ended in a traceback at ``[/b]``."""
    print_records([{"": "papers", "a\x1b[2J[/b]": 1}], "")
    assert "a\\x1b[2J[/b]" in capsys.readouterr().out
