"""Read a sentence-transformers folder's settings: pooling, scaling to length 1, similarity.

The files are those of the library's versions 2 to 6: ``modules.json`` (the modules in order), the
pooling's ``config.json``, ``sentence_bert_config.json`` and ``config_sentence_transformers.json``.
"""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from scimult.checkpoints.config import SHORTEST
from scimult.errors import CheckpointError
from scimult.files import read_json
from scimult.models.config import Pooling
from scimult.types import Similarity

MODULES_FILE = "modules.json"
LENGTH_FILE = "sentence_bert_config.json"
# Names of old versions, by the model's family, which the library still reads.
_OLD_LENGTH_FILES = ("sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
SIMILARITY_FILE = "config_sentence_transformers.json"
# The library's names for our similarities; its Euclidean one is the negative distance.
SIMILARITY_NAMES: dict[Similarity, str] = {"dot": "dot", "cosine": "cosine", "l2": "euclidean"}

# The library's poolings that we support, as `pooling` and `pooling_position`.
_POOLINGS: dict[str, tuple[Pooling, int]] = {
    "cls": ("cls", 0),
    "mean": ("mean", 0),
    "lasttoken": ("position", -1),
}
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


class SentenceFolder:
    """The settings of a sentence-transformers folder, each read on demand.

    So a setting that the user overrides never raises: a folder with an unsupported pooling can be
    loaded with another one.

    Parameters
    ----------
    folder : Path
        The folder with ``modules.json``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def find(cls, folder: Path) -> SentenceFolder | None:
        """Return the settings, or None if the library did not write the folder."""
        return cls(folder) if (folder / MODULES_FILE).is_file() else None

    @property
    def pooling(self) -> tuple[Pooling, int]:
        """``pooling`` and ``pooling_position`` of our encoder.

        Raises
        ------
        CheckpointError
            If we support neither its pooling nor another module that embeddings pass through.
        """
        kinds = [kind for kind, _ in self._modules]
        unknown = [kind for kind in kinds if kind not in _KNOWN_MODULES]
        if unknown or kinds[:2] != ["Transformer", "Pooling"] or self._modules[0][1]:
            raise self._refusal(f"its modules are {', '.join(kinds)}", unknown or kinds)
        file = Path(self._modules[1][1], "config.json")
        if not os.path.isfile(self.folder / file):  # False, too, for a name that is too long
            # Without it the library would not load; the mean would be a guess.
            fix = "copy the whole folder, subfolders too, or set pooling=mean or pooling=cls"
            raise CheckpointError("pooling is not described", path=self.folder / file, fix=fix)
        content = self._read(file)
        mode = content.get("pooling_mode")
        if mode is None:
            keys = [key for key, on in content.items() if key.startswith("pooling_mode_") and on]
            mode = [key.removeprefix("pooling_mode_").removesuffix("_tokens") for key in keys]
            mode = ["cls" if name == "cls_token" else name for name in mode] or ["mean"]
        modes = mode if isinstance(mode, list) else [mode]
        known = len(modes) == 1 and modes[0] in list(_POOLINGS)
        if not known or not content.get("include_prompt", True):
            raise self._refusal("its pooling is not supported", content)
        return _POOLINGS[modes[0]]

    @property
    def normalises(self) -> bool:
        """Whether a module scales embeddings to length 1."""
        return any(kind == "Normalize" for kind, _ in self._modules)

    @property
    def similarity(self) -> Similarity:
        """How embeddings are compared: by default cosine, as in the library.

        Raises
        ------
        CheckpointError
            If we do not support it.
        """
        name = self._read(SIMILARITY_FILE).get("similarity_fn_name") or "cosine"
        for ours, theirs in SIMILARITY_NAMES.items():
            if theirs == name:
                return ours
        raise self._refusal("its similarity is not supported", name, "such as similarity=l2")

    @property
    def max_length(self) -> int | None:
        """Longest text in tokens, if specified."""
        limits = (
            self._texts.get("max_seq_length"),
            # Where version 6 keeps it; no limit is a huge number.
            self._read("tokenizer_config.json").get("model_max_length"),
        )
        return next((int(n) for n in limits if isinstance(n, (int, float)) and n < math.inf), None)

    @property
    def dims(self) -> int | None:
        """How many dimensions of an embedding the library keeps; None: all.

        Raises
        ------
        CheckpointError
            If it is not a positive integer.
        """
        dims = self._read(SIMILARITY_FILE).get("truncate_dim")
        if dims is None or (isinstance(dims, int) and not isinstance(dims, bool) and dims > 0):
            return dims
        problem, path = "truncate_dim is not a positive integer", self.folder / SIMILARITY_FILE
        raise CheckpointError(problem, path=path, value=dims, fix="write one, or null for none")

    def longest(self, positions: int) -> int:
        """Return the longest text in tokens for a model with ``positions``."""
        return max(SHORTEST, min(self.max_length or positions, positions))

    @property
    def lowercases(self) -> bool:
        """Whether texts are lower-cased before tokenisation."""
        return bool(self._texts.get("do_lower_case", False))

    @property
    def prompts(self) -> list[str]:
        """Names of the prompts that the library can prepend to a text."""
        prompts = self._read(SIMILARITY_FILE).get("prompts")
        given = prompts.items() if isinstance(prompts, dict) else ()
        return sorted(name for name, text in given if text)

    @property
    def subfolder_fix(self) -> str:
        """The fix for a folder whose encoder is in a subfolder."""
        models = sorted(file.parent.name for file in self.folder.glob(f"*/{MODULES_FILE}"))
        if models:
            return f"use one of the models in it: {', '.join(models)}"
        return "save it again with sentence-transformers, or evaluate it with --encoder"

    @property
    def _texts(self) -> dict[str, Any]:
        """How texts are cut and lower-cased."""
        files = (self._read(name) for name in (LENGTH_FILE, *_OLD_LENGTH_FILES))
        return next((content for content in files if content), {})

    @cached_property
    def _modules(self) -> list[tuple[str, str]]:
        """Kind and subfolder of each module."""
        path = self.folder / MODULES_FILE
        try:
            return [
                (entry["type"].rpartition(".")[2], str(entry["path"])) for entry in read_json(path)
            ]
        except (KeyError, TypeError, AttributeError) as error:
            fix = "use a complete folder, or delete the file to read the encoder alone"
            raise CheckpointError("not a list of modules", path=path, fix=fix) from error

    def _read(self, name: str | Path) -> dict[str, Any]:
        path = self.folder / name
        content = read_json(path) if path.is_file() else {}
        if not isinstance(content, dict):
            raise CheckpointError("not a JSON object", path=path, fix="use a complete folder")
        return content

    def _refusal(
        self, problem: str, value: object, instead: str = "pooling=mean or pooling=cls"
    ) -> CheckpointError:
        return CheckpointError(
            f"sentence-transformers folder that our encoder cannot reproduce: {problem}",
            path=self.folder,
            value=value,
            fix=f"evaluate it with --encoder, or override the setting ({instead})",
        )


def lowercases(folder: Path) -> bool | None:
    """Return True if a sentence-transformers folder lower-cases its texts; None: see tokenizer."""
    settings = SentenceFolder.find(folder)
    return True if settings is not None and settings.lowercases else None
