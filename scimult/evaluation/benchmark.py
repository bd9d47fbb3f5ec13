"""A benchmark as data: its files, protocol, metrics and origin."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from scimult.config import StrictConfig
from scimult.errors import ConfigError, one_of
from scimult.evaluation.metrics import parse
from scimult.evaluation.protocols import OWN_METRICS, PROTOCOLS, SHOT, WITH_NAMES
from scimult.types import Similarity

Format = Literal[
    "native",
    "scirepeval",
    "scirepeval_training",
    "scidocs",
    "scimult",
    "mdcr",
    "s2and",
    "csfcube",
    "doris_mae",
    "litsearch",
]
OLD_NAMES = {"house": "native"}
"""Former names of formats, still accepted in suites and results."""
GROUPED = ("mdcr", "csfcube", "litsearch")
"""Formats whose queries come in groups."""
JOINED = ("scirepeval", "scirepeval_training", "scidocs", "mdcr", "s2and")
"""Formats whose texts are made of the benchmark's ``fields``."""
_FIELDS = ["title", "abstract"]


def _current_name(name: Any) -> Any:
    return OLD_NAMES.get(name, name) if isinstance(name, str) else name


class Expected(StrictConfig):
    """Counts that identify the edition of the data.

    Only the given ones are compared; ``train`` counts the papers a linear model is fitted to.
    """

    queries: int | None = None
    candidates: int | None = None
    relevant: int | None = None
    train: int | None = None


class FewShot(StrictConfig):
    """A few-shot version: fitted on samples of the training papers, scored on the same test set.

    Attributes
    ----------
    size : int
        Papers per sample; with several labels per paper, papers drawn per label.
    iterations : int
        Number of samples; the score is their mean.
    """

    size: int = Field(ge=1)
    iterations: int = Field(ge=1)


class Probe(StrictConfig):
    """The linear model fitted to frozen embeddings.

    Attributes
    ----------
    costs : list of float
        Grid of C, the inverse regularisation strength.
    folds : int
        Cross-validation folds for choosing C.
    model : {"svm", "logistic"}
        Linear SVM or logistic regression.
    intercept : bool
        Whether to fit an intercept, as scikit-learn and today's SciRepEval do. The solvers behind
        the published numbers of SciRepEval and SciDocs had none.
    solver : {"liblinear", "lightning"}
        scikit-learn's, or for regression the one behind SciRepEval's published numbers
        (`scimult.evaluation.published_svr`), which has no intercept.
    multi_label : bool
        Fit one model per label, each with its own grid.
    few_shot : list
        Further versions on samples of the training papers.
    target : str
        Field (or table column) with the label, the labels or the number.
    held_out : float, optional
        Share of papers held out where the data has no split: those whose ids have the smallest
        SHA-256.
    """

    costs: list[float] = Field(min_length=1)
    folds: int = Field(default=3, ge=2)
    model: Literal["svm", "logistic"] = "svm"
    intercept: bool = True
    solver: Literal["liblinear", "lightning"] = "liblinear"
    multi_label: bool = False
    few_shot: list[FewShot] = []
    target: str = "labels"
    held_out: float | None = Field(default=None, gt=0, lt=1)


class HubFile(StrictConfig):
    """One split of a Hugging Face data set, to be written as one file of a benchmark."""

    repo: str
    config: str | None = None
    split: str


class RemoteFiles(StrictConfig):
    """Where to download a benchmark's files, one by one or as an archive.

    Attributes
    ----------
    base : str
        URL that corresponds to the ``--data`` folder.
    names : dict
        Files, relative to ``--data``, whose name below ``base`` differs.
    sha256 : dict
        Known SHA-256 per file; other files are trusted on first use.
    archive : str, optional
        Archive below ``base`` that holds the files of ``folder`` under one top-level folder.
    md5 : str, optional
        MD5 of the archive, if its owners publish one.
    """

    base: str = Field(pattern=r"^https?://")
    names: dict[str, str] = {}
    sha256: dict[str, str] = {}
    archive: str | None = None
    md5: str | None = None


class Benchmark(StrictConfig):
    """A data set and how it is scored.

    Attributes
    ----------
    task : str
        Task that routes a multi-task encoder, and whose average the set enters.
    fallback_task : str, optional
        Task for encoders that do not know ``task``; without one, that is an error.
    protocol, format : str
        How candidates are ranked or predictions made, and how the files are laid out; see
        ``docs/evaluation.md``.
    folder : str
        Folder of the files, relative to the one given on the command line.
    texts, queries, judgments, labels, matched : str, optional
        Files, relative to ``folder``, of papers or all texts, of queries, of judgments, of labels,
        and of labels whose names match; set where the format does not fix the name or the files
        are called otherwise. A classification set of format ``native`` without a label file takes
        the label names that the papers carry.
    split : str
        Judgments (``qrels/<split>.tsv``) or papers (``split.csv``) to score; several, joined by
        ``+``, are scored as one.
    link : str, optional
        Field with the linked papers, in format ``scimult``.
    fields : list of str
        Fields of a document's text: the first is the title, the others form the body.
    label_text : {"name_and_definition", "name"}
        Which part of a label is encoded (Table A8 of the SciMult paper).
    similarity : {"dot", "cosine", "l2"}, optional
        Overrides the encoder's own where the benchmark prescribes one.
    metrics : list of str
        The first one is the main metric.
    columns : dict
        Column of the averages to the scores it is the mean of; empty: the main metric. SciRepEval
        averages MAP and nDCG of SciDocs as two columns, and few-shot versions as one.
    group : str, optional
        Further average that the columns enter, next to those of the task and of all sets.
    name_matching : {"words", "tokens", "file"}, optional
        Also score fine classification with label-name matching: ``words`` normalises raw text,
        ``tokens`` takes text and names as already tokenised, ``file`` reads the matches.
    nothing_relevant : {"error", "zero"}
        How to treat a query without relevant judgments. ``zero`` averages it in as 0 and skips
        queries without judgments, as trec_eval, BEIR and SciRepEval do; ``error`` stops, or with
        ``--skip-bad`` leaves the query out, which raises the mean.
    average : {"queries", "groups"}
        Whether scores are means over all queries, or means of the means of each query group
        (a field of study).
    mode : {"default", "paper", "beir"}
        In link retrieval, a query paper that is also a candidate is left out of its own list;
        ``paper`` keeps it, as the SciMult paper's code does. In search, a document with the
        query's id is listed like any other; ``beir`` leaves it out, as BEIR's evaluator does.
    hub : dict
        File in ``folder`` to the Hugging Face data set it is downloaded from.
    remote : RemoteFiles, optional
        Where to download the files as they are.
    """

    task: str
    fallback_task: str | None = None
    protocol: Annotated[str, AfterValidator(lambda name: one_of("protocol", name, PROTOCOLS))]
    format: Annotated[Format, BeforeValidator(_current_name)] = "native"
    folder: str
    texts: str | None = None
    queries: str | None = None
    judgments: str | None = None
    labels: str | None = None
    matched: str | None = None
    split: str = "test"
    link: str | None = None
    fields: list[str] = _FIELDS
    label_text: Literal["name_and_definition", "name"] = "name_and_definition"
    similarity: Similarity | None = None
    metrics: list[str] = Field(min_length=1)
    columns: dict[str, Annotated[list[str], Field(min_length=1)]] = {}
    group: str | None = None
    name_matching: Literal["words", "tokens", "file"] | None = None
    nothing_relevant: Literal["error", "zero"] = "error"
    average: Literal["queries", "groups"] = "queries"
    mode: Literal["default", "paper", "beir"] = "default"
    probe: Probe | None = None
    source: str
    licence: str
    hub: dict[str, HubFile] = {}
    remote: RemoteFiles | None = None
    expected: Expected | None = None

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: list[str]) -> list[str]:
        for name in names:
            parse(name)
        return names

    @model_validator(mode="after")
    def _consistent(self) -> Benchmark:
        protocol = PROTOCOLS[self.protocol]
        own = protocol.metrics
        for name in self.metrics:
            if (name not in own) if own else (name in OWN_METRICS):
                fix = f"use {', '.join(own)}" if own else "use a ranking metric"
                raise ConfigError(f"{name} is not a metric of {self.protocol}", fix=fix)
            if parse(name).percent is not None and self.protocol != "rerank":
                problem = f"{name} is only valid for rerank: other lists end where a system's do"
                raise ConfigError(problem, fix=f"write {name.replace('%', '@')}")
        if self.format not in protocol.layouts:
            known = ", ".join(name for name, row in PROTOCOLS.items() if self.format in row.layouts)
            problem = f"format {self.format!r} has no data for protocol {self.protocol!r}"
            raise ConfigError(problem, fix=f"use one of {known}")
        if (self.probe is not None) != protocol.fits:
            raise ConfigError("probe is required by, and only valid for, linear protocols")
        if self.name_matching and self.protocol != "classification_fine":
            raise ConfigError("name_matching is only valid for classification_fine")
        for name in (name for names in self.columns.values() for name in names):
            one_of("score of columns", name, self.scores)
        if (self.name_matching == "file") != (self.matched is not None):
            raise ConfigError("name_matching: file and matched require each other")
        return self

    @model_validator(mode="after")
    def _fields_apply(self) -> Benchmark:
        for mode, protocol in (("paper", "link_retrieval"), ("beir", "search")):
            if self.mode == mode and self.protocol != protocol:
                raise ConfigError(f"mode {mode!r} is only valid for {protocol}")
        probe = self.probe
        if (probe and probe.solver == "lightning") and (
            self.protocol != "regression_linear" or probe.intercept
        ):
            fix = "set intercept: false; for classes, liblinear without one gives the same"
            raise ConfigError("solver 'lightning' is for regression without intercept", fix=fix)
        if (probe and self.protocol == "regression_linear") and (
            probe.few_shot or probe.multi_label or probe.model != "svm"
        ):
            fix = "omit few_shot, multi_label and model, which are for labels"
            raise ConfigError("regression_linear fits one support vector regression", fix=fix)
        if probe and "train" in self.splits:
            fix = "name the other splits, such as dev+test"
            problem = "a linear model is not scored on train, the papers that it is fitted to"
            raise ConfigError(problem, value=self.split, fix=fix)
        if self.fields != _FIELDS and self.format not in JOINED:
            problem = f"format {self.format!r} has texts of fixed fields"
            fix = f"omit fields, which {', '.join(JOINED)} have"
            raise ConfigError(problem, value=self.fields, fix=fix)
        if self.average == "groups" and self.format not in GROUPED:
            problem = f"format {self.format!r} has no query groups"
            raise ConfigError(problem, fix="use average: queries")
        if self.judgments and (self.format != "native" or self.is_classification or self.probe):
            fix = "for other formats and protocols, name the files by texts, queries and labels"
            raise ConfigError("judgments is only valid for the BEIR layout", fix=fix)
        return self

    @property
    def is_classification(self) -> bool:
        """Whether candidates are labels."""
        return PROTOCOLS[self.protocol].labels

    @property
    def main_metric(self) -> str:
        """The metric that enters averages."""
        return self.metrics[0]

    @property
    def scores(self) -> list[str]:
        """Names of its scores: the metrics, also after name matching and of few-shot versions."""
        kinds = ["", *([WITH_NAMES] if self.name_matching else [])]
        kinds += [SHOT.format(shot.size) for shot in self.probe.few_shot] if self.probe else []
        return [metric + kind for kind in kinds for metric in self.metrics]

    @property
    def splits(self) -> list[str]:
        """The splits scored as one."""
        return self.split.split("+")
