"""The command line: ``python -m benchmarks.gpu_day run | speed | train | report | bundle``."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from benchmarks.gpu_day.day import Day, DayError
from benchmarks.gpu_day.driver import run_steps
from benchmarks.gpu_day.report import make_report
from benchmarks.gpu_day.schedule import CALLS, Step, steps_of

# Under the ten minutes that a command may take where machines are lent by the command.
_BUDGET = 570.0
_WORK = Path("work/gpu_day")
# Needed beside what machines for torch and transformers have.
_PACKAGES = [
    "deepspeed",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "hjson",
    "ijson",
    "bm25s",
    "rensa",
    "pytrec-eval-terrier",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code, 1 if a step failed."""
    given = _parser().parse_args(arguments)
    try:
        code: int = given.command(given)
    except DayError as error:
        _say(f"error: {error}")
        return 1
    return code


def _call(given: argparse.Namespace) -> int:
    day, call = _day(given), given.call
    steps = _chosen(call, given.steps, given.leave_out)
    signal.signal(signal.SIGTERM, _stop)
    try:
        failed = run_steps(day, call, steps, given.budget, _say)
    finally:
        if (day.out / "day.jsonl").exists():
            (day.out / "report.md").write_text(make_report([day.out]), encoding="utf-8")
    _say(f"{len(steps) - len(failed)} of {len(steps)} steps ran; {day.out / 'report.md'} shows all")
    return int(bool(failed))


def _step(given: argparse.Namespace) -> int:
    """Do the work of one step in this process."""
    (step,) = _chosen(given.call, [given.name], [])
    work = getattr(import_module(step.module), step.function)
    work(replace(_day(given), ends=given.ends), step.name, **step.options)
    return 0


def _report(given: argparse.Namespace) -> int:
    text = make_report(given.folders)
    if given.to is None:
        _say(text)
    else:
        given.to.write_text(text, encoding="utf-8")
    return 0


def _bundle(given: argparse.Namespace) -> int:
    from benchmarks.gpu_day.bundle import Contents, make_bundle

    contents = Contents(
        model=given.model,
        prepared=given.prepared,
        evaluation=given.evaluation,
        suite=given.suite,
        sets=tuple(given.sets),
        packages=tuple(given.package),
        python=given.python,
    )
    for line in make_bundle(contents, given.to, given.limit):
        _say(line)
    return 0


def _chosen(call: str, names: Sequence[str], left_out: Sequence[str]) -> list[Step]:
    known = steps_of(call)
    for name in [*names, *left_out]:
        if name not in known:
            raise DayError(f"call {call} has no step {name!r}. Fix: one of {', '.join(known)}")
    # Named steps run in the order given, and as often.
    steps = [known[name] for name in names] or list(known.values())
    return [step for step in steps if step.name not in left_out]


def _day(given: argparse.Namespace) -> Day:
    if given.bundle is not None and not given.bundle.exists():
        raise DayError(f"no such bundle: {given.bundle}. Fix: make one with the command bundle")
    # Steps run in the root of the checkout, wherever this command was given.
    bundle = None if given.bundle is None else given.bundle.resolve()
    return Day(given.out.resolve(), given.work.resolve(), bundle, given.device, given.dry_run)


def _stop(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_day", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    about = {
        "run": "does everything run? versions, kernels, tests, every ZeRO stage and precision",
        "speed": "how fast? profile, training sweep, encoding and search beside peers",
        "train": "a real two-stage run: stopped, resumed, evaluated",
    }
    for call in CALLS:
        command = commands.add_parser(call, help=about[call])
        command.set_defaults(command=_call, call=call)
        command.add_argument("steps", nargs="*", metavar="STEP", help="only these, in this order")
        command.add_argument("--leave-out", nargs="+", default=[], metavar="STEP")
        command.add_argument(
            "--budget", type=float, default=_BUDGET, help="seconds of the whole call"
        )
        _add_day(command)
    step = commands.add_parser("step", help="one step in this process, without a time box")
    step.set_defaults(command=_step)
    step.add_argument("call", choices=list(CALLS))
    step.add_argument("name")
    step.add_argument("--ends", type=float, default=math.inf, help=argparse.SUPPRESS)
    _add_day(step)
    report = commands.add_parser("report", help="Markdown from the folders of several calls")
    report.set_defaults(command=_report)
    report.add_argument("folders", nargs="+", type=Path, metavar="OUT")
    report.add_argument("--to", type=Path, help="file to write; default: the terminal")
    _add_bundle(commands.add_parser("bundle", help="pack packages, model and data for the machine"))
    return parser


def _add_day(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, default=Path("runs/gpu_day"), help="for results")
    command.add_argument("--work", type=Path, default=_WORK, help="for packages, data and runs")
    command.add_argument("--bundle", type=Path, help="from the command bundle; else made-up data")
    command.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    command.add_argument("--dry-run", action="store_true", help="small sizes; figures say nothing")


def _add_bundle(command: argparse.ArgumentParser) -> None:
    command.set_defaults(command=_bundle)
    command.add_argument("--model", type=Path, required=True, help="folder of a BERT-like encoder")
    command.add_argument("--prepared", type=Path, required=True, help="by scimult prepare")
    command.add_argument("--evaluation", type=Path, required=True, help="folder of a suite's data")
    command.add_argument("--suite", default="first")
    command.add_argument("--sets", nargs="+", default=["vis_cite", "acl_cite"], metavar="SET")
    command.add_argument(
        "--package",
        nargs="*",
        default=_PACKAGES,
        help="packages that the machine lacks, in the versions installed here",
    )
    command.add_argument("--python", default="3.12", help="version of Python there")
    command.add_argument("--limit", type=float, default=60.0, help="MB that the bundle may have")
    command.add_argument("--to", type=Path, default=Path("work/gpu_day_bundle.tar.xz"))


if __name__ == "__main__":
    sys.exit(main())
