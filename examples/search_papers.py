"""Search a folder of papers in ten lines.

    python examples/search_papers.py                  # after examples/pretrain_two_stages.py
    python examples/search_papers.py --model MODEL --papers FOLDER "graph neural networks"

MODEL is a run, a saved model, a Hugging Face or sentence-transformers folder, or a hub name.
FOLDER has papers.jsonl, with lines of {"id": ..., "title": ..., "abstract": ...}.
"""

import argparse

from scimult import SciMult
from scimult.data.records import Rejects
from scimult.inference.collection import read_collection
from scimult.retrieval import ExactIndex


def main(question: str, model_path: str, folder: str) -> None:
    """Print the five best papers for the question."""
    model = SciMult.from_pretrained(model_path)
    papers = read_collection(folder, "paper", Rejects())
    papers_ND = model.encode(papers.texts, task="search", role="candidate", show_progress=True)
    index = ExactIndex(papers.ids, papers_ND, model.similarity)
    best = index.search(model.encode([question], task="search"), k=5)
    for row, score in zip(best.rows_QK[0], best.scores_QK[0], strict=True):
        print(f"{score:.3f}  {papers.ids[row]}  {papers.texts[row].title}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="gonfluic mixquoity in motreism")
    parser.add_argument("--model", default="runs/examples/mha_expert")
    parser.add_argument("--papers", default="runs/examples/world/train")
    options = parser.parse_args()
    main(options.question, options.model, options.papers)
