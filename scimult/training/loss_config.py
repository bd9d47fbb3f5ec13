"""The section ``loss`` of a run: what is minimised, for all tasks and for each."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from scimult.config import StrictConfig

# Zhang et al., 2024, "Jasper and Stella": 200 times the similarity loss, 10 times the cosine loss.
RELATIONAL_SHARE = 20.0


class EmbeddingTeacherConfig(StrictConfig):
    """A loss beside the chosen one: follow a teacher's vector of each text.

    ``cosine`` is 1 - cosine of the text's embedding and its vector; ``relational`` the squared
    difference of the two cosines of each pair of texts in a batch; ``both`` their sum. The loss of
    a pair is the mean over its texts: query, positive, hard negative. ``weight`` times it is
    added to what ``loss.name`` chooses.
    """

    vectors: str = Field(description="folder that scimult teach wrote")
    loss: Literal["cosine", "relational", "both"] = "cosine"
    weight: float = Field(1.0, gt=0)
    relational_weight: float | None = Field(
        None, gt=0, description="of both: that of relational; 20 times weight"
    )
    tasks: list[str] | None = Field(
        None, min_length=1, description="whose texts follow; null: all tasks'"
    )
    projection: bool | None = Field(
        None,
        description="of cosine: a linear map from the model's width to the teacher's, learned and "
        "dropped at export; null: where the widths differ",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Give ``both`` its second weight, so that it is saved."""
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
                "loss.embedding_teacher.relational_weight belongs to loss: both; "
                f"{self.loss} has weight alone"
            )
        if self.loss == "relational" and self.projection:
            raise ValueError(
                "loss.embedding_teacher.projection has nothing to learn from with loss: relational"
            )
        return self

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of cosine and relational; 0 for one that is not used."""
        if self.loss == "both":
            assert self.relational_weight is not None
            return self.weight, self.relational_weight
        return (self.weight, 0.0) if self.loss == "cosine" else (0.0, self.weight)


class InfoNCEConfig(StrictConfig):
    """Equation 2 of SciMult; ``symmetric_info_nce`` is its mean with positives against queries."""

    name: Literal["info_nce", "symmetric_info_nce"]
    temperature: float = Field(1.0, gt=0, description="divides the scores")
    learn_temperature: bool = Field(False, description="from temperature as the start")


class TripletConfig(StrictConfig):
    """Equation 2 of SPECTER, against the query's own hard negative or all candidates."""

    name: Literal["triplet"]
    margin: float = Field(1.0, gt=0)
    negatives: Literal["own", "all"] = "own"


class HeadConfig(StrictConfig):
    """A linear head on embeddings, with the loss that SciRepEval (section 4.2) has for its targets.

    ``multi_class`` is cross-entropy, ``multi_label`` binary cross-entropy, the mean over classes,
    and ``regression`` the squared error. ``dropout`` comes before the head; SciRepEval's code has
    0.2, and starts weights with standard deviation 0.02 as here.
    """

    name: Literal["multi_class", "multi_label", "regression"]
    dropout: float = Field(0.0, ge=0, lt=1)


def _named(loss: Any) -> Any:
    """Let a loss without options be written as its name."""
    return {"name": loss} if isinstance(loss, str) else loss


ContrastiveLoss: TypeAlias = InfoNCEConfig | TripletConfig
TaskLoss: TypeAlias = Annotated[
    InfoNCEConfig | TripletConfig | HeadConfig,
    Field(discriminator="name"),
    BeforeValidator(_named),
]
# Formats of SciRepEval that a head's task may have.
FORMAT_OF_HEAD = {
    "multi_class": "classification",
    "multi_label": "classification",
    "regression": "regression",
}


LossName = Literal["info_nce", "symmetric_info_nce", "triplet"]
_INFO_NCE: dict[str, Any] = {"temperature": 1.0, "learn_temperature": False}
# The options that belong to one loss, with the values of its paper.
LOSS_OPTIONS: dict[str, dict[str, Any]] = {
    "info_nce": _INFO_NCE,
    "symmetric_info_nce": _INFO_NCE,
    "triplet": {"margin": 1.0, "negatives": "own"},
}


class DistillationConfig(StrictConfig):
    """A second loss: follow a teacher's scores of each query's positive and hard negative.

    ``kl`` compares distributions over the scored candidates, ``margin_mse`` differences of
    scores. The loss is ``weight`` times it plus ``contrastive_weight`` times the loss that
    ``loss.name`` chooses; a query without scores has the latter alone.
    """

    name: Literal["kl", "margin_mse"]
    weight: float = Field(1.0, gt=0)
    contrastive_weight: float = Field(1.0, ge=0)
    temperature: float = Field(1.0, gt=0, description="divides the model's scores")
    teacher_temperature: float = Field(1.0, gt=0, description="divides the teacher's")


class LossConfig(StrictConfig):
    """Which loss each task has, which candidates are negatives, and how losses are added up.

    ``info_nce`` is equation 2 of SciMult; ``symmetric_info_nce`` its mean with the same loss
    from positives to the queries of the batch; ``triplet`` is equation 2 of SPECTER. Options
    that belong to another loss are refused. ``by_task`` gives a task another loss with options of
    its own, or the head of its targets. ``mask_margin`` leaves out candidates that score
    above the positive minus this margin. ``matryoshka`` lists numbers of leading dimensions
    whose losses are averaged with that of the whole embedding.

    ``reduction`` says what a pass minimises: the mean over its pairs, or the sum over its tasks
    of the mean over each one's (SciRepEval). ``weighting`` multiplies each task's loss: ``fixed``
    with ``weights``, ``uncertainty`` with learned ones (Kendall et al., 2018), ``gradnorm`` with
    those that balance the norms of gradients (Chen et al., 2018; ``gradnorm_alpha`` is their
    alpha). The last two need ``reduction: tasks``.
    """

    name: LossName = "info_nce"
    temperature: float | None = Field(None, gt=0, description="of info_nce: divides the scores")
    learn_temperature: bool | None = Field(None, description="from temperature as the start")
    margin: float | None = Field(None, gt=0, description="of triplet")
    negatives: Literal["own", "all"] | None = Field(
        None, description="of triplet: the query's hard negative, or all candidates"
    )
    mask_known_positives: bool = True
    repeated_candidates: Literal["once", "each"] = Field(
        "once", description="how often a text in several columns counts as a query's negative"
    )
    mask_margin: float | None = None
    by_task: dict[str, TaskLoss] = Field(default_factory=dict)
    reduction: Literal["pairs", "tasks"] = "pairs"
    weighting: Literal["fixed", "uncertainty", "gradnorm"] = "fixed"
    gradnorm_alpha: float | None = Field(None, ge=0, description="of gradnorm; 1.5")
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="by task, also of the learning rate of what serves it alone; else 1",
    )
    matryoshka: list[int] = Field(default_factory=list)
    distillation: DistillationConfig | None = None
    embedding_teacher: EmbeddingTeacherConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Give absent options of the chosen loss their values, so that they are saved."""
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
                    f"loss.name {self.name} has no {' or '.join(given)}: of loss.name {other}"
                )
        alone = self.distillation is not None and self.distillation.contrastive_weight == 0
        for loss in (self.default, *self.by_task.values()):
            margin = loss.margin if isinstance(loss, TripletConfig) else None
            if margin is not None and self.mask_margin is not None and self.mask_margin >= margin:
                raise ValueError(
                    f"loss.mask_margin {self.mask_margin} leaves out every candidate within "
                    f"loss.margin {margin}, so that the loss would be 0"
                )
            if alone and isinstance(loss, InfoNCEConfig) and loss.learn_temperature:
                raise ValueError(
                    "loss.learn_temperature has nothing to learn from with "
                    "loss.distillation.contrastive_weight 0"
                )
        return self

    @model_validator(mode="after")
    def _weighting_fits(self) -> LossConfig:
        if self.weighting != "fixed" and self.weights:
            raise ValueError(f"loss.weights belongs to weighting fixed, not {self.weighting}")
        if self.weighting != "fixed" and self.reduction != "tasks":
            raise ValueError(
                f"loss.weighting {self.weighting} weighs the mean loss of each task: set "
                "loss.reduction to tasks"
            )
        if self.weighting != "gradnorm" and self.gradnorm_alpha is not None:
            raise ValueError("loss.gradnorm_alpha belongs to weighting gradnorm")
        return self

    @property
    def default(self) -> ContrastiveLoss:
        """The loss of the tasks that ``by_task`` does not name."""
        if self.name == "triplet":
            assert self.margin is not None
            assert self.negatives is not None
            return TripletConfig(name="triplet", margin=self.margin, negatives=self.negatives)
        return InfoNCEConfig(
            name=self.name,
            temperature=self.temperature or 1.0,
            learn_temperature=bool(self.learn_temperature),
        )

    def contrastive(self, task: str) -> ContrastiveLoss:
        """Return the loss of a task's pairs."""
        loss = self.by_task.get(task, self.default)
        assert not isinstance(loss, HeadConfig), f"task {task} has a head"
        return loss

    @property
    def heads(self) -> dict[str, HeadConfig]:
        """The heads by task."""
        return {task: loss for task, loss in self.by_task.items() if isinstance(loss, HeadConfig)}
