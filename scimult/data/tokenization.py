"""Text to token ids: the only code that formats texts and calls a tokenizer.

Paper and label: ``[CLS] title [SEP] body [SEP]``; query: ``[CLS] query [SEP]`` (SciMult,
section 3.1). A text is one sequence: token types are all 0, and it is cut as a whole. RoBERTa uses
``<s>`` and ``</s>`` for ``[CLS]`` and ``[SEP]``, with one separator instead of two.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer
from tokenizers.normalizers import Lowercase, Replace
from tokenizers.normalizers import Sequence as NormalizerSequence

from scimult.data.tokenizer_files import CONFIG_FILE, FINGERPRINT_KEY, SavedTokenizer, load
from scimult.disk_space import naming_failed_writes
from scimult.errors import CheckpointError, ConfigError, SciMultError
from scimult.files import read_json, write_json
from scimult.types import IntArray, Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TokenArray = NDArray[np.int32]
FORMAT = "title sep body, v1"
_LOWERCASE_KEY = "scimult_lowercase"
# Python lower-cases a capital sigma that ends a word to another letter; `Lowercase` does not.
_SIGMA = Replace(Regex(r"(?<=[\p{Lu}\p{Ll}\p{M}])Σ(?!\p{M}*[\p{Lu}\p{Ll}])"), "ς")
# Characters of a long text that are tokenised for each token wanted. The last `_SPARE` tokens
# before a cut do not count: a token of the vocabulary may span words.
_CHARACTERS, _SPARE = 8, 16


class TextTokenizer:
    """A Hugging Face tokenizer that formats papers, labels and queries.

    A literal special token inside a text, such as ``[SEP]``, stays that token, as in transformers.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerFast or SavedTokenizer
        Must have ``cls``, ``sep`` and ``pad`` tokens.
    lowercase : bool, optional
        Lower-case all text (SciMult, appendix A). None: as saved with the tokenizer, or else
        whether the tokenizer is uncased.

    Raises
    ------
    CheckpointError
        If a special token is missing, or the tokenizer does not put them around a text.
    ConfigError
        If an uncased tokenizer is to keep case.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast | SavedTokenizer,
        *,
        lowercase: bool | None = None,
    ) -> None:
        path = tokenizer.name_or_path
        for name in ("cls", "sep", "pad"):
            if getattr(tokenizer, f"{name}_token_id") is None:
                fix = "use a tokenizer of the BERT family"
                raise CheckpointError(f"tokenizer has no {name} token", path=path, fix=fix)
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        try:
            around = backend.encode("").ids
        except BaseException as error:
            # A panic of Rust, as for a template of tokens that are not there, is no Exception.
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            problem, fix = "tokenizer cannot read a text", "copy its files again"
            raise CheckpointError(problem, path=path, value=str(error), fix=fix) from error
        if around != [tokenizer.cls_token_id, tokenizer.sep_token_id]:
            raise CheckpointError(
                "tokenizer does not put cls and sep around a text",
                path=path,
                value=tokenizer.convert_ids_to_tokens(around),
                fix="use a tokenizer that writes one cls token, the text and one sep token",
            )
        uncased = _lowercases(backend.normalizer)
        if lowercase is None:
            lowercase = bool(tokenizer.init_kwargs.get(_LOWERCASE_KEY, uncased))
        if uncased and not lowercase:
            raise ConfigError(
                "lowercase=False, but this tokenizer is uncased",
                path=path,
                fix="use a cased tokenizer or leave lowercase out",
            )
        tokenizer.init_kwargs[_LOWERCASE_KEY] = lowercase
        self._tokenizer = tokenizer
        self._lower_here = lowercase and not uncased
        self._verbatim = _verbatim(backend, tokenizer.sep_token)
        self.lowercase = lowercase
        self.pad_id, self.cls_id, self.sep_id = (
            int(getattr(tokenizer, f"{name}_token_id")) for name in ("pad", "cls", "sep")
        )
        content = f"{FORMAT}\n{lowercase}\n{backend.to_str()}"
        if tokenizer.truncation_side != "right":
            content += f"\ncut on the {tokenizer.truncation_side}"
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()[:12]

    @classmethod
    def from_folder(cls, path: Path | str, *, lowercase: bool | None = None) -> TextTokenizer:
        """Load the tokenizer files of a model or tokenizer folder.

        Raises
        ------
        CheckpointError
            If the folder does not exist or holds no usable tokenizer.
        """
        if not Path(path).is_dir():
            raise CheckpointError(
                "tokenizer folder does not exist", path=path, fix="check the path"
            )
        if (ours := cls.saved(Path(path), lowercase=lowercase)) is not None:
            return ours
        return cls(load(Path(path)), lowercase=lowercase)

    @classmethod
    def saved(cls, folder: Path, *, lowercase: bool | None = None) -> TextTokenizer | None:
        """Load our own files without transformers; None if they are third-party or changed."""
        saved = SavedTokenizer.find(folder)
        if saved is None:
            return None
        try:
            tokenizer = cls(saved, lowercase=lowercase)
        except SciMultError:
            return None
        return tokenizer if tokenizer.fingerprint == saved.recorded else None

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return self._tokenizer.backend_tokenizer.get_vocab_size()

    @property
    def keeps_end(self) -> bool:
        """Whether a text that is too long loses its beginning."""
        return self._tokenizer.truncation_side == "left"

    def encode(self, texts: Sequence[Text], max_length: int) -> list[TokenArray]:
        """Return the token ids of each text, cut to ``max_length`` with the last one ``[SEP]``.

        ``max_length`` counts special tokens; it is at least 3.
        """
        if not texts:
            return []
        assert max_length >= 3, max_length
        backend = self._tokenizer.backend_tokenizer
        whole = [self.format(text) for text in texts]
        starts = whole if self.keeps_end else [_start(one, max_length) for one in whole]
        encoded = backend.encode_batch_fast(starts)
        for i, row in enumerate(encoded):
            if len(starts[i]) < len(whole[i]) and len(row.ids) < max_length + _SPARE:
                encoded[i : i + 1] = backend.encode_batch_fast(whole[i : i + 1])
        return [np.asarray(self._cut(row.ids, max_length), dtype=np.int32) for row in encoded]

    def _cut(self, ids: list[int], max_length: int) -> list[int]:
        """Cut token ids as the tokenizer would; a length set in it would hold for all threads."""
        spare = len(ids) - max_length
        if spare <= 0:
            return ids
        if self.keeps_end:
            return [*ids[:1], *ids[1 + spare :]]
        return [*ids[: -1 - spare], *ids[-1:]]

    def format(self, text: Text) -> str:
        """Return the string to tokenise: title and body around a separator.

        An empty part has no separator. No spaces surround the separator: WordPiece would drop
        them, byte-level BPE would turn them into tokens.
        """
        separator: str = self._tokenizer.sep_token
        joined = separator.join(part for part in (text.title, text.body) if part)
        if not self._lower_here:
            return joined
        pieces = self._verbatim.split(joined)
        return "".join(
            piece if number % 2 else piece.lower() for number, piece in enumerate(pieces)
        )

    def save(self, folder: Path | str) -> None:
        """Write the tokenizer files into ``folder``; ``from_folder`` restores an equal one.

        Raises
        ------
        StorageError
            If the disk is full or the folder cannot be written.
        """
        self._tokenizer.init_kwargs[FINGERPRINT_KEY] = self.fingerprint
        with naming_failed_writes(folder):
            self._tokenizer.save_pretrained(str(folder))

    def save_plain(self, folder: Path | str, max_length: int) -> None:
        """Write the files so that other libraries tokenise as we do.

        They cut texts at ``max_length`` tokens when asked to. Lower-casing that we add to a cased
        tokenizer becomes part of its files. Raises what `save` does.
        """
        if self._lower_here:
            self._save_lowering(folder)
        else:
            self.save(folder)
        path = Path(folder, CONFIG_FILE)
        write_json(path, {**read_json(path), "model_max_length": max_length})

    def _save_lowering(self, folder: Path | str) -> None:
        from transformers import PreTrainedTokenizerFast

        full = self._as_transformers()
        backend = copy.deepcopy(full.backend_tokenizer)
        steps = [_SIGMA, Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = NormalizerSequence(steps)
        # The generic class, because those of a family (BertTokenizer) replace the normalizer.
        plain = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            model_input_names=full.model_input_names,
            **full.special_tokens_map,
            **{_LOWERCASE_KEY: True},
        )
        with naming_failed_writes(folder):
            plain.save_pretrained(str(folder))

    def _as_transformers(self) -> Any:
        if not isinstance(self._tokenizer, SavedTokenizer):
            return self._tokenizer
        with TemporaryDirectory() as folder:
            self.save(folder)
            return load(Path(folder))

    @property
    def separator(self) -> str:
        """The special token between title and body, as text."""
        token: str = self._tokenizer.sep_token
        return token


def cut(tokens: np.ndarray, max_length: int, sep_id: int) -> IntArray:
    """Return a copy of an encoded text, cut to ``max_length`` tokens that end in ``sep_id``."""
    shorter: IntArray = tokens[:max_length].astype(np.int64)
    if len(tokens) > max_length:
        shorter[-1] = sep_id
    return shorter


def title_tokens(tokens: IntArray) -> IntArray:
    """Return an encoded text up to its first separator: the title, where there is a body."""
    return tokens[: 1 + int(np.argmax(tokens == tokens[-1]))]


def _start(text: str, max_length: int) -> str:
    """Return as much of a text as should have the tokens wanted and some to spare.

    Tokenising a book takes hundreds of megabytes, for the few tokens of its first page. The cut is
    before a space after a letter or digit, where every tokenizer begins a new word.
    """
    end = _CHARACTERS * (max_length + 2 * _SPARE)
    if len(text) <= end:
        return text
    while (end := text.rfind(" ", 0, end)) > 0:
        if text[end - 1].isalnum():
            return text[:end]
    return text


def _verbatim(backend: Tokenizer, separator: str) -> re.Pattern[str]:
    """Return what splits a text at the tokens that a tokenizer looks for before it normalises."""
    added = backend.get_added_tokens_decoder().values()
    tokens = {separator, *(token.content for token in added if not token.normalized)}
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})")


def _lowercases(normalizer: Any) -> bool:
    """Return whether a tokenizer's normalizer, whatever its type, lower-cases."""
    return normalizer is not None and "A" not in normalizer.normalize_str("A")
