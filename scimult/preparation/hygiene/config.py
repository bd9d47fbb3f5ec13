"""Configuration of duplicates, overlap with evaluation sets, and leaks between splits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig, unset_variables
from scimult.errors import ConfigError

DuplicateKey = Literal["doi", "title", "near"]
EvaluationRole = Literal["query", "answer", "candidate"]
ALL_KEYS: tuple[DuplicateKey, ...] = ("doi", "title", "near")
SplitBy = Literal["query", "paper", "year", "component"]


def expanded(path: str, key: str, fix: str) -> str:
    """Return a path with ``~`` and environment variables expanded, unless one has this very name.

    Raises
    ------
    ConfigError
        If it names an unset environment variable.
    """
    if os.path.exists(path):
        return path
    if unset_variables(path):
        raise ConfigError(f"{key} names an unset environment variable", value=path, fix=fix)
    return os.path.expandvars(os.path.expanduser(path))


class NearConfig(StrictConfig):
    """Near-duplicates by the Jaccard similarity of their word shingles.

    Parameters
    ----------
    threshold : float
        Smallest similarity of near-duplicates.
    shingle_words : int
        Words per shingle.
    min_words : int
        Shorter texts have no near-duplicates, since titles may differ only in a number.
    permutations : int
        Length of a MinHash signature.
    seed : int
        Seed of the signatures.
    """

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    shingle_words: Annotated[int, Field(ge=1)] = 3
    min_words: Annotated[int, Field(ge=1)] = 25
    permutations: Annotated[int, Field(ge=16)] = 128
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> NearConfig:
        if self.min_words < self.shingle_words:
            raise ValueError("min_words must be at least shingle_words")
        return self


class HygieneConfig(StrictConfig):
    """How to treat duplicates and texts of evaluation sets.

    Parameters
    ----------
    duplicates : {"ignore", "merge", "refuse"}
        ``merge`` keeps one text of each group, with the pairs and labels of all; ``refuse``
        makes every other text a bad record; ``ignore`` does not look for duplicates.
    keys : list of {"doi", "title", "near"}
        What makes two papers duplicates.
    min_title : int
        Titles with fewer letters and digits than this do not identify a paper.
    near : NearConfig
        Near-duplicates, also in the overlap with evaluation sets.
    evaluation : str, optional
        Folder of evaluation sets whose overlap with the training texts is reported.
    decontaminate : list of {"query", "answer", "candidate"}
        Training texts equal to evaluation texts in these roles are removed with their pairs.
    """

    duplicates: Literal["ignore", "merge", "refuse"] = "ignore"
    keys: Annotated[list[DuplicateKey], Field(min_length=1)] = list(ALL_KEYS)
    min_title: Annotated[int, Field(ge=1)] = 20
    near: NearConfig = NearConfig()
    evaluation: str | None = None
    decontaminate: list[EvaluationRole] = []

    @model_validator(mode="after")
    def _check(self) -> HygieneConfig:
        if self.decontaminate and self.evaluation is None:
            raise ValueError("decontaminate needs the folder of evaluation sets; set evaluation")
        if self.duplicates == "ignore" and self.keys != list(ALL_KEYS):
            raise ValueError("keys are set, but duplicates are ignored; set duplicates")
        return self

    @property
    def evaluation_folder(self) -> Path | None:
        """The folder of evaluation sets, with ``~`` and environment variables expanded."""
        if self.evaluation is None:
            return None
        fix = "set it or give the folder itself"
        return Path(expanded(self.evaluation, "hygiene.evaluation", fix))

    @property
    def does_nothing(self) -> bool:
        """Whether texts and pairs stay unchanged."""
        return self.duplicates == "ignore" and self.evaluation is None


class SplitConfig(StrictConfig):
    """What the train and dev splits must not share.

    Parameters
    ----------
    by : {"query", "paper", "year", "component"}
        ``query``: no shared query. ``paper``: dev papers, drawn by a hash of their ids, are in
        no training pair. ``year``: the same, with dev papers from ``dev_from_year`` on.
        ``component``: texts connected by pairs stay in one split.
    dev_from_year : int, optional
        First year of the dev split; only for ``year``.
    """

    by: SplitBy = "query"
    dev_from_year: int | None = None

    @model_validator(mode="after")
    def _check(self) -> SplitConfig:
        if (self.by == "year") != (self.dev_from_year is not None):
            raise ValueError("dev_from_year and by: year need each other; set both or neither")
        return self
