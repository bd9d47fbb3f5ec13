"""Export a library's papers and vectors to vector data bases: as files to load, or by client.

Shape legend: N papers, D width.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from scimult.data.sql import quoted
from scimult.errors import ConfigError, SciMultError, StorageError, one_of
from scimult.files import FolderKind, atomic_folder, write_json, write_text
from scimult.library.filters import Where
from scimult.library.state import State
from scimult.progress import note
from scimult.retrieval.space import Space
from scimult.types import FloatArray, IntArray

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

ROWS = 5000
"""Papers per batch, and per file but OpenSearch's."""
REQUEST = 8_000_000
"""Most bytes of a request to OpenSearch, which takes 100 MiB, or 10 where it is hosted small."""
_VECTOR = "vector"


@dataclass(frozen=True)
class Feed:
    """The papers to export, with the vectors of one task.

    Raises
    ------
    UnknownNameError
        If the library has no vectors for the task.
    ConfigError
        If a column of the papers is called ``vector``.
    """

    state: State
    task: str
    where: Where | None = None

    def __post_init__(self) -> None:
        one_of("task of this library", self.task, self.state.manifest.sides)
        taken = [name for name in self.types if name.casefold() == _VECTOR]
        if taken:
            problem = "a column has the name under which embeddings are exported"
            fix = "rename the field in the papers and run scimult library sync"
            raise ConfigError(problem, value=taken[0], fix=fix)

    @property
    def space(self) -> Space:
        """Origin of the vectors."""
        return self.state.shards(self.task).space

    @property
    def types(self) -> dict[str, str]:
        """Types of the columns other than id, title and abstract."""
        return dict(self.state.manifest.columns)

    @cached_property
    def rows(self) -> IntArray:
        """Rows of the papers."""
        return self.state.live_rows(where=self.where)

    def batches(self) -> Iterator[tuple[pa.Table, FloatArray]]:
        """Yield a table of id, title, abstract and columns, and vectors of shape ``(N, D)``."""
        names = ["id", "title", "abstract", *self.types]
        for start in range(0, len(self.rows), ROWS):
            part = self.rows[start : start + ROWS]
            yield self.state.papers.table(part, names), self.state.shards(self.task).rows(part)

    def records(self) -> Iterator[list[dict[str, Any]]]:
        """Yield papers as mappings of present values, with their ``vector``.

        An infinite number counts as absent: JSON, in which data bases are fed, has none.
        """
        for table, vectors_ND in self.batches():
            yield [
                {**{name: value for name, value in row.items() if _is_present(value)}, "vector": x}
                for row, x in zip(table.to_pylist(), vectors_ND.tolist(), strict=True)
            ]


def _is_present(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isinf(value))


_NAMESPACE = uuid.UUID("6f1c1f5e-7c58-4f5e-9a55-5c1a7a0f5b11")
_OPENSEARCH = {"BIGINT": "long", "DOUBLE": "double", "BOOLEAN": "boolean"}
# Lucene refuses keywords of over 32,766 bytes, and with them the paper; a letter may have 4 bytes.
_KEYWORD = {"type": "keyword", "ignore_above": 32_766 // 4}
_POSTGRES = {"BIGINT": "bigint", "DOUBLE": "double precision", "BOOLEAN": "boolean"}
_SPACES = {
    "opensearch": {"cosine": "cosinesimil", "dot": "innerproduct", "l2": "l2"},
    "pgvector": {"cosine": "vector_cosine_ops", "dot": "vector_ip_ops", "l2": "vector_l2_ops"},
    "milvus": {"cosine": "COSINE", "dot": "IP", "l2": "L2"},
    "qdrant": {"cosine": "Cosine", "dot": "Dot", "l2": "Euclid"},
}
_NAME = re.compile("[a-z][a-z0-9_]{0,62}")
_KIND = FolderKind("a feed of a library", lambda folder: (folder / "feed.json").is_file())


def feed_files(feed: Feed, target: str, folder: Path, name: str = "papers") -> int:
    """Write files for a data base (milvus, opensearch, pgvector); return the number of papers.

    The folder is new or holds an earlier feed; ``name`` is that of the collection, index or table.

    Raises
    ------
    UnknownNameError, ConfigError
        If the target or the name is not valid.
    StorageError
        If the folder holds something else.
    """
    write = FILES[one_of("target", target, FILES)]
    # OpenSearch refuses capitals, PostgreSQL folds them and cuts names after 63 bytes.
    if not _NAME.fullmatch(name.lower() if target == "milvus" else name):
        fix = "use up to 63 lower-case letters, digits and underscores, a letter first"
        raise ConfigError("not a valid collection name", value=name, fix=fix)
    with atomic_folder(folder, _KIND) as temporary:
        write(feed, temporary, name)
        facts = {"target": target, "task": feed.task, "papers": len(feed.rows), "name": name}
        space = {"width": feed.space.width, "similarity": feed.space.similarity}
        write_json(temporary / "feed.json", {**facts, **space, "made_by": feed.space.made_by})
    return len(feed.rows)


def _opensearch(feed: Feed, folder: Path, name: str) -> None:
    similarity = _SPACES["opensearch"][feed.space.similarity]
    method = {"name": "hnsw", "engine": "faiss", "space_type": similarity}
    properties: dict[str, Any] = {
        "id": {"type": "keyword"},
        "title": {"type": "text"},
        "abstract": {"type": "text"},
        **{
            column: {"type": _OPENSEARCH[kind]} if kind in _OPENSEARCH else _KEYWORD
            for column, kind in feed.types.items()
        },
        "vector": {"type": "knn_vector", "dimension": feed.space.width, "method": method},
    }
    body = {"settings": {"index.knn": True}, "mappings": {"properties": properties}}
    write_json(folder / "index.json", body)
    for number, request in enumerate(_requests(feed, name)):
        (folder / f"part-{number:05d}.ndjson").write_bytes(request)


def _requests(feed: Feed, name: str) -> Iterator[bytes]:
    """Yield bodies for OpenSearch's bulk API, of at most ``REQUEST`` bytes or one paper."""
    request = bytearray()
    for records in feed.records():
        for record in records:
            action = {"index": {"_index": name, "_id": record["id"]}}
            lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in (action, record))
            entry = "".join(lines).encode()
            if request and len(request) + len(entry) > REQUEST:
                yield bytes(request)
                request.clear()
            request += entry
    if request:
        yield bytes(request)


def _pgvector(feed: Feed, folder: Path, name: str) -> None:
    columns = {
        column: "text[]" if kind.endswith("[]") else _POSTGRES.get(kind, "text")
        for column, kind in feed.types.items()
    }
    typed = {"id": "text PRIMARY KEY", "title": "text", "abstract": "text", **columns}
    typed["vector"] = f"vector({feed.space.width})"
    defined = ",\n".join(f"  {quoted(column)} {kind}" for column, kind in typed.items())
    operators = _SPACES["pgvector"][feed.space.similarity]
    parts = []
    for number, records in enumerate(feed.records()):
        parts.append(f"part-{number:05d}.csv")
        with (folder / parts[-1]).open("w", encoding="utf-8", newline="") as file:
            for record in records:
                file.write(",".join(_cell(record.get(column)) for column in typed) + "\n")
    listed = ", ".join(quoted(column) for column in typed)
    table = quoted(name)  # may be a word of SQL, such as user
    copies = [f"\\copy {table} ({listed}) FROM '{part}' WITH (FORMAT csv)" for part in parts]
    sql = [
        # Else psql goes on after an error, and puts some files into the table of an earlier export.
        "\\set ON_ERROR_STOP on",
        "BEGIN;",
        # psql takes a terminal's encoding for that of files.
        "SET LOCAL client_encoding = 'UTF8';",
        "CREATE EXTENSION IF NOT EXISTS vector;",
        f"CREATE TABLE {table} (\n{defined}\n);",
        *copies,
        "COMMIT;",
        f"CREATE INDEX ON {table} USING hnsw (vector {operators});",
    ]
    write_text(folder / "load.sql", "\n".join(sql) + "\n")


def _milvus(feed: Feed, folder: Path, name: str) -> None:
    fields = [
        {"name": "id", "type": "VARCHAR", "primary": True},
        *({"name": column, "type": "VARCHAR"} for column in ("title", "abstract")),
        *({"name": column, "type": kind, "nullable": True} for column, kind in feed.types.items()),
        {"name": "vector", "type": "FLOAT_VECTOR", "dim": feed.space.width},
    ]
    metric = _SPACES["milvus"][feed.space.similarity]
    write_json(folder / "collection.json", {"name": name, "metric": metric, "fields": fields})
    for number, (table, vectors_ND) in enumerate(feed.batches()):
        flat = pa.array(vectors_ND.reshape(-1))
        offsets = pa.array(range(0, len(flat) + 1, feed.space.width), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, flat)
        pq.write_table(table.append_column("vector", lists), folder / f"part-{number:05d}.parquet")


FILES: dict[str, Callable[[Feed, Path, str], None]] = {
    "milvus": _milvus,
    "opensearch": _opensearch,
    "pgvector": _pgvector,
}


def feed_qdrant(feed: Feed, where: str, name: str = "papers", *, prune: bool = False) -> int:
    """Fill a Qdrant collection through its client; return the number of papers.

    A point's id is a UUID derived from the paper's id, which is in the payload with the text and
    the columns. Repeating the call replaces points, and deletes all others of the collection if
    ``prune``. ``where`` is the URL of a server, or a folder for Qdrant's local mode; ``name`` that
    of the collection.

    Raises
    ------
    ConfigError
        If the client is not installed, or the collection has another width or similarity.
    StorageError
        If the data base refuses, or cannot be reached, or the folder holds something else.
    """
    try:
        from qdrant_client import QdrantClient
        from qdrant_client.http.exceptions import ApiException
    except ImportError as error:
        raise ConfigError("qdrant-client is missing", fix="pip install qdrant-client") from error
    remote = where.startswith(("http://", "https://"))
    if not remote:
        _check_database(Path(where))
    try:
        client = QdrantClient(url=where) if remote else QdrantClient(path=where)
        try:
            ids = _fill(client, feed, name)
            if prune:
                _prune(client, name, ids)
            elif others := client.count(name).count - len(ids):
                note(f"{name!r} has other points: {others:,}; --prune deletes them")
        finally:
            client.close()
    except SciMultError:
        raise
    except (ApiException, RuntimeError, ValueError) as error:
        fix = "check the address or folder, and the name of the collection"
        problem = f"Qdrant refuses: {str(error) or type(error).__name__}"
        raise StorageError(problem, path=where, fix=fix) from error
    return len(feed.rows)


def _check_database(folder: Path) -> None:
    """Check that Qdrant's client, which writes into any folder, gets a new one or its own."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StorageError("exists and is not a folder", path=folder, fix="choose a new folder")
    names = {path.name for path in folder.iterdir()}
    if "meta.json" not in names and names - {".lock", "collection"}:
        fix = "choose a new folder, or empty this one yourself"
        raise StorageError("exists and is not a database of Qdrant's", path=folder, fix=fix)


def _fill(client: QdrantClient, feed: Feed, name: str) -> set[str]:
    """Create a collection unless it exists, put the papers into it, and return the points' ids."""
    from qdrant_client import models

    distance = models.Distance(_SPACES["qdrant"][feed.space.similarity])
    wanted = models.VectorParams(size=feed.space.width, distance=distance)
    if not client.collection_exists(name):
        client.create_collection(name, vectors_config=wanted)
    params = client.get_collection(name).config.params.vectors
    known = isinstance(params, models.VectorParams) and (params.size, params.distance)
    if known != (wanted.size, wanted.distance):
        fix = "name another collection, or delete this one"
        raise ConfigError("collection holds other vectors", value=name, fix=fix)
    ids: set[str] = set()
    for records in feed.records():
        points = [
            models.PointStruct(
                id=str(uuid.uuid5(_NAMESPACE, record["id"])),
                vector=record.pop("vector"),
                payload=record,
            )
            for record in records
        ]
        # In small requests: a server takes 32 MiB, and answers within 5 seconds.
        client.upload_points(name, points, wait=True)
        ids.update(str(point.id) for point in points)
    return ids


def _prune(client: QdrantClient, name: str, ids: Set[str]) -> None:
    """Delete the points of a collection that do not have one of these ids."""
    offset = None
    while True:
        points, offset = client.scroll(name, limit=ROWS, offset=offset, with_payload=False)
        gone = [point.id for point in points if str(point.id) not in ids]
        if gone:
            client.delete(name, gone)
        if offset is None:
            return


def _cell(value: Any) -> str:
    """Format a value for COPY from CSV: lists as arrays, vectors in brackets, texts without NUL.

    All are in quotes but NULL, which an empty text would be without them.
    """
    if value is None:
        return ""
    if isinstance(value, list) and value and isinstance(value[0], float):
        value = json.dumps(value)
    elif isinstance(value, list):
        escaped = (str(item).replace("\\", "\\\\").replace('"', '\\"') for item in value)
        value = "{" + ",".join(f'"{item}"' for item in escaped) + "}"
    # PostgreSQL cannot store the character, and would refuse all papers.
    return '"' + str(value).replace("\0", "").replace('"', '""') + '"'
