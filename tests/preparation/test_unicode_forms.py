"""Ids that differ only in Unicode form stay different, and the user is told."""

from __future__ import annotations

from pathlib import Path
from unicodedata import normalize

import pytest

from scimult.config import validate
from scimult.errors import DataError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from tests.public import Content, run, table
from tests.raw_corpus import write_jsonl, write_tsv

COMPOSED, APART = "\u00e9", normalize("NFD", "\u00e9")
PAPERS = [{"id": f"{COMPOSED}{i}", "title": f"T{i}", "abstract": ""} for i in range(3)]
EDGES = [(f"{COMPOSED}0", f"{COMPOSED}1"), (f"{APART}1", f"{COMPOSED}2"), ("none", f"{COMPOSED}2")]
REMARK = r"only in Unicode form, and so are not the same: 1, such as 'e\u03011'"


@pytest.mark.parametrize("dangling", ["drop", "error"])
def test_prepare_warns_of_citations_in_another_form(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dangling: str
) -> None:
    write_jsonl(tmp_path / "p.jsonl", PAPERS)
    write_tsv(tmp_path / "c.tsv", ("citing", "cited"), EDGES)
    source = {"name": "a", "papers": "p.jsonl", "citations": "c.tsv"}
    tree = {"root": str(tmp_path), "sources": [{**source, "dangling": {"citations": dangling}}]}
    config = validate(DatasetConfig, tree)
    if dangling == "error":
        with pytest.raises(DataError, match="names an unknown paper"):
            build_dataset(config, tmp_path / "out")
    else:
        data, _ = build_dataset(config, tmp_path / "out")
        assert data.manifest.sources[0].counts["citations"] == 1
    (message,) = (r.message for r in caplog.records if "Unicode" in r.message)
    assert message.startswith(f"{tmp_path / 'c.tsv'}: ids")
    assert REMARK in message


def test_prepare_warns_of_labels_and_papers_in_two_forms(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    papers = [{"id": id, "title": "T", "abstract": "", "labels": ["x"]} for id in (COMPOSED, APART)]
    write_jsonl(tmp_path / "p.jsonl", [*papers, {**papers[0], "id": "3", "labels": [APART]}])
    write_jsonl(tmp_path / "l.jsonl", [{"id": "x", "name": "X"}, {"id": COMPOSED, "name": "E"}])
    source = {"name": "a", "papers": "p.jsonl", "labels": "l.jsonl"}
    config = validate(DatasetConfig, {"root": str(tmp_path), "sources": [source]})
    data, _ = build_dataset(config, tmp_path / "out", skip_bad=True)
    assert [f"a:{COMPOSED}", f"a:{APART}"] == data.texts.ids[2:4]
    messages = [r.message for r in caplog.records if "Unicode" in r.message]
    assert [message.partition("same: ")[2][:9] for message in messages] == [
        "2, such a",
        "1, such a",
    ]


def test_a_conversion_notes_pairs_in_another_form(tmp_path: Path) -> None:
    files: dict[str, Content] = {"p.jsonl": PAPERS, "c.tsv": table(("citing", "cited"), *EDGES)}
    options = {"papers": {"file": "p.jsonl"}, "citations": {"file": "c.tsv"}}
    found = run(tmp_path, "table", files, **options, dangling={"citations": "drop"})
    assert found.pairs("table", "citations") == [EDGES[0]]
    (note,) = (note for note in found.conversion.notes if "Unicode" in note)
    assert note.startswith("table: citations: ids")
    assert REMARK in note
    with pytest.raises(DataError) as caught:
        run(tmp_path, "table", files, **options, dangling={"citations": "error"})
    assert REMARK in str(caught.value).partition("Fix: ")[2]
