"""Configuration of ``scimult prepare``: sources, their files and the tasks they train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from scimult.config import StrictConfig
from scimult.errors import ConfigError, UnknownNameError
from scimult.preparation.hygiene.config import HygieneConfig, SplitConfig, expanded
from scimult.preparation.target_config import AnyTargetConfig, check_targets, target_task
from scimult.tasks import Task, TaskSet, default_tasks
from scimult.types import ViewName

Part = Literal["labels", "citations", "links", "queries"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]
Fraction = Annotated[float, Field(ge=0, lt=1)]
ANSWERS = ("positives", "judgments", "clicks")
KINDS_OF_PART = {
    "labels": ("paper", "label"),
    "citations": ("paper", "paper"),
    "links": ("paper", "paper"),
    "queries": ("query", "paper"),
}


class PartTasks(StrictConfig):
    """The task that each part of a source trains."""

    labels: str = "classification"
    citations: str = "link_prediction"
    links: str = "link_prediction"
    queries: str = "search"


CitationTable = Literal["citations", "references"]
PairTable = Literal["citations", "references", "links", "judgments"]
Dangling = Literal["drop", "error"]
Appended = Literal["venue", "year"]


class SourceConfig(StrictConfig):
    """Files of one source; paths are relative to ``PrepareConfig.root``.

    Parameters
    ----------
    name : str
        Names the pair files and, in text ids, the queries.
    namespace : str, optional
        Sources with the same namespace share papers and labels; default: the name.
    papers : str, optional
        JSON lines with id, title, abstract and, optionally, authors, venue, year, labels.
    append_to_abstract : list of str
        Fields of papers (venue, year) that their texts end with, after separators, as in
        SciRepEval's search task.
    citations : str, optional
        Table with citing and cited.
    references : str, optional
        Table with citing and cited, for mining only; makes no pairs.
    links : str, optional
        Table with query-id, paper-id (or corpus-id) and score; the queries are papers too.
    labels : str, optional
        JSON lines with id, name, definition. Makes classification pairs of the papers' labels.
    queries : str, optional
        JSON lines with id and text. Needs exactly one of the next three.
    positives, judgments, clicks : str, optional
        Tables with query-id and paper-id (or corpus-id), plus score or clicked.
    score_threshold : float
        A judgment or link with at least this score is a positive; default 1.
    dangling : mapping
        For citations and references, ``error`` (default) or ``drop``: what to do with edges that
        name a paper without a text. Dropped edges are counted, not listed.
    tasks : PartTasks
        The task that each part trains.
    targets : list of TargetConfig
        Classes and numbers that heads learn to predict for the source's papers.
    max_pairs_per_label : int or "all", optional
        Overrides ``PrepareConfig``'s; sources that share a namespace must agree.
    licence : str
        Terms of use of the files; shown in the data card.
    """

    name: Name
    namespace: Name = ""
    papers: str | None = None
    append_to_abstract: list[Appended] = []
    citations: str | None = None
    references: str | None = None
    links: str | None = None
    labels: str | None = None
    queries: str | None = None
    positives: str | None = None
    judgments: str | None = None
    clicks: str | None = None
    score_threshold: float = 1.0
    dangling: dict[CitationTable, Dangling] = {}
    tasks: PartTasks = PartTasks()
    targets: list[AnyTargetConfig] = []
    max_pairs_per_label: Annotated[int, Field(ge=1)] | Literal["all"] | None = None
    licence: str = ""

    @model_validator(mode="after")
    def _check_parts(self) -> SourceConfig:
        """Reject options for parts that the source does not have."""
        for key, parts in ("tasks", self.tasks.model_fields_set), ("dangling", self.dangling):
            for part in sorted(parts):
                if getattr(self, part) is None:
                    raise ValueError(f"{key}.{part} is set, but the source has no {part}")
        return self

    @model_validator(mode="after")
    def _check(self) -> SourceConfig:
        answers = [name for name in ANSWERS if getattr(self, name) is not None]
        if self.queries is not None and len(answers) != 1:
            names = " and ".join(answers) or "none"
            raise ValueError(f"queries need exactly one of {', '.join(ANSWERS)}; found {names}")
        if self.queries is None and answers:
            raise ValueError(f"{answers[0]} need queries; name the queries file or remove them")
        if "score_threshold" in self.model_fields_set and not (self.judgments or self.links):
            raise ValueError("score_threshold needs judgments or links; name them or remove it")
        if self.labels is not None and self.papers is None:
            raise ValueError("labels need papers that carry them; name the papers file")
        if self.labels is None and self.max_pairs_per_label is not None:
            raise ValueError("max_pairs_per_label needs labels; name them or remove it")
        tasks = [self.task(part) for part in self.parts]
        if len(set(tasks)) < len(tasks):
            raise ValueError(
                f"{' and '.join(self.parts)} train {' and '.join(tasks)}; the parts of one source "
                f"need different tasks: split it into two sources with the same namespace"
            )
        if not (self.papers or self.parts or self.targets):
            raise ValueError("a source needs papers, citations, links, queries or targets")
        if self.papers is None and any(target.field for target in self.targets):
            raise ValueError("targets in a field need papers; name the papers file")
        if self.papers is None and self.append_to_abstract:
            raise ValueError("append_to_abstract needs papers; name the papers file")
        return self

    @property
    def space(self) -> str:
        """The namespace, or the name where none is given."""
        return self.namespace or self.name

    @property
    def parts(self) -> list[Part]:
        """Parts that make pairs."""
        known: tuple[Part, ...] = ("labels", "citations", "links", "queries")
        return [part for part in known if getattr(self, part) is not None]

    def task(self, part: Part) -> str:
        """Return the name of the task that ``part`` trains."""
        return str(getattr(self.tasks, part))


class SelfSupervisionConfig(StrictConfig):
    """Self-supervised pairs from the papers of one source, named ``<source>-<view>``.

    Parameters
    ----------
    source : str
        Source of the papers.
    view : str
        ``independent_crop``, ``inverse_cloze`` or ``title_to_abstract``.
    task : str
        The task that the pairs train.
    min_words : int
        Shorter texts are left out and counted; for ``title_to_abstract``, words of the abstract.
    """

    source: str
    view: ViewName
    task: str
    min_words: Annotated[int, Field(ge=1)] = 20

    @property
    def name(self) -> str:
        """Name of the source that it makes."""
        return f"{self.source}-{self.view}"


class PrepareConfig(StrictConfig):
    """Sources, splits, hygiene and sampling of a ``scimult prepare`` run.

    Parameters
    ----------
    root : str
        Folder that the sources' paths are relative to; ``$NAME`` expands environment variables,
        unless there is a folder of this very name.
    sources : list of SourceConfig
        If two sources give the same paper, the earlier one wins.
    tasks : list of Task
        The user's own tasks, besides search, link_prediction and classification.
    dev_fraction : float
        Share of the queries kept for the dev split, by a hash of their id.
    split : SplitConfig
        What else the dev split must not share with training.
    hygiene : HygieneConfig
        How to treat duplicates and texts of evaluation sets.
    self_supervision : list of SelfSupervisionConfig
        Sources whose papers are pairs by themselves, by two views of each.
    max_pairs_per_label : int or "all"
        Keep at most this many training pairs per label (SciMult, appendix A.1: 100), over
        all sources of its namespace, so that general labels do not drown the others.
    seed : int
        Seed of the dev split and the down-sampling.
    """

    root: str = "."
    sources: Annotated[list[SourceConfig], Field(min_length=1)]
    tasks: list[Task] = []
    dev_fraction: Fraction = 0.02
    split: SplitConfig = SplitConfig()
    hygiene: HygieneConfig = HygieneConfig()
    self_supervision: list[SelfSupervisionConfig] = []
    max_pairs_per_label: Annotated[int, Field(ge=1)] | Literal["all"] = 100
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> PrepareConfig:
        names = [source.name for source in self.sources]
        names += dict.fromkeys(entry.name for entry in self.self_supervision)
        if len(set(names)) < len(names):
            raise ValueError(f"sources need distinct names (views are SOURCE-VIEW); found {names}")
        if not self.self_supervision and not any(s.parts or s.targets for s in self.sources):
            raise ValueError(
                "no source has labels, citations, links, queries or targets; there is nothing "
                "to train on but the papers themselves: add self_supervision, such as "
                f"[{{source: {names[0]}, view: title_to_abstract, task: search}}]"
            )
        views = [(entry.source, entry.view, entry.task) for entry in self.self_supervision]
        repeated = sorted({entry for entry in views if views.count(entry) > 1})
        if repeated:
            raise ValueError(f"self_supervision lists {' '.join(repeated[0])} more than once")
        check_targets({source.name: source.targets for source in self.sources})
        if self.split.by == "year" and "dev_fraction" in self.model_fields_set:
            raise ValueError("split.by: year ignores dev_fraction; remove one of them")
        with_papers = {source.space for source in self.sources if source.papers}
        for source in self.sources:
            if source.space not in with_papers:
                raise ValueError(f"no source gives papers for the namespace {source.space!r}")
        labelled = [source for source in self.sources if source.labels]
        is_set = "max_pairs_per_label" in self.model_fields_set and labelled
        if is_set and all(source.max_pairs_per_label is not None for source in labelled):
            raise ValueError(
                "max_pairs_per_label has no effect: every source with labels sets its own; "
                "change those, or remove it"
            )
        limits: dict[str, int | None] = {}
        for source in self.sources:
            limit = self.pairs_per_label(source)
            if source.labels and limits.setdefault(source.space, limit) != limit:
                raise ValueError(
                    f"sources of namespace {source.space!r} share their labels, but give them "
                    f"different max_pairs_per_label: {limits[source.space]} and {limit}"
                )
        return self

    def pairs_per_label(self, source: SourceConfig) -> int | None:
        """Return the cap for a source's labels; ``None`` if there is none."""
        limit = source.max_pairs_per_label or self.max_pairs_per_label
        return None if limit == "all" else limit

    def task_set(self) -> TaskSet:
        """Return the default tasks and the user's own."""
        return TaskSet([*default_tasks(), *self.tasks])

    def check_tasks(self) -> None:
        """Check that every part of every source trains a known task with matching text kinds.

        Raises
        ------
        UnknownNameError
            If a source names a task that does not exist, or ``self_supervision`` such a source.
        ConfigError
            If a task's text kinds differ from the part's, or a task has both pairs and targets.
        """
        tasks = self.task_set()
        paired = {source.task(part) for source in self.sources for part in source.parts}
        for target in (target for source in self.sources for target in source.targets):
            if target.task in paired:
                fix = "give the targets a task of their own"
                raise ConfigError("task has pairs and targets", value=target.task, fix=fix)
        names = [source.name for source in self.sources]
        for choice in self.self_supervision:
            if choice.source not in names:
                raise UnknownNameError("source in self_supervision", choice.source, names)
            if tasks[choice.task].candidate_kind != "paper":
                fix = "name a task whose candidates are papers"
                raise ConfigError("views need a task that finds papers", value=choice.task, fix=fix)
        for source in self.sources:
            for part in source.parts:
                task = tasks[source.task(part)]
                query, candidate = KINDS_OF_PART[part]
                if (task.query_kind, task.candidate_kind) != (query, candidate):
                    raise ConfigError(
                        f"source {source.name!r}: {part} pair a {query} with a {candidate}, "
                        f"but the task does not",
                        value=task.name,
                        fix=f"set query_kind: {query} and candidate_kind: {candidate}",
                    )

    def target_tasks(self) -> list[Task]:
        """Return the tasks of the targets; those the user did not define get defaults."""
        known = {task.name: task for task in self.task_set()}
        targets = [target for source in self.sources for target in source.targets]
        named = {target.task: target_task(target) for target in targets}
        return [known.get(name, task) for name, task in named.items()]

    def resolve(self, name: str) -> Path:
        """Return the path of a source's file."""
        fix = "set the environment variable or pass --root"
        return Path(expanded(self.root, "root", fix)) / name
