"""The token store equals direct tokenisation and refuses other texts and damage."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult import files
from scimult.data import token_store
from scimult.data.text_store import TextStore
from scimult.data.token_store import TokenStore, build_token_store
from scimult.data.tokenization import TextTokenizer
from scimult.errors import ConfigError, DataError
from scimult.files import read_json, write_json
from scimult.types import Text
from tests.prepared_folders import write_texts

TEXTS = [
    Text("paper", f"Title {i}", "some words about graphs and proteins " * i) for i in range(12)
]


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(minilm)


def _texts(folder: Path, texts: list[Text]) -> TextStore:
    return write_texts(folder, {f"ns:{i}": text for i, text in enumerate(texts)})


@pytest.fixture
def built(tmp_path: Path, tokenizer: TextTokenizer) -> TokenStore:
    return build_token_store(_texts(tmp_path / "texts", TEXTS), tokenizer, tmp_path / "tokens", 48)


@pytest.mark.parametrize("texts_per_chunk", [1, 5, 100])
def test_equals_direct_tokenisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: TextTokenizer, texts_per_chunk: int
) -> None:
    monkeypatch.setattr(token_store, "TEXTS_PER_CHUNK", texts_per_chunk)
    store = build_token_store(_texts(tmp_path / "t", TEXTS), tokenizer, tmp_path / "tokens", 48)
    for max_length in (3, 10, 48):
        direct = tokenizer.encode(TEXTS, max_length)
        for row, expected in enumerate(direct):
            assert store.tokens(row, max_length).tolist() == expected.tolist()
    assert store.tokens(0, 48).dtype == np.int64
    assert store.lengths_N.tolist() == [len(ids) for ids in tokenizer.encode(TEXTS, 48)]
    assert store.lengths_N.dtype == np.int32
    assert store.meta["dtype"] == "uint16"


def test_other_texts_are_refused(built: TokenStore, tmp_path: Path) -> None:
    others = _texts(tmp_path / "others", TEXTS[:3])
    with pytest.raises(DataError, match=r"tokens: token store belongs to other texts.*delete"):
        TokenStore.open(tmp_path / "tokens", texts=others)


def test_a_store_that_was_cut_shorter_is_refused(built: TokenStore, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cut at 48 tokens, 49 are needed"):
        TokenStore.open(tmp_path / "tokens", max_length=49)


def test_damaged_stores_are_refused(built: TokenStore, tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    tokens = (folder / "tokens.bin").read_bytes()
    (folder / "tokens.bin").write_bytes(tokens[:-2])
    with pytest.raises(DataError, match="damaged token store: sizes disagree"):
        TokenStore.open(folder)
    (folder / "tokens.bin").write_bytes(b"")
    with pytest.raises(DataError, match="damaged token store"):
        TokenStore.open(folder)
    write_json(folder / "meta.json", {**read_json(folder / "meta.json"), "version": "0"})
    with pytest.raises(DataError, match="of another version"):
        TokenStore.open(folder)
    whole = read_json(folder / "meta.json")
    kinds = {"max_length": "48", "count": None, "sep_id": [3], "dtype": "object", "texts": 1}
    retyped = [json.dumps({**whole, name: value}) for name, value in kinds.items()]
    for damaged in ("[]", "null", '{"version": "1"}', *retyped):
        (folder / "meta.json").write_text(damaged, encoding="utf-8")
        with pytest.raises(DataError, match="meta.json: damaged token store.*Fix: delete"):
            TokenStore.open(folder)
    (folder / "meta.json").unlink()
    with pytest.raises(DataError, match="does not exist"):
        TokenStore.open(folder)


def test_a_build_killed_after_its_texts_changed_does_not_resume_at_the_mark_of_the_former_texts(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_store, "TEXTS_PER_CHUNK", 1)
    former = _texts(tmp_path / "former", TEXTS)
    texts = _texts(tmp_path / "texts", [*reversed(TEXTS)])
    encode = TextTokenizer.encode

    def killed(store: TextStore, after: int) -> None:
        """Build a store, and be killed once some texts are tokenised."""
        left = [after]

        def until_killed(*arguments: Any) -> Any:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return encode(*arguments)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(TextTokenizer, "encode", until_killed)
            build_token_store(store, tokenizer, tmp_path / "tokens", 48)

    killed(former, after=9)
    killed(texts, after=2)
    resumed = build_token_store(texts, tokenizer, tmp_path / "tokens", 48)
    fresh = build_token_store(texts, tokenizer, tmp_path / "fresh", 48)
    for row in range(len(texts)):
        assert resumed.tokens(row, 48).tolist() == fresh.tokens(row, 48).tolist()


@pytest.mark.parametrize("renames", [1, 2])
def test_what_a_killed_replacement_left_goes_with_the_next_build(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Killed before the new store has its name, or after, with the old one beside it."""
    folder, texts = tmp_path / "tokens", _texts(tmp_path / "texts", TEXTS)
    build_token_store(texts, tokenizer, folder, 48)
    moved = []

    def until_killed(source: Path, target: Path) -> None:
        if folder in (source, target) or source.suffix == ".old":
            if len(moved) == renames:
                raise KeyboardInterrupt
            moved.append(source)
        os.rename(source, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(files.os, "replace", until_killed)
        build_token_store(texts, tokenizer, folder, 32)
    assert (folder.exists(), len([*tmp_path.glob(".tokens.*.old")])) == (renames == 2, 1)
    build_token_store(texts, tokenizer, folder, 24)
    assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []


def test_a_tokenizer_that_keeps_ends_is_refused(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    tokenizer.save(tmp_path / "left")
    config = read_json(tmp_path / "left" / "tokenizer_config.json")
    write_json(tmp_path / "left" / "tokenizer_config.json", {**config, "truncation_side": "left"})
    left = TextTokenizer.from_folder(tmp_path / "left")
    with pytest.raises(ConfigError, match="cuts texts on the left"):
        build_token_store(_texts(tmp_path / "texts", TEXTS), left, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()
