"""Raw files to a folder that is ready for training: prepare, mine, tokenise, all or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from scimult.data.lines import Rejects
from scimult.data.prepared import PREPARED, TOKENS, PreparedData
from scimult.data.token_store import build_token_store, is_token_store
from scimult.data.tokenization import TextTokenizer
from scimult.files import atomic_folder, link_or_copy
from scimult.preparation.config import PrepareConfig
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.dense import OpenEncoder
from scimult.preparation.mining.engine import Limits
from scimult.preparation.mining.mine import mine
from scimult.preparation.prepare import prepare
from scimult.preparation.self_supervision import SelfSupervisionConfig, add_view_pairs
from scimult.preparation.steps import Steps


class DatasetConfig(PrepareConfig):
    """Content of ``configs/data/*.yaml``: what to read, and which pairs to make of it besides."""

    self_supervision: list[SelfSupervisionConfig] = []
    mining: MiningConfig = MiningConfig()


def build_dataset(
    config: DatasetConfig,
    folder: Path | str,
    *,
    tokenizer: TextTokenizer | None = None,
    skip_bad: bool = False,
    steps: Path | None = None,
    workers: int = 1,
    open_encoder: OpenEncoder | None = None,
    verify: bool = False,
    limits: Limits | None = None,
) -> tuple[PreparedData, Rejects]:
    """Prepare, mine and tokenise; ``folder`` appears only when everything is in it.

    Parameters
    ----------
    config : DatasetConfig
        Sources and choices.
    folder : path
        Where to write; an existing prepared folder is replaced.
    tokenizer : TextTokenizer, optional
        Tokenise now; otherwise training does it when it first needs the tokens.
    skip_bad : bool
        Leave bad records out and count them, instead of stopping at the first.
    steps : path, optional
        Folder that keeps what was read, cleaned, mined and tokenised, so that a run that was
        interrupted, or one with other choices, repeats only what its inputs changed.
    workers : int
        Processes that tokenise.
    open_encoder : callable, optional
        Opens the model of a ``dense`` rule of mining.
    verify : bool
        Compare the content of files with that of the last run, not size and time alone.
    limits : Limits, optional
        Memory and threads that reading and mining take.

    Raises
    ------
    ConfigError, DataError
        See ``prepare`` and ``mine``; nothing is left behind.
    StorageError
        If the disk is full, ``folder`` holds something that is not a prepared folder, or another
        process writes it.
    """
    with atomic_folder(folder, PREPARED) as temporary:
        cache = None if steps is None else Steps(steps, verify=verify)
        rejects = prepare(config, temporary, skip_bad=skip_bad, steps=cache, limits=limits)
        add_view_pairs(temporary, config.self_supervision, config.task_set())
        mine(temporary, config.mining, open_encoder, cache, limits=limits)
        if tokenizer is not None:
            _tokenise(temporary, tokenizer, steps, workers)
    return PreparedData.open(folder), rejects


def _tokenise(folder: Path, tokenizer: TextTokenizer, steps: Path | None, workers: int) -> None:
    """Tokenise in ``folder``, or beside the other steps from where the folder gets links."""
    data = PreparedData.open(folder)
    if steps is None:
        data.tokens(tokenizer, workers=workers)
        return
    made = steps / TOKENS / tokenizer.fingerprint
    if not is_token_store(made, data.texts):
        build_token_store(data.texts, tokenizer, made, workers=workers)
    target = folder / TOKENS / tokenizer.fingerprint
    shutil.copytree(made, target, copy_function=link_or_copy)
