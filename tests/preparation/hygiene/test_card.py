"""The data card's figures match the data, and its plots exist and are valid."""

from __future__ import annotations

from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from scimult.data.pairs import SPLITS
from scimult.data.prepared import PreparedData
from scimult.preparation.dataset import build_dataset
from scimult.preparation.hygiene.card import _plot_labels, write_card
from scimult.preparation.hygiene.statistics import (
    draw_examples,
    label_frequencies,
    quantiles,
    text_statistics,
)
from scimult.types import Text
from tests.command import completed, invoke
from tests.raw_corpus import LABELS, PAPERS, raw_config, write_jsonl, write_raw


@pytest.fixture
def data(tmp_path: Path) -> PreparedData:
    root = write_raw(tmp_path / "raw")
    config = raw_config(root, max_pairs_per_label=2)
    config.sources[0].licence = "CC0"
    return build_dataset(config, tmp_path / "out")[0]


def test_counts_are_those_of_the_raw_files(data: PreparedData) -> None:
    found = text_statistics(data.texts, sample=0)
    words = sorted(len(f"{p['title']} {p['abstract']}".split()) for p in PAPERS)
    assert sorted(found.words["paper"].tolist()) == words
    assert found.without_body == {"paper": 1, "label": 1, "query": 6}
    carried = [label for paper in PAPERS for label in paper["labels"]]
    expected = [carried.count(label["id"]) for label in LABELS]
    assert label_frequencies(data)["toy"].tolist() == expected


def test_quantiles_are_values_of_the_data() -> None:
    assert quantiles(np.arange(101)) == [5, 50, 95, 100]
    assert quantiles(np.array([], dtype=np.int64)) == [0, 0, 0, 0]


def test_a_source_of_any_name_is_in_the_legend_of_its_labels() -> None:
    axes = Figure().subplots()
    _plot_labels(axes, {"_a": np.array([3, 1]), "b": np.array([2])})
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_a", "b"]


@pytest.mark.long
def test_languages_of_long_texts(root: Path, tmp_path: Path) -> None:
    german = "Wir untersuchen, wie sich die Temperatur auf das Wachstum der Pflanzen auswirkt, "
    english = "We study how temperature affects the growth of plants under different light, "
    papers = [
        dict(paper, abstract=(german if row < 5 else english) * 3)
        for row, paper in enumerate(PAPERS)
    ]
    write_jsonl(root / "papers.jsonl", papers)
    data, _ = build_dataset(raw_config(root), tmp_path / "out")
    assert text_statistics(data.texts, sample=100).languages == {"en": 15, "de": 5}


@pytest.mark.long
def test_the_card_names_its_plots_and_parts(data: PreparedData, tmp_path: Path) -> None:
    path = tmp_path / "cards" / "my töy).md"
    completed("card", data.folder, "--out", path)
    text = path.read_text()
    # A renderer ends a plain link at a space or this bracket.
    parts = [part for block in MarkdownIt().parse(text) for part in block.children or ()]
    plots = [unquote(str(part.attrs["src"])) for part in parts if part.type == "image"]
    assert plots == ["my töy)_lengths.png", "my töy)_labels.png", "my töy)_years.png"]
    assert all((path.parent / plot).stat().st_size > 1000 for plot in plots)
    assert data.fingerprint in text
    assert "| toy | toy | 20 | 5 | 6 | CC0 |" in text
    for entry in data.manifest.pairs:
        counts = f"{entry.split} | {entry.queries} | {entry.pairs} |"
        assert f"| toy | {entry.task} | {counts}" in text
    assert "Not checked (`hygiene.duplicates`)" in text


@pytest.mark.long
def test_a_card_of_a_folder_with_only_links(root: Path, tmp_path: Path) -> None:
    papers = [{key: paper[key] for key in ("id", "title", "abstract")} for paper in PAPERS]
    write_jsonl(root / "papers.jsonl", papers)
    source = {"name": "links", "papers": "papers.jsonl", "citations": "citations.tsv"}
    data, _ = build_dataset(raw_config(root, sources=[source]), tmp_path / "out")
    write_card(data, tmp_path / "card.md")
    text = (tmp_path / "card.md").read_text()
    assert "## Labels" not in text
    assert "## Years" not in text
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["card_lengths.png"]


MIX: dict[str, Any] = {
    "citations": ["cited_by_cited", {"rule": "random", "count": 6}],
    "queries": ["shown"],
    "labels": [],
}


@pytest.mark.long
def test_examples_are_drawn_from_all_that_a_rule_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scimult.preparation.hygiene.statistics.NEGATIVES_PER_CHUNK", 5)
    data, _ = build_dataset(raw_config(write_raw(tmp_path / "raw"), mining=MIX), tmp_path / "out")
    given: dict[str, set[tuple[Text, Text]]] = {"cited_by_cited": set(), "random": set()}
    for file in (file for split in SPLITS for file in data.pairs(split)):
        assert file.found_by is not None
        owners = file.negatives.owners
        for owner, row, bits in zip(owners, file.negatives.values, file.found_by, strict=True):
            for bit, rule in enumerate(file.rules):
                if bits >> bit & 1:
                    texts = data.texts.text(int(file.queries[owner])), data.texts.text(int(row))
                    given.setdefault(rule, set()).add(texts)
    everything = draw_examples(data, 10_000)
    assert list(everything) == ["cited_by_cited", "random", "shown"]
    for rule, examples in everything.items():
        assert {(example.query, example.negative) for example in examples} == given[rule]
        for example in examples:
            assert example.source == "toy"
            assert example.positive not in (example.query, example.negative)
    some = draw_examples(data, 3, seed=1)
    assert some == draw_examples(data, 3, seed=1)
    assert some != draw_examples(data, 3, seed=2)
    for rule, examples in some.items():
        assert len(examples) == 3
        assert set(examples) <= set(everything[rule])


@pytest.mark.long
def test_the_card_shows_negatives_on_request_and_escapes_them(root: Path, tmp_path: Path) -> None:
    title = "A | pipe, *stars*, `code`, <b>tags</b>, [a](b), $x_1$ and\nlines"
    write_jsonl(root / "papers.jsonl", [dict(paper, title=title) for paper in PAPERS])
    data, _ = build_dataset(raw_config(root, mining=MIX), tmp_path / "out")
    path = tmp_path / "card.md"
    invoke("card", data.folder, "--out", path)
    assert "pipe" not in path.read_text()
    arguments = ["card", str(data.folder), "--out", str(path), "--negatives", "2"]
    completed(*arguments)
    text = path.read_text()
    assert "its licences apply to them" in text
    rows = [line for line in text.splitlines() if "pipe" in line]
    assert len(rows) == 6
    html = MarkdownIt().enable("table").render(text)
    assert "<b>" not in html
    assert "<em>" not in html
    shown = unescape(html)
    # Two examples of three rules; the queries of searches have another text.
    assert shown.count(" ".join(title.split())) == 2 * 9 - 2


@pytest.mark.long
def test_the_card_reports_unknown_rules(tmp_path: Path) -> None:
    nothing = {part: [] for part in ("citations", "queries", "labels")}
    config = raw_config(write_raw(tmp_path / "raw"), mining=nothing)
    data, _ = build_dataset(config, tmp_path / "out")
    write_card(data, tmp_path / "card.md", negatives=2)
    assert "does not record which rules gave its negatives" in (tmp_path / "card.md").read_text()
