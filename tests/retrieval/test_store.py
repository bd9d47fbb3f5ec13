"""The embedding store: each text is encoded once, always with the same result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from scimult import distributed
from scimult.errors import DataError
from scimult.retrieval.store import Precision, StoringEncoder, key_of
from scimult.types import FloatArray, Role, Text
from tests.benchmark_sets import WordEncoder
from tests.ranks import run_ranks

TEXTS = [Text("paper", f"title {row}", "body" * (row % 3)) for row in range(25)]


def _encode(encoder: StoringEncoder, texts: Sequence[Text] = TEXTS) -> FloatArray:
    return encoder.encode(texts, task="search", role="query")


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_stored_is_what_was_encoded_to_the_precision(tmp_path: Path, precision: Precision) -> None:
    """Half precision keeps 11 bits of a number, bfloat16 8: relative errors of 2^-11 and 2^-9."""
    plain = WordEncoder().encode(TEXTS, task="search", role="query")
    first = _encode(StoringEncoder(WordEncoder(), tmp_path, "m", precision, block=7))
    again_from = WordEncoder()
    again = _encode(StoringEncoder(again_from, tmp_path, "m", precision))
    tolerance = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[precision]
    assert np.array_equal(first, again)
    assert first.dtype == np.float32
    assert np.allclose(first, plain, rtol=tolerance, atol=1e-6 if tolerance else 0)
    assert again_from.encoded == []


def test_each_text_task_and_role_is_encoded_once(tmp_path: Path) -> None:
    inner = WordEncoder()
    encoder = StoringEncoder(inner, tmp_path, "m", block=4)
    twice = [*TEXTS[:5], *TEXTS[:5]]
    assert np.array_equal(_encode(encoder, twice)[:5], _encode(encoder, TEXTS[:5]))
    encoder.encode(TEXTS[:5], task="search", role="candidate")
    encoder.encode(TEXTS[3:8], task="search", role="query")
    assert len(inner.encoded) == len(set(inner.encoded)) == 5 + 5 + 3


def test_blocks_may_outnumber_open_files(tmp_path: Path) -> None:
    encoder = StoringEncoder(WordEncoder(), tmp_path, "m", block=1)
    before = len(os.listdir("/dev/fd"))
    assert _encode(encoder).shape[0] == len(TEXTS)
    assert len(os.listdir("/dev/fd")) == before


def test_a_block_whose_files_do_not_belong_together_is_named(tmp_path: Path) -> None:
    _encode(StoringEncoder(WordEncoder(), tmp_path, "m"))
    (rows,) = tmp_path.rglob("*.rows.npy")
    np.save(rows, np.load(rows)[1:])
    with pytest.raises(DataError, match="25 keys for shape"):
        _encode(StoringEncoder(WordEncoder(), tmp_path, "m"))


def test_models_do_not_share_embeddings(tmp_path: Path) -> None:
    _encode(StoringEncoder(WordEncoder(width=16), tmp_path, "one"))
    other = _encode(StoringEncoder(WordEncoder(width=4), tmp_path, "two"))
    assert other.shape == (25, 4)


def test_texts_that_only_join_to_the_same_string_differ() -> None:
    assert key_of(Text("paper", "ab", "c")) != key_of(Text("paper", "a", "bc"))
    assert key_of(Text("paper", "ab")) != key_of(Text("query", "ab"))


class _Killed(WordEncoder):
    """Stops after some calls, like a killed job."""

    calls = 0

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        self.calls += 1
        if self.calls > 2:
            raise KeyboardInterrupt
        return super().encode(texts, task=task, role=role)


def test_killed_work_resumes_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _encode(StoringEncoder(_Killed(), tmp_path, "m", block=10))
    # A kill between the two files of a block leaves rows without keys, which do not count.
    (tmp_path / "m/search.query.float32/unfinished.rows.npy").write_bytes(b"half")
    inner = WordEncoder()
    found = _encode(StoringEncoder(inner, tmp_path, "m", block=10))
    assert len(inner.encoded) == 5
    assert np.array_equal(found, WordEncoder().encode(TEXTS, task="search", role="query"))


class _Spoilt(WordEncoder):
    """Returns one number that does not fit any precision, or this one."""

    value = np.float32("nan")

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        rows = super().encode(texts, task=task, role=role)
        rows[0, 0] = self.value
        return rows


def test_what_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 of 25 embeddings by words are not finite"):
        _encode(StoringEncoder(_Spoilt(), tmp_path, "m"))
    large = _Spoilt()
    large.value = np.float32(1e6)
    with pytest.raises(DataError, match="not finite in float16.*store float32"):
        _encode(StoringEncoder(large, tmp_path, "m", "float16"))
    assert list(tmp_path.rglob("*.npy")) == []


def test_a_damaged_block_is_named(tmp_path: Path) -> None:
    _encode(StoringEncoder(WordEncoder(), tmp_path, "m"))
    (rows,) = tmp_path.rglob("*.rows.npy")
    rows.write_bytes(rows.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot read stored embeddings"):
        _encode(StoringEncoder(WordEncoder(), tmp_path, "m"))


def _encode_on_rank(folder: Path) -> tuple[int, FloatArray]:
    inner = WordEncoder()
    encoder = StoringEncoder(inner, folder, "m", block=3)
    encoder.encode_on_all_ranks(TEXTS, task="search", role="query")
    mine = len(inner.encoded)
    found = _encode(encoder)
    assert len(inner.encoded) == mine, "everything is there after the ranks met"
    distributed.barrier()
    return mine, found


@pytest.mark.ranks
def test_ranks_share_the_work_and_get_the_same(tmp_path: Path) -> None:
    results = run_ranks(_encode_on_rank, 2, tmp_path, tmp_path / "store")
    single = WordEncoder().encode(TEXTS, task="search", role="query")
    assert [mine for mine, _ in results] == [13, 12]
    for _, found in results:
        assert np.array_equal(found, single)
