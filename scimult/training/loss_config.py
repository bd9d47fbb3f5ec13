"""The section ``loss`` of a run: the losses of all tasks, and of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field, model_validator

from scimult.config import StrictConfig

# Zhang et al., 2024, "Jasper and Stella": 200 times the similarity loss, 10 times the cosine loss.
RELATIONAL_SHARE = 20.0


class EmbeddingTeacherConfig(StrictConfig):
    """An additional loss: follow a teacher's vector of each text.

    ``cosine`` is 1 - cosine of a text's embedding and its vector; ``relational`` is the squared
    difference of model's and teacher's cosine for each pair of texts in a batch; ``both`` is their
    sum. A pair's loss is the mean over its texts: query, positive, hard negative. It is added,
    times ``weight``, to the loss that ``loss.name`` selects.
    """

    vectors: str = Field(description="folder written by scimult teach")
    loss: Literal["cosine", "relational", "both"] = "cosine"
    weight: float = Field(1.0, gt=0)
    relational_weight: float | None = Field(
        None, gt=0, description="with both: weight of relational; 20 times weight"
    )
    tasks: list[str] | None = Field(
        None, min_length=1, description="tasks whose texts follow the teacher; null: all"
    )
    projection: bool | None = Field(
        None,
        description="with cosine: a linear map from the model's width to the teacher's, learned "
        "and dropped at export; null: if the widths differ",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Fill in the second weight of ``both``, so that it is saved."""
        if not isinstance(given, dict) or given.get("loss") != "both":
            return given
        weight = given.get("weight", 1.0)
        if given.get("relational_weight") is not None or not isinstance(weight, (int, float)):
            return given
        return given | {"relational_weight": RELATIONAL_SHARE * weight}

    @model_validator(mode="after")
    def _fits(self) -> EmbeddingTeacherConfig:
        if self.loss != "both" and self.relational_weight is not None:
            raise ValueError(
                "loss.embedding_teacher.relational_weight requires loss: both; "
                f"{self.loss} has only weight"
            )
        if self.loss == "relational" and self.projection:
            raise ValueError(
                "loss.embedding_teacher.projection has nothing to learn from with loss: relational"
            )
        return self

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of cosine and relational; 0 if unused."""
        if self.loss == "both":
            assert self.relational_weight is not None
            return self.weight, self.relational_weight
        return (self.weight, 0.0) if self.loss == "cosine" else (0.0, self.weight)


class InfoNCEConfig(StrictConfig):
    """Equation 2 of SciMult; ``symmetric_info_nce`` averages it with positives against queries."""

    name: Literal["info_nce", "symmetric_info_nce"]
    temperature: float = Field(1.0, gt=0, description="divides the scores")
    learn_temperature: bool = Field(False, description="temperature is the initial value")


class TripletConfig(StrictConfig):
    """Equation 2 of SPECTER, against the query's own hard negative or all candidates."""

    name: Literal["triplet"]
    margin: float = Field(1.0, gt=0)
    negatives: Literal["own", "all"] = "own"


class HeadConfig(StrictConfig):
    """A linear head on embeddings, with the loss of SciRepEval (section 4.2) for its targets.

    ``multi_class`` is cross-entropy, ``multi_label`` the mean over classes of binary
    cross-entropy, and ``regression`` the squared error. ``dropout`` precedes the head; SciRepEval's
    code uses 0.2, and initialises weights with standard deviation 0.02, as here.
    """

    name: Literal["multi_class", "multi_label", "regression"]
    dropout: float = Field(0.0, ge=0, lt=1)


def _named(loss: Any) -> Any:
    """Accept a loss without options as its bare name."""
    return {"name": loss} if isinstance(loss, str) else loss


ContrastiveLoss: TypeAlias = InfoNCEConfig | TripletConfig
TaskLoss: TypeAlias = Annotated[
    ContrastiveLoss | HeadConfig, Field(discriminator="name"), BeforeValidator(_named)
]
# SciRepEval format required of each head's task.
FORMAT_OF_HEAD = {
    "multi_class": "classification",
    "multi_label": "classification",
    "regression": "regression",
}


LossName = Literal["info_nce", "symmetric_info_nce", "triplet"]
_SECTION_OF: dict[str, type[ContrastiveLoss]] = {
    name: section
    for section in get_args(ContrastiveLoss)
    for name in get_args(section.model_fields["name"].annotation)
}
# The options of each loss, with its paper's values.
LOSS_OPTIONS: dict[str, dict[str, Any]] = {
    name: {key: field.default for key, field in section.model_fields.items() if key != "name"}
    for name, section in _SECTION_OF.items()
}


class DistillationConfig(StrictConfig):
    """A second loss: follow a teacher's scores of each query's positive and hard negative.

    ``kl`` compares distributions over the scored candidates, ``margin_mse`` differences of
    scores. The total is ``weight`` times this loss plus ``contrastive_weight`` times the one that
    ``loss.name`` selects; a query without scores has only the latter.
    """

    name: Literal["kl", "margin_mse"]
    weight: float = Field(1.0, gt=0)
    contrastive_weight: float = Field(1.0, ge=0)
    temperature: float = Field(1.0, gt=0, description="divides the model's scores")
    teacher_temperature: float = Field(1.0, gt=0, description="divides the teacher's scores")


class LossConfig(StrictConfig):
    """The loss of each task, its negatives, and how losses are combined.

    ``info_nce`` is equation 2 of SciMult; ``symmetric_info_nce`` its mean with the same loss
    from positives to the queries of the batch; ``triplet`` is equation 2 of SPECTER. Options of
    another loss are refused. ``by_task`` gives a task another loss with its own options, or the
    head for its targets. ``mask_margin`` excludes candidates that score above the positive minus
    this margin. ``matryoshka`` lists numbers of leading dimensions whose losses are averaged with
    that of the whole embedding.

    ``reduction`` determines what a pass minimises: the mean over its pairs, or the sum over tasks
    of each task's mean (SciRepEval). ``weighting`` multiplies each task's loss: ``fixed`` by
    ``weights``, ``uncertainty`` by learned weights (Kendall et al., 2018), ``gradnorm`` by weights
    that balance gradient norms (Chen et al., 2018; ``gradnorm_alpha`` is their alpha). The last
    two need ``reduction: tasks``.
    """

    name: LossName = "info_nce"
    temperature: float | None = Field(None, gt=0, description="with info_nce: divides the scores")
    learn_temperature: bool | None = Field(None, description="temperature is the initial value")
    margin: float | None = Field(None, gt=0, description="with triplet")
    negatives: Literal["own", "all"] | None = Field(
        None, description="with triplet: the query's hard negative, or all candidates"
    )
    mask_known_positives: bool = True
    repeated_candidates: Literal["once", "each"] = Field(
        "once", description="how often a text in several columns counts as a query's negative"
    )
    mask_margin: float | None = None
    by_task: dict[str, TaskLoss] = Field(default_factory=dict)
    reduction: Literal["pairs", "tasks"] = "pairs"
    weighting: Literal["fixed", "uncertainty", "gradnorm"] = "fixed"
    gradnorm_alpha: float | None = Field(None, ge=0, description="with gradnorm; 1.5")
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="per task, also for the learning rate of parameters it alone uses; 1",
    )
    matryoshka: list[int] = Field(default_factory=list)
    distillation: DistillationConfig | None = None
    embedding_teacher: EmbeddingTeacherConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Fill in the defaults of the chosen loss, so that they are saved."""
        if not isinstance(given, dict):
            return given
        defaults = dict(LOSS_OPTIONS.get(str(given.get("name", "info_nce")), {}))
        if given.get("weighting", "fixed") != "fixed":
            defaults["reduction"] = "tasks"
        if given.get("weighting") == "gradnorm":
            defaults["gradnorm_alpha"] = 1.5
        absent = {key: value for key, value in defaults.items() if given.get(key) is None}
        return given | absent

    @model_validator(mode="after")
    def _fits_name(self) -> LossConfig:
        for other, options in LOSS_OPTIONS.items():
            foreign = set(options) - set(LOSS_OPTIONS[self.name])
            given = sorted(key for key in foreign if getattr(self, key) is not None)
            if given:
                raise ValueError(
                    f"loss.name {self.name} has no {' or '.join(given)}; loss.name {other} has"
                )
        if len(set(self.matryoshka)) < len(self.matryoshka):
            raise ValueError(f"loss.matryoshka lists a number twice: {self.matryoshka}")
        for loss in (self.default, *self.by_task.values()):
            margin = loss.margin if isinstance(loss, TripletConfig) else None
            if margin is not None and self.mask_margin is not None and self.mask_margin >= margin:
                raise ValueError(
                    f"loss.mask_margin {self.mask_margin} excludes every candidate within "
                    f"loss.margin {margin}, so that the loss would be 0"
                )
        if self.distillation is not None and self.distillation.contrastive_weight == 0:
            unused = self._contrastive_settings()
            if unused:
                raise ValueError(
                    f"loss.{' and loss.'.join(unused)}: without effect, because "
                    "loss.distillation.contrastive_weight is 0; leave out, or raise the weight"
                )
        return self

    def _contrastive_settings(self) -> list[str]:
        """Return the settings that only contrastive losses read; cuts also serve relations."""
        options = LOSS_OPTIONS[self.name]
        unused = [name for name, default in options.items() if getattr(self, name) != default]
        unused += [f"by_task.{task}" for task in self.by_task if task not in self.heads]
        unused += ["mask_margin"] * (self.mask_margin is not None)
        teacher = self.embedding_teacher
        if self.matryoshka and (teacher is None or teacher.loss == "cosine"):
            unused.append("matryoshka")
        return unused

    @model_validator(mode="after")
    def _weighting_fits(self) -> LossConfig:
        if self.weighting != "fixed" and self.weights:
            raise ValueError(f"loss.weights requires loss.weighting fixed, not {self.weighting}")
        if self.weighting != "fixed" and self.reduction != "tasks":
            raise ValueError(
                f"loss.weighting {self.weighting} weights the mean loss of each task: set "
                "loss.reduction to tasks"
            )
        if self.weighting != "gradnorm" and self.gradnorm_alpha is not None:
            raise ValueError("loss.gradnorm_alpha requires loss.weighting gradnorm")
        return self

    @property
    def default(self) -> ContrastiveLoss:
        """The loss of the tasks that ``by_task`` does not name."""
        options = {key: getattr(self, key) for key in LOSS_OPTIONS[self.name]}
        return _SECTION_OF[self.name].model_validate({"name": self.name, **options})

    def contrastive(self, task: str) -> ContrastiveLoss:
        """Return the contrastive loss of a task."""
        loss = self.by_task.get(task, self.default)
        assert not isinstance(loss, HeadConfig), f"task {task} has a head"
        return loss

    @property
    def heads(self) -> dict[str, HeadConfig]:
        """The heads by task."""
        return {task: loss for task, loss in self.by_task.items() if isinstance(loss, HeadConfig)}
