"""Evaluate a benchmark of your own and compare two systems on it: a model and BM25.

    python examples/compare_systems.py                # after examples/pretrain_two_stages.py
    python examples/compare_systems.py --model MODEL --suite my_benchmark.yaml --data FOLDER

examples/my_benchmark.yaml describes two sets; copy it and name your folders and metrics.
"""

import argparse
from pathlib import Path

from scimult import SciMult
from scimult.evaluation.comparison import Settings, compare
from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.suites import load_suite
from scimult.evaluation.systems import BM25System, DenseSystem

REPOSITORY = Path(__file__).resolve().parents[1]


def main(model_path: str, suite_path: str, data: Path, out: Path) -> None:
    """Score both systems, then print the model's difference to BM25 on every set."""
    suite = load_suite(suite_path)
    sets = load_sets(suite, data)
    model = SciMult.from_pretrained(model_path, name="model")
    for system in (BM25System(), DenseSystem(model)):
        result = evaluate(system, suite, sets, out)
        for name, found in result.sets.items():
            score = found.scores[found.main_metric]
            print(f"{system.name}: {name}: {found.main_metric} {score:.3f}")

    for row in compare(out, Settings(baseline="BM25")).rows:
        interval = f"{row.low:+.3f} to {row.high:+.3f}"
        print(f"{row.name}: {row.metric} {row.difference:+.3f} ({interval}), p {row.p_holm:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="runs/examples/mha_expert")
    parser.add_argument("--suite", default=str(REPOSITORY / "examples" / "my_benchmark.yaml"))
    parser.add_argument("--data", type=Path, default=Path("runs/examples/world/eval"))
    parser.add_argument("--out", type=Path, default=Path("runs/examples/results"))
    given = parser.parse_args()
    main(given.model, given.suite, given.data, given.out)
