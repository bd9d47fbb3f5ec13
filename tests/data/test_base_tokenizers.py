"""Tokenizers of the base checkpoints: byte-level BPE, SentencePiece, old WordPiece folders."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from scimult.data.tokenization import TextTokenizer, cut
from scimult.data.tokenizer_files import SavedTokenizer
from scimult.errors import CheckpointError
from scimult.types import Text
from tests.base_models import FAMILIES, SENTENCES, SPECIAL, save_tokenizer

PAPER = Text("paper", "Graph attention", "Übersicht of naïve papers")
PIECES = [
    *("graph", "a", "e\u0301", "\u0301", "中文", "हिन्दी", "[SEP]", "<mask>", "</s>", ".", "'s"),
    *("x" * 150, "2020", "\n\n", "\u00a0", "\u200b", "ﬁ", "İ", "ΟΔΟΣ", "  "),
]
BODY = "We classify graphs; none cite papers. " * 3


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_tokenizer(tmp_path, request.param)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": request.param}))
    return tmp_path


@cache
def _read(folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(folder)


def plain_ids(folder: Path, text: str) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False).input_ids
    return ids


def test_one_separator_and_no_token_for_the_space_around_it(folder: Path) -> None:
    tokenizer = TextTokenizer.from_folder(folder)
    title, body = (plain_ids(folder, part) for part in (PAPER.title, PAPER.body))
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    assert tokenizer.encode([PAPER], 64)[0].tolist() == [cls, *title, sep, *body, sep]
    assert tokenizer.encode([Text("query", PAPER.title)], 64)[0].tolist() == [cls, *title, sep]
    assert tokenizer.encode([Text("query", "")], 64)[0].tolist() == [cls, sep]
    assert tokenizer.pad_id not in tokenizer.encode([PAPER], 64)[0]


def test_of_a_long_text_only_its_start_is_tokenised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = TextTokenizer.from_folder(folder)
    backend = tokenizer._tokenizer.backend_tokenizer
    read: list[int] = []

    def encode_batch_fast(texts: list[str]) -> list[Any]:
        read.extend(map(len, texts))
        return backend.encode_batch_fast(texts)

    recording = SimpleNamespace(encode_batch_fast=encode_batch_fast)
    monkeypatch.setattr(
        tokenizer,
        "_tokenizer",
        SimpleNamespace(backend_tokenizer=recording, truncation_side="right", sep_token="[SEP]"),
    )
    long = "We classify graphs " * 10_000
    assert len(tokenizer.encode([Text("query", long)], 64)[0]) == 64
    assert read.pop() < 1000
    assert not read
    # Words without tokens enough in its start: the whole text is read.
    sparse = "\n" * 5_000 + "a " + "\n" * 5_000 + long
    assert len(tokenizer.encode([Text("query", sparse)], 64)[0]) == 64


@given(
    words=st.lists(st.sampled_from(PIECES), min_size=1),
    gap=st.sampled_from(["", " ", "  ", "\n"]),
    repeats=st.integers(1, 60),
    max_length=st.sampled_from([3, 8, 32]),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tokens_of_a_long_text_are_those_of_the_whole(
    folder: Path, words: list[str], gap: str, repeats: int, max_length: int
) -> None:
    tokenizer = _read(folder)
    text = Text("paper", PAPER.title, gap.join(words * repeats))
    backend = tokenizer._tokenizer.backend_tokenizer
    ids = backend.encode(tokenizer.format(text)).ids
    expected = ids if len(ids) <= max_length else [*ids[: max_length - 1], tokenizer.sep_id]
    assert tokenizer.encode([text], max_length)[0].tolist() == expected


@pytest.mark.parametrize("lowercase", [None, True])
def test_saved_tokenizer_is_equal(folder: Path, tmp_path: Path, lowercase: bool | None) -> None:
    before = TextTokenizer.from_folder(folder, lowercase=lowercase)
    before.encode([PAPER], 9)
    before.save(tmp_path / "saved")
    after = TextTokenizer.from_folder(tmp_path / "saved")
    assert (after.fingerprint, after.lowercase) == (before.fingerprint, before.lowercase)
    assert after.vocab_size == before.vocab_size
    assert after.encode([PAPER], 64)[0].tolist() == before.encode([PAPER], 64)[0].tolist()


@pytest.mark.parametrize("lowercase", [None, True])
def test_saved_files_read_alone_are_what_transformers_makes_of_them(
    folder: Path, tmp_path: Path, lowercase: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load with tokenizers alone, and with transformers, by disabling the first."""
    saved = tmp_path / "saved"
    TextTokenizer.from_folder(folder, lowercase=lowercase).save(saved)
    alone = TextTokenizer.from_folder(saved)
    # Scores of a sentencepiece vocabulary change in the last digit on their way through JSON.
    family = json.loads((folder / "config.json").read_text())["model_type"]
    assert isinstance(alone._tokenizer, SavedTokenizer) == (family != "xlm-roberta")
    monkeypatch.setattr(SavedTokenizer, "find", classmethod(lambda *_: None))
    theirs = TextTokenizer.from_folder(saved)
    assert isinstance(theirs._tokenizer, PreTrainedTokenizerFast)
    assert alone.fingerprint == theirs.fingerprint
    texts = [
        PAPER,
        Text("query", ""),
        Text("paper", "", BODY),
        Text("query", "\u0130 x\u0307 \ufb01"),
    ]
    for ids, expected in zip(alone.encode(texts, 9), theirs.encode(texts, 9), strict=True):
        assert ids.tolist() == expected.tolist()
    alone.save(tmp_path / "a")
    theirs.save(tmp_path / "b")
    alone.save_plain(tmp_path / "c", 64)
    theirs.save_plain(tmp_path / "d", 64)
    for one, other in (("a", "b"), ("c", "d")):
        ours, plain = (AutoTokenizer.from_pretrained(tmp_path / name) for name in (one, other))
        assert ours.backend_tokenizer.to_str() == plain.backend_tokenizer.to_str()
        assert ours.special_tokens_map == plain.special_tokens_map


def test_saved_files_that_were_changed_are_not_trusted(folder: Path, tmp_path: Path) -> None:
    before = TextTokenizer.from_folder(folder)
    before.save(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer.json"
    changed = Tokenizer.from_file(str(file))
    changed.add_tokens(["graph attention"])
    changed.save(str(file))
    after = TextTokenizer.from_folder(tmp_path / "saved")
    assert not isinstance(after._tokenizer, SavedTokenizer)
    assert after.fingerprint != before.fingerprint


def test_casing(folder: Path) -> None:
    keeping, lowering = (TextTokenizer.from_folder(folder, lowercase=x) for x in (None, True))
    wordpiece = json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    assert keeping.lowercase == wordpiece
    assert (keeping.fingerprint == lowering.fingerprint) == wordpiece
    lowered = Text("paper", PAPER.title.lower(), PAPER.body.lower())
    assert lowering.encode([PAPER], 64)[0].tolist() == keeping.encode([lowered], 64)[0].tolist()


@pytest.mark.parametrize("max_length", [3, 8, 17])
def test_cutting_later_equals_cutting_at_once(folder: Path, max_length: int) -> None:
    tokenizer = TextTokenizer.from_folder(folder)
    text = Text("paper", PAPER.title, BODY)
    direct = tokenizer.encode([text], max_length)[0]
    later = cut(tokenizer.encode([text], 512)[0], max_length, tokenizer.sep_id)
    assert direct.tolist() == later.tolist()
    assert len(direct) == max_length


def test_a_literal_separator_stays_special(folder: Path) -> None:
    tokenizer = TextTokenizer.from_folder(folder, lowercase=True)
    sep = AutoTokenizer.from_pretrained(folder).sep_token
    joined = tokenizer.encode([Text("query", f"{PAPER.title}{sep}{PAPER.body}")], 64)[0]
    assert joined.tolist() == tokenizer.encode([PAPER], 64)[0].tolist()


def test_vocabulary_files_alone_say_what_they_are(tmp_path: Path) -> None:
    for family in ("roberta", "xlm-roberta"):
        folder = tmp_path / family
        folder.mkdir()
        save_tokenizer(folder, family)
        alone = TextTokenizer.from_folder(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
        assert alone.fingerprint == TextTokenizer.from_folder(folder).fingerprint
        assert (alone.cls_id, alone.pad_id, alone.sep_id) == (0, 1, 2)


def test_sentencepiece_ids_are_those_of_xlm_r(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "xlm-roberta")
    tokenizer = TextTokenizer.from_folder(tmp_path)
    pieces = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "sentencepiece.bpe.model")
    )
    # fairseq's four special tokens take the places of sentencepiece's three; 0 is unknown.
    for sentence in [*SENTENCES[:5], "Ünknown λ letters"]:
        expected = [piece + 1 if piece else 3 for piece in pieces.encode(sentence)]
        encoded = tokenizer.encode([Text("query", sentence)], 128)[0].tolist()
        assert encoded == [0, *expected, 2]
    assert tokenizer.vocab_size == pieces.get_piece_size() + 2  # <pad> and <mask>


@pytest.mark.parametrize("config", [None, {"vocab_size": 8}, {"model_type": "bert"}])
@pytest.mark.parametrize("cased", [False, True])
def test_old_wordpiece_folders(
    tmp_path: Path, config: dict[str, object] | None, cased: bool
) -> None:
    """SciBERT ships ``vocab.txt`` alone, and a ``config.json`` without ``model_type``."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "graph", "deep"]
    (tmp_path / "vocab.txt").write_text("\n".join(words + ["Graph"] * cased))
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = TextTokenizer.from_folder(tmp_path)
    assert tokenizer.lowercase != cased
    expected = [2, 7, 6, 3] if cased else [2, 5, 6, 3]
    assert tokenizer.encode([Text("query", "Graph deep")], 9)[0].tolist() == expected


def test_saved_choice_of_casing_wins_over_the_vocabulary(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "graph"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert not TextTokenizer.from_folder(tmp_path).lowercase


def test_normalizers_of_any_type(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "modernbert")
    file = tmp_path / "tokenizer.json"
    for normalizer, lowercase in [
        (normalizers.NFC(), False),
        (normalizers.Replace(" ", "▁"), False),
        (normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), True),
    ]:
        backend = Tokenizer.from_file(str(file))
        backend.normalizer = normalizer
        backend.save(str(file))
        assert TextTokenizer.from_folder(tmp_path).lowercase is lowercase


def test_a_tokenizer_without_special_tokens_around_the_text_is_refused(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "modernbert")
    backend = Tokenizer.from_str(
        json.dumps(json.loads((tmp_path / "tokenizer.json").read_text()) | {"post_processor": None})
    )
    _, pad, cls, sep, _ = SPECIAL["modernbert"]
    bare = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=pad, cls_token=cls, sep_token=sep
    )
    with pytest.raises(CheckpointError, match="does not put cls and sep around a text.*Fix"):
        TextTokenizer(bare)
