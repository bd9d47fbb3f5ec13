"""DeepSpeed still has the internals that we use, under every stage."""

from __future__ import annotations

import ast
import configparser
from pathlib import Path

import pytest
from torch import nn

from scimult.errors import ConfigError
from scimult.training import deepspeed_private
from tests.ranks import run_ranks
from tests.training.engines import do_step, tiny_engine

STAGES = (0, 1, 2, 3)


def use_every_name() -> dict[str, str]:
    """Build engines, which requires every name; return the error where one is missing."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True
    told, own = {}, nn.functional.linear
    for precision, stages in (("fp32", STAGES), ("fp16", STAGES[1:])):
        for stage in stages:
            engine = tiny_engine(stage, precision)  # type: ignore[arg-type]
            do_step(engine)
            deepspeed_private.set_loss_scale_state(
                engine._engine, deepspeed_private.loss_scale_state(engine._engine)
            )
            names = deepspeed_private._OF_STAGE[stage]
            deepspeed_private._OF_STAGE[stage] = (*names, "_renamed")
            try:
                deepspeed_private.require_names(engine._engine)
            except ConfigError as error:
                told[f"{precision} {stage}"] = f"{error} {error.fix}"
            deepspeed_private._OF_STAGE[stage] = names
            assert (nn.functional.linear is own) == (stage < 3)
            engine.close()
            assert nn.functional.linear is own
    return told


@pytest.mark.ranks
def test_names_exist_and_a_missing_one_is_named(tmp_path: Path) -> None:
    told = run_ranks(use_every_name, 1, tmp_path)[0]
    assert len(told) == 7
    for case, message in told.items():
        stage = case.split()[1]
        assert f"has no _renamed under ZeRO stage {stage}" in message
        assert deepspeed_private.TESTED in message


@pytest.mark.parametrize("module", ["engine.py", "shards.py"])
def test_nothing_private_is_used_elsewhere(module: str, repository: Path) -> None:
    tree = ast.parse((repository / "scimult" / "training" / module).read_text(encoding="utf-8"))
    private = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith(("_", "ds_"))
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert private == []


def test_the_installed_range_is_the_tested_one(repository: Path) -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(repository / "setup.cfg", encoding="utf-8")
    required = setup["options.extras_require"]["train"].split()
    assert deepspeed_private.TESTED in required
