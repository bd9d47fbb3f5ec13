"""A run with ``engine.compile`` equals the run without it, up to rounding and dropout masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.checkpoints import load_pretrained
from scimult.training.run import pretrain
from tests.ranks import run_ranks
from tests.training.corpus import metrics, prepare_corpus, run_config

STAGES = (0, 2)
# The gradient of a key's bias is only rounding, which a tiny epsilon would turn into full steps.
ADAM = {"lr": 1e-3, "eps": 1e-4}


def run_plain_and_compiled(folder: Path) -> None:
    for stage in STAGES:
        for compile_ in (False, True):
            engine = {
                "compile": compile_,
                "deepspeed": {"zero_optimization": {"stage": stage}},
            }
            name = f"{stage}-{compile_}"
            # Compiled, routes draw their masks one after another.
            model = {"dropout": 0.0, "attention_dropout": 0.0}
            pretrain(run_config(folder, name, model=model, engine=engine, optimizer=ADAM))


@pytest.mark.slow  # a C++ compiler, and minutes on a busy machine
@pytest.mark.timeout(1800)
def test_a_compiled_run_is_the_same_run(tmp_path: Path) -> None:
    prepare_corpus(tmp_path)
    (tmp_path / "results").mkdir()
    run_ranks(run_plain_and_compiled, 2, tmp_path / "results", tmp_path)
    for stage in STAGES:
        plain, compiled = tmp_path / f"{stage}-False", tmp_path / f"{stage}-True"
        losses = [[line["loss"] for line in metrics(run)] for run in (plain, compiled)]
        # The compiler fuses and reorders float32 operations; six steps of 1e-3 amplify that.
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
        weights = load_pretrained(plain).model.state_dict()
        theirs = load_pretrained(compiled).model.state_dict()
        assert theirs.keys() == weights.keys()
        for name, weight in weights.items():
            np.testing.assert_allclose(theirs[name], weight, atol=2e-5, err_msg=name)
