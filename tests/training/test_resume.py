"""Resumed equals uninterrupted: after a clean stop, after kill -9, after damage."""

from __future__ import annotations

import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from scimult.config import save_config
from scimult.training.config import PretrainConfig
from tests.ranks import Verb
from tests.training.corpus import assert_same_run, metrics, run_config

pytestmark = pytest.mark.ranks

STEPS = 8


def launch(config: PretrainConfig, *arguments: str) -> Verb:
    """Start ``scimult pretrain`` in a separate process."""
    file = Path(config.output).with_suffix(".yaml")
    save_config(config, file)
    log = file.with_suffix(".log")
    log.unlink(missing_ok=True)
    return Verb(["pretrain", "--config", str(file), *arguments], log)


def finish(config: PretrainConfig, *arguments: str) -> str:
    process = launch(config, *arguments)
    assert process.wait(timeout=240) == 0, process.printed()
    return process.printed()


def kill_after(config: PretrainConfig, step: int) -> None:
    """Start the run and SIGKILL it as soon as ``step`` is in its metrics file."""
    process = launch(config)
    wait_for_step(config, process, step)
    process.send_signal(signal.SIGKILL)
    process.wait()


def wait_for_step(config: PretrainConfig, process: Verb, step: int) -> None:
    """Return as soon as ``step`` is in the run's metrics file."""
    file = Path(config.output) / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and len(file.read_text(encoding="utf-8").splitlines()) >= step:
            return
        time.sleep(0.005)
    pytest.fail(f"the run never reached step {step}: {process.printed()}")


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> Path:
    config = resume_config(folder, "uninterrupted")
    finish(config)
    return Path(config.output)


def resume_config(folder: Path, name: str, **sections: Any) -> PretrainConfig:
    # Slow steps, so that a kill can hit the run between two checkpoints.
    settings = {"schedule": {"steps": STEPS}, "checkpoint": {"every": 3}, "dev": {"every": 4}}
    settings["loss"] = {"learn_temperature": True}
    return run_config(folder, name, **{**settings, **sections})


def test_kill_between_checkpoints_then_resume(folder: Path, uninterrupted: Path) -> None:
    config = resume_config(folder, "killed")
    kill_after(config, step=5)
    done = len(metrics(Path(config.output)))
    assert done < STEPS, "the run ended before it could be killed"
    printed = finish(config)
    assert "resuming after step 3" in printed or "resuming after step 6" in printed
    assert_same_run(uninterrupted, Path(config.output))


def test_signal_ends_the_step_saves_and_leaves(folder: Path, uninterrupted: Path) -> None:
    config = resume_config(folder, "signalled", checkpoint={"every": 100})
    process = launch(config)
    wait_for_step(config, process, 2)
    # Like Ctrl-C: the terminal signals the ranks, and then their launcher does.
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=240)
    printed = process.printed()
    found = re.search(r"stopped by SIG(INT|TERM) after step (\d+)", printed)
    assert found is not None, printed
    assert process.returncode == {"INT": 130, "TERM": 143}[found[1]]
    step = int(found[2])
    assert step < STEPS, "the run ended before it could be stopped"
    assert "Traceback" not in printed
    assert len(metrics(Path(config.output))) == step
    assert f"resuming after step {step}" in finish(config)
    assert_same_run(uninterrupted, Path(config.output))


def test_a_damaged_newest_checkpoint_is_skipped(folder: Path, uninterrupted: Path) -> None:
    output = folder / "damaged"
    shutil.copytree(uninterrupted, output)
    shutil.rmtree(output / "model")
    newest = max((output / "checkpoints").glob("step-*"))
    victim = max(
        (file for file in newest.rglob("*.safetensors")), key=lambda file: file.stat().st_size
    )
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    printed = finish(resume_config(folder, "damaged"))
    assert f"{newest.name}" in printed
    assert "has changed since it was written" in printed
    assert "resuming after step 6" in printed
    assert_same_run(uninterrupted, output)


def test_half_written_checkpoint_is_never_seen(folder: Path, uninterrupted: Path) -> None:
    output = folder / "half"
    shutil.copytree(uninterrupted, output)
    newest = max((output / "checkpoints").glob("step-*"))
    newest.rename(newest.with_name(f".{newest.name}.tmp"))
    finish(resume_config(folder, "half"))
    assert_same_run(uninterrupted, output)


@pytest.mark.parametrize(
    ("sections", "arguments", "message"),
    [
        ({"seed": 7}, (), "started with a different seed"),
        ({"optimizer": {"lr": 0.5}}, (), "started with a different optimizer"),
        (
            {"engine": {"precision": "bf16"}},
            (),
            "saved with precision 'fp32', this run has 'bf16'",
        ),
        ({}, ("--fresh",), "folder already holds a run"),
    ],
)
def test_another_run_in_the_folder_is_refused(
    folder: Path,
    uninterrupted: Path,
    sections: dict[str, Any],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    config = resume_config(folder, uninterrupted.name, **sections)
    before = (uninterrupted / "config.yaml").read_bytes()
    process = launch(config, *arguments)
    assert process.wait(timeout=240) == 1
    printed = process.printed()
    assert message in printed
    assert "Traceback" not in printed
    assert (uninterrupted / "config.yaml").read_bytes() == before
