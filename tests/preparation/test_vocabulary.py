"""A custom WordPiece vocabulary: reproducible, and usable in Hugging Face."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizer

from scimult.data.tokenization import TextTokenizer
from scimult.errors import ConfigError, DataError, StorageError
from scimult.preparation.vocabulary import (
    SPECIAL_TOKENS,
    read_texts,
    save_tokenizer,
    train_wordpiece,
)
from scimult.preparation.world import WorldSettings, make_world
from scimult.types import Text
from tests.public import run
from tests.raw_corpus import raw_config, write_jsonl


@pytest.fixture(scope="module")
def texts() -> list[str]:
    world = make_world(WorldSettings(papers=300))
    return [f"{text.title} {text.body}" for text in world.paper_texts]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str]) -> Tokenizer:
    return train_wordpiece(texts, 1500)


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer"
    save_tokenizer(tokenizer, path)
    return path


def test_a_text_of_one_word_teaches_that_word() -> None:
    tokenizer = train_wordpiece(["graph Graph"], 50)
    assert tokenizer.encode("GRAPH").tokens == ["[CLS]", "graph", "[SEP]"]


@pytest.mark.ranks
def test_every_process_finds_the_same_vocabulary(texts: list[str], tokenizer: Tokenizer) -> None:
    """The library's own WordPiece trainer fails this: it breaks ties by a random hash."""
    code = (
        "import sys; from scimult.preparation.vocabulary import train_wordpiece;"
        "texts = sys.stdin.read().splitlines();"
        "print(train_wordpiece(texts, 1500).to_str(), end='')"
    )
    for order in (texts, texts[::-1]):
        found = subprocess.run(
            [sys.executable, "-c", code],
            input="\n".join(order),
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout == tokenizer.to_str()


def test_size_and_special_tokens(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    assert len(vocabulary) == 1500
    assert sorted(vocabulary.values()) == list(range(1500))
    assert [vocabulary[token] for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert not [token for token in vocabulary if ord(max(token)) >= 0xF0000]


def test_frequent_words_are_one_piece_and_others_are_spelt(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("The results", add_special_tokens=False).tokens == ["the", "results"]
    spelt = tokenizer.encode("unseenword", add_special_tokens=False).tokens
    assert len(spelt) > 2
    assert all(piece.startswith("##") for piece in spelt[1:])
    assert "".join(piece.removeprefix("##") for piece in spelt) == "unseenword"


def test_text_comes_back(texts: list[str], tokenizer: Tokenizer) -> None:
    for text in texts[:50]:
        words = " ".join(text.replace(".", "").replace(",", "").split()).lower()
        if not set(words) & set("():"):
            assert tokenizer.decode(tokenizer.encode(words).ids) == words


def test_hugging_face_loads_a_bert_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    loaded = AutoTokenizer.from_pretrained(str(folder))
    assert isinstance(loaded, BertTokenizer)
    assert loaded.is_fast
    assert len(loaded) == 1500
    text = "Towards Resulte [SEP] Ünder (this)"
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids
    pair = loaded("the paper", "the")
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    assert tuple(getattr(loaded, name) for name in names) == SPECIAL_TOKENS
    listed = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert {token: number for number, token in enumerate(listed)} == tokenizer.get_vocab()


def test_our_tokenizer_loads_it_as_uncased(folder: Path) -> None:
    ours = TextTokenizer.from_folder(folder)
    assert ours.lowercase
    lower, upper = ours.encode([Text("query", "the paper"), Text("query", "The PAPER")], 16)
    assert lower.tolist() == upper.tolist()


def test_few_texts_give_few_tokens() -> None:
    small = train_wordpiece(["ab ab ab", "ab ac"], 1000)
    assert set(small.get_vocab()) == {*SPECIAL_TOKENS, "a", "##b", "##c", "ab"}
    assert small.encode("ab ac x").tokens == ["[CLS]", "ab", "a", "##c", "[UNK]", "[SEP]"]


def test_rare_characters_are_left_out_when_there_are_too_many() -> None:
    many = "".join(chr(0x4E00 + i) for i in range(2500))
    found = train_wordpiece(["common " * 5, " ".join(many)], 5000).get_vocab()
    assert "common" in found
    assert len(found) < 2100


def test_a_vocabulary_smaller_than_the_alphabet_is_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="too small.*--vocab-size") as error:
        train_wordpiece(texts, 20)
    least = int(str(error.value).split("--vocab-size ")[1].split()[0])
    assert train_wordpiece(texts, least).get_vocab_size() == least


def test_texts_without_a_word_are_refused() -> None:
    with pytest.raises(DataError, match="contain no word"):
        train_wordpiece(["", "  "], 100)


@pytest.mark.long
def test_texts_of_files_and_of_a_prepared_folder(root: Path, tmp_path: Path) -> None:
    from scimult.preparation.dataset import build_dataset

    assert next(read_texts(root / "papers.jsonl")) == "Paper number 0 An abstract about topic 0."
    assert next(read_texts(root / "labels.jsonl")) == "Label 0 "
    assert next(read_texts(root / "queries.jsonl")) == "find topic 0"
    prepared = tmp_path / "prepared"
    build_dataset(raw_config(root), prepared, tokenizer=None, skip_bad=False)
    found = [text.strip() for text in read_texts(prepared)]
    assert len(found) == 20 + 5 + 6
    assert "find topic 0" in found


def test_bad_input_is_located(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "papers.jsonl", [{"title": "a"}, {"heading": "b"}])
    with pytest.raises(DataError, match=r"papers.jsonl:2: record has no text field"):
        list(read_texts(tmp_path / "papers.jsonl"))
    with pytest.raises(DataError, match="not a prepared folder"):
        list(read_texts(tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        list(read_texts(tmp_path / "absent.jsonl"))


def test_saved_files_are_the_same_each_time(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name in ("first", "again"):
        save_tokenizer(tokenizer, tmp_path / name)
    for file in (tmp_path / "first").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()
    config = json.loads((tmp_path / "first" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["do_lower_case"] is True


@pytest.mark.parametrize("own", [True, False])
def test_a_folder_with_anything_else_is_not_replaced(tmp_path: Path, own: bool) -> None:
    tokenizer = train_wordpiece(["graphs of graphs"] * 3, 100)
    folder = tmp_path / "v1"
    for _ in range(2):  # a folder with only a tokenizer is replaced
        save_tokenizer(tokenizer, folder)
    if not own:
        shutil.rmtree(folder)
        folder.mkdir()
    (folder / "model.safetensors").write_text("precious", encoding="utf-8")
    before = sorted(folder.iterdir())
    with pytest.raises(StorageError, match=r"v1: exists and is not a tokenizer alone.*Fix: "):
        save_tokenizer(tokenizer, folder)
    assert sorted(folder.iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


def test_the_papers_of_a_conversion_give_a_vocabulary(tmp_path: Path) -> None:
    content = {"a.csv": "id,title,abstract\n1,One,Two\n2,Three,\n"}
    found = run(tmp_path, "table", content, papers={"file": "a.csv"})
    assert list(read_texts(found.folder / "table" / "papers.parquet")) == ["One Two", "Three "]
