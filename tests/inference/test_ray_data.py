"""Ray Data in its local mode writes what one process writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scimult.errors import DataError, UnknownNameError
from scimult.inference import SciMult
from scimult.inference.bulk import BulkEncoder, encode_shards
from scimult.inference.ray_data import encode_with_ray
from scimult.types import Text
from tests.inference.test_bulk import contents, some_texts
from tests.raw_corpus import write_jsonl
from tests.tiny import save_tiny_model

ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'scimult[ray]')")

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    # As many as there are actors: reading must not wait for another one.
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def _write(path: Path, number: int) -> None:
    rows = [{"id": name, "title": t.title, "abstract": t.body} for name, t in some_texts(number)]
    write_jsonl(path, rows)


@pytest.mark.parametrize("task", ["search", "all"])
def test_actors_write_the_bytes_of_one_process(tmp_path: Path, cluster: None, task: str) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    _write(tmp_path / "papers.jsonl", 90)
    files = [tmp_path / "papers.jsonl"]
    done = encode_with_ray(files, model, tmp_path / "ray", task=task, actors=3, rows=20)
    assert (done.texts, done.shards, done.encoded, done.missing) == (90, 5, 90, [])
    bulk = BulkEncoder(
        SciMult.from_pretrained(model, device="cpu"), tmp_path / "one", task=task, role="candidate"
    )
    encode_shards(bulk, some_texts(90), rows=20)
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")
    again = encode_with_ray(files, model, tmp_path / "ray", task=task, actors=2, rows=20)
    assert again.encoded == 0
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")


def test_labels_are_read_as_labels(tmp_path: Path, cluster: None) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    file = tmp_path / "labels.jsonl"
    file.write_text('{"id": "a", "name": "Graphs", "definition": "Nodes and edges."}\n')
    encode_with_ray([file], model, tmp_path / "ray", task="classification")
    one = SciMult.from_pretrained(model, device="cpu")
    bulk = BulkEncoder(one, tmp_path / "one", task="classification", role="candidate")
    encode_shards(bulk, [("a", Text("label", "Graphs", "Nodes and edges."))])
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")


def test_another_task_is_refused_with_our_message(tmp_path: Path, cluster: None) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    _write(tmp_path / "papers.jsonl", 5)
    files, out = [tmp_path / "papers.jsonl"], tmp_path / "out"
    encode_with_ray(files, model, out, task="search")
    with pytest.raises(DataError, match=r"differ in task 'link_prediction', here 'search'"):
        encode_with_ray(files, model, out, task="link_prediction")
    with pytest.raises(UnknownNameError, match="serach"):
        encode_with_ray(files, model, out, task="serach")


def test_errors_come_back_as_ours(
    tmp_path: Path, cluster: None, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    _write(tmp_path / "papers.jsonl", 5)
    with (tmp_path / "papers.jsonl").open("a") as file:
        file.write("not json\n")
    files = [tmp_path / "papers.jsonl"]
    with pytest.raises(DataError, match=r"papers.jsonl:6: line is not valid JSON.*Fix: "):
        encode_with_ray(files, model, tmp_path / "e", task="search", rows=4)
    done = encode_with_ray(files, model, tmp_path / "e", task="search", rows=4, skip_bad=True)
    assert (done.texts, done.missing) == (5, [])
    assert "left out 1: line is not valid JSON" in caplog.text
