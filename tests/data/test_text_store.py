"""The text store returns what was added, row by row, and refuses other files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from scimult.data import text_store
from scimult.data.text_store import TextStore, TextStoreWriter
from scimult.errors import DataError
from scimult.types import Text

TEXTS = {
    "ns:1": Text("paper", "Title", "Body"),
    "ns/label:x": Text("label", "Name"),
    "s/query:1": Text("query", "what is α → β?\t"),
    "ns:2": Text("paper", "", "Only a body"),
}


def _write(folder: Path) -> TextStore:
    with TextStoreWriter(folder) as writer:
        for row, (identifier, text) in enumerate(TEXTS.items()):
            assert writer.add(identifier, text) == row
        assert len(writer) == 4
    return TextStore.open(folder)


@pytest.mark.parametrize("rows_per_batch", [1, 3, 100])
def test_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_batch: int) -> None:
    monkeypatch.setattr(text_store, "ROWS_PER_BATCH", rows_per_batch)
    store = _write(tmp_path)
    texts = list(TEXTS.values())
    assert len(store) == 4
    assert store.slice(0, 4) == texts
    assert store.slice(1, 3) == texts[1:3]
    assert store.texts([3, 0, 3]) == [texts[3], texts[0], texts[3]]
    assert store.ids == list(TEXTS)
    assert store.ids_at(np.array([2, 0])) == ["s/query:1", "ns:1"]
    assert store.kinds == ["paper", "label", "query", "paper"]
    assert [store.row(identifier) for identifier in TEXTS] == [0, 1, 2, 3]


def test_ids_are_read_from_columns_larger_than_an_array_can_be(tmp_path: Path) -> None:
    part = pa.array([f"{number} {'long ' * 200}" for number in range(1000)])
    table = pa.table({"id": pa.chunked_array([part] * 2500)})  # 2.5 GB, in the memory of 1 MB
    store = TextStore(table, tmp_path)
    rows = np.array([2_499_999, 5, 1_000, 999, 5])
    assert [name.split()[0] for name in store.ids_at(rows)] == ["999", "5", "0", "999", "5"]
    assert store.ids_at(rows[:0]) == []


def test_many_texts_are_cut_into_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file does not depend on whether texts came singly or in bulk."""
    monkeypatch.setattr(text_store, "ROWS_PER_BATCH", 3)
    ids = [f"ns:{number}" for number in range(8)]
    (tmp_path / "many").mkdir()
    with TextStoreWriter(tmp_path) as writer:
        for identifier in ids:
            writer.add(identifier, Text("paper", identifier, "Body"))
    with TextStoreWriter(tmp_path / "many") as writer:
        writer.write("paper", pa.array(ids[:7]), pa.array(ids[:7]), pa.array(["Body"] * 7))
        writer.write("paper", pa.array(ids[7:]), pa.array(ids[7:]), pa.array(["Body"]))
    one, many = (folder / "texts.arrow" for folder in (tmp_path, tmp_path / "many"))
    assert one.read_bytes() == many.read_bytes()


def test_unknown_id(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"texts\.arrow: unknown text id.*'ns:9'.*Fix: "):
        _write(tmp_path).row("ns:9")


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = _write(tmp_path / "a")
    assert _write(tmp_path / "b").fingerprint == first.fingerprint
    with TextStoreWriter(tmp_path / "b") as writer:
        writer.add("ns:1", Text("paper", "Another", "Body"))
    assert TextStore.open(tmp_path / "b").fingerprint != first.fingerprint


def test_absent_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"texts\.arrow: file does not exist.*scimult prepare"):
        TextStore.open(tmp_path)
    _write(tmp_path)
    path = tmp_path / "texts.arrow"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a readable Arrow file"):
        TextStore.open(tmp_path)
    table = pa.table({"id": ["x"]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="expected a texts file of version 1"):
        TextStore.open(tmp_path)


def test_a_damaged_letter_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    _write(tmp_path)
    path = tmp_path / "texts.arrow"
    content = path.read_bytes()
    assert content.count(b"Only a body") == 1
    path.write_bytes(content.replace(b"Only a body", b"Only \xff body"))
    store = TextStore.open(tmp_path)
    for read in (lambda: store.slice(0, 4), lambda: store.text(3)):
        with pytest.raises(DataError, match=r"texts\.arrow: a text is not UTF-8.*scimult prepare"):
            read()
