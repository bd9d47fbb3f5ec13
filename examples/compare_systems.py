"""Compare a model with BM25 on your own benchmark.

    python examples/compare_systems.py                # after examples/pretrain_two_stages.py
    python examples/compare_systems.py --model MODEL --suite my_benchmark.yaml --data FOLDER

examples/my_benchmark.yaml describes two sets; copy it and fill in your folders and metrics.
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
    """Score both systems, then print the model's differences to BM25 by set."""
    suite = load_suite(suite_path)
    sets = load_sets(suite, data)
    model = SciMult.from_pretrained(model_path, name="model")
    for system in (BM25System(), DenseSystem(model)):
        result = evaluate(system, suite, sets, out)
        for name, scored in result.sets.items():
            print(f"{system.name}: {name}: {scored.main_metric} {scored.main_score:.3f}")

    for row in compare(out, Settings(baseline="BM25")).rows:
        interval = f"{row.low:+.3f} to {row.high:+.3f}"
        print(f"{row.name}: {row.metric} {row.difference:+.3f} ({interval}), p {row.p_holm:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="runs/examples/mha_expert")
    parser.add_argument("--suite", default=str(REPOSITORY / "examples" / "my_benchmark.yaml"))
    parser.add_argument("--data", type=Path, default=Path("runs/examples/world/eval"))
    parser.add_argument("--out", type=Path, default=Path("runs/examples/results"))
    options = parser.parse_args()
    main(options.model, options.suite, options.data, options.out)
