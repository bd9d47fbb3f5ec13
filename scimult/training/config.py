"""The configuration of a pre-training run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig
from scimult.data.rates import SamplingMode
from scimult.models import EncoderConfig
from scimult.models.config import ROUTED, Pooling
from scimult.tasks import Routing, Task, default_tasks
from scimult.training.loss_config import FORMAT_OF_HEAD, LossConfig, TripletConfig
from scimult.training.schedules import ScheduleName
from scimult.types import Similarity

# Encoder fields that the run decides, not its base.
NOT_ARCHITECTURE = frozenset({"pooling", "pooling_position", "dims", *ROUTED})


class DataConfig(StrictConfig):
    """The prepared pairs to train on, and how often each source is sampled."""

    prepared: str
    sources: list[str] | None = Field(None, min_length=1)
    sampling: SamplingMode = "proportional"
    sampling_temperature: float = Field(
        1.0, ge=0.05, description="T: n pairs count as n^(1/T) where sizes matter"
    )
    rates: dict[str, Annotated[float, Field(ge=0, le=1e9)]] = Field(
        default_factory=dict, description="per source or task, for sampling: explicit"
    )
    pairs_per_query: int | None = Field(
        None,
        ge=1,
        lt=2**32,
        description="maximum pairs of a query per epoch; epochs draw different ones",
    )
    max_length: int = Field(512, ge=3)
    title_only: float = Field(
        0.0, ge=0, lt=1, description="share of the papers of which training reads only the title"
    )
    hard_negatives: bool | Annotated[list[str], Field(min_length=1)] = Field(
        True, description="for all tasks, for none, or for the listed tasks"
    )

    @model_validator(mode="after")
    def _rates_match_mode(self) -> DataConfig:
        if bool(self.rates) != (self.sampling == "explicit"):
            raise ValueError(
                "data.rates and data.sampling: explicit require each other; on the command line "
                "data.rates={} drops those that a file sets"
            )
        return self


class ModelConfig(StrictConfig):
    """The encoder: warm-started from ``base``, or new with a tokenizer and sizes."""

    base: str | None = None
    tokenizer: str | None = None
    architecture: dict[str, Any] | None = None
    variant: str = "vanilla"
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of the variant: see scimult/models/variants.py"
    )
    routing: Routing = Field("task", description="which rows share experts, adapters or codes")
    train: Literal["all", "added"] | None = Field(
        None, description="added: the base stays frozen; null: the variant decides"
    )
    freeze: list[str] = Field(
        default_factory=list, description="patterns of parameter names, such as embeddings.*"
    )
    pooling: Pooling = "cls"
    pooling_position: int = 0
    dims: int | None = Field(None, ge=1, description="keep only the first dimensions")
    similarity: Similarity = "dot"
    dropout: float | None = Field(None, ge=0, lt=1)
    attention_dropout: float | None = Field(None, ge=0, lt=1)

    @model_validator(mode="after")
    def _one_origin(self) -> ModelConfig:
        from_scratch = self.tokenizer is not None and self.architecture is not None
        if (self.base is None) == (not from_scratch) or (
            self.base is not None and (self.tokenizer or self.architecture)
        ):
            raise ValueError("give either base, or both tokenizer and architecture")
        known = set(EncoderConfig.model_fields) - {"vocab_size", *NOT_ARCHITECTURE}
        unknown = set(self.architecture or {}) - known
        if unknown:
            raise ValueError(f"unknown architecture keys {sorted(unknown)}; known: {sorted(known)}")
        if self.pooling_position and self.pooling != "position":
            raise ValueError(
                f"model.pooling_position needs model.pooling position, not {self.pooling}"
            )
        return self


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(StrictConfig):
    """AdamW with the paper's values (appendix C) as defaults.

    ``layer_decay`` multiplies the learning rate once per block below the last, and again for
    the embeddings (Howard and Ruder, 2018, section 3.2; Clark et al., 2020, appendix).
    ``added_lr`` applies, in every layer, to experts and everything else a variant adds to a
    plain encoder.
    """

    lr: float = Field(3e-4, gt=0)
    layer_decay: float = Field(1.0, ge=0.01, le=1)
    added_lr: float | None = Field(None, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    learned_lr: float | None = Field(
        None, gt=0, description="for heads, temperatures, learned task weights, projections"
    )
    clip: float = Field(1.0, ge=0, description="maximum gradient norm; 0 disables clipping")


class ScheduleConfig(StrictConfig):
    """Length of training and shape of the learning rate."""

    steps: int | None = Field(None, ge=0, le=10**9, description="0 saves the initial model")
    epochs: float | None = Field(None, gt=0, le=1e6)
    name: ScheduleName = "linear"
    warmup: float = Field(0.05, ge=0, description="share of the steps if below 1, else steps")

    @model_validator(mode="after")
    def _one_length(self) -> ScheduleConfig:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                "give either schedule.steps or schedule.epochs; null drops the one that a file sets"
            )
        if self.warmup > 1 and self.warmup % 1:
            raise ValueError(f"schedule.warmup {self.warmup} is neither a share nor whole steps")
        return self


NegativesAcross = Literal["source", "task", "batch"]


class BatchConfig(StrictConfig):
    """Size of a step, and its split into forward-backward passes.

    A step has ``accumulation`` micro-batches, which do not share in-batch negatives. A micro-batch
    has its share of ``pairs_per_step``, over all ranks, or as many pairs as fit into ``max_tokens``
    on each rank. ``chunk_tokens`` enables the embedding cache: a micro-batch of any size then needs
    memory only for the activations of that many tokens of short texts. ``auto`` holds 2 GB of them
    on CPUs and all elsewhere; null holds all.
    """

    pairs_per_step: int | None = Field(None, ge=2, description="64, unless max_tokens is given")
    max_tokens: int | None = Field(None, ge=9)
    pool: int | None = Field(
        None,
        ge=1,
        description="with max_tokens: micro-batches among which pairs are sorted by length; 32",
    )
    accumulation: int = Field(1, ge=1)
    chunk_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] | None = "auto"
    mix: Literal["alternate", "in_batch"] = Field(
        "alternate", description="one source per micro-batch, or all in each, by their rates"
    )
    negatives_across: NegativesAcross | None = Field(
        None, description="with in_batch: whose candidates a query sees, if routes agree; batch"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Fill in the defaults of the chosen kind of batch, so that they are saved."""
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
            raise ValueError(
                "give batch.pairs_per_step or batch.max_tokens, not both; null drops the one that "
                "a file sets"
            )
        if self.max_tokens is None and self.pool is not None:
            raise ValueError("batch.pool requires batch.max_tokens")
        if self.max_tokens is not None and self.mix == "in_batch":
            raise ValueError(
                "batch.mix in_batch distributes pairs: it needs batch.pairs_per_step, "
                "not batch.max_tokens"
            )
        if self.mix == "alternate" and self.negatives_across is not None:
            raise ValueError(
                "batch.negatives_across requires batch.mix in_batch: else all are of one source"
            )
        if self.pairs_per_step is not None and self.pairs_per_step % self.accumulation:
            raise ValueError("batch.pairs_per_step must be a multiple of batch.accumulation")
        chunk = self.chunk_tokens if isinstance(self.chunk_tokens, int) else 0
        if self.max_tokens is not None and self.max_tokens <= chunk:
            raise ValueError("batch.chunk_tokens must be less than batch.max_tokens")
        return self


PrecisionChoice = Literal["auto", "fp32", "bf16", "fp16"]


class EngineConfig(StrictConfig):
    """Precision and DeepSpeed."""

    precision: PrecisionChoice = Field(
        "auto", description="auto: bf16 where the device has units for it, else fp32"
    )
    deepspeed: str | dict[str, Any] = Field(
        default_factory=lambda: {"zero_optimization": {"stage": 1}},
        description="path of a DeepSpeed JSON, or its content; 'auto' values are filled in",
    )
    activation_checkpointing: bool = Field(
        False, description="keep only each block's input and recompute the rest for gradients"
    )
    compile: bool = Field(
        False, description="compile everything after attention in a block, by torch.compile"
    )
    timeout_minutes: float = Field(30, gt=0)


class CheckpointConfig(StrictConfig):
    """When state is saved, which checkpoints are kept, and which becomes the model."""

    every: int = Field(500, ge=1)
    keep: int = Field(2, ge=1, description="number of newest checkpoints to keep")
    keep_heads: bool = Field(False, description="save the heads next to the model at the end")
    keep_best: bool = Field(False, description="also keep the best step by dev.metric")
    export: Literal["last", "best"] = "last"

    @model_validator(mode="after")
    def _best_is_kept(self) -> CheckpointConfig:
        if self.export == "best" and not self.keep_best:
            raise ValueError("checkpoint.export best needs checkpoint.keep_best")
        return self


class DevConfig(StrictConfig):
    """Retrieval on held-out pairs during training; ``every: 0`` disables it.

    ``metric`` is the score by which steps are compared; training ends after ``patience``
    evaluations in a row without improvement.

    Queries and candidates are drawn with ``seed``, not the run's, so that scores of two runs on
    the same prepared data are comparable.
    """

    every: int = Field(500, ge=0)
    queries: int = Field(200, ge=1)
    candidates: int = Field(1000, ge=2)
    seed: int = Field(0, ge=0)
    metric: str = "dev/mean/mrr"
    patience: int | None = Field(None, ge=1)


Peak = Annotated[float, Field(gt=0)] | Literal["auto", "measure"]


class LogConfig(StrictConfig):
    """What is reported, how often and where.

    ``peak_tflops`` is the peak of one device, relative to which model FLOP utilisation is
    reported: ``auto`` uses the data sheets of some GPUs (`hardware.known_peak`) and omits
    utilisation elsewhere; ``measure`` times matrix products before the first step.
    """

    every: int = Field(10, ge=1)
    tensorboard: bool = True
    tracker: Literal["wandb", "trackio"] | None = Field(
        None, description="also report to this package, which must be installed"
    )
    project: str = Field("scimult", description="project name in the tracker")
    peak_tflops: Peak = "auto"
    gradient_norms: bool = Field(
        False, description="report them for the shared part, the variant's additions, each expert"
    )


class HowToGet(StrictConfig):
    """The fix to show where ``data.prepared`` or ``model.base`` does not exist."""

    data: str = ""
    base: str = ""


class PretrainConfig(StrictConfig):
    """Everything that determines the result of a pre-training run, and how to get its inputs."""

    output: str = Field(min_length=1)
    how_to_get: HowToGet = Field(default_factory=HowToGet)
    seed: int = Field(42, ge=0, lt=2**32)
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
        # The default matters only if a task uses it.
        losses = [self.loss.by_task.get(name, self.loss.default) for name in names]
        triplets = [loss for loss in losses if isinstance(loss, TripletConfig)]
        if triplets and self.model.similarity == "dot":
            raise ValueError(
                "loss.name triplet compares distances, and a dot product is not one; "
                "set model.similarity to l2 (SPECTER) or cosine"
            )
        margin = self.loss.mask_margin
        if self.model.similarity == "cosine" and margin is not None and margin >= 2:
            raise ValueError(
                f"loss.mask_margin {margin:g} excludes every candidate, so that the loss would be "
                "0: two cosines differ by at most 2"
            )
        if not self.data.hard_negatives and any(loss.negatives == "own" for loss in triplets):
            raise ValueError(
                "loss.negatives own needs data.hard_negatives; or set loss.negatives to all"
            )
        if self.loss.distillation is not None and not self.data.hard_negatives:
            raise ValueError("loss.distillation needs data.hard_negatives")
        return self

    @model_validator(mode="after")
    def _formats_fit(self) -> PretrainConfig:
        for task in self.tasks:
            loss = self.loss.by_task.get(task.name)
            if loss is None:
                continue
            required = FORMAT_OF_HEAD.get(loss.name)
            if required is not None and task.format != required:
                raise ValueError(
                    f"loss.by_task.{task.name} {loss.name} needs a task of format {required}; "
                    f"this one has {task.format}"
                )
            if required is None and task.format == "regression":
                raise ValueError(
                    f"task {task.name!r} has format regression, but loss.by_task.{task.name} "
                    f"{loss.name} compares pairs; set it to regression"
                )
        return self

    @model_validator(mode="after")
    def _sections_fit(self) -> PretrainConfig:
        if self.checkpoint.keep_heads and not self.loss.heads:
            raise ValueError("checkpoint.keep_heads is set, but loss.by_task defines no head")
        if self.loss.weighting == "gradnorm" and self.batch.mix != "in_batch":
            raise ValueError(
                "loss.weighting gradnorm compares tasks of a micro-batch: set batch.mix to in_batch"
            )
        if self.data.sampling == "sequential" and self.batch.mix == "in_batch":
            raise ValueError(
                "data.sampling sequential trains one source after the other, but batch.mix "
                "in_batch trains all in each micro-batch; set batch.mix to alternate"
            )
        position, length = self.model.pooling_position, self.data.max_length
        if not -length <= position < length:
            raise ValueError(
                f"model.pooling_position {position} is beyond data.max_length {length}: every "
                "text would be cut before it"
            )
        texts = 3 if self.data.hard_negatives else 2
        if self.batch.max_tokens is not None and (
            self.batch.max_tokens < texts * self.data.max_length
        ):
            raise ValueError(
                f"batch.max_tokens {self.batch.max_tokens} cannot hold {texts} texts of "
                f"data.max_length {self.data.max_length}"
            )
        if self.selects and not self.dev.every:
            raise ValueError("dev.patience and checkpoint.keep_best need dev scores: set dev.every")
        return self

    @property
    def selects(self) -> bool:
        """Whether dev scores decide when the run ends or which step it keeps."""
        return self.dev.patience is not None or self.checkpoint.keep_best
