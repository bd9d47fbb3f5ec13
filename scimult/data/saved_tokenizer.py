"""Load our own tokenizer files without transformers, whose import takes a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

FINGERPRINT_KEY = "scimult_fingerprint"
TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"


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
