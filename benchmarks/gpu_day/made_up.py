"""Model and data for a machine without a bundle: a generated world and random weights."""

from __future__ import annotations

from itertools import chain

from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.provide import write_facts
from benchmarks.training import save_random_encoder
from scimult.config import load_config
from scimult.data.tokenization import TextTokenizer
from scimult.evaluation.suites import load_suite
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.vocabulary import read_texts, save_tokenizer, train_wordpiece
from scimult.preparation.world import WorldSettings, make_world, write_world

_SUITE = "demo"
# The smallest sets; others would reveal nothing more about the machine.
_SETS_OF_DRY_RUN = ["cite_rerank", "search"]


def make_inputs(day: Day) -> None:
    """Write a world, a vocabulary, prepared data and a random encoder below ``day.inputs``."""
    folder = day.inputs
    folder.mkdir(parents=True)
    write_world(make_world(WorldSettings(papers=day.size(20_000, 300))), folder / "world")
    raw = folder / "world" / "train"
    texts = chain.from_iterable(map(read_texts, sorted(raw.glob("*.jsonl"))))
    save_tokenizer(train_wordpiece(texts, day.size(8000, 900)), folder / "tokenizer")
    tokenizer = TextTokenizer.from_folder(folder / "tokenizer")
    config = load_config(DatasetConfig, "configs/data/world.yaml", [f"root={raw}"])
    build_dataset(config, folder / "prepared", tokenizer=tokenizer)
    save_random_encoder(day.size("minilm", "tiny"), tokenizer, folder / "model")
    (folder / "eval").symlink_to((folder / "world" / "eval").resolve())
    sets = day.size(list(load_suite(_SUITE).benchmarks), _SETS_OF_DRY_RUN)
    write_facts(folder, _SUITE, sets, made_up=True)
