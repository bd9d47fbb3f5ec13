"""Training steps, ours and sentence-transformers': same weights, texts and batches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.variants import SIZES
from scimult import distributed
from scimult.checkpoints import Pretrained, PretrainedConfig, load_pretrained
from scimult.checkpoints.exports import export_folded
from scimult.config import validate
from scimult.data.batches import Batch, BatchBuilder, MicroBatch, all_known_positives
from scimult.data.token_store import TokenStore
from scimult.data.tokenization import TextTokenizer
from scimult.errors import ConfigError
from scimult.models import Encoder, EncoderConfig
from scimult.models.compiled import compile_blocks
from scimult.tasks import default_tasks
from scimult.training import build
from scimult.training.config import PretrainConfig
from scimult.training.deepspeed_config import resolve_deepspeed
from scimult.training.engine import DeepSpeedEngine
from scimult.training.learned import LearnedParts
from scimult.training.loop import Callback, StepReport, Trainer
from scimult.training.meter import Meter
from scimult.training.module import MicroBatchesAhead, TrainModule
from scimult.training.objective import Objective
from scimult.training.plan import build_sampler, plan_run
from scimult.training.stopping import StopRequest
from scimult.training.weighting import Weighting
from scimult.types import TokenIds

_TEMPERATURE = 0.05
# A run's plan needs a length; far more steps than are ever timed.
_STEPS = 10_000


@dataclass(frozen=True)
class Setting:
    """Settings of both sides: base checkpoint, prepared pairs, batch, dropout.

    ``pooling`` is ours: sentence-transformers' steps take the mean.
    """

    base: str
    prepared: str
    pairs: int
    max_length: int
    dropout: float
    chunk_tokens: int | None = None
    compiled: bool = False
    pooling: str = "mean"

    def config(self) -> PretrainConfig:
        """Return the configuration of our run."""
        return validate(
            PretrainConfig,
            {
                "output": "unused",
                "data": {"prepared": self.prepared, "max_length": self.max_length},
                "model": {
                    "base": self.base,
                    "pooling": self.pooling,
                    "similarity": "cosine",
                    "dropout": self.dropout,
                    "attention_dropout": self.dropout,
                },
                "loss": {"temperature": _TEMPERATURE},
                "schedule": {"steps": _STEPS, "name": "constant"},
                "batch": {"pairs_per_step": self.pairs, "chunk_tokens": self.chunk_tokens},
                "engine": {"compile": self.compiled},
            },
        )


@dataclass(frozen=True)
class Batches:
    """Model, tokens and micro-batches of our run."""

    config: PretrainConfig
    pretrained: Pretrained
    tokens: TokenStore
    micro_batch: Callable[[int], MicroBatch]
    loss_weights: Mapping[str, float]


def batches_of(setting: Setting) -> Batches:
    """Plan a run and load its base."""
    config = setting.config()
    plan = plan_run(config)
    pretrained = build.build_model(config)
    tokens = plan.data.tokens(pretrained.tokenizer, setting.max_length)
    sampler, _ = build_sampler(config, plan, tokens.lengths_N)
    known = all_known_positives(plan.data)
    builder = BatchBuilder(plan.sources, tokens, known, max_length=setting.max_length)
    ahead = MicroBatchesAhead(
        lambda number: builder.micro_batch(sampler.plan(number), distributed.rank()), len(sampler)
    )
    return Batches(config, pretrained, tokens, ahead, plan.loss_weights)


class Reports(Callback):
    """Collects the reports of all steps."""

    def __init__(self) -> None:
        self.collected: list[StepReport] = []

    def on_step(self, report: StepReport) -> None:
        """Collect a report."""
        self.collected.append(report)


class OurSteps:
    """Complete optimizer steps of a run through DeepSpeed, one per call.

    The process group must have been joined.
    """

    def __init__(self, setting: Setting, device: torch.device, precision: str) -> None:
        batches = batches_of(setting)
        config, pretrained = batches.config, batches.pretrained
        self.tokens, self._micro_batch = batches.tokens, batches.micro_batch
        optimizer, schedule = build.build_optimizer(config, pretrained.model, _STEPS)
        settings = resolve_deepspeed(
            config.engine.deepspeed,
            pairs_per_step=setting.pairs,
            accumulation=1,
            world_size=distributed.world_size(),
            precision="bf16" if precision == "bf16" else "fp32",
            clip=config.optimizer.clip,
        )
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        meter = Meter(pretrained.model, device, dtype, None)
        if config.engine.compile:
            compile_blocks(pretrained.model)
        self.reports = Reports()
        self._engine = DeepSpeedEngine(pretrained.model.to(device), optimizer, schedule, settings)
        module = TrainModule(
            self._engine,
            pretrained.routes,
            Objective("cosine", config.loss, device),
            Weighting(config.loss, batches.loss_weights),
            LearnedParts(pretrained.model, {}),
            meter,
            accumulation=1,
            chunk_tokens=setting.chunk_tokens,
            seed=config.seed,
        )
        self._trainer = Trainer(
            module, self._micro_batch, StopRequest(), [self.reports], device.type != "cpu"
        )

    def step(self, number: int) -> None:
        """Do one step."""
        self._trainer.run(number, number + 1)

    def steps(self, first: int, count: int) -> list[StepReport]:
        """Do consecutive steps, as a run does, and return their reports."""
        self.reports.collected.clear()
        self._trainer.run(first, first + count)
        return list(self.reports.collected)

    def columns(self, number: int) -> list[list[TokenIds]]:
        """Return this rank's texts of a step: queries, positives, hard negatives."""
        (part,) = self._micro_batch(number).parts
        assert isinstance(part, Batch)
        columns = (
            part.query_ids_B,
            part.candidate_ids_C[: len(part.query_B)],
            part.candidate_ids_C[len(part.query_B) :],
        )
        longest = max(len(row) for row in part.rows)
        return [
            [self.tokens.tokens(int(text), longest) for text in column]
            for column in columns
            if len(column)
        ]

    def close(self) -> None:
        """Release DeepSpeed."""
        self._engine.close()


class TheirSteps:
    """The same steps with sentence-transformers' own loss, padded, and torch's fused AdamW.

    It gets padded token ids that are on the device, so that only its step is timed. On a CPU,
    columns are encoded separately: merged, as on GPUs where they are equally long, all would be
    padded to the longest text of any.
    """

    def __init__(
        self,
        setting: Setting,
        batches: list[list[list[TokenIds]]],
        device: torch.device,
        precision: str,
    ) -> None:
        try:
            from sentence_transformers import SentenceTransformer
            from sentence_transformers.base.losses.merged_forward import column_merging_disabled
            from sentence_transformers.sentence_transformer.losses import (
                MultipleNegativesRankingLoss,
            )
            from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
        except ImportError as error:
            raise ConfigError(
                "sentence-transformers 6 is not installed", fix="pip install 'scimult[test]'"
            ) from error
        dropout = {
            "hidden_dropout_prob": setting.dropout,
            "attention_probs_dropout_prob": setting.dropout,
        }
        encoder = Transformer(setting.base, config_kwargs=dropout)
        width = int(encoder.get_embedding_dimension())
        self._model = SentenceTransformer(
            modules=[encoder, Pooling(width, "mean")], device=str(device)
        )
        self._model.train()
        self._loss = MultipleNegativesRankingLoss(self._model, scale=1 / _TEMPERATURE)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=3e-4, fused=True)
        self._apart = column_merging_disabled if device.type == "cpu" else nullcontext
        self._device = device
        self._precision = precision
        self._features = [[self._pad(column) for column in batch] for batch in batches]

    def step(self, number: int) -> None:
        """Do one step."""
        # The loss adds to what it gets.
        features = [dict(column) for column in self._features[number]]
        half = self._precision == "bf16"
        autocast = torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=half)
        with autocast, self._apart():
            loss = self._loss(features, torch.empty(0))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _pad(self, column: list[TokenIds]) -> dict[str, Tensor]:
        longest = max(map(len, column))
        ids = torch.zeros(len(column), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(column):
            ids[row, : len(tokens)] = torch.from_numpy(tokens)
            mask[row, : len(tokens)] = 1
        return {"input_ids": ids.to(self._device), "attention_mask": mask.to(self._device)}


@contextmanager
def random_encoder(size: str, tokenizer_of: str) -> Iterator[str]:
    """Yield a plain folder with random weights of a size of `variants.SIZES`, and a tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        save_random_encoder(size, load_pretrained(tokenizer_of).tokenizer, Path(folder) / size)
        yield str(Path(folder) / size)


def save_random_encoder(size: str, tokenizer: TextTokenizer, folder: Path) -> None:
    """Write a plain folder with random weights of a size of `variants.SIZES`.

    A vocabulary larger than the size's is embedded too.
    """
    vocabulary = max(SIZES[size]["vocab_size"], tokenizer.vocab_size)
    sizes = SIZES[size] | {"pooling": "mean", "vocab_size": vocabulary}
    model = Encoder(EncoderConfig.model_validate(sizes))
    model.initialise(0)
    config = PretrainedConfig(encoder=model.config, tasks=list(default_tasks()))
    export_folded(folder, Pretrained(model, tokenizer, config), None)
