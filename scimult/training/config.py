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
    hard_negatives: bool | Annotated[list[str], Field(min_length=1)] = Field(
        True, description="of all tasks, of none, or of the tasks that are listed"
    )

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
        None,
        ge=1,
        description="of max_tokens: micro-batches among which pairs are sorted by length; 32",
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


class HowToGet(StrictConfig):
    """What the error says where ``data.prepared`` or ``model.base`` does not exist."""

    data: str = ""
    base: str = ""


class PretrainConfig(StrictConfig):
    """Everything that decides the result of a pre-training run, and how to get what it reads."""

    output: str
    how_to_get: HowToGet = Field(default_factory=HowToGet)
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
    def _sections_fit(self) -> PretrainConfig:
        if self.checkpoint.keep_heads and not self.loss.heads:
            raise ValueError("checkpoint.keep_heads: loss.by_task gives no task a head")
        if self.loss.weighting == "gradnorm" and self.batch.mix != "in_batch":
            raise ValueError(
                "loss.weighting gradnorm compares the tasks of one pass: set batch.mix to in_batch"
            )
        if self.data.sampling == "sequential" and self.batch.mix == "in_batch":
            raise ValueError(
                "data.sampling sequential trains one source after the other, and batch.mix "
                "in_batch all of them in each pass; set batch.mix to alternate"
            )
        texts = 3 if self.data.hard_negatives else 2
        if self.batch.max_tokens is not None and (
            self.batch.max_tokens < texts * self.data.max_length
        ):
            raise ValueError(
                f"batch.max_tokens {self.batch.max_tokens} does not hold {texts} texts of "
                f"data.max_length {self.data.max_length}"
            )
        if self.selects and not self.dev.every:
            raise ValueError("dev.patience and checkpoint.keep_best need scores: set dev.every")
        return self

    @property
    def selects(self) -> bool:
        """Whether dev scores decide when the run ends or what it keeps."""
        return self.dev.patience is not None or self.checkpoint.keep_best
