"""The day on a GPU: time limits kill all processes, no finding is lost, reports mark misses."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_day import attention, speeds, waits
from benchmarks.gpu_day.__main__ import main
from benchmarks.gpu_day.bundle import Contents, make_bundle
from benchmarks.gpu_day.day import Day, DayError, read_lines
from benchmarks.gpu_day.driver import boxed, environment, run_steps
from benchmarks.gpu_day.flash import write_substitute
from benchmarks.gpu_day.provide import Inputs, inputs
from benchmarks.gpu_day.schedule import CALLS, steps_of
from benchmarks.gpu_day.speeds import covered
from benchmarks.training import Setting
from scimult.checkpoints import load_pretrained
from scimult.data.prepared import PreparedData
from scimult.preparation.world import WorldSettings, make_world, write_world
from scimult.training.engine import DeepSpeedEngine
from tests.base_models import save_base_model
from tests.training.corpus import prepare_corpus
from tests.waiting import wait_until


@pytest.fixture
def day(tmp_path: Path) -> Day:
    return Day(tmp_path / "out", tmp_path / "work", None, "cpu", dry=True)


@pytest.mark.parametrize("call", CALLS)
def test_every_step_has_its_function(call: str, day: Day) -> None:
    for step in steps_of(call).values():
        work = getattr(import_module(step.module), step.function)
        inspect.signature(work).bind(day, step.name, **step.options)
    assert len(steps_of(call)) == len(CALLS[call]), "a name twice"


def _gone(pid: int) -> bool:
    """Return whether a process has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.long
def test_a_time_limit_kills_a_step_with_all_its_children(tmp_path: Path, day: Day) -> None:
    """Including a child that left its group, as compilers' workers do."""
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time\n"
        "start = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "children = [subprocess.Popen(start, start_new_session=new) for new in (False, True)]\n"
        f"open({str(pids)!r}, 'w').write(' '.join(str(c.pid) for c in children))\n"
        "time.sleep(60)\n"
    )
    started = time.monotonic()
    assert boxed([sys.executable, "-c", code], 2.0, environment(day), None) == "timeout"
    assert time.monotonic() - started < 20
    first, second = map(int, pids.read_text().split())
    # Init may reap them late on a busy machine.
    wait_until(lambda: _gone(first) and _gone(second))


def test_a_step_returns_its_exit_code(day: Day) -> None:
    assert boxed([sys.executable, "-c", "raise SystemExit(3)"], 60, environment(day), None) == 3


def test_steps_write_their_findings_and_exit_codes(day: Day) -> None:
    install = steps_of("run")["install"]
    broken = replace(steps_of("train")["evaluate"], box=60)
    said: list[str] = []
    failed = run_steps(day, "run", [install], 100, said.append)
    failed += run_steps(day, "train", [broken], 100, said.append)
    assert failed == [broken]
    lines = list(read_lines(day.out))
    assert lines[0]["started"]
    assert lines[1]["found"] == {"wheels": []}
    assert lines[2]["rc"] == 0
    assert lines[-1]["rc"] == 1
    assert "first run the step 'inputs'" in lines[-1]["error"]
    assert all(line["dry"] for line in lines)


def test_no_step_starts_when_time_has_run_out(day: Day) -> None:
    install = steps_of("run")["install"]
    assert run_steps(day, "run", [install], 0.0, lambda line: None) == [install]
    (line,) = read_lines(day.out)
    assert line["rc"] == "no time left"


def test_names_choose_steps_and_unknown_ones_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert main(["run", "instal", *folders, "--device", "cpu"]) == 1
    assert "no step 'instal'. Fix: use one of install, inputs" in capsys.readouterr().out
    chosen = ["run", "install", "inputs", "install", "--leave-out", "inputs"]
    assert main([*chosen, *folders, "--device", "cpu", "--dry-run"]) == 0
    assert "2 of 2 steps ran" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "nothing")]) == 1
    assert "Fix: give the folder" in capsys.readouterr().out


@pytest.mark.ranks
def test_a_killed_call_reports_its_current_step(tmp_path: Path, repository: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks.gpu_day", "run", "machine", "--device", "cpu"]
    folders = ["--out", str(out), "--work", str(tmp_path / "work")]
    process = subprocess.Popen([*command, *folders], cwd=repository, stdout=subprocess.DEVNULL)
    while not (out / "day.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert [line.get("rc") for line in read_lines(out)][-1] == "stopped"
    assert "**stopped**" in (out / "report.md").read_text(encoding="utf-8")


def test_waits_are_counted_by_line_after_the_first_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in (
        (warnings, "showwarning"),
        (torch.cuda, "synchronize"),
        (DeepSpeedEngine, "step"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    updates: list[object] = []
    monkeypatch.setattr(DeepSpeedEngine, "step", lambda engine, active: updates.append(active))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    counts = tmp_path / "counts.json"
    with warnings.catch_warnings():
        waits.watch(waits.Waits(counts))
        for _ in range(5):
            warnings.warn(f"{waits.WARNING} (Triggered internally)", stacklevel=1)
            warnings.warn(f"{waits.WARNING} (Triggered internally)", stacklevel=1)
            torch.cuda.synchronize()
            DeepSpeedEngine.step(None, frozenset({1}))  # type: ignore[arg-type]
    assert updates == [frozenset({1})] * 5
    found = json.loads(counts.read_text())
    assert found["steps"] == 3
    places = dict(found["places"])
    assert places.pop("outside (torch.cuda.synchronize)") == 3
    assert list(places.values()) == [3, 3]
    assert all("test_gpu_day.py:" in place for place in places)


def test_a_busy_share_counts_overlaps_once() -> None:
    assert covered([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4
    assert covered([]) == 0


@pytest.mark.long
def test_wrong_attention_fails(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    attention.errors(day, "attention")
    attention.dropout(day, "attention_dropout")
    correct = attention.attend

    def forgets_a_row(qkv: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        output = correct(qkv, *arguments, **options)
        return output if qkv.dtype == torch.float64 else output.index_fill(0, _first(qkv), 0.0)

    monkeypatch.setattr(attention, "attend", forgets_a_row)
    with pytest.raises(SystemExit, match="too inaccurate"):
        attention.errors(day, "attention")

    def drops_after(
        qkv: torch.Tensor, plan: Any, dropout: float, *, training: bool
    ) -> torch.Tensor:
        return correct(qkv, plan, 0.0, training=training) + 0.3 * (dropout > 0) * torch.rand(())

    monkeypatch.setattr(attention, "attend", drops_after)
    with pytest.raises(SystemExit, match="dropout of attention"):
        attention.dropout(day, "attention_dropout")


def _first(qkv: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int64, device=qkv.device)


@pytest.mark.long
def test_the_speed_of_attention_is_noted(day: Day) -> None:
    attention.speed(day, "speed")
    cases = [line["found"] for line in read_lines(day.out)]
    assert len(cases) == 2 * 2 * len(attention._BATCHES)
    assert all(case["ours_ms"] > 0 for case in cases)


def test_the_substitute_for_flash_attention_calls_torch_s_kernel(tmp_path: Path) -> None:
    write_substitute(tmp_path)
    spec = spec_from_file_location("flash_substitute", tmp_path / "flash_attn" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    q = torch.randn(12, 2, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
    bounds = torch.tensor([0, 5, 12], device="meta")
    output = module.flash_attn_varlen_func(q, q, q, bounds, bounds, 7, 7, dropout_p=0.1)
    assert output.shape == q.shape
    assert output.requires_grad
    q = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    weights = torch.einsum("bihd,bjhd->bhij", q, q) / 8**0.5
    expected = torch.einsum("bhij,bjhd->bihd", weights.softmax(-1), q)
    torch.testing.assert_close(module.flash_attn_func(q, q, q), expected)


@pytest.fixture
def contents(tmp_path: Path) -> Contents:
    prepared = prepare_corpus(tmp_path)
    write_world(make_world(WorldSettings(papers=300)), tmp_path / "world")
    model = save_base_model(tmp_path / "model", "bert")
    evaluation = tmp_path / "world" / "eval"
    return Contents(model, prepared, evaluation, "demo", ("search",), (), "3.12")


def test_a_bundle_brings_model_and_data(tmp_path: Path, contents: Contents, day: Day) -> None:
    archive = tmp_path / "bundle.tar.xz"
    lines = list(make_bundle(contents, archive, limit=5))
    assert lines[-1].startswith(str(archive))
    day = replace(day, bundle=archive)
    inputs(day, "inputs")
    inputs(day, "inputs")
    found = Inputs.of(day.inputs)
    assert (found.suite, found.sets, found.made_up) == ("demo", ["search"], False)
    assert (found.evaluation / "search").is_dir()
    assert len(PreparedData.open(found.prepared).texts) > 0
    before = load_pretrained(contents.model).model.state_dict()
    for name, weight in load_pretrained(found.model).model.state_dict().items():
        torch.testing.assert_close(weight, before[name].bfloat16().float(), rtol=0, atol=0)
    with tarfile.open(archive) as packed:
        assert not [name for name in packed.getnames() if "tokens" in name]
    assert list(found.prepared.glob("tokens/*/*")), "made again"


def test_a_bundle_over_its_limit_or_without_data_is_not_written(
    tmp_path: Path, contents: Contents
) -> None:
    archive = tmp_path / "bundle.tar.xz"
    with pytest.raises(DayError, match=r"MB, over the limit 0\. Fix: "):
        list(make_bundle(contents, archive, limit=0.01))
    with pytest.raises(DayError, match="missing: .*manifest.json"):
        list(make_bundle(replace(contents, prepared=tmp_path), archive, limit=5))
    with pytest.raises(DayError, match="no-such-package is not installed here"):
        list(make_bundle(replace(contents, packages=("no-such-package",)), archive, limit=5))
    assert not archive.exists()
    assert not list(tmp_path.glob("tmp*")), "what was packed so far"


def _run(repository: Path, tmp_path: Path, *arguments: str) -> str:
    folders = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    command = [sys.executable, "-m", "benchmarks.gpu_day", *arguments, *folders]
    done = subprocess.run(
        [*command, "--device", "cpu", "--dry-run"],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dry_run_of_a_tiny_run(tmp_path: Path, repository: Path) -> None:
    """`test_a_dry_run_of_all` runs the other steps."""
    page = _run(repository, tmp_path, "run", "inputs", "reference", "bf16_cache")
    assert "**This was a dry run" in page
    (line,) = [line for line in page.splitlines() if line.startswith("| losses against")]
    assert line.endswith("| dry run |")
    counted = json.loads((tmp_path / "work/configs/bf16_cache.waits.json").read_text())
    assert counted == {"steps": 4, "places": []}, "a CPU is never waited for"


@pytest.mark.long
def test_a_sweep_leaves_out_cases_beyond_its_time_limit(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rate(setting: Any, device: torch.device, precision: str, steps: int) -> dict[str, Any]:
        time.sleep(0.5)
        return {"tflops": 1.0}

    monkeypatch.setattr(speeds, "_rate", rate)
    monkeypatch.setattr(speeds, "setting_of", lambda *_: Setting("", "", 8, 64, 0.0))
    monkeypatch.setattr(speeds, "measured_peak", lambda *_: 2e12)
    monkeypatch.setattr(speeds, "process_group", lambda _: nullcontext(torch.device("cpu")))
    speeds.sweep(replace(day, ends=time.monotonic() + 0.9), "sweep", size="minilm")
    first, last = (line["found"] for line in read_lines(day.out))
    assert (first["options"], first["of_measured"]) == ("plain", 0.5)
    left_out = ["8: dropout 0.1", "8: chunk_tokens 200", "8: pooling cls"]
    assert last == {"left_out": left_out}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_dry_run_of_all(tmp_path: Path, repository: Path) -> None:
    for call in CALLS:
        page = _run(repository, tmp_path, call)
    ends = [line.split(" | ") for line in page.splitlines() if line.endswith(" |")]
    ended = {(cells[0].lstrip("| "), cells[1]): cells[2] for cells in ends if len(cells) == 6}
    for call in CALLS:
        for step in steps_of(call):
            assert ended[call, step] == "ran"
    assert "## Failures" not in page
    assert "exit_code: 143" in page
    assert "every_step_once: True" in page
