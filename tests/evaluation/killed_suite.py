"""A suite of 22 sets that is killed at some writes and started again; a script for its test.

``killed_suite.py FOLDER KILLS...`` forks a process for each evaluation, which kills itself just
before or after its n-th rename (every write of ours ends with one); 0 kills nothing. The parent
computes nothing, so that what is forked has no threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scimult.evaluation.harness import LoadedSet, evaluate, load_sets
from scimult.evaluation.suites import Suite
from scimult.evaluation.systems import DenseSystem
from scimult.retrieval.store import StoringEncoder, key_of
from scimult.types import FloatArray, Role, Text
from tests.benchmark_sets import WordEncoder, write_coarse, write_links, write_search
from tests.raw_corpus import write_jsonl

SETS, BLOCK = 22, 4


class Counting(WordEncoder):
    """Records every text before it is encoded, and counts words as tokens."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log, self.tokens_encoded = log, 0
        self.latest: dict[str, int] = {}

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        words = [len(text.joined.split()) for text in texts]
        keys = [f"{task}/{role}/{key_of(text).hex()}" for text in texts]
        self.latest = dict(zip(keys, words, strict=True))
        self.note("encoded")
        self.tokens_encoded += sum(words)
        return super().encode(texts, task=task, role=role)

    def note(self, event: str) -> None:
        """Append what happened to the latest texts, and how many tokens each has."""
        with self.log.open("a") as file:
            file.writelines(f"{event} {key} {count}\n" for key, count in self.latest.items())


def load(folder: Path) -> tuple[Suite, dict[str, LoadedSet]]:
    """Write 22 sets, each with texts of its own and some shared ones."""
    benchmarks = {}
    for number in range(SETS):
        write = (write_search, write_links, write_coarse)[number % 3]
        entry = write(folder / "data" / str(number))
        benchmarks[f"set{number}"] = entry.model_copy(update={"folder": f"{number}/{entry.folder}"})
        for path in (folder / "data" / str(number)).rglob("corpus.jsonl"):
            records = [json.loads(line) for line in path.read_text().splitlines()]
            for record in records[number % 2 :]:
                record["title"] += f" number{number}"
            write_jsonl(path, records)
    suite = Suite(name="many", description="", how_to_get="", benchmarks=benchmarks)
    return suite, load_sets(suite, folder / "data")


def attempt(suite: Suite, sets: dict[str, LoadedSet], folder: Path, kill_at: int) -> int:
    """Evaluate in a separate process; return its number of renames, or -1 if killed."""
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return -1
        assert os.waitstatus_to_exitcode(status) == 0, "see its traceback"
        return int((folder / "renames").read_text())
    encoder = Counting(folder / "log")
    rename, renames = os.replace, [0]

    def replace(source: Any, target: Any, **options: Any) -> None:
        renames[0] += 1
        if renames[0] == kill_at and kill_at % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target, **options)
        if str(target).endswith(".keys.npy"):
            encoder.note("stored")
        if renames[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace
    code = 1
    try:
        stored = StoringEncoder(encoder, folder / "store", "print", block=BLOCK)
        system = DenseSystem(stored, {"fingerprint": "print"})
        evaluate(system, suite, sets, folder / "out", earlier="resume")
        (folder / "renames").write_text(str(renames[0]))
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Evaluate once undisturbed, then once per chain of kills."""
    root = Path(sys.argv[1])
    suite, sets = load(root)
    report: dict[str, Any] = {"kills": {}}
    for chain in ["0", *sys.argv[2:]]:
        folder = root / chain
        folder.mkdir()
        kills = [attempt(suite, sets, folder, int(at)) for at in chain.split(",")]
        report["kills"][chain] = kills.count(-1)
        report[chain] = attempt(suite, sets, folder, 0)
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
