"""The configuration of a pre-training run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig
from scimult.data.rates import SamplingMode
from scimult.models import EncoderConfig
from scimult.models.config import ROUTED, Pooling
from scimult.tasks import Routing, Task, default_tasks
from scimult.training.schedules import ScheduleName
from scimult.training.task_losses import (
    FORMAT_OF_HEAD,
    ContrastiveLoss,
    HeadConfig,
    InfoNCEConfig,
    TaskLoss,
    TripletConfig,
)
from scimult.training.teacher_config import EmbeddingTeacherConfig
from scimult.types import Similarity

# Fields of an encoder that the run decides, not its base.
NOT_ARCHITECTURE = frozenset({"pooling", "pooling_position", "dims", *ROUTED})


class DataConfig(StrictConfig):
    """Which prepared pairs are trained on, and how often each source comes up."""

    prepared: str
    sources: list[str] | None = None
    sampling: SamplingMode = "proportional"
    sampling_temperature: float = Field(
        1.0, gt=0, description="T: n pairs count as n^(1/T) wherever sizes count"
    )
    rates: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict, description="by source or task, for sampling: explicit"
    )
    pairs_per_query: int | None = Field(
        None, ge=1, description="most pairs of a query in an epoch; the next one has others"
    )
    max_length: int = Field(512, ge=3)
    hard_negatives: bool = True

    @model_validator(mode="after")
    def _rates_match_mode(self) -> DataConfig:
        if bool(self.rates) != (self.sampling == "explicit"):
            raise ValueError("data.rates and data.sampling: explicit go together")
        return self


class ModelConfig(StrictConfig):
    """The encoder: warm-started from ``base``, or new with a tokenizer and sizes."""

    base: str | None = None
    tokenizer: str | None = None
    architecture: dict[str, Any] | None = None
    variant: str = "vanilla"
    options: dict[str, Any] = Field(
        default_factory=dict, description="of the variant: see scimult/models/variants.py"
    )
    routing: Routing = Field("task", description="which rows share experts, adapters or codes")
    train: Literal["all", "added"] | None = Field(
        None, description="added: the base stays frozen; by default as the variant is defined"
    )
    freeze: list[str] = Field(
        default_factory=list, description="patterns of parameter names, as embeddings.*"
    )
    pooling: Pooling = "cls"
    pooling_position: int = 0
    dims: int | None = Field(None, ge=1, description="keep only so many dimensions")
    similarity: Similarity = "dot"
    dropout: float | None = Field(None, ge=0, lt=1)
    attention_dropout: float | None = Field(None, ge=0, lt=1)

    @model_validator(mode="after")
    def _one_origin(self) -> ModelConfig:
        from_nothing = self.tokenizer is not None and self.architecture is not None
        if (self.base is None) == (not from_nothing) or (
            self.base is not None and (self.tokenizer or self.architecture)
        ):
            raise ValueError("give either base, or both tokenizer and architecture")
        known = set(EncoderConfig.model_fields) - {"vocab_size", *NOT_ARCHITECTURE}
        unknown = set(self.architecture or {}) - known
        if unknown:
            raise ValueError(f"unknown architecture keys {sorted(unknown)}; known: {sorted(known)}")
        return self


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
        chosen = dict(LOSS_OPTIONS.get(str(given.get("name", "info_nce")), {}))
        if given.get("weighting", "fixed") != "fixed":
            chosen["reduction"] = "tasks"
        if given.get("weighting") == "gradnorm":
            chosen["gradnorm_alpha"] = 1.5
        absent = {key: value for key, value in chosen.items() if given.get(key) is None}
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


class OptimizerConfig(StrictConfig):
    """AdamW with the paper's values (appendix C) as defaults.

    ``layer_decay`` multiplies the learning rate once per block below the last, and once more
    for the embeddings (Howard and Ruder, 2018, section 3.2; Clark et al., 2020, appendix).
    ``added_lr`` is that of experts and of what else a variant has beside a plain encoder,
    in every layer.
    """

    lr: float = Field(3e-4, gt=0)
    layer_decay: float = Field(1.0, gt=0, le=1)
    added_lr: float | None = Field(None, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    learned_lr: float | None = Field(
        None, gt=0, description="of heads, temperatures and learned weights of tasks"
    )
    clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 turns clipping off")


class ScheduleConfig(StrictConfig):
    """Length of training and shape of the learning rate."""

    steps: int | None = Field(None, ge=0, description="0 saves the model as it starts")
    epochs: float | None = Field(None, gt=0)
    name: ScheduleName = "linear"
    warmup: float = Field(0.05, ge=0, description="share of the steps below 1, else steps")

    @model_validator(mode="after")
    def _one_length(self) -> ScheduleConfig:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        return self


NegativesAcross = Literal["source", "task", "batch"]


class BatchConfig(StrictConfig):
    """How much a step holds, and how it is split into forward-backward passes.

    A step has ``accumulation`` passes, whose in-batch negatives are apart. A pass has its
    share of ``pairs_per_step``, over all ranks, or as many pairs as fit ``max_tokens`` on
    each rank. ``chunk_tokens`` turns the embedding cache on: a pass of any size needs memory
    for the activations of so many tokens of short texts only. ``auto``: on CPUs of as many as
    take 2 GB, elsewhere of all; null: of all.
    """

    pairs_per_step: int | None = Field(None, ge=2, description="64, unless max_tokens is given")
    max_tokens: int | None = Field(None, ge=9)
    pool: int | None = Field(
        None, ge=1, description="of max_tokens: units among which pairs are sorted by length; 32"
    )
    accumulation: int = Field(1, ge=1)
    chunk_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] | None = "auto"
    mix: Literal["alternate", "in_batch"] = Field(
        "alternate", description="one source in a pass, or all in each, by their rates"
    )
    negatives_across: NegativesAcross | None = Field(
        None, description="of in_batch: whose candidates a query sees, where routes agree; batch"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Give the chosen kind of batch its values, so that they are saved."""
        if not isinstance(given, dict):
            return given
        by_tokens = given.get("max_tokens") is not None
        default: dict[str, Any] = {"pool": 32} if by_tokens else {"pairs_per_step": 64}
        if given.get("mix") == "in_batch":
            default["negatives_across"] = "batch"
        return given | {key: value for key, value in default.items() if given.get(key) is None}

    @model_validator(mode="after")
    def _fits(self) -> BatchConfig:
        if self.max_tokens is not None and self.pairs_per_step is not None:
            raise ValueError("give batch.pairs_per_step or batch.max_tokens, not both")
        if self.max_tokens is None and self.pool is not None:
            raise ValueError("batch.pool belongs to batch.max_tokens")
        if self.max_tokens is not None and self.mix == "in_batch":
            raise ValueError(
                "batch.mix in_batch shares out pairs: it needs batch.pairs_per_step, "
                "not batch.max_tokens"
            )
        if self.mix == "alternate" and self.negatives_across is not None:
            raise ValueError(
                "batch.negatives_across belongs to batch.mix in_batch: other passes hold one source"
            )
        if self.pairs_per_step is not None and self.pairs_per_step % self.accumulation:
            raise ValueError("batch.pairs_per_step must be a multiple of batch.accumulation")
        chunk = self.chunk_tokens if isinstance(self.chunk_tokens, int) else 0
        if self.max_tokens is not None and self.max_tokens <= chunk:
            raise ValueError("batch.chunk_tokens must be less than batch.max_tokens")
        return self


class EngineConfig(StrictConfig):
    """Precision and DeepSpeed."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto: bf16 where the device has units for it, else fp32"
    )
    deepspeed: str | dict[str, Any] = Field(
        default_factory=lambda: {"zero_optimization": {"stage": 1}},
        description="path of a DeepSpeed JSON, or its content; 'auto' values are filled in",
    )
    activation_checkpointing: bool = Field(
        False, description="keep each block's input alone and compute the rest again for gradients"
    )
    compile: bool = Field(False, description="what follows attention in a block, by torch.compile")
    timeout_minutes: float = Field(30, gt=0)


class CheckpointConfig(StrictConfig):
    """When state is saved, which checkpoints are kept, and which becomes the model."""

    every: int = Field(500, ge=1)
    keep: int = Field(2, ge=1, description="newest checkpoints that are kept")
    keep_heads: bool = Field(False, description="write them beside the model at the end")
    keep_best: bool = Field(False, description="also keep the step that is best by dev.metric")
    export: Literal["last", "best"] = "last"

    @model_validator(mode="after")
    def _best_is_kept(self) -> CheckpointConfig:
        if self.export == "best" and not self.keep_best:
            raise ValueError("checkpoint.export best needs checkpoint.keep_best")
        return self


class DevConfig(StrictConfig):
    """Retrieval on held-out pairs during training; ``every: 0`` turns it off.

    ``metric`` names the score by which steps are compared, and ``patience`` the evaluations
    in a row without a better one after which training ends.

    The seed that draws queries and candidates is not the run's: scores of two runs on the
    same prepared data compare.
    """

    every: int = Field(500, ge=0)
    queries: int = Field(200, ge=1)
    candidates: int = Field(1000, ge=2)
    seed: int = Field(0, ge=0)
    metric: str = "dev/mean/mrr"
    patience: int | None = Field(None, ge=1)


Peak = Annotated[float, Field(gt=0)] | Literal["auto", "measure"]


class LogConfig(StrictConfig):
    """What is reported how often, and where to.

    ``peak_tflops`` is what one device can do at best, which model FLOP utilisation is a share
    of: ``auto`` knows the data sheets of some GPUs (`hardware.known_peak`) and leaves
    utilisation out elsewhere; ``measure`` times matrix products before the first step.
    """

    every: int = Field(10, ge=1)
    tensorboard: bool = True
    tracker: Literal["wandb", "trackio"] | None = Field(
        None, description="report to this package too, if it is installed"
    )
    project: str = Field("scimult", description="of the tracker")
    peak_tflops: Peak = "auto"
    gradient_norms: bool = Field(
        False, description="also of the shared part, of what the variant adds, of each expert"
    )


class PretrainConfig(StrictConfig):
    """Everything that decides the result of a pre-training run."""

    output: str
    seed: int = Field(42, ge=0)
    tasks: list[Task] = Field(default_factory=lambda: list(default_tasks()), min_length=1)
    data: DataConfig
    model: ModelConfig
    loss: LossConfig = Field(default_factory=LossConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig
    batch: BatchConfig = Field(default_factory=BatchConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    dev: DevConfig = Field(default_factory=DevConfig)
    log: LogConfig = Field(default_factory=LogConfig)

    @model_validator(mode="after")
    def _loss_fits(self) -> PretrainConfig:
        names = [task.name for task in self.tasks]
        for task in self.loss.by_task:
            if task not in names:
                raise ValueError(f"loss.by_task names {task!r}, which is not among tasks: {names}")
        # The default counts only where a task has it.
        losses = [self.loss.by_task.get(name, self.loss.default) for name in names]
        triplets = [loss for loss in losses if isinstance(loss, TripletConfig)]
        if triplets and self.model.similarity == "dot":
            raise ValueError(
                "loss.name triplet compares distances, and a dot product is not one; "
                "set model.similarity to l2 (SPECTER) or cosine"
            )
        if not self.data.hard_negatives and any(loss.negatives == "own" for loss in triplets):
            raise ValueError(
                "loss.negatives own needs data.hard_negatives; or set loss.negatives to all"
            )
        if self.loss.distillation is not None and not self.data.hard_negatives:
            raise ValueError("loss.distillation compares positives with data.hard_negatives")
        return self

    @model_validator(mode="after")
    def _formats_fit(self) -> PretrainConfig:
        for task in self.tasks:
            loss = self.loss.by_task.get(task.name)
            if loss is None:
                continue
            wanted = FORMAT_OF_HEAD.get(loss.name)
            if wanted is not None and task.format != wanted:
                raise ValueError(
                    f"loss.by_task.{task.name} {loss.name} needs a task of format {wanted}; the "
                    f"task has {task.format}"
                )
            if wanted is None and task.format == "regression":
                raise ValueError(
                    f"task {task.name!r} has format regression, and loss.by_task.{task.name} "
                    f"{loss.name} compares pairs; set it to regression"
                )
        return self

    @model_validator(mode="after")
    def _heads_are_there(self) -> PretrainConfig:
        if self.checkpoint.keep_heads and not self.loss.heads:
            raise ValueError("checkpoint.keep_heads: loss.by_task gives no task a head")
        return self

    @model_validator(mode="after")
    def _mix_fits(self) -> PretrainConfig:
        if self.loss.weighting == "gradnorm" and self.batch.mix != "in_batch":
            raise ValueError(
                "loss.weighting gradnorm compares the tasks of one pass: set batch.mix to in_batch"
            )
        if self.data.sampling == "sequential" and self.batch.mix == "in_batch":
            raise ValueError(
                "data.sampling sequential trains one source after the other, and batch.mix "
                "in_batch all of them in each pass; set batch.mix to alternate"
            )
        return self

    @model_validator(mode="after")
    def _pairs_fit(self) -> PretrainConfig:
        texts = 3 if self.data.hard_negatives else 2
        if self.batch.max_tokens is not None and (
            self.batch.max_tokens < texts * self.data.max_length
        ):
            raise ValueError(
                f"batch.max_tokens {self.batch.max_tokens} does not hold {texts} texts of "
                f"data.max_length {self.data.max_length}"
            )
        return self

    @model_validator(mode="after")
    def _selection_has_scores(self) -> PretrainConfig:
        if self.selects and not self.dev.every:
            raise ValueError("dev.patience and checkpoint.keep_best need scores: set dev.every")
        return self

    @property
    def selects(self) -> bool:
        """Whether dev scores decide when the run ends or what it keeps."""
        return self.dev.patience is not None or self.checkpoint.keep_best
