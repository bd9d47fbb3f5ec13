"""Train an uncased BERT-style WordPiece vocabulary, deterministically.

Pieces come from byte-pair merges, as in the ``tokenizers`` library. Its own WordPiece trainer
numbers the ``##`` characters in hash-map order, so that ties between equal counts are broken
differently in each run (huggingface/tokenizers, issue 1794). Here every character that
continues a word is replaced by a private one before training: the alphabet is then known, and
sorted, before the first merge, and the result is reproducible.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from scimult.data.lines import read_jsonl
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_parquet
from scimult.data.text_files import raw_columns
from scimult.data.text_store import FILE_NAME as TEXTS_FILE
from scimult.data.text_store import TextStore
from scimult.disk_space import naming_failed_writes
from scimult.errors import ConfigError, DataError
from scimult.files import FolderKind, atomic_folder, holds_only
from scimult.progress import progress

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXT_FIELDS = ("title", "abstract", "text", "name", "definition")
_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
# Model folders have these files too, so nothing else may be in the folder.
TOKENIZER = FolderKind("a tokenizer alone", lambda folder: holds_only(folder, _FILES))
_CONTINUES = "##"
_FIRST_PRIVATE = 0xF0000
_MOST_CHARACTERS = 2000
_TEXTS_PER_BATCH = 4096


def read_texts(path: Path | str) -> Iterator[str]:
    """Yield the texts of a prepared folder, of JSON lines, or of a file that a conversion wrote.

    Raises
    ------
    DataError
        If the file cannot be read, or a record has none of the known text fields.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / TEXTS_FILE).exists():
            fix = "name a folder made by scimult prepare, or a JSON lines file"
            raise DataError("not a prepared folder", path=path, fix=fix)
        store = TextStore.open(path)
        for start in range(0, len(store), _TEXTS_PER_BATCH):
            for text in store.slice(start, start + _TEXTS_PER_BATCH):
                yield f"{text.title} {text.body}"
        return
    # The papers of a converted source are Parquet.
    is_raw = raw_columns(path) is not None
    rows = read_parquet(path, (), Rejects()) if is_raw else read_jsonl(path, Rejects())
    yield from map(_record_text, rows)


def train_wordpiece(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train an uncased WordPiece tokenizer; the same texts, in any order, give the same tokenizer.

    ``vocab_size`` counts special tokens; there are fewer if the texts do not yield as many.
    Adjacent pieces that occur together only once are not merged.

    Raises
    ------
    ConfigError
        If ``vocab_size`` is too small for the characters of the texts.
    DataError
        If the texts contain no word.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in progress(texts, "count words", unit="text"):
        words = splitter.pre_tokenize_str(normalizer.normalize_str(text))
        counts.update(word for word, _ in words)
    tokenizer = Tokenizer(models.WordPiece(_pieces(counts, vocab_size), unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.WordPiece(prefix=_CONTINUES)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, SPECIAL_TOKENS.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path | str) -> None:
    """Write the files from which Hugging Face's ``AutoTokenizer`` loads a BERT tokenizer.

    Raises
    ------
    StorageError
        If the folder holds anything but such a tokenizer, or cannot be written; nothing
        half-written is left behind.
    """
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": 512,
        **{f"{name.strip('[]').lower()}_token": name for name in SPECIAL_TOKENS},
    }
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    with atomic_folder(folder, TOKENIZER) as temporary:
        with naming_failed_writes(temporary / "tokenizer.json"):
            tokenizer.save(str(temporary / "tokenizer.json"))
        (temporary / "vocab.txt").write_text(
            "".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8"
        )
        (temporary / "tokenizer_config.json").write_text(
            json.dumps(config, indent=2) + "\n", encoding="utf-8"
        )


def _record_text(record: Record) -> str:
    present = [name for name in TEXT_FIELDS if name in record.fields]
    if not present:
        fix = f"give it one of {', '.join(TEXT_FIELDS)}"
        raise record.error("record has no text field", value=sorted(record.fields), fix=fix)
    return " ".join(record.text(name, "") for name in present)


def _pieces(counts: Counter[str], vocab_size: int) -> dict[str, int]:
    """Return the vocabulary: special tokens, characters, then pieces in order of merging."""
    characters = _alphabet(counts)
    private = {character: chr(_FIRST_PRIVATE + i) for i, character in enumerate(characters)}
    public = {code: _CONTINUES + character for character, code in private.items()}
    marked = {
        word[0] + "".join(private[character] for character in word[1:]): count
        for word, count in sorted(counts.items())
        if private.keys() >= set(word)
    }
    least = len(SPECIAL_TOKENS) + len({character for word in marked for character in word})
    if vocab_size < least:
        raise ConfigError(
            "vocabulary is too small for the characters of the texts",
            value=vocab_size,
            fix=f"use --vocab-size {least} or more",
        )
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    model.train_from_iterator(_repeated(marked), trainer)
    return {_public(token, public): number for token, number in model.get_vocab().items()}


def _alphabet(counts: Counter[str]) -> list[str]:
    """Return the most frequent characters of the words, sorted."""
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    if not characters:
        raise DataError("the texts contain no word", fix="name a file or folder with texts")
    by_count = sorted(characters, key=lambda character: (-characters[character], character))
    return sorted(by_count[:_MOST_CHARACTERS])


def _repeated(words: dict[str, int]) -> Iterable[str]:
    """Yield each word as often as it was counted, in batches."""
    for word, count in words.items():
        for start in range(0, count, _TEXTS_PER_BATCH):
            yield " ".join([word] * min(_TEXTS_PER_BATCH, count - start))


def _public(token: str, public: dict[str, str]) -> str:
    """Return a piece in WordPiece notation: ``##`` marks the continuation of a word."""
    if token in SPECIAL_TOKENS:
        return token
    plain = "".join(
        public.get(character, character).removeprefix(_CONTINUES) for character in token
    )
    return _CONTINUES + plain if token[0] in public else plain
