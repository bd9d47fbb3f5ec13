"""What a benchmark is, as data: its files, its protocol, its metrics, and where it comes from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from scimult.config import StrictConfig
from scimult.errors import ConfigError, one_of
from scimult.evaluation.metrics import parse
from scimult.evaluation.protocols import OWN_METRICS, PROTOCOLS
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
"""Formats that suites and results of earlier versions name otherwise."""
GROUPED = ("mdcr", "csfcube", "litsearch")
"""Formats whose queries are in groups."""


def _today(name: Any) -> Any:
    return OLD_NAMES.get(name, name) if isinstance(name, str) else name


class Expected(StrictConfig):
    """Counts that show whether the data is the edition the benchmark means.

    Only those given are compared; ``train`` counts the papers a linear model is fitted to.
    """

    queries: int | None = None
    candidates: int | None = None
    relevant: int | None = None
    train: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """The counts that are compared."""
        counts: dict[str, int] = self.model_dump(exclude_none=True)
        return counts


class FewShot(StrictConfig):
    """One few-shot version: fits on samples of the training papers, scored on the same test.

    Attributes
    ----------
    size : int
        Papers of a sample; with several labels per paper, papers drawn for each label.
    iterations : int
        Number of samples; the score is the mean over them.
    """

    size: int = Field(ge=1)
    iterations: int = Field(ge=1)


class Probe(StrictConfig):
    """The linear model that is fitted to embeddings, which stay as they are.

    Attributes
    ----------
    costs : list of float
        Table of C, the inverse strength of regularisation.
    folds : int
        Folds of the cross-validation that chooses C.
    model : {"svm", "logistic"}
        Linear support vectors, or logistic regression.
    intercept : bool
        Whether the model has one, as scikit-learn's and today's SciRepEval have. The solvers behind
        the published numbers of SciRepEval and SciDocs had none.
    solver : {"liblinear", "lightning"}
        scikit-learn's, or for regression the one behind SciRepEval's published numbers
        (:mod:`scimult.evaluation.published_svr`), which has no intercept.
    multi_label : bool
        One model per label, each with its own grid.
    few_shot : list
        Further versions on samples of the training papers.
    target : str
        Field (or table column) with the label, the labels or the number.
    held_out : float, optional
        Share of papers that is held out where the data has no split: those whose ids have the
        smallest SHA-256.
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
    """The part of a data set of the Hugging Face hub that becomes one file of a benchmark."""

    repo: str
    config: str | None = None
    split: str


class RemoteFiles(StrictConfig):
    """Where a benchmark's files are, one by one or in an archive.

    Attributes
    ----------
    base : str
        Address of the folder that stands for ``--data``.
    names : dict
        Files, relative to ``--data``, that have another name below ``base``.
    sha256 : dict
        Files to the SHA-256 that is known for them; others are trusted on first use.
    archive : str, optional
        The archive below ``base`` that has the files of ``folder``, in a folder of its own.
    md5 : str, optional
        Of the archive, if its owners publish one.
    """

    base: str = Field(pattern=r"^https?://")
    names: dict[str, str] = {}
    sha256: dict[str, str] = {}
    archive: str | None = None
    md5: str | None = None


class Benchmark(StrictConfig):
    """One data set and the way it is scored.

    Attributes
    ----------
    task : str
        Name of the task that routes a multi-task encoder, and whose average the set enters.
    fallback_task : str, optional
        The task that routes an encoder which does not know ``task``; without one, that is an
        error.
    protocol, format : str
        How candidates are ranked or predictions made, and how the files are laid out; see
        ``docs/evaluation.md``.
    folder : str
        Where the files are, relative to the folder given on the command line.
    texts, queries, judgments, labels, matched : str, optional
        Files of papers or of all texts, of queries, of judgments, of labels and of labels whose
        names match, relative to that folder, where the format does not name them itself or the
        files have other names. A classification set of format ``native`` without label file has
        the names that the papers carry.
    split : str
        Which judgments (``qrels/<split>.tsv``) or papers (``split.csv``) are scored; several,
        joined by ``+``, are scored as one.
    link : str, optional
        Field with the linked papers, in format ``scimult``.
    fields : list of str
        What a document's text is made of: the first is its title, the others its body.
    label_text : {"name_and_definition", "name"}
        What of a label is encoded (Table A8 of the SciMult paper).
    similarity : {"dot", "cosine", "l2"}, optional
        Replaces the encoder's own where the benchmark prescribes one.
    metrics : list of str
        The first one is the main metric.
    columns : dict
        Column of the averages to the scores whose mean it is; empty: the main metric. SciRepEval
        averages MAP and nDCG of SciDocs as two columns, and few-shot versions as one.
    group : str, optional
        Further average that the columns enter, beside those of the task and of all.
    name_matching : {"words", "tokens", "file"}, optional
        Also score fine classification with label-name matching; ``words`` normalises raw text,
        ``tokens`` takes text and names as they are, already tokenised, ``file`` reads what
        matched.
    nothing_relevant : {"error", "zero"}
        What becomes of a query whose judgments have nothing relevant. ``zero`` averages it in as 0
        and does not ask queries without judgments, as trec_eval, BEIR and SciRepEval do; ``error``
        ends the work, or leaves the query out with ``--skip-bad``, which raises the mean.
    average : {"queries", "groups"}
        Whether scores are means over all queries, or means of the means of each group of queries
        (a field of study).
    mode : {"default", "paper", "beir"}
        In link retrieval a query paper that is a candidate is left out of its own list;
        ``paper`` leaves it in, as the code of the SciMult paper does. In search a document with
        the query's id is listed like any other; ``beir`` leaves it out, as BEIR's evaluator does.
    hub : dict
        File of the folder to the data set of the hub that it is downloaded from.
    remote : RemoteFiles, optional
        Address of the files, where they can be downloaded as they are.
    """

    task: str
    fallback_task: str | None = None
    protocol: Annotated[str, AfterValidator(lambda name: one_of("protocol", name, PROTOCOLS))]
    format: Annotated[Format, BeforeValidator(_today)] = "native"
    folder: str
    texts: str | None = None
    queries: str | None = None
    judgments: str | None = None
    labels: str | None = None
    matched: str | None = None
    split: str = "test"
    link: str | None = None
    fields: list[str] = ["title", "abstract"]
    label_text: Literal["name_and_definition", "name"] = "name_and_definition"
    similarity: Similarity | None = None
    metrics: list[str] = Field(min_length=1)
    columns: dict[str, list[str]] = {}
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
                fix = f"use {', '.join(own)}" if own else "use a measure of ranked lists"
                raise ConfigError(f"{name} is not a metric of {self.protocol}", fix=fix)
        if self.format not in protocol.layouts:
            known = ", ".join(name for name, row in PROTOCOLS.items() if self.format in row.layouts)
            problem = f"format {self.format!r} has no data for protocol {self.protocol!r}"
            raise ConfigError(problem, fix=f"use one of {known}")
        if (self.probe is not None) != protocol.fits:
            raise ConfigError("probe and the protocols with a linear model go together")
        if self.name_matching and self.protocol != "classification_fine":
            raise ConfigError("name_matching is for classification_fine")
        if (self.name_matching == "file") != (self.matched is not None):
            raise ConfigError("name_matching: file and matched go together")
        return self

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> Benchmark:
        for mode, protocol in (("paper", "link_retrieval"), ("beir", "search")):
            if self.mode == mode and self.protocol != protocol:
                raise ConfigError(f"mode {mode!r} is for {protocol}")
        fitting = (self.protocol, self.probe.intercept) if self.probe else None
        if (
            self.probe
            and self.probe.solver == "lightning"
            and fitting != ("regression_linear", False)
        ):
            fix = "set intercept: false too; for classes liblinear without one gives the same"
            raise ConfigError("solver 'lightning' is for regression without intercept", fix=fix)
        if self.average == "groups" and self.format not in GROUPED:
            problem = f"format {self.format!r} has no groups of queries"
            raise ConfigError(problem, fix="use average: queries")
        if self.judgments and (self.format != "native" or self.is_classification or self.probe):
            fix = "name the files of other formats and protocols by texts, queries and labels"
            raise ConfigError("judgments names a file of the BEIR layout", fix=fix)
        return self

    @property
    def is_classification(self) -> bool:
        """Whether candidates are labels."""
        return PROTOCOLS[self.protocol].labels

    @property
    def main_metric(self) -> str:
        """The metric that averages use."""
        return self.metrics[0]

    @property
    def splits(self) -> list[str]:
        """The splits that are scored as one."""
        return self.split.split("+")
