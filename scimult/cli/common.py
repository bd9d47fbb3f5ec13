"""Helpers of the verbs that use a trained model."""

from __future__ import annotations

import ipaddress
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from scimult.cli.output import echo, print_records
from scimult.errors import ConfigError, DataError

if TYPE_CHECKING:
    from scimult.data.records import Rejects
    from scimult.inference import SciMult
    from scimult.inference.collection import Collection
    from scimult.types import FloatArray, Kind, Role


KEY = "SCIMULT_API_KEY"
# Columns of lists with texts of papers, and the most characters that a table shows of one.
_TEXTS, _MOST_SHOWN = {"title", "paper", "evidence"}, 300


def api_key(*, least: int, fix: str) -> str | None:
    """Return a service's key from the environment, as headers carry it: without spaces around it.

    Raises
    ------
    ConfigError
        If it is shorter than ``least`` characters, or no header can carry it.
    """
    key = os.environ.get(KEY, "").strip()
    if key and (len(key) < least or not key.isascii() or not key.isprintable()):
        raise ConfigError(f"${KEY} is not a valid key", value=f"{len(key)} characters", fix=fix)
    return key or None


def is_local(host: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_model(
    path: Path,
    device: str | None,
    dtype: str,
    pooling: Literal["cls", "mean"] | None,
    similarity: Literal["dot", "cosine", "l2"] | None,
) -> SciMult:
    """Load a verb's model."""
    from scimult.inference import SciMult

    return SciMult.from_pretrained(
        path, device=device, dtype=dtype, pooling=pooling, similarity=similarity
    )


@contextmanager
def rejecting(skip_bad: bool) -> Iterator[Rejects]:
    """Yield a collector of bad records; report the skipped ones on stderr at the end."""
    from scimult.data.records import Rejects

    rejects = Rejects(skip_bad)
    try:
        yield rejects
    finally:
        if rejects.counts:
            echo(rejects.summary(), err=True)


def open_collection(path: Path, kind: Kind, skip_bad: bool) -> Collection:
    """Read papers or labels; records skipped by ``--skip-bad`` are reported on stderr."""
    from scimult.inference.collection import read_collection

    with rejecting(skip_bad) as rejects:
        return read_collection(path, kind, rejects)


def open_searched(encoder: SciMult, task: str, papers: Path, skip_bad: bool) -> Collection:
    """Read the papers that a task ranks; raise a DataError if it ranks something else."""
    if encoder.kind(task, "candidate") != "paper":
        fix = "use scimult tag, which ranks labels for papers, or another --task"
        raise DataError("this task does not search for papers", value=task, fix=fix)
    return open_collection(papers, "paper", skip_bad)


def read_labels(path: Path, skip_bad: bool) -> list[dict[str, str]]:
    """Read labels as the dicts that libraries and services take."""
    space = open_collection(path, "label", skip_bad)
    return [
        {"id": name, "name": text.title, "definition": text.body}
        for name, text in zip(space.ids, space.texts, strict=True)
    ]


def embed(
    model: SciMult, collection: Collection, task: str, role: Role, no_cache: bool
) -> FloatArray:
    """Return a collection's embeddings, from the user's cache where possible."""
    from scimult.inference.cache import EmbeddingCache, encode_collection

    cache = None if no_cache else EmbeddingCache.of_user()
    return encode_collection(model, collection, task=task, role=role, cache=cache)


def ranked(
    model: SciMult,
    candidates: Collection,
    candidates_CD: FloatArray,
    queries_QD: FloatArray,
    top: int,
    own_row: int = -1,
) -> list[list[dict[str, Any]]]:
    """Return each query's best candidates as table rows, one list per query.

    ``own_row`` is a candidate to leave out of every list; -1 for none.
    """
    import numpy as np

    from scimult.retrieval.exact import ExactIndex

    index = ExactIndex(candidates.ids, candidates_CD, model.similarity, device=model.device)
    exclude_Q = np.full(len(queries_QD), own_row, dtype=np.int64)
    ranking = index.search(queries_QD, top, exclude_Q=exclude_Q)
    scores_QK = index.shown_scores(queries_QD, ranking)
    return [
        [
            {
                "rank": rank,
                "score": round(float(score), 4),
                "id": candidates.ids[row],
                "title": candidates.texts[row].title,
            }
            for rank, (row, score) in enumerate(zip(rows, scores, strict=True), start=1)
            if row >= 0
        ]
        for rows, scores in zip(ranking.rows_QK, scores_QK, strict=True)
    ]


def show_list(rows: list[dict[str, Any]], title: str, as_json: bool) -> None:
    """Print a ranked list: one JSON object per line, or a table."""
    if as_json:
        for row in rows:
            finite = {name: _finite(value) for name, value in row.items()}
            typer.echo(json.dumps(finite, ensure_ascii=False))
    elif rows:
        print_records(
            [{name: _short(name, cell) for name, cell in row.items()} for row in rows], title
        )


def _short(name: str, value: Any) -> Any:
    """Return the cell of a column, cut if it is a long text: some titles hold a whole paper."""
    is_long = name in _TEXTS and len(value or "") > _MOST_SHOWN
    return f"{value[: _MOST_SHOWN - 1]}…" if is_long else value


def _finite(value: Any) -> Any:
    """Return a value, or None for a number that JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_ranked(rows: list[dict[str, Any]], title: str, similarity: str, as_json: bool) -> None:
    """Print a ranked list; a table's heading names the similarity."""
    from scimult.library.results import SCORES

    if not rows:
        echo("nothing to rank: there are no other papers", err=True)
    if not as_json:
        heading = f"score ({SCORES[similarity]})"
        rows = [{heading if key == "score" else key: v for key, v in row.items()} for row in rows]
    show_list(rows, title, as_json)
