"""Texts become ``[CLS] title [SEP] body [SEP]``, cut like the tokenizer's own truncation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from scimult.data.tokenization import TextTokenizer, cut
from scimult.errors import CheckpointError, ConfigError
from scimult.files import read_json, write_json
from scimult.types import Text
from tests.base_models import save_tokenizer

PAPER = Text("paper", "Graph Attention", "We study Graphs.")
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "Graph", "graph", "Deep", "deep"]


@pytest.fixture(scope="module")
def uncased(minilm: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(minilm)


@pytest.fixture
def cased(tmp_path: Path) -> Path:
    """Return the folder of a cased word-level tokenizer."""
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", **names)
    tokenizer.save_pretrained(tmp_path / "cased")
    return tmp_path / "cased"


def test_layout_of_papers_labels_and_queries(uncased: TextTokenizer, minilm: Path) -> None:
    plain = AutoTokenizer.from_pretrained(str(minilm))
    ids = [
        plain(words, add_special_tokens=False)["input_ids"]
        for words in ("graph attention", "we study graphs.")
    ]
    cls, sep = uncased.cls_id, uncased.sep_id
    both = [cls, *ids[0], sep, *ids[1], sep]
    texts = [
        PAPER,
        Text("label", PAPER.title, PAPER.body),
        Text("query", PAPER.title),
        Text("paper", PAPER.title, ""),
        Text("paper", "", PAPER.body),
    ]
    first = [cls, *ids[0], sep]
    encoded = [array.tolist() for array in uncased.encode(texts, 64)]
    assert encoded == [both, both, first, first, [cls, *ids[1], sep]]
    assert uncased.encode([], 64) == []


def test_a_literal_separator_stays_special(uncased: TextTokenizer, cased: Path) -> None:
    joined = uncased.encode([Text("query", "Graph Attention [SEP] We study Graphs.")], 64)[0]
    assert joined.tolist() == uncased.encode([PAPER], 64)[0].tolist()
    lowering = TextTokenizer.from_folder(cased, lowercase=True)
    assert lowering.encode([Text("query", "Deep [SEP] Graph")], 64)[0].tolist() == [1, 7, 2, 5, 2]


@pytest.mark.long
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(
        st.sampled_from(["graph", "hyperparameterization", "a", "[SEP]", "é"]), max_size=20
    )
)
@pytest.mark.parametrize("max_length", [3, 8, 16])
def test_cutting_equals_the_tokenizers_own(
    uncased: TextTokenizer, minilm: Path, words: list[str], max_length: int
) -> None:
    text = Text("paper", "title words here", " ".join(words))
    reference = AutoTokenizer.from_pretrained(str(minilm))(
        uncased.format(text), truncation=True, max_length=max_length
    )
    assert set(reference["token_type_ids"]) == {0}
    direct = uncased.encode([text], max_length)[0]
    later = cut(uncased.encode([text], 512)[0], max_length, uncased.sep_id)
    assert direct.tolist() == later.tolist() == reference["input_ids"]


def test_lower_casing_is_on_for_uncased_and_an_option_for_cased(
    uncased: TextTokenizer, cased: Path
) -> None:
    assert uncased.lowercase
    text = Text("query", "Deep graph")
    keeping, lowering = (
        TextTokenizer.from_folder(cased),
        TextTokenizer.from_folder(cased, lowercase=True),
    )
    assert (keeping.lowercase, lowering.lowercase) == (False, True)
    assert keeping.encode([text], 9)[0].tolist() == [1, 6, 5, 2]
    assert lowering.encode([text], 9)[0].tolist() == [1, 7, 5, 2]
    assert keeping.fingerprint != lowering.fingerprint


def test_an_uncased_tokenizer_cannot_keep_case(minilm: Path) -> None:
    with pytest.raises(ConfigError, match=r"lowercase=False, but this tokenizer is uncased.*Fix"):
        TextTokenizer.from_folder(minilm, lowercase=False)


def test_plain_files_do_not_keep_the_length_of_the_last_texts(tmp_path: Path, cased: Path) -> None:
    tokenizer = TextTokenizer.from_folder(cased, lowercase=True)
    tokenizer.encode([PAPER], 4)
    tokenizer.save_plain(tmp_path / "plain", 64)
    assert read_json(tmp_path / "plain" / "tokenizer.json")["truncation"] is None


def test_what_other_threads_do_lifts_no_length(
    tmp_path: Path, cased: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer of the library holds one length: texts were cut to another one, or not at all."""
    tokenizer = TextTokenizer.from_folder(cased)
    formatted = tokenizer.format

    def meanwhile(text: Text) -> str:
        monkeypatch.setattr(tokenizer, "format", formatted)
        tokenizer.encode([text], 100)
        tokenizer.save(tmp_path / "saved")
        return formatted(text)

    monkeypatch.setattr(tokenizer, "format", meanwhile)
    assert [len(ids) for ids in tokenizer.encode([PAPER, PAPER], 4)] == [4, 4]


@pytest.mark.parametrize("lowercase", [None, True])
def test_plain_files_cut_where_we_do(tmp_path: Path, cased: Path, lowercase: bool | None) -> None:
    tokenizer = TextTokenizer.from_folder(cased, lowercase=lowercase)
    tokenizer.save_plain(tmp_path / "plain", 5)
    plain = AutoTokenizer.from_pretrained(tmp_path / "plain")
    found = plain(tokenizer.format(PAPER), truncation=True)["input_ids"]
    assert found == tokenizer.encode([PAPER], 5)[0].tolist()
    assert len(found) == 5


def test_plain_files_lower_case_as_we_do(tmp_path: Path) -> None:
    """Python's lower case depends on the context of one letter, the Greek capital sigma."""
    save_tokenizer(tmp_path, "roberta")  # its bytes tell all letters apart
    tokenizer = TextTokenizer.from_folder(tmp_path, lowercase=True)
    tokenizer.save_plain(tmp_path / "plain", 64)
    plain = Tokenizer.from_file(str(tmp_path / "plain" / "tokenizer.json"))
    for text in ("ΟΔΟΣ", "ΣΟΣ ΣΕΣ.", "Σ", "aΣ</s>ΣΕΣ", "ΟΔΟΣ-Σ", "ΕΣΟΔΟΣ, ΟΔΟΣ"):
        ids = tokenizer.encode([Text("query", text)], 64)[0].tolist()
        assert plain.encode(text).ids == ids, text


@pytest.mark.parametrize("lowercase", [None, True])
def test_save_and_load_give_an_equal_tokenizer(
    tmp_path: Path, cased: Path, lowercase: bool | None
) -> None:
    before = TextTokenizer.from_folder(cased, lowercase=lowercase)
    before.encode([PAPER], 8)
    before.save(tmp_path / "saved")
    after = TextTokenizer.from_folder(tmp_path / "saved")
    assert after.fingerprint == before.fingerprint
    assert after.lowercase == before.lowercase
    assert after.vocab_size == before.vocab_size == len(WORDS)
    assert (after.pad_id, after.cls_id, after.sep_id) == (0, 1, 2)


def test_folders_without_a_usable_tokenizer(tmp_path: Path, cased: Path) -> None:
    with pytest.raises(CheckpointError, match="tokenizer folder does not exist"):
        TextTokenizer.from_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty: holds no usable tokenizer.*Fix"):
        TextTokenizer.from_folder(tmp_path / "empty")
    shutil.copytree(cased, tmp_path / "odd")
    odd = '{"model_type": "roberta", "tie_word_embeddings": "x"}'
    (tmp_path / "odd" / "config.json").write_text(odd)
    with pytest.raises(CheckpointError, match="no usable tokenizer: .*'tie_word_embeddings'"):
        TextTokenizer.from_folder(tmp_path / "odd")
    shutil.copytree(cased, tmp_path / "damaged")
    tree = read_json(cased / "tokenizer.json")
    tree["post_processor"]["single"][0]["SpecialToken"]["id"] = "[NONE]"
    write_json(tmp_path / "damaged" / "tokenizer.json", tree)
    with pytest.raises(CheckpointError, match=r"damaged: .*token.*Fix"):
        TextTokenizer.from_folder(tmp_path / "damaged")
    backend = Tokenizer.from_file(str(cased / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="tokenizer has no cls token"):
        TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.mark.parametrize("ours", [False, True])
def test_the_side_on_which_texts_are_cut_is_part_of_the_fingerprint(
    tmp_path: Path, cased: Path, ours: bool
) -> None:
    folder = cased
    if ours:
        TextTokenizer.from_folder(cased).save(folder := tmp_path / "ours")
    right = TextTokenizer.from_folder(folder)
    config = read_json(folder / "tokenizer_config.json")
    write_json(folder / "tokenizer_config.json", {**config, "truncation_side": "left"})
    left = TextTokenizer.from_folder(folder)
    texts = [Text("query", "Graph graph Deep deep")]
    assert [ids.tolist() for ids in right.encode(texts, 4)] == [[1, 4, 5, 2]]
    assert [ids.tolist() for ids in left.encode(texts, 4)] == [[1, 6, 7, 2]]
    assert left.fingerprint != right.fingerprint
    left.save(tmp_path / "saved")
    saved = TextTokenizer.saved(tmp_path / "saved")
    assert saved is not None
    assert saved.fingerprint == left.fingerprint
