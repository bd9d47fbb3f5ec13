"""The data card's figures are those of the data; its plots are there and none is broken."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from scimult.cli.main import app
from scimult.data.hygiene.card import write_card
from scimult.data.hygiene.statistics import label_frequencies, quantiles, text_statistics
from scimult.data.prepared import PreparedData
from scimult.mining.dataset import build_dataset
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


def test_languages_of_long_texts(tmp_path: Path) -> None:
    german = "Wir untersuchen, wie sich die Temperatur auf das Wachstum der Pflanzen auswirkt, "
    english = "We study how temperature affects the growth of plants under different light, "
    root = write_raw(tmp_path / "raw")
    papers = [
        dict(paper, abstract=(german if row < 5 else english) * 3)
        for row, paper in enumerate(PAPERS)
    ]
    write_jsonl(root / "papers.jsonl", papers)
    data, _ = build_dataset(raw_config(root), tmp_path / "out")
    assert text_statistics(data.texts, sample=100).languages == {"en": 15, "de": 5}


def test_the_card_names_its_plots_and_parts(data: PreparedData, tmp_path: Path) -> None:
    path = tmp_path / "cards" / "toy.md"
    result = CliRunner().invoke(app, ["card", str(data.folder), "--out", str(path)])
    assert result.exit_code == 0, result.output
    text = path.read_text()
    plots = re.findall(r"\]\((.*\.png)\)", text)
    assert plots == ["toy_lengths.png", "toy_labels.png", "toy_years.png"]
    assert all((path.parent / plot).stat().st_size > 1000 for plot in plots)
    assert data.fingerprint in text
    assert "| toy | toy | 20 | 5 | 6 | CC0 |" in text
    for entry in data.manifest["pairs"]:
        counts = f"{entry['split']} | {entry['queries']} | {entry['pairs']} |"
        assert f"| toy | {entry['task']} | {counts}" in text
    assert "Not looked for (`hygiene.duplicates`)" in text


def test_a_card_of_a_folder_with_links_alone(tmp_path: Path) -> None:
    root = write_raw(tmp_path / "raw")
    papers = [{key: paper[key] for key in ("id", "title", "abstract")} for paper in PAPERS]
    write_jsonl(root / "papers.jsonl", papers)
    source = {"name": "links", "papers": "papers.jsonl", "citations": "citations.tsv"}
    data, _ = build_dataset(raw_config(root, sources=[source]), tmp_path / "out")
    write_card(data, tmp_path / "card.md")
    text = (tmp_path / "card.md").read_text()
    assert "## Labels" not in text
    assert "## Years" not in text
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["card_lengths.png"]
