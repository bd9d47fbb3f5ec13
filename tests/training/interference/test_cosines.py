"""Cosines between tasks' gradients: intervals, verdicts, and batches without a direction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor

from scimult.training.interference import RoundProducts, compare
from scimult.training.interference.cosines import Estimate, PairCell
from scimult.training.interference.gradients import Location

TASKS = ("one", "two")
# No two gradients are of one batch.
DISTINCT = range(4)


@pytest.mark.long
def test_verdicts_hold_for_all_cells_at_once() -> None:
    """Pure noise: few of 60 maps of unrelated gradients report a conflict."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(60):
        rounds = []
        for _ in range(6):
            gradients = rng.normal(size=(10, 4, 30))
            products = gradients @ gradients.transpose(0, 2, 1)
            rounds.append(RoundProducts(products, np.ones((10, 4), dtype=bool), DISTINCT))
        locations = [Location(block, "attention") for block in range(10)]
        found = compare(TASKS, locations, 10, rounds)
        wrong += any(cell.verdict in ("conflict", "apart") for cell in found.pairs)
    # Two verdicts at 2.5 % each; three standard errors of 60 draws.
    assert wrong / 60 <= 0.05 + 3 * (0.05 * 0.95 / 60) ** 0.5


def test_tasks_with_the_same_gradient_are_alike_however_noisy_one_is() -> None:
    """All cells were *apart*: cosines of each task with itself were averaged arithmetically."""
    rng = np.random.default_rng(0)
    shared_PN = rng.normal(size=(10, 1, 300))
    noise_G1 = np.array([1.0, 1.0, 4.0, 4.0])[:, None]
    rounds = []
    for _ in range(8):
        gradients_PGN = shared_PN + noise_G1 * rng.normal(size=(10, 4, 300))
        products_PGG = gradients_PGN @ gradients_PGN.transpose(0, 2, 1)
        rounds.append(RoundProducts(products_PGG, np.ones((10, 4), dtype=bool), DISTINCT))
    found = compare(TASKS, [Location(block, "attention") for block in range(10)], 10, rounds)
    assert {cell.verdict for cell in found.pairs} == {"alike"}
    for cell in found.pairs:
        assert cell.gap.mean == pytest.approx(cell.ceiling - cell.cosine.mean, abs=1e-12)
    # The interval is, to first order, that of the jackknife over rounds.
    cell = found.pairs[1]
    without = [compare(TASKS, [cell.location], 10, _at(rounds, 0, k)).pairs[-1] for k in range(8)]
    gaps_K = np.array([one.ceiling - one.cosine.mean for one in without])
    error = (7 / 8 * ((gaps_K - gaps_K.mean()) ** 2).sum()) ** 0.5
    reach = float(scipy.stats.t.ppf(0.975, 7)) * error
    assert cell.gap.high - cell.gap.mean == pytest.approx(reach, rel=0.2)


def test_a_ceiling_is_of_the_parameters_that_both_tasks_reach() -> None:
    """Experts, which only their task reaches, raised the ceiling of the whole encoder."""
    rng = np.random.default_rng(0)
    # A shared parameter with little signal, and an expert of each task with much.
    signal_PN = rng.normal(size=(3, 1, 200)) * np.array([0.5, 5, 5])[:, None, None]
    reached = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]], dtype=bool)
    rounds = []
    for _ in range(8):
        gradients_PGN = (signal_PN + rng.normal(size=(3, 4, 200))) * reached[:, :, None]
        products_PGG = gradients_PGN @ gradients_PGN.transpose(0, 2, 1)
        rounds.append(RoundProducts(products_PGG, reached, DISTINCT))
    locations = [Location(0, "attention"), *[Location(1, "feed_forward")] * 2]
    whole, shared, routed = compare(TASKS, locations, 2, rounds).pairs
    assert (whole.ceiling, whole.gap, whole.verdict) == (shared.ceiling, shared.gap, "alike")
    assert routed.verdict == "routed"


def test_tasks_of_one_kind_are_alike_in_batches_that_they_share() -> None:
    """They were *apart*: in a batch, the queries of both push the same candidates away."""
    generator = torch.Generator().manual_seed(0)
    weight_DE = (0.05 * torch.randn(32, 16, generator=generator)).requires_grad_()
    rounds = []
    for _ in range(30):
        gradients: list[Tensor] = []
        for _ in range(2):
            texts_ND = torch.randn(32, 32, generator=generator)
            noise_2ND = 0.7 * torch.randn(2, 32, 32, generator=generator)
            q_NE, c_NE = (texts_ND + noise_2ND) @ weight_DE
            losses_N = F.cross_entropy(q_NE @ c_NE.T, torch.arange(32), reduction="none")
            # The first half are queries of task one, the second of task two.
            for losses in losses_N.chunk(2):
                gradients += torch.autograd.grad(losses.sum(), weight_DE, retain_graph=True)
        gradients_GN = torch.stack([gradients[g].flatten() for g in (0, 2, 1, 3)]).double()
        products_PGG = (gradients_GN @ gradients_GN.T).numpy()[None]
        rounds.append(RoundProducts(products_PGG, np.ones((1, 4), dtype=bool), [7, 8, 7, 8]))
    cell = compare(TASKS, [Location(0, "attention")], 1, rounds).pairs[-1]
    assert cell.verdict == "alike"
    assert cell.gap.low < 0 < cell.gap.high


def _at(rounds: Sequence[RoundProducts], place: int, left_out: int) -> list[RoundProducts]:
    """Return one parameter of all rounds but one."""
    kept = [one for number, one in enumerate(rounds) if number != left_out]
    return [RoundProducts(o.products_PGG[[place]], o.reached_PG[[place]], DISTINCT) for o in kept]


def test_batches_whose_loss_is_zero_have_no_direction() -> None:
    """One of 32 made every cell *routed*: the mean of its round was not a number."""
    rng = np.random.default_rng(0)
    gradients_KGN = rng.normal(size=(8, 4, 50)) + 2
    reached = np.ones((1, 4), dtype=bool)

    def cell(zero: Sequence[tuple[int, int]]) -> PairCell:
        changed_KGN = gradients_KGN.copy()
        for place in zero:
            changed_KGN[place] = 0
        rounds = [RoundProducts((g @ g.T)[None], reached, DISTINCT) for g in changed_KGN]
        return compare(TASKS, [Location(0, "attention")], 1, rounds).pairs[-1]

    def cosine(k: int, a: int, b: int) -> float:
        x, y = gradients_KGN[k, a], gradients_KGN[k, b]
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    # One batch of task 0 in round 3; both of it in round 5.
    found = cell([(3, 0), (5, 0), (5, 1)])
    means = [np.mean([cosine(k, a, b) for a in (0, 1) for b in (2, 3)]) for k in range(8)]
    means[3] = np.mean([cosine(3, 1, b) for b in (2, 3)])
    del means[5]
    assert found.cosine.mean == pytest.approx(np.mean(means), rel=1e-12)
    selves = [[cosine(k, 0, 1) for k in range(8) if k not in (3, 5)]]
    selves += [[cosine(k, 2, 3) for k in range(8)]]
    ceiling = (np.mean(selves[0]) * np.mean(selves[1])) ** 0.5
    assert found.ceiling == pytest.approx(ceiling, rel=1e-12)
    assert found.verdict == cell([]).verdict == "alike"
    # Nothing is known of a task without any gradient, but its parameters are shared.
    unknown = cell([(k, g) for k in range(8) for g in (0, 1)])
    assert np.isnan(unknown.cosine.mean)
    assert unknown.verdict == "alike"


def test_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(size=7)
    estimate = Estimate.of(values)
    theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (estimate.low, estimate.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert np.isnan(Estimate.of(values[:1]).low)
