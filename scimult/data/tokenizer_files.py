"""Files of a tokenizer: our own, read without transformers, and those of third parties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from scimult.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FINGERPRINT_KEY = "scimult_fingerprint"
TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
# Classes of transformers, by the files of a tokenizer.
_BY_FILES: dict[tuple[str, ...], str] = {
    ("vocab.txt",): "BertTokenizer",
    ("vocab.json", "merges.txt"): "RobertaTokenizer",
    ("sentencepiece.bpe.model",): "XLMRobertaTokenizer",
}


class SavedTokenizer:
    """The part of a Hugging Face tokenizer's interface that `TextTokenizer` uses.

    A third-party ``tokenizer.json`` is not enough: some transformers classes replace its
    normalizer. `TextTokenizer` therefore saves a fingerprint of the tokenizer it used, and trusts
    these files only if they reproduce it. ``config`` is the content of ``tokenizer_config.json``.
    """

    def __init__(self, backend: Tokenizer, config: dict[str, Any], folder: Path) -> None:
        self.backend_tokenizer = backend
        self.init_kwargs = config
        self.name_or_path = str(folder)
        self.truncation_side: str = config.get("truncation_side", "right")
        self.sep_token: str = config["sep_token"]
        self.cls_token_id, self.sep_token_id, self.pad_token_id = (
            backend.token_to_id(config[f"{name}_token"]) for name in ("cls", "sep", "pad")
        )

    @classmethod
    def find(cls, folder: Path) -> SavedTokenizer | None:
        """Read a folder that we saved; None if it is third-party or unreadable."""
        try:
            config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            if FINGERPRINT_KEY not in config:
                return None
            backend = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
            return cls(backend, config, folder)
        except Exception:  # tokenizers raises nothing narrower; transformers will report it
            return None

    @property
    def recorded(self) -> object:
        """The fingerprint at the time of saving."""
        return self.init_kwargs[FINGERPRINT_KEY]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        """Return the tokens of ids."""
        return [self.backend_tokenizer.id_to_token(number) for number in ids]

    def save_pretrained(self, folder: str) -> None:
        """Write the two files again."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.backend_tokenizer.save(str(Path(folder, TOKENIZER_FILE)))
        text = json.dumps(self.init_kwargs, indent=2, sort_keys=True, ensure_ascii=False)
        Path(folder, CONFIG_FILE).write_text(f"{text}\n", encoding="utf-8")


def load(folder: Path) -> PreTrainedTokenizerFast:
    """Load any tokenizer by transformers.

    Raises
    ------
    CheckpointError
        If the folder holds no usable one.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = _by_transformers(folder)
    except Exception as error:  # transformers reads config.json, too, and raises anything
        problem = f"holds no usable tokenizer: {' '.join(str(error).split())[:120]}"
        fix = "give a folder with tokenizer.json and tokenizer_config.json"
        raise CheckpointError(problem, path=folder, fix=fix) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        fix = "convert it to a tokenizer.json file"
        raise CheckpointError("not a fast tokenizer", path=folder, fix=fix)
    # transformers makes one for a model's folder without tokenizer files: all words unknown.
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        fix = "copy the files of its tokenizer there, such as tokenizer.json"
        raise CheckpointError("holds no vocabulary", path=folder, fix=fix)
    return tokenizer


def _by_transformers(folder: Path) -> Any:
    """Load a tokenizer; without ``tokenizer.json``, infer the class from the files."""
    import transformers

    configs = [
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("config.json", "tokenizer_config.json")
        if (folder / name).is_file()
    ]
    options: dict[str, Any] = {"local_files_only": True}
    if (folder / "tokenizer.json").is_file():
        return transformers.AutoTokenizer.from_pretrained(str(folder), **options)
    vocabulary = folder / "vocab.txt"
    if vocabulary.is_file() and not any("do_lower_case" in config for config in configs):
        # transformers would lower-case even with a cased vocabulary, which has capitals.
        options["do_lower_case"] = not _has_capitals(vocabulary)
    if not any(config.keys() & {"model_type", "tokenizer_class"} for config in configs):
        for files, tokenizer_class in _BY_FILES.items():
            if all((folder / name).is_file() for name in files):
                loader = getattr(transformers, tokenizer_class)
                return loader.from_pretrained(str(folder), **options)
    return transformers.AutoTokenizer.from_pretrained(str(folder), **options)


def _has_capitals(vocabulary: Path) -> bool:
    """Return whether a WordPiece vocabulary has capitals outside its special tokens."""
    lines = vocabulary.read_text(encoding="utf-8").splitlines()
    return any(word != word.lower() for word in lines if not word.startswith("["))
