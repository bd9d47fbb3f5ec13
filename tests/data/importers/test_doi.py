"""DOIs: what surrounds them goes, what belongs to them stays."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.importers.doi import short_doi

# Registered DOIs with characters that also end links and sentences.
UNUSUAL = [
    "10.1016/S0140-6736(05)67889-9",
    "10.1002/(SICI)1097-4571(199806)49:8<693::AID-ASI4>3.0.CO;2-O",
    "10.1002/(SICI)1096-8644(199601)99:1<1::AID-AJPA1>3.0.CO;2-#",
    "10.1175/1520-0493(1998)126<0000:AB>2.0.CO;2",
    "10.1890/0012-9658(2006)87[1465:ATLTGC]2.0.CO;2",
    "10.1641/0006-3568(2004)054[0547:EITFCI]2.0.CO;2",
    "10.3406/arch.1977.1322",
    "10.48550/arXiv.0704.0099",
    "10.1371/journal.pone.0000217",
    "10.1038/s41586-021-03819-2",
    "10.1130/B25510.1",
    "10.1093/bioinformatics/bti1018",
]


@pytest.mark.parametrize("doi", UNUSUAL)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "doi:{}",
        "DOI {}.",
        '"{}"',
        "'{}'",
        "“{}”",
        "«{}»",
        "({})",
        "[doi: {}];",
        "{{{}}}",
        "(see https://doi.org/{}).",
        "<https://doi.org/{}>",
        'href="https://doi.org/{}">',
        "\u200b{}\u200b",
        "\ufeff{}",
    ],
)
def test_what_stands_around_a_doi(doi: str, around: str) -> None:
    assert short_doi(around.format(doi)) == doi.lower()


@pytest.mark.parametrize("doi", UNUSUAL)
@pytest.mark.parametrize("resolver", ["https://doi.org/", "http://dx.doi.org/", "doi.org/"])
@pytest.mark.parametrize("after", ["", "?utm_source=x&y=1", "#section-2", "?a=b#c", "#"])
def test_links_are_decoded_and_lose_their_query(doi: str, resolver: str, after: str) -> None:
    for safe in ("/", ""):
        assert short_doi(resolver + quote(doi, safe=safe) + after) == doi.lower()
    if not doi.endswith("#"):
        assert short_doi(resolver + doi + after) == doi.lower()


def test_what_is_no_link_keeps_its_signs() -> None:
    assert short_doi("10.1000/a%2Fb?c#d") == "10.1000/a%2fb?c#d"
    assert short_doi("https://example.org/resolve?doi=10.1000/abc") == "10.1000/abc"
    assert short_doi("10.1000/abc (find it at doi.org/search)") == "10.1000/abc"
    assert short_doi("10.1000/a\u200bb") == "10.1000/ab"


@pytest.mark.parametrize("text", ["10.1000/", "10.1000/).", "https://doi.org/", '10.1000/"a"'])
def test_a_prefix_alone_is_none(text: str) -> None:
    assert short_doi(text) == ""


@given(st.text(st.sampled_from("aB1.-_:;()/<>[]#?"), min_size=1))
def test_a_short_doi_stays_as_it_is(suffix: str) -> None:
    doi = short_doi(f"10.1000/{suffix}")
    assert doi in f"10.1000/{suffix}".lower()
    assert short_doi(doi) == doi
    if doi:
        assert short_doi(f"https://doi.org/{quote(doi)}") == doi
