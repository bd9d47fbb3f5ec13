"""Bulk encoding on Ray Data: one task reads, actors with a model each encode and write shards.

The shards equal those of `bulk`, byte for byte. All machines must see both folders, the model's and
the shards'.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from scimult.checkpoints.reading import read_config
from scimult.data.records import Rejects
from scimult.errors import ConfigError, DataError, SciMultError
from scimult.inference.bulk import ROWS, BulkEncoder, Encoded, Window, kind_encoded, windows
from scimult.inference.encoder import SciMult
from scimult.inference.incoming import read_texts
from scimult.progress import warn
from scimult.retrieval.shard_folders import publish_if_whole
from scimult.retrieval.space import Precision, Space
from scimult.tasks import TaskSet
from scimult.types import Kind, Role, Text


class ShardActor:
    """The encoder as a ``map_batches`` actor: turns each row, a window, into a shard.

    See `encode_with_ray` for the arguments; without a device it uses the GPU that Ray assigns.
    """

    def __init__(
        self,
        folder: str,
        model: str,
        loading: Mapping[str, Any],
        task: str,
        role: Role,
        precision: Precision,
    ) -> None:
        self._kind: Kind = "paper"
        self._problem, spaces = "", {}
        try:
            encoder = SciMult.from_pretrained(model, **loading)
            self._kind = kind_encoded(encoder.tasks, task, role)
            bulk = BulkEncoder(encoder, Path(folder), task=task, role=role, precision=precision)
            self._encode = bulk.encode
            spaces = {str(bulk.folders[name]): asdict(s) for name, s in bulk.spaces.items()}
        except SciMultError as error:  # Ray would bury it in tracebacks of other processes
            self._problem = f"error: {error}"
        self._spaces = json.dumps(spaces)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Encode the windows of a batch; return the outcome of each."""
        done = []
        for row in batch.to_pylist():
            parts = zip(row["titles"], row["bodies"], strict=True)
            texts = [Text(self._kind, title, body) for title, body in parts]
            window = Window(row["number"], row["ids"], texts)
            encoded, message = False, self._problem or row["message"]
            try:
                if texts and not message:
                    encoded = self._encode(window)
            except SciMultError as error:
                message = f"error: {error}"
            done.append(
                {
                    "number": window.number,
                    "texts": len(texts),
                    "encoded": len(texts) * encoded,
                    "spaces": self._spaces,
                    "fingerprint": window.fingerprint,
                    "message": message,
                }
            )
        return pa.Table.from_pylist(done)


def encode_with_ray(
    files: Sequence[Path | str],
    model: Path | str,
    folder: Path,
    *,
    task: str,
    role: Role = "candidate",
    actors: int = 1,
    rows: int = ROWS,
    precision: Precision = "float32",
    loading: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    reading: Mapping[str, Any] | None = None,
) -> Encoded:
    """Encode files on the Ray cluster that this process is connected to, or on a local one.

    Parameters
    ----------
    files, reading
        Texts of the task's side, and options of `incoming.read_texts`.
    folder : Path
        Receives the shards; existing ones are resumed.
    actors : int
        Number of models encoding at a time; each takes a GPU if the cluster has any, else a CPU.
    loading : mapping, optional
        Options of `SciMult.from_pretrained`.
    skip_bad : bool
        Skip bad records with a warning.
    task, role, rows, precision
        As in `bulk`.

    Raises
    ------
    DataError, ConfigError, UnknownNameError
        As `encode_shards`, at the first window that fails, and if machines compute in different
        types.
    """
    import ray.data

    kind = kind_encoded(TaskSet(read_config(model).tasks), task, role)
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    arguments = (str(folder), str(model), dict(loading or {}), task, role, precision)
    paths = [str(path) for path in files]
    read = partial(_read, paths, kind, rows, skip_bad, dict(reading or {}))
    context = ray.data.DataContext.get_current()
    before = context.target_max_block_size
    context.target_max_block_size = 1  # each window goes to any free actor
    try:
        outcomes = (
            ray.data.from_arrow(pa.table({"start": [0]}))
            # Without a CPU of its own: actors may take all that there are, and would then wait
            # for it forever.
            .map_batches(read, batch_size=None, batch_format="pyarrow", num_cpus=0)
            .map_batches(
                ShardActor,
                fn_constructor_args=arguments,
                batch_size=1,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(size=actors),
                num_gpus=gpus,
                num_cpus=1,
            )
            .iter_rows()
        )
        results = list(map(_checked, outcomes))
    finally:
        context.target_max_block_size = before
    return _finish(results)


def _read(
    files: list[str],
    kind: Kind,
    rows: int,
    skip_bad: bool,
    reading: dict[str, Any],
    _: pa.Table,
) -> Iterator[pa.Table]:
    """Yield each window as a table of one row, then what was skipped or went wrong."""
    rejects, message = Rejects(skip_bad), ""
    try:
        for window in windows(read_texts(files, kind, rejects, **reading), rows):
            titles = [text.title for text in window.texts]
            bodies = [text.body for text in window.texts]
            yield _row(window.number, window.ids, titles, bodies, "")
        message = rejects.summary()
    except SciMultError as error:
        message = f"error: {error}"
    yield _row(-1, [], [], [], message)


def _row(
    number: int, ids: list[str], titles: list[str], bodies: list[str], message: str
) -> pa.Table:
    lists = pa.list_(pa.string())
    schema = {"number": pa.int64(), "ids": lists, "titles": lists, "bodies": lists}
    row = {"number": number, "ids": ids, "titles": titles, "bodies": bodies, "message": message}
    return pa.Table.from_pylist([row], schema=pa.schema({**schema, "message": pa.string()}))


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of a window; raise the error that it says."""
    if row["message"].startswith("error: "):
        problem, _, fix = row["message"].removeprefix("error: ").partition(". Fix: ")
        raise DataError(problem, fix=fix)
    return row


def _finish(results: list[dict[str, Any]]) -> Encoded:
    for row in results:
        if row["message"]:
            warn(row["message"])
    by_number = {row["number"]: row["fingerprint"] for row in results if row["number"] >= 0}
    fingerprints = [by_number[number] for number in sorted(by_number)]
    if not fingerprints:
        raise DataError("no text is left", fix="add one that has an id and a text")
    spaces = {row["spaces"] for row in results}
    if len(spaces) > 1:
        fix = "set the computation type: --dtype float32"
        raise ConfigError("machines of the cluster made vectors of different spaces", fix=fix)
    missing: set[int] = set()
    for folder, space in json.loads(spaces.pop()).items():
        missing.update(publish_if_whole(Path(folder), Space(**space), fingerprints))
    texts, encoded = (sum(row[name] for row in results) for name in ("texts", "encoded"))
    return Encoded(texts, len(fingerprints), encoded, sorted(missing))
