"""Pre-train a tiny model in two stages on a generated world, for the other examples.

    python examples/pretrain_two_stages.py            # a minute or two on a CPU

For your own data, replace the world by your files (configs/data/scholarly.yaml shows which), start
from a checkpoint (configs/pretrain/), and run launch/pretrain.py under deepspeed or torchrun.
"""

import argparse
import os
from pathlib import Path

from scimult.config import load_config
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.vocabulary import read_texts, save_tokenizer, train_wordpiece
from scimult.preparation.world import WorldSettings, make_world, write_world
from scimult.training.curriculum import run_stages
from scimult.training.stages import load_stages

REPOSITORY = Path(__file__).resolve().parents[1]


def main(out: Path) -> None:
    """Generate raw files, prepare them, train a vocabulary, then both stages."""
    world, prepared, tokenizer = out / "world", out / "prepared", out / "tokenizer"
    write_world(make_world(WorldSettings(papers=600)), world)

    settings = REPOSITORY / "configs" / "data" / "world.yaml"
    build_dataset(load_config(DatasetConfig, settings, [f"root={world / 'train'}"]), prepared)
    save_tokenizer(train_wordpiece(read_texts(prepared), vocab_size=2000), tokenizer)

    paths = [f"data.prepared={prepared}", f"model.tokenizer={tokenizer}", f"output={out}"]
    stages = load_stages(REPOSITORY / "examples" / "two_stages.yaml", paths)
    print("model saved in", run_stages(stages))  # skips finished stages


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # the model is too small for a GPU to help
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/examples"))
    main(parser.parse_args().out)
