"""Files of other libraries on a full disk end in one message that names the output."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import ascii_letters

import faiss
import numpy as np
import pytest

from scimult.checkpoints import load_pretrained
from scimult.checkpoints.released_export import write_released
from scimult.data.tokenization import TextTokenizer
from scimult.disk_space import create_matrix, naming_failed_writes
from scimult.errors import StorageError
from scimult.files import atomic_folder, write_text
from scimult.library.building import _write
from scimult.preparation.vocabulary import save_tokenizer, train_wordpiece
from scimult.retrieval.shard_folders import open_folder
from scimult.retrieval.space import Space
from tests.tiny import save_tiny_model


@contextmanager
def small_disk(most: int = 1000) -> Iterator[None]:
    """Let no file grow beyond ``most`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_model_in_the_released_form(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m"))
    message = r"out: cannot write: File too large.*Fix: "
    with small_disk(), pytest.raises(StorageError, match=message):
        write_released(tmp_path / "out", model)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("other", [False, True])
def test_a_tokenizer(tmp_path: Path, other: bool) -> None:
    folder = save_tiny_model(tmp_path / "m")
    tokenizer = TextTokenizer.from_folder(folder)
    if other:  # saved by transformers
        tokenizer = TextTokenizer(tokenizer._as_transformers())
    message = r"out/tokenizer: cannot write: File too large.*Fix: "
    with (
        small_disk(),
        pytest.raises(StorageError, match=message),
        atomic_folder(tmp_path / "out") as temporary,
    ):
        tokenizer.save(temporary / "tokenizer")
    assert not (tmp_path / "out").exists()


def test_a_new_vocabulary(tmp_path: Path) -> None:
    tokenizer = train_wordpiece([f"{a}{b}" for a in ascii_letters for b in ascii_letters], 500)
    message = r"out/tokenizer.json: cannot write: File too large.*Fix: "
    with small_disk(), pytest.raises(StorageError, match=message):
        save_tokenizer(tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("most", [0, 1000, 4096 * 3])
def test_an_approximate_index_to_its_last_byte(tmp_path: Path, most: int) -> None:
    index = faiss.IndexFlatL2(8)
    index.add(np.ones((500, 8), dtype=np.float32))
    message = r"x\.faiss: cannot write: File too large.*Fix: "
    with small_disk(most), pytest.raises(StorageError, match=message):
        _write(index, tmp_path / "x.faiss")
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_has_its_bytes_before_they_are_set(tmp_path: Path) -> None:
    """Without them a full disk ends the process with SIGBUS."""
    path = tmp_path / "matrix.npy"
    matrix_ND = create_matrix(path, np.float32, (1000, 50))
    assert path.stat().st_blocks * 512 >= 1000 * 50 * 4
    assert matrix_ND.shape == (1000, 50)
    with small_disk(), pytest.raises(StorageError, match=r"x\.npy: cannot write: File too large"):
        create_matrix(tmp_path / "x.npy", np.float32, (1000, 50))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("No space left on device (os error 28)", "No space left on device"),
        ("Error while serializing: I/O error: failed to write whole buffer", "Input/output error"),
    ],
)
def test_errors_of_libraries_that_pass_the_system_s_on_as_text(
    tmp_path: Path, text: str, reason: str
) -> None:
    with (
        pytest.raises(StorageError, match=f"x: cannot write: {reason}"),
        naming_failed_writes(tmp_path / "x"),
    ):
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="another"), naming_failed_writes(tmp_path / "x"):
        raise RuntimeError("another")


def test_a_folder_of_embeddings_in_its_first_step(tmp_path: Path) -> None:
    """The message named the hidden folder that becomes the output."""
    out = tmp_path / "out"
    with small_disk(10), pytest.raises(StorageError, match="cannot write") as raised:
        open_folder(out, {out: Space(4, "dot")}, overwrite=False)
    assert raised.value.path == out / "manifest.json"
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_folder_is_named_as_it_will_be(tmp_path: Path) -> None:
    with (
        small_disk(),
        pytest.raises(StorageError, match=r"out/a\.txt: cannot write"),
        atomic_folder(tmp_path / "out") as temporary,
    ):
        write_text(temporary / "a.txt", "x" * 2000)
    assert list(tmp_path.iterdir()) == []
