"""Tag papers with labels, without training a classifier.

    python examples/tag_papers.py                     # after examples/pretrain_two_stages.py
    python examples/tag_papers.py --model MODEL --papers FOLDER --labels labels.jsonl

A label is a line of {"id": ..., "name": ..., "definition": ...}. Labels are compared as texts; to
use others, change the file and run again.
"""

import argparse

from scimult import SciMult
from scimult.data.records import Rejects
from scimult.inference.collection import read_collection
from scimult.retrieval import ExactIndex


def main(model_path: str, papers_path: str, labels_path: str, top: int) -> None:
    """Print the best labels of each of the first ten papers."""
    model = SciMult.from_pretrained(model_path)
    papers = read_collection(papers_path, "paper", Rejects())
    labels = read_collection(labels_path, "label", Rejects())
    labels_LD = model.encode(labels.texts, task="classification", role="candidate")
    papers_ND = model.encode(papers.texts[:10], task="classification", role="query")
    index = ExactIndex(labels.ids, labels_LD, model.similarity)
    best = index.search(papers_ND, k=top)
    for text, rows in zip(papers.texts, best.rows_QK, strict=False):
        print(f"{text.title}: {', '.join(labels.texts[row].title for row in rows)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="runs/examples/mha_expert")
    parser.add_argument("--papers", default="runs/examples/world/eval/fields_fine")
    parser.add_argument("--labels", default="runs/examples/world/eval/fields_fine")
    parser.add_argument("--top", type=int, default=2)
    options = parser.parse_args()
    main(options.model, options.papers, options.labels, options.top)
