"""What killed processes leave of a library is named, and the next one completes it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scimult.errors import BusyError, DataError
from scimult.files import only_writer
from scimult.inference import SciMult
from scimult.library import Library, compaction, writing
from scimult.library.encoding import create_library
from scimult.retrieval.shards import Shards
from scimult.serving.served import Served
from tests.library.conftest import dated, made


def test_an_interrupted_creation_is_refused_until_it_is_completed(
    model_folder: Path, model: SciMult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SEGMENT_ROWS", 3)
    folder = tmp_path / "library"

    def papers() -> Iterator[dict[str, Any]]:
        yield from dated(8)
        raise RuntimeError("the connection is lost")

    with pytest.raises(RuntimeError, match="connection"):
        Library.create(folder, papers(), model=model_folder, dtype="float32")
    library = Library.open(folder, model=model)
    assert len(library) == 6
    readings: list[Callable[[], object]] = [
        lambda: library.search("graph"),
        lambda: library.recommend(title="graph"),
        lambda: library.tag(["graph"]),
        lambda: Served(folder),
        lambda: library.feed().rows,
        library.ids,
        library.info,
        library.check,
        library.compact,
        lambda: library.remove(["p001"]),
        lambda: library.add(dated(1)),
        lambda: library.migrate(model_folder),
    ]
    for reading in readings:
        with pytest.raises(DataError, match="its creation was interrupted.*Fix: .*library sync"):
            reading()
    assert library.sync(dated(8)).texts_encoded == 2
    assert "creating" not in json.loads((folder / "library.json").read_text())
    assert Library.open(folder).ids() == [one["id"] for one in dated(8)]


def test_a_creation_that_fails_leaves_what_another_process_completes(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removed the folder in which a sync had just begun to write."""
    with ExitStack() as held:

        def overtaken(folder: Path, *parts: Any) -> None:
            create_library(folder, *parts)
            held.enter_context(only_writer(folder))

        monkeypatch.setattr("scimult.library.library.create_library", overtaken)
        with pytest.raises(BusyError):
            Library.create(tmp_path / "library", dated(3), model=model_folder)
        assert (tmp_path / "library" / "library.json").is_file()
    assert Library.open(tmp_path / "library").sync(dated(3)).added == 3


def test_a_compaction_killed_between_two_manifests(tmp_path: Path, model: SciMult) -> None:
    library = made(tmp_path / "library", model, dated(8))
    library.remove(["p001"])
    spaces = list(map(library.state.space_folder, library.state.manifest.sides))
    published, publish = itertools.count(1), compaction.publish

    def publish_or_die(*parts: Any) -> None:
        if next(published) == len(spaces) + 2:
            raise KeyboardInterrupt
        publish(*parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "publish", publish_or_die)
        with pytest.raises(KeyboardInterrupt):
            library.compact()
    Library.open(library.path, model=model).compact()
    assert [len(Shards(space)) for space in spaces] == [7] * len(spaces)
    assert not any(Shards(space).damaged for space in spaces)
