"""Annif's backends and omikuji on the files of ``benchmarks.tagging export``.

A separate script, as Annif pins other package versions: it runs in an environment with
``annif[omikuji]`` and does not import ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

_LIMIT, _BATCH = 100, 32
_BACKENDS = ("tfidf", "omikuji", "mllm")
_PROJECT = """[{name}]
name={name}
language=en
backend={name}
analyzer=snowball(english)
vocab=terms
limit={limit}
"""


def main(folder: Path, names: list[str]) -> None:
    """Train each peer in ``folder`` and write its suggestions for the test papers."""
    os.chdir(folder)
    projects = [_PROJECT.format(name=name, limit=_LIMIT) for name in _BACKENDS]
    Path("projects.cfg").write_text("\n".join(projects), encoding="utf-8")
    test = [json.loads(line) for line in _lines("test.jsonl")]
    for name in names:
        started = time.process_time()
        suggest = _omikuji() if name == "omikuji-alone" else _annif(name)
        trained = time.process_time()
        suggestions = suggest([paper["text"] for paper in test])
        lines = [
            json.dumps({"id": paper["id"], "labels": labels}) + "\n"
            for paper, labels in zip(test, suggestions, strict=True)
        ]
        Path(f"peer.{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        seconds = trained - started, time.process_time() - trained
        line = f"{name}: {seconds[0]:.1f} s of training, {seconds[1]:.1f} s for {len(test)} papers"
        sys.stdout.write(line + "\n")


def _annif(name: str) -> Any:
    """Train a project by Annif's own commands, and return its suggest function."""
    _without_downloads()
    annif, cli = import_module("annif"), import_module("annif.cli").cli
    if not Path("data/vocabs/terms").exists():
        call = ["load-vocab", "terms", "vocabulary.tsv", "--language", "en"]
        cli(call, standalone_mode=False)
    cli(["train", name, "train.tsv", "--jobs", "1"], standalone_mode=False)
    document = import_module("annif.corpus").Document

    def suggest(texts: list[str]) -> list[list[tuple[str, float]]]:
        with annif.create_flask_app().app_context():
            project = import_module("annif.registry").get_project(name)
            suggestions = []
            for start in range(0, len(texts), _BATCH):
                papers = [document(text=text) for text in texts[start : start + _BATCH]]
                suggestions += [
                    [(project.subjects[one.subject_id].uri, float(one.score)) for one in result]
                    for result in project.suggest(papers)
                ]
            return suggestions

    return suggest


def _without_downloads() -> None:
    """Make NLTK split sentences with its untrained model, as the trained one is a download."""
    tokenize: Any = import_module("nltk.tokenize")
    punkt = import_module("nltk.tokenize.punkt").PunktSentenceTokenizer()
    tokenize.sent_tokenize = lambda text, *_: punkt.tokenize(text)


def _omikuji() -> Any:
    """Train omikuji without Annif, on tf-idf of words and bigrams, with its default settings."""
    text = import_module("sklearn.feature_extraction.text")
    omikuji = import_module("omikuji")
    rows = [line.split("\t") for line in _lines("train.tsv")]
    vectorizer = text.TfidfVectorizer(
        sublinear_tf=True, min_df=2, stop_words="english", ngram_range=(1, 2)
    )
    features = vectorizer.fit_transform(row[0] for row in rows)
    names = sorted({uri for row in rows for uri in row[1].split()})
    number_of = {uri: number for number, uri in enumerate(names)}
    with Path("omikuji.txt").open("w", encoding="utf-8") as file:
        file.write(f"{len(rows)} {features.shape[1]} {len(names)}\n")
        for number, row in enumerate(rows):
            labels = ",".join(str(number_of[uri]) for uri in row[1].split())
            file.write(f"{labels} {_pairs(features[number])}\n")
    model = omikuji.Model.train_on_data("omikuji.txt", None, 1)

    def suggest(texts: list[str]) -> list[list[tuple[str, float]]]:
        rows = vectorizer.transform(texts)
        return [
            [
                (names[label].strip("<>"), float(score))
                for label, score in model.predict(
                    list(zip(row.indices.tolist(), row.data.tolist(), strict=True)), top_k=_LIMIT
                )
            ]
            for row in (rows[number] for number in range(len(texts)))
        ]

    return suggest


def _lines(name: str) -> list[str]:
    return Path(name).read_text(encoding="utf-8").rstrip("\n").split("\n")


def _pairs(row: Any) -> str:
    pairs = zip(row.indices, row.data, strict=True)
    return " ".join(f"{column}:{value:.6f}" for column, value in pairs)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["tfidf", "omikuji", "mllm", "omikuji-alone"])
