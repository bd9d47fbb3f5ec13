"""Feeds for data bases, read back by Qdrant's local mode or by readers of such files."""

from __future__ import annotations

import csv
import io
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest

from scimult.errors import ConfigError, StorageError, UnknownNameError
from scimult.inference import SciMult
from scimult.library import Library, feeds
from scimult.library.feeds import feed_files, feed_qdrant
from tests.library.conftest import dated, made, paper


@pytest.fixture(scope="module")
def library(model: SciMult, tmp_path_factory: pytest.TempPathFactory) -> Library:
    papers = dated(30)
    papers[3]["title"] = 'Of "quotes", commas,\nlines and \\ strokes'
    papers[3]["labels"] = ['a "b"', "c\\d,e"]
    papers[4]["abstract"] = "NUL\0 here"
    found = made(tmp_path_factory.mktemp("feeds") / "library", model, papers)
    found.remove(["p007"])
    return found


def _vectors(library: Library) -> dict[str, np.ndarray[Any, Any]]:
    rows = library.state.live_rows()
    vectors_ND = library.state.shards("search").rows(rows)
    return dict(zip(library.state.papers.ids_of(rows), vectors_ND, strict=True))


@pytest.mark.long
def test_qdrant_finds_what_the_library_finds(library: Library, tmp_path: Path) -> None:
    client = pytest.importorskip("qdrant_client")
    where = str(tmp_path / "qdrant")
    assert feed_qdrant(library.feed(), where) == 29
    assert feed_qdrant(library.feed(), where) == 29
    vector_D = library.model.encode(["graph of kernels"], task="search")[0]
    found = client.QdrantClient(path=where)
    try:
        assert found.count("papers").count == 29
        year = client.models.FieldCondition(key="year", range=client.models.Range(gte=2005))
        for limits, filter_ in ((None, None), ("year >= 2005", client.models.Filter(must=[year]))):
            points = found.query_points(
                "papers", vector_D.tolist(), limit=10, query_filter=filter_
            ).points
            wanted = library.search("graph of kernels", where=limits, k=10)
            assert [point.payload["id"] for point in points] == wanted.ids
            assert [point.score for point in points] == pytest.approx(wanted.scores, abs=1e-5)
            assert points[0].payload["title"] == wanted[0].title
    finally:
        found.close()


@pytest.mark.long
def test_qdrant_names_or_deletes_points_of_other_papers(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = pytest.importorskip("qdrant_client")
    where = str(tmp_path / "qdrant")
    assert feed_qdrant(library.feed(), where) == 29
    some = library.feed(where="year >= 2005")
    with caplog.at_level("INFO", logger="scimult"):
        assert feed_qdrant(some, where) == 14
    assert "'papers' has other points: 15; --prune deletes them" in caplog.messages
    assert feed_qdrant(some, where, prune=True) == 14
    found = client.QdrantClient(path=where)
    points, _ = found.scroll("papers", limit=100)
    found.close()
    assert {point.payload["id"] for point in points} == set(library.ids(where="year >= 2005"))


def test_opensearch_bulk_files(library: Library, tmp_path: Path) -> None:
    assert feed_files(library.feed(), "opensearch", tmp_path / "out") == 29
    mapping = json.loads((tmp_path / "out" / "index.json").read_text())["mappings"]["properties"]
    assert mapping["vector"]["dimension"] == 16
    assert mapping["vector"]["method"]["space_type"] == "cosinesimil"
    assert (mapping["year"]["type"], mapping["labels"]["type"]) == ("long", "keyword")
    assert len("\U0001d4aa".encode() * mapping["labels"]["ignore_above"]) <= 32_766
    lines = (tmp_path / "out" / "part-00000.ndjson").read_text(encoding="utf-8").split("\n")
    actions, papers = ([json.loads(x) for x in lines[start:-1:2]] for start in (0, 1))
    assert [one["index"]["_id"] for one in actions] == [one["id"] for one in papers]
    for name, vector_D in _vectors(library).items():
        (record,) = [one for one in papers if one["id"] == name]
        assert np.array_equal(np.float32(record["vector"]), vector_D)
        assert set(record) <= set(mapping)


def test_bulk_files_are_small_enough_for_a_request(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "REQUEST", 2_000)
    feed_files(library.feed(), "opensearch", tmp_path / "out")
    parts = sorted((tmp_path / "out").glob("part-*.ndjson"))
    assert len(parts) > 5
    assert max(part.stat().st_size for part in parts) <= 2_000
    lines = [json.loads(line) for part in parts for line in part.read_bytes().splitlines()]
    assert [line["id"] for line in lines[1::2]] == library.ids()
    assert [line["index"]["_id"] for line in lines[::2]] == library.ids()


def test_numbers_that_json_lacks_are_absent(model: SciMult, tmp_path: Path) -> None:
    papers = [paper(0, score=float("inf")), paper(1, score=0.5)]
    feed_files(made(tmp_path / "library", model, papers).feed(), "opensearch", tmp_path / "out")
    lines = (tmp_path / "out" / "part-00000.ndjson").read_text(encoding="utf-8").splitlines()
    assert "Infinity" not in lines[1]
    assert [json.loads(line).get("score") for line in lines[1::2]] == [None, 0.5]


def test_milvus_parquet(library: Library, tmp_path: Path) -> None:
    assert feed_files(library.feed(where="year >= 2005"), "milvus", tmp_path / "out") == 14
    table = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    collection = json.loads((tmp_path / "out" / "collection.json").read_text())
    assert [one["name"] for one in collection["fields"]] == table.column_names
    assert collection["metric"] == "COSINE"
    wanted = _vectors(library)
    for row in table.to_pylist():
        assert np.array_equal(np.float32(row["vector"]), wanted[row["id"]])


def test_milvus_finds_what_the_library_finds(library: Library, tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite")
    from pymilvus import DataType, MilvusClient

    feed_files(library.feed(), "milvus", tmp_path / "out")
    collection = json.loads((tmp_path / "out" / "collection.json").read_text())
    client = MilvusClient(str(tmp_path / "milvus.db"))
    schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=16)
    index = client.prepare_index_params()
    index.add_index("vector", index_type="FLAT", metric_type=collection["metric"])
    client.create_collection("papers", schema=schema, index_params=index)
    rows = pq.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist()
    client.insert("papers", rows)
    vector_D = library.model.encode(["graph of kernels"], task="search")[0]
    (found,) = client.search("papers", [vector_D.tolist()], limit=10, filter="year >= 2005")
    wanted = library.search("graph of kernels", where="year >= 2005", k=10)
    assert [hit["id"] for hit in found] == wanted.ids
    assert [hit["distance"] for hit in found] == pytest.approx(wanted.scores, abs=1e-5)
    client.close()


def test_pgvector_csv(library: Library, tmp_path: Path) -> None:
    assert feed_files(library.feed(), "pgvector", tmp_path / "out", "works") == 29
    sql = (tmp_path / "out" / "load.sql").read_text()
    assert '"vector" vector(16)' in sql
    assert sql.startswith("\\set ON_ERROR_STOP on\nBEGIN;\nSET LOCAL client_encoding = 'UTF8';\n")
    assert "csv)\nCOMMIT;\n" in sql
    assert '\\copy "works" (' in sql
    assert "USING hnsw (vector vector_cosine_ops)" in sql
    text = (tmp_path / "out" / "part-00000.csv").read_text(encoding="utf-8")
    rows = list(csv.reader(io.StringIO(text)))
    names = ["id", "title", "abstract", *library.state.manifest.columns, "vector"]
    papers = {row[0]: dict(zip(names, row, strict=True)) for row in rows}
    assert papers["p003"]["title"] == 'Of "quotes", commas,\nlines and \\ strokes'
    assert papers["p003"]["labels"] == r'{"a \"b\"","c\\d,e"}'
    assert papers["p004"]["abstract"] == "NUL here"
    # PostgreSQL reads an empty value as NULL, unless it is in quotes.
    line = next(row for row in text.splitlines() if row.startswith('"p000"'))
    assert (papers["p000"]["abstract"], papers["p000"]["venue"]) == ("", "")
    assert re.match(r'"p000","[^"]+","",', line)
    assert line.split(",")[3 + list(library.state.manifest.columns).index("venue")] == ""
    for name, vector_D in _vectors(library).items():
        assert np.array_equal(np.float32(json.loads(papers[name]["vector"])), vector_D)


def test_no_column_is_lost_to_the_vectors(model: SciMult, tmp_path: Path) -> None:
    papers = [{**paper, "Vector": "SIRV"} for paper in dated(3)]
    library = made(tmp_path / "library", model, papers)
    with pytest.raises(ConfigError, match=r"under which embeddings are exported.*'Vector'"):
        library.feed()


def test_wrong_feeds_are_refused(library: Library, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'milvus'"):
        feed_files(library.feed(), "milvs", tmp_path / "out")
    for target, name in (
        ("pgvector", "x; drop"),
        ("pgvector", "x" * 64),
        ("opensearch", "Papers"),
        ("opensearch", "_papers"),
        ("milvus", "café"),
    ):
        with pytest.raises(ConfigError, match="not a valid collection name"):
            feed_files(library.feed(), target, tmp_path / "out", name)
    with pytest.raises(UnknownNameError, match="did you mean 'search'"):
        library.feed(task="serach")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match="exists and is not a feed"):
        feed_files(library.feed(), "milvus", tmp_path / "mine")


class _Qdrant(BaseHTTPRequestHandler):
    """A server with one collection, which counts the points of each request."""

    points: ClassVar[list[int]] = []

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        params = {"vectors": {"size": 16, "distance": "Cosine"}}
        optimizer = dict.fromkeys(("flush_interval_sec", "default_segment_number"), 5)
        optimizer |= {"deleted_threshold": 0.2, "vacuum_min_vector_number": 1000}
        hnsw = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}
        config = {"params": params, "hnsw_config": hnsw, "optimizer_config": optimizer}
        about = {"status": "green", "optimizer_status": "ok", "segments_count": 1}
        results: dict[str, Any] = {
            "/collections/papers/exists": {"exists": True},
            "/collections/papers": {**about, "config": config, "payload_schema": {}},
            "/collections/papers/points": {"operation_id": 1, "status": "completed"},
            "/collections/papers/points/count": {"count": sum(self.points)},
        }
        if self.command == "PUT":
            self.points.append(len(json.loads(body)["points"]))
        path = self.path.partition("?")[0]
        answer = json.dumps({"result": results.get(path), "status": "ok", "time": 0.0}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST = _answer


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Failed to obtain server version", "ignore:.*[Cc]ompatib")
def test_requests_to_qdrant_are_small(model: SciMult, tmp_path: Path) -> None:
    # A server takes 32 MiB: 1,500 points of width 1,024.
    pytest.importorskip("qdrant_client")
    library = made(tmp_path / "library", model, dated(150))
    with ThreadingHTTPServer(("127.0.0.1", 0), _Qdrant) as served:
        Thread(target=served.serve_forever, daemon=True).start()
        assert feed_qdrant(library.feed(), f"http://127.0.0.1:{served.server_port}") == 150
        served.shutdown()
    assert sum(_Qdrant.points) == 150
    assert max(_Qdrant.points) <= 100


@pytest.mark.filterwarnings("ignore:Failed to obtain server version")
def test_what_qdrant_refuses_is_told(library: Library, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    with pytest.raises(StorageError, match="Qdrant refuses: .*name cannot contain"):
        feed_qdrant(library.feed(), str(tmp_path / "qdrant"), "a/b")
    with pytest.raises(StorageError, match=r"Qdrant refuses: .*refused.*Fix: check the address"):
        feed_qdrant(library.feed(), "http://127.0.0.1:9")


def test_qdrant_gets_no_folder_of_something_else(library: Library, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    (tmp_path / "notes.txt").write_text("mine")
    for where, problem in ((tmp_path, "not a database"), (tmp_path / "notes.txt", "not a folder")):
        with pytest.raises(StorageError, match=f"exists and is {problem}.*Fix: choose a new"):
            feed_qdrant(library.feed(), str(where))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
