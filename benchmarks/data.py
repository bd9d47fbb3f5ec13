"""Time, memory and disk of preparing a generated library, and the speed of reading its tokens.

Shape legend: N texts.
"""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.generated import Library, write_library
from benchmarks.timing import Ratio, interleaved, load_average, ratio
from scimult.data.prepared import PREPARED, PreparedData
from scimult.data.token_store import TokenStore, build_token_store
from scimult.data.tokenization import TextTokenizer
from scimult.files import atomic_folder
from scimult.preparation.dataset import DatasetConfig
from scimult.preparation.hygiene.config import HygieneConfig
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.engine import Limits
from scimult.preparation.mining.memory import Watch
from scimult.preparation.mining.mine import mine_again
from scimult.preparation.prepare import prepare
from scimult.preparation.steps import Steps

_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
COSTS_FILE = "costs.jsonl"


@dataclass(frozen=True)
class Cost:
    """Cost of one step, run in its own process.

    Parameters
    ----------
    wall, cpu : float
        Seconds; ``cpu`` includes child processes.
    own_mb, mapped_mb, peak_mb : float
        Peak memory: allocated, mapped from files, and both together.
    disk_mb : float
        Size of all files at the end.
    load : float
        Load average at the end.
    """

    step: str
    wall: float
    cpu: float
    own_mb: float
    mapped_mb: float
    peak_mb: float
    disk_mb: float
    load: float


@dataclass(frozen=True)
class Work:
    """A library and the settings of its preparation.

    Parameters
    ----------
    library : Library
        Size of the library.
    clean : bool
        Also merge duplicates.
    limits : Limits
        Limits on memory and threads.
    groups : int, optional
        Groups of the largest pair file to mine.
    """

    library: Library
    clean: bool
    limits: Limits
    groups: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all settings."""
        return {
            **asdict(self.library),
            **asdict(self.limits),
            "clean": self.clean,
            "groups": self.groups,
        }


def measure_preparation(work: Work, folder: Path) -> Iterator[Cost]:
    """Generate a library below ``folder``, prepare and mine it; yield the cost of each step.

    Each step runs in its own process. Steps already done with the same settings are skipped, and
    their costs come from ``costs.jsonl``, unless other settings have used the folder since.
    """
    done = _known_costs(folder / COSTS_FILE, work)
    limits, out, steps = work.limits, folder / "prepared", folder / "steps"
    # What other settings, or a killed step, have left would be kept, and cost nothing.
    for left in steps.glob("*.blocks") if done else [steps, folder / "raw"]:
        shutil.rmtree(left, ignore_errors=True)
    labels: dict[str, list[str]] = {"labels": []}
    shared = {"max_groups": work.groups}
    works: dict[str, Callable[[], object]] = {
        "generate": partial(write_library, folder / "raw", work.library),
        "read, split, write": partial(_prepare, folder, work.library, limits, clean=False),
    }
    if work.clean:
        works["clean, split, write"] = partial(_prepare, folder, work.library, limits, clean=True)
    for name, rules in (("mine citations", labels), ("mine labels", {})):
        config = MiningConfig.model_validate({**shared, **rules})
        works[name] = partial(mine_again, out, config, None, Steps(steps), limits=limits)
    for name, step in works.items():
        if name not in done:
            cost = measured(name, step, folder)
            with (folder / COSTS_FILE).open("a") as file:
                file.write(json.dumps({"work": work.as_json(), **asdict(cost)}) + "\n")
            done[name] = cost
        yield done[name]


def _known_costs(path: Path, work: Work) -> dict[str, Cost]:
    """Return the costs of finished steps whose data the folder holds: the last of the file."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    own = takewhile(lambda row: row.pop("work") == work.as_json(), reversed(rows))
    return {cost.step: cost for cost in (Cost(**row) for row in own)}


def _prepare(folder: Path, library: Library, limits: Limits, *, clean: bool) -> None:
    config: DatasetConfig = write_library(folder / "raw", library)
    if clean:
        config.hygiene = HygieneConfig(duplicates="merge")
    with atomic_folder(folder / "prepared", PREPARED) as temporary:
        prepare(config, temporary, steps=Steps(folder / "steps"), limits=limits)


def measure_tokenising(folder: Path, tokenizer: TextTokenizer) -> Iterator[Cost]:
    """Tokenise the data of ``measure_preparation`` into ``tokens``."""
    work = partial(_tokenise, folder / "prepared", tokenizer, folder / "tokens")
    yield measured("tokenise", work, folder)


def measured(step: str, work: Callable[[], object], folder: Path) -> Cost:
    """Run ``work`` in its own process; return its cost and the size of ``folder``."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        figures = pool.submit(_run, work).result()
    disk = round(_bytes_below(folder) / 1e6)
    return Cost(step, **figures, disk_mb=disk, load=round(load_average(), 1))


@dataclass(frozen=True)
class Reading:
    """Rows per second of a token store, and the cost of random order.

    ``random`` and ``mapped`` are relative to reading in order: as many rows in random order, and
    the same rows straight from the memory map, without our code.
    """

    rows_per_second: float
    random: Ratio
    mapped: Ratio

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "rows_per_second": self.rows_per_second,
            "random": vars(self.random),
            "mapped": vars(self.mapped),
        }


def measure_reading(folder: Path, rounds: int, rows: int = 20_000) -> Reading:
    """Read rows of the token store in ``folder`` in three ways, in turns."""
    store = TokenStore.open(folder)
    rng = np.random.default_rng(0)
    count = min(rows, len(store))
    start = int(rng.integers(0, len(store) - count + 1))
    in_order = range(start, start + count)
    tokens_T = np.memmap(folder / "tokens.bin", dtype=store.meta["dtype"], mode="r")
    offsets = np.load(folder / "offsets.npy", mmap_mode="r")
    scattered = rng.choice(len(store), count, replace=False).tolist()
    seconds = interleaved(
        {
            "in order": lambda: [store.tokens(row, 512) for row in in_order],
            "random": lambda: [store.tokens(row, 512) for row in scattered],
            "mapped": lambda: [
                tokens_T[offsets[row] : offsets[row + 1]].astype(np.int64) for row in in_order
            ],
        },
        rounds,
        torch.device("cpu"),
    )
    return Reading(
        rows_per_second=count / float(np.median(seconds["in order"])),
        random=ratio(seconds["random"], seconds["in order"]),
        mapped=ratio(seconds["mapped"], seconds["in order"]),
    )


def _tokenise(prepared: Path, tokenizer: TextTokenizer, target: Path) -> None:
    build_token_store(PreparedData.open(prepared).texts, tokenizer, target)


def _run(work: Callable[[], object]) -> dict[str, float]:
    """Do the work while a thread watches the memory of this process."""
    start, cpu_before = time.perf_counter(), _cpu_seconds()
    with Watch() as watch:
        work()
    wall, cpu = time.perf_counter() - start, _cpu_seconds() - cpu_before
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    together = max(watch.together, children)
    peaks = {"own_mb": watch.peak.own, "mapped_mb": watch.peak.mapped, "peak_mb": together}
    megabytes = {name: round(count / 1e6) for name, count in peaks.items()}
    return {"wall": round(wall, 1), "cpu": round(cpu, 1), **megabytes}


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in _PROCESSES]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _bytes_below(folder: Path) -> int:
    """Return the bytes of all files below a folder, counting hard links once."""
    stats = [path.lstat() for path in folder.rglob("*") if path.is_file()]
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())
