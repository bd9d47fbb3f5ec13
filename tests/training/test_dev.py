"""Dev scores against rankings computed one text at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score

from scimult.checkpoints import load_pretrained
from scimult.config import validate
from scimult.data.batches import all_known_positives
from scimult.data.targets import TargetFile
from scimult.data.views import view_pair
from scimult.models import pack
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.training import dev
from scimult.types import ViewName
from tests.tiny import save_tiny_model
from tests.training.corpus import write_corpus

MAX_LENGTH = 6


@pytest.mark.long
@pytest.mark.parametrize("view", ["title_to_abstract", "independent_crop"])
@pytest.mark.parametrize("routes", [(0, 0), (0, 2)])
def test_a_query_of_a_view_finds_its_own_paper(
    tmp_path: Path, view: ViewName, routes: tuple[int, int]
) -> None:
    entry = {"source": "own", "view": view, "task": "search", "min_words": 1}
    tree = {
        "root": str(write_corpus(tmp_path / "raw", papers=40)),
        "sources": [{"name": "own", "papers": "papers.jsonl"}],
        "self_supervision": [entry],
        "dev_fraction": 0.5,
    }
    data = build_dataset(validate(DatasetConfig, tree), tmp_path / "prepared")[0]
    pretrained = load_pretrained(save_tiny_model(tmp_path / "model", variant="mha_expert"))
    tokens, model = data.tokens(pretrained.tokenizer), pretrained.model.eval()
    (dev_set,) = dev.build_dev_sets(
        data.pairs("dev"), all_known_positives(data), queries=8, candidates=12, seed=0
    )
    assert (len(dev_set.query_ids_Q), len(dev_set.candidate_ids_C)) == (8, 12)

    def embedded(row: int, side: int) -> np.ndarray:
        whole = tokens.tokens(row, 512)
        text = view_pair(view, whole, seed=0, epoch=0, row=row)[side]
        cut = [*text[: MAX_LENGTH - 1], whole[-1]] if len(text) > MAX_LENGTH else text
        vector = model(pack([np.asarray(cut)]), [routes[side]])[0].detach().double().numpy()
        return vector / np.linalg.norm(vector)

    candidates = {int(row): embedded(int(row), 1) for row in dev_set.candidate_ids_C}
    reciprocal = []
    for query in map(int, dev_set.query_ids_Q):
        vector = embedded(query, 0)
        scores = {row: vector @ other for row, other in candidates.items()}
        # A crop may equal another paper's in so small a vocabulary: ties count against.
        above = sum(score >= scores[query] - 1e-6 for row, score in scores.items() if row != query)
        reciprocal.append(1 / (1 + above))
    score = dev.mean_reciprocal_rank(
        model, dev_set, tokens, routes=routes, similarity="cosine", max_length=MAX_LENGTH
    )
    assert score == pytest.approx(np.mean(reciprocal), abs=1e-9)
    assert score < 1
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    worst = dev.mean_reciprocal_rank(
        model, dev_set, tokens, routes=routes, similarity="cosine", max_length=MAX_LENGTH
    )
    assert worst < 0.1


@pytest.mark.parametrize("numbers", [[2.0, 2.0, 2.0], [0.1, 0.1, 0.1], [0.1, 0.2, 0.5]])
def test_r2_is_scikit_learns_also_of_equal_numbers(
    monkeypatch: pytest.MonkeyPatch, numbers: list[float]
) -> None:
    monkeypatch.setattr(dev, "embed_tokens", lambda *_, **__: np.eye(3, dtype=np.float32))
    file = TargetFile("s", "t", "dev", "regression", np.arange(3), numbers=np.array(numbers))
    outputs = [0.3, 0.1, 0.6]
    head = torch.tensor([[*outputs, 0.0]])
    tokens: Any = SimpleNamespace(tokens=lambda row, length: np.array([row]))
    model: Any = None
    found = dev.target_scores(model, file, head, tokens, route=0, max_length=MAX_LENGTH)
    # Of 0.1 rounding makes a mean that is another number, for scikit-learn too.
    wanted = 0.0 if numbers == [0.1] * 3 else r2_score(numbers, outputs)
    assert found["dev/s.t/r2"] == pytest.approx(wanted, abs=1e-6)


def test_kendall_of_a_collapsed_model_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was that of rounding: 0.07 for MiniLM with all words alike, over 200 texts."""
    count, width = 50, 64
    rng = np.random.default_rng(0)
    same = rng.normal(size=(1, width))
    numbers = np.arange(count, dtype=np.float64)
    file = TargetFile("s", "t", "dev", "regression", np.arange(count), numbers=numbers)
    head = torch.tensor(rng.normal(size=(1, width + 1)), dtype=torch.float32) * 0.02
    head[0, -1] = -float(same[0] @ head[0, :-1].double().numpy())  # the mean of scaled targets: 0
    tokens: Any = SimpleNamespace(tokens=lambda row, length: np.array([row]))
    model: Any = None

    def kendall(spread: float) -> float:
        drawn = same * (1 + rng.uniform(-spread, spread, (count, width)))
        monkeypatch.setattr(dev, "embed_tokens", lambda *_, **__: drawn.astype(np.float32))
        found = dev.target_scores(model, file, head, tokens, route=0, max_length=MAX_LENGTH)
        return found["dev/s.t/kendall"]

    assert kendall(1.2e-7) == 0
    assert kendall(1e-4) != 0
