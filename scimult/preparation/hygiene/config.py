"""What ``scimult prepare`` does about duplicates, evaluation sets and leaks between splits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig
from scimult.errors import ConfigError

DuplicateKey = Literal["doi", "title", "near"]
EvaluationRole = Literal["query", "answer", "candidate"]
ALL_KEYS: tuple[DuplicateKey, ...] = ("doi", "title", "near")
SplitBy = Literal["query", "paper", "year", "component"]


def expanded(path: str, key: str, fix: str) -> str:
    """Return a path with ``~`` and environment variables resolved.

    Raises
    ------
    ConfigError
        If it names an environment variable that is not set.
    """
    resolved = os.path.expandvars(os.path.expanduser(path))
    if "$" in resolved:
        raise ConfigError(f"{key} names an unset environment variable", value=resolved, fix=fix)
    return resolved


class NearConfig(StrictConfig):
    """When two texts are near-duplicates: the Jaccard similarity of their word shingles.

    Parameters
    ----------
    threshold : float
        Smallest similarity of a near-duplicate.
    shingle_words : int
        Words of a shingle.
    min_words : int
        Shorter texts have no near-duplicates: titles that differ in a number alone would be.
    permutations : int
        Length of a MinHash signature.
    seed : int
        Of the signatures.
    """

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    shingle_words: Annotated[int, Field(ge=1)] = 3
    min_words: Annotated[int, Field(ge=1)] = 25
    permutations: Annotated[int, Field(ge=16)] = 128
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> NearConfig:
        if self.min_words < self.shingle_words:
            raise ValueError("min_words is smaller than shingle_words; such texts have no shingle")
        return self


class HygieneConfig(StrictConfig):
    """What is done about duplicates and about texts of evaluation sets.

    Parameters
    ----------
    duplicates : {"ignore", "merge", "refuse"}
        ``merge`` keeps one text of each group and gives it the pairs and labels of all;
        ``refuse`` makes each further text a bad record; ``ignore`` does not look.
    keys : list of {"doi", "title", "near"}
        What makes two papers duplicates.
    min_title : int
        Titles with fewer letters and digits than this say too little to identify a paper.
    near : NearConfig
        When two texts are near-duplicates, here and in the overlap with evaluation sets.
    evaluation : str, optional
        Folder of evaluation sets; how much of them is in the training texts is reported.
    decontaminate : list of {"query", "answer", "candidate"}
        Training texts that equal such texts of an evaluation set are removed with their pairs.
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
        """The folder of evaluation sets, with ``~`` and environment variables resolved.

        Raises
        ------
        ConfigError
            If it names an environment variable that is not set.
        """
        if self.evaluation is None:
            return None
        return Path(
            expanded(self.evaluation, "hygiene.evaluation", "set it or give the folder itself")
        )

    @property
    def does_nothing(self) -> bool:
        """Whether texts and pairs stay as they were read."""
        return self.duplicates == "ignore" and self.evaluation is None


class SplitConfig(StrictConfig):
    """What may not be in both the train and the dev split.

    Parameters
    ----------
    by : {"query", "paper", "year", "component"}
        ``query``: a query is in one split. ``paper``: dev papers, drawn by a hash of their
        ids, are in no training pair. ``year``: the same, dev papers are those from
        ``dev_from_year`` on. ``component``: nothing that pairs connect is divided.
    dev_from_year : int, optional
        First year of the dev split; for ``year`` alone.
    """

    by: SplitBy = "query"
    dev_from_year: int | None = None

    @model_validator(mode="after")
    def _check(self) -> SplitConfig:
        if (self.by == "year") != (self.dev_from_year is not None):
            raise ValueError("dev_from_year goes with by: year, and with nothing else")
        return self
