"""Turn raw files into a folder ready for training: prepare, mine, tokenise, all or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from scimult.data.prepared import PREPARED_ALONE, TOKENS, PreparedData
from scimult.data.records import Rejects
from scimult.data.token_store import build_token_store, is_token_store
from scimult.data.tokenization import TextTokenizer
from scimult.files import atomic_folder, link_or_copy
from scimult.preparation.config import PrepareConfig
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.dense import OpenEncoder
from scimult.preparation.mining.engine import Limits
from scimult.preparation.mining.mine import mine
from scimult.preparation.prepare import prepare
from scimult.preparation.steps import Steps


class DatasetConfig(PrepareConfig):
    """Content of ``configs/data/*.yaml``: preparation and mining."""

    mining: MiningConfig = MiningConfig()


def build_dataset(
    config: DatasetConfig,
    folder: Path | str,
    *,
    tokenizer: TextTokenizer | None = None,
    skip_bad: bool = False,
    steps: Path | None = None,
    open_encoder: OpenEncoder | None = None,
    verify: bool = False,
    limits: Limits | None = None,
) -> tuple[PreparedData, Rejects]:
    """Prepare, mine and tokenise; ``folder`` appears only when it is complete.

    Parameters
    ----------
    config : DatasetConfig
        Sources and options.
    folder : path
        Output folder; an existing prepared folder is replaced.
    tokenizer : TextTokenizer, optional
        Tokenise now; otherwise training does it when it first needs the tokens.
    skip_bad : bool
        Leave bad records out and count them, instead of stopping at the first.
    steps : path, optional
        Cache of read, cleaned, mined and tokenised data, so that a resumed run, or one with
        other options, repeats only the steps whose inputs changed.
    open_encoder : callable, optional
        Opens the model of a ``dense`` mining rule.
    verify : bool
        Compare files with the last run by content, not only by size and time.
    limits : Limits, optional
        Memory and threads for reading and mining.

    Raises
    ------
    ConfigError, DataError
        See ``prepare`` and ``mine``; nothing is left behind.
    StorageError
        If the disk is full, ``folder`` holds something that is not a prepared folder, or another
        process writes it.
    """
    with atomic_folder(folder, PREPARED_ALONE) as temporary:
        cache = None if steps is None else Steps(steps, verify=verify)
        rejects = prepare(config, temporary, skip_bad=skip_bad, steps=cache, limits=limits)
        mine(temporary, config.mining, open_encoder, cache, limits=limits)
        if tokenizer is not None:
            _tokenise(temporary, tokenizer, steps)
    return PreparedData.open(folder), rejects


def _tokenise(folder: Path, tokenizer: TextTokenizer, steps: Path | None) -> None:
    """Tokenise in ``folder``, or next to the other steps and link the tokens into ``folder``."""
    data = PreparedData.open(folder)
    if steps is None:
        data.tokens(tokenizer)
        return
    cached = steps / TOKENS / tokenizer.fingerprint
    if not is_token_store(cached, data.texts):
        build_token_store(data.texts, tokenizer, cached)
    target = folder / TOKENS / tokenizer.fingerprint
    shutil.copytree(cached, target, copy_function=link_or_copy)
