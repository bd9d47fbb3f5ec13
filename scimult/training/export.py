"""A model from a checkpoint that a run left on its way."""

from __future__ import annotations

from pathlib import Path

from scimult.checkpoints import Pretrained, load_pretrained
from scimult.checkpoints.weights import load_strictly
from scimult.config import load_config
from scimult.errors import CheckpointError
from scimult.models import Encoder
from scimult.training import build
from scimult.training.config import PretrainConfig
from scimult.training.engine import read_full_weights
from scimult.training.learned import learned_numbers, take_learned
from scimult.training.state import CheckpointStore


def load_step(run: Path | str, step: int) -> Pretrained:
    """Return the model that a run had after ``step`` optimizer steps, in float32.

    The run may have ended or not, on any number of ranks and under any ZeRO stage. Until
    it has ended, its base model must still be where it was.

    Parameters
    ----------
    run : path
        The run's folder.
    step : int
        A step whose checkpoint is kept.

    Raises
    ------
    CheckpointError
        If there is no such run or checkpoint, or if it is damaged.
    """
    run = Path(run)
    if not (run / "config.yaml").is_file():
        problem = "folder is not a run" if run.is_dir() else "folder does not exist"
        raise CheckpointError(
            problem, path=run, fix="name the folder that holds config.yaml and checkpoints"
        )
    config = load_config(PretrainConfig, run / "config.yaml")
    checkpoint = CheckpointStore(run / "checkpoints", config.checkpoint.keep).at(step)
    ended = (run / "model" / "config.json").is_file()
    described = load_pretrained(run) if ended else build.build_model(config)
    model = Encoder(described.config.encoder)
    weights = read_full_weights(checkpoint.path)
    learned = learned_numbers(config, take_learned(weights))
    load_strictly(model, weights, checkpoint.path)
    described.config.provenance |= {
        "config": config.model_dump(mode="json"),
        "data": checkpoint.info.get("data"),
        "step": step,
        **learned,
    }
    return Pretrained(model.eval(), described.tokenizer, described.config)
