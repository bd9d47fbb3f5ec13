"""The manifest survives a round trip, and damage is reported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from scimult.data.manifest import PairEntry, TargetEntry
from scimult.data.pairs import Split
from scimult.data.prepared import PreparedData
from scimult.errors import DataError
from scimult.files import read_json, write_json
from scimult.preparation.dataset import build_dataset
from tests.raw_corpus import raw_config, write_raw


@pytest.fixture
def data(tmp_path: Path) -> PreparedData:
    return build_dataset(raw_config(write_raw(tmp_path / "raw")), tmp_path / "out")[0]


def test_every_key_is_documented(data: PreparedData, repository: Path) -> None:
    page = (repository / "docs" / "formats.md").read_text(encoding="utf-8")
    table = page.partition("### manifest.json")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (`[^|]*) \| ([^|]*) \|$", table, re.M))
    keys = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert read_json(data.folder / "manifest.json").keys() | {"targets"} == keys
    for entry in (PairEntry, TargetEntry):
        name = "`pairs`" if entry is PairEntry else "`targets`"
        content = " ".join(text for key, text in rows.items() if key.startswith(name))
        names = {field.alias or name for name, field in entry.model_fields.items()}
        assert {name for name in names if not re.search(rf"\b{name}\b", content)} == set()


def test_prepared_data_is_shown_with_its_sizes(data: PreparedData) -> None:
    splits: tuple[Split, ...] = ("train", "dev")
    train, dev = (sum(len(p.positives.values) for p in data.pairs(split)) for split in splits)
    shown = f"{len(data.texts)} texts; classification, link_prediction, search"
    pairs = f"pairs: {train} in train, {dev} in dev"
    assert repr(data) == f"PreparedData({str(data.folder)!r}: {shown}; {pairs})"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("pairs", [{"file": "pairs/x.arrow"}], "pairs.0.source: Field required"),
        # Mining replaced, or removed, whatever file was named.
        ("pairs", [{"file": "../x.arrow"}], "pairs.0.file: String should match"),
        ("pairs", [{"file": "pairs/../../x.arrow"}], "pairs.0.file: String should match"),
        ("targets", [{"file": "/x.arrow"}], "targets.0.file: String should match"),
        ("pairs", None, "pairs: Input should be a valid list"),
        ("label_rows", {"x": [1]}, "label_rows.x.1: Field required"),
        ("files", {"texts.arrow": 3}, "files.texts.arrow: Input should be"),
        ("files", {}, "files lacks texts.arrow"),
        (
            "tasks",
            ["\ud800"],
            r"tasks.0: Value error, a task is a mapping, such as {name: '\ud800'",
        ),
        ("tasks", [{"name": "t", "colour": "red"}], "tasks.0.colour: Extra inputs"),
    ],
)
def test_a_damaged_manifest_names_the_key(
    data: PreparedData, key: str, value: object, named: str
) -> None:
    path = data.folder / "manifest.json"
    path.write_text(json.dumps({**read_json(path), key: value}))
    with pytest.raises(DataError) as caught:
        PreparedData.open(data.folder)
    message = str(caught.value)
    assert message.startswith(f"{path}: manifest is damaged: {named}"), message
    assert message.count("Fix:") == 1


def test_the_manifest_comes_back_as_it_was_written(data: PreparedData) -> None:
    """So do keys from a later version of the toolkit, at any level."""
    path = data.folder / "manifest.json"
    tree = read_json(path)
    tree["later"] = {"a": None}
    tree["pairs"][0]["later"] = [1]
    write_json(path, tree)
    before = path.read_text(encoding="utf-8")
    PreparedData.open(data.folder).manifest.write(data.folder)
    assert json.loads(before) == read_json(path)


def test_pair_files_say_what_they_are_made_of(data: PreparedData) -> None:
    parts = {file.task: (file.namespace, file.part) for file in data.pairs("train")}
    assert parts == {
        "classification": ("toy", "labels"),
        "link_prediction": ("toy", "citations"),
        "search": ("toy", "queries"),
    }


def test_the_manifest_counts_what_is_in_the_pair_files(data: PreparedData) -> None:
    """A paper that cites several is one query of as many groups."""
    for entry in data.manifest.pairs:
        pairs = pa.ipc.open_file(str(data.folder / entry.file)).read_all().to_pylist()
        assert entry.queries == len({row["query"] for row in pairs})
        assert entry.groups == len(pairs)
        assert entry.pairs == sum(len(row["positives"]) for row in pairs)
        assert entry.unsampled == sum(len(row["unsampled"]) for row in pairs)
    (links,) = (
        entry
        for entry in data.manifest.pairs
        if entry.file == "pairs/toy.link_prediction.train.arrow"
    )
    assert links.queries < links.groups
