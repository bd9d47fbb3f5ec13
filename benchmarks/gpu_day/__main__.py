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

# Below the usual limit of ten minutes per command on lent machines.
_BUDGET = 570.0
_WORK = Path("work/gpu_day")
# Needed in addition to the packages of a machine for torch and transformers.
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
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except DayError as error:
        _say(f"error: {error}")
        return 1
    return code


def _call(options: argparse.Namespace) -> int:
    day, call = _day(options), options.call
    steps = _select(call, options.steps, options.leave_out)
    signal.signal(signal.SIGTERM, _stop)
    try:
        failed = run_steps(day, call, steps, options.budget, _say)
    finally:
        if (day.out / "day.jsonl").exists():
            (day.out / "report.md").write_text(make_report([day.out]), encoding="utf-8")
    _say(f"{len(steps) - len(failed)} of {len(steps)} steps ran; report in {day.out / 'report.md'}")
    return int(bool(failed))


def _step(options: argparse.Namespace) -> int:
    """Do the work of one step in this process."""
    (step,) = _select(options.call, [options.name], [])
    work = getattr(import_module(step.module), step.function)
    work(replace(_day(options), ends=options.ends), step.name, **step.options)
    return 0


def _report(options: argparse.Namespace) -> int:
    text = make_report(options.folders)
    if options.to is None:
        _say(text)
    else:
        options.to.write_text(text, encoding="utf-8")
    return 0


def _bundle(options: argparse.Namespace) -> int:
    from benchmarks.gpu_day.bundle import Contents, make_bundle

    contents = Contents(
        model=options.model,
        prepared=options.prepared,
        evaluation=options.evaluation,
        suite=options.suite,
        sets=tuple(options.sets),
        packages=tuple(options.package),
        python=options.python,
    )
    for line in make_bundle(contents, options.to, options.limit):
        _say(line)
    return 0


def _select(call: str, names: Sequence[str], left_out: Sequence[str]) -> list[Step]:
    known = steps_of(call)
    for name in [*names, *left_out]:
        if name not in known:
            raise DayError(f"call {call} has no step {name!r}. Fix: use one of {', '.join(known)}")
    # Named steps run in the given order, with repetitions.
    steps = [known[name] for name in names] or list(known.values())
    return [step for step in steps if step.name not in left_out]


def _day(options: argparse.Namespace) -> Day:
    bundle = options.bundle
    if bundle is not None:
        if not bundle.exists():
            raise DayError(f"no such bundle: {bundle}. Fix: make one with the command bundle")
        # Steps run in the root of the checkout, not in the current folder.
        bundle = bundle.resolve()
    return Day(
        options.out.resolve(), options.work.resolve(), bundle, options.device, options.dry_run
    )


def _stop(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_day", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    about = {
        "run": "check that everything runs: versions, kernels, tests, ZeRO stages, precisions",
        "speed": "measure speed: profile, training sweep, encoding and search against peers",
        "train": "train for real in two stages: stop, resume, evaluate",
    }
    for call in CALLS:
        command = commands.add_parser(call, help=about[call])
        command.set_defaults(command=_call, call=call)
        command.add_argument(
            "steps", nargs="*", metavar="STEP", help="run only these, in this order"
        )
        command.add_argument(
            "--leave-out", nargs="+", default=[], metavar="STEP", help="do not run these"
        )
        command.add_argument(
            "--budget", type=float, default=_BUDGET, help="time limit of the call in seconds"
        )
        _add_day(command)
    step = commands.add_parser("step", help="run one step in this process, without a time limit")
    step.set_defaults(command=_step)
    step.add_argument("call", choices=list(CALLS))
    step.add_argument("name")
    step.add_argument("--ends", type=float, default=math.inf, help=argparse.SUPPRESS)
    _add_day(step)
    report = commands.add_parser("report", help="write Markdown from the folders of several calls")
    report.set_defaults(command=_report)
    report.add_argument("folders", nargs="+", type=Path, metavar="OUT")
    report.add_argument("--to", type=Path, help="file to write (default: print)")
    _add_bundle(commands.add_parser("bundle", help="pack packages, model and data for the machine"))
    return parser


def _add_day(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", type=Path, default=Path("runs/gpu_day"), help="folder for results"
    )
    command.add_argument(
        "--work", type=Path, default=_WORK, help="folder for packages, data and runs"
    )
    command.add_argument(
        "--bundle", type=Path, help="output of the command bundle (default: generated data)"
    )
    command.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    command.add_argument("--dry-run", action="store_true", help="use small, meaningless sizes")


def _add_bundle(command: argparse.ArgumentParser) -> None:
    command.set_defaults(command=_bundle)
    command.add_argument("--model", type=Path, required=True, help="folder of a BERT-like encoder")
    command.add_argument("--prepared", type=Path, required=True, help="folder of prepared data")
    command.add_argument("--evaluation", type=Path, required=True, help="folder of a suite's data")
    command.add_argument("--suite", default="first")
    command.add_argument("--sets", nargs="+", default=["vis_cite", "acl_cite"], metavar="SET")
    command.add_argument(
        "--package",
        nargs="*",
        default=_PACKAGES,
        help="packages that the machine lacks, in the versions installed here",
    )
    command.add_argument("--python", default="3.12", help="Python version of the machine")
    command.add_argument("--limit", type=float, default=60.0, help="largest bundle in MB")
    command.add_argument("--to", type=Path, default=Path("work/gpu_day_bundle.tar.xz"))


if __name__ == "__main__":
    sys.exit(main())
