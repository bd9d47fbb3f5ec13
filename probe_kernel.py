"""One-off: errors and times of the short rows' kernels on a GPU. One JSON line per finding."""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback

os.environ.pop("TRITON_INTERPRET", None)
# Shared by the processes that compile.
os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
STARTED = time.monotonic()

import numpy as np
import torch

from scimult.models import short_attention as sa
from scimult.models.packed_attention import attend_packed
from scimult.models.short_attention import LengthClass, Tiles, attend_short, tables

DEVICE = torch.device("cuda")
HEADS = 12
WORKERS = int(os.environ.get("PROBE_WORKERS", "12"))
BF16 = torch.bfloat16


def note(step, **facts):
    print(json.dumps({"step": step, "at": round(time.monotonic() - STARTED, 1), **facts}), flush=True)


def guarded(step, work, *args, **facts):
    try:
        return work(*args)
    except BaseException as error:
        note(step, failed=f"{type(error).__name__}: {error}"[:400], **facts,
             where=traceback.format_exc().splitlines()[-4:-1])
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return None


def T(m, n, kind, warps, stages, cap=None):
    return Tiles(m, n, kind == "s", warps, stages, cap)


# Band of lengths, pass, candidates.
WIDE = [
    ((1, 16), "forward", [T(16, 16, "s", 1, 1), T(32, 32, "s", 1, 1), T(32, 32, "s", 2, 1)]),
    ((17, 32), "forward", [T(32, 32, "s", 1, 1), T(32, 32, "s", 2, 1), T(64, 64, "s", 4, 1)]),
    ((33, 64), "forward", [T(64, 64, "s", 4, 1), T(32, 64, "s", 2, 1), T(32, 64, "s", 4, 1)]),
    ((65, 128), "forward", [
        T(64, 128, "s", 4, 1), T(64, 128, "s", 4, 2), T(128, 128, "s", 8, 1),
        T(64, 64, "l", 4, 1), T(64, 64, "l", 4, 2), T(64, 128, "s", 4, 1, 128)]),
    ((129, 256), "forward", [
        T(64, 256, "s", 4, 1), T(64, 256, "s", 8, 1), T(64, 64, "l", 4, 1), T(64, 64, "l", 4, 2),
        T(64, 64, "l", 4, 3, 128), T(128, 64, "l", 8, 2), T(128, 64, "l", 8, 3), T(64, 128, "l", 4, 1),
        T(64, 128, "l", 8, 2), T(128, 128, "l", 8, 2)]),
    ((257, 1024), "forward", [
        T(64, 64, "l", 4, 1), T(64, 64, "l", 4, 2), T(64, 64, "l", 4, 3, 128),
        T(128, 64, "l", 8, 2), T(64, 128, "l", 8, 2), T(128, 128, "l", 8, 2)]),
    ((1, 16), "backward", [T(16, 16, "s", 1, 1), T(32, 32, "s", 1, 1), T(32, 32, "s", 2, 1)]),
    ((17, 32), "backward", [T(32, 32, "s", 1, 1), T(32, 32, "s", 2, 1), T(32, 32, "s", 4, 1)]),
    ((33, 64), "backward", [
        T(64, 64, "s", 4, 1), T(64, 64, "s", 4, 1, 128), T(64, 64, "s", 8, 1),
        T(32, 64, "s", 4, 1)]),
    ((65, 128), "backward", [
        T(32, 128, "s", 8, 3, 128), T(32, 128, "s", 8, 2, 128), T(64, 128, "s", 8, 1),
        T(64, 128, "s", 8, 3), T(32, 128, "s", 8, 3), T(128, 128, "s", 8, 1),
        T(64, 64, "l", 4, 3), T(32, 64, "l", 4, 3, 168)]),
    ((129, 256), "backward", [
        T(32, 64, "l", 4, 3, 168), T(32, 64, "l", 4, 2, 168), T(32, 64, "l", 4, 1, 168),
        T(64, 64, "l", 4, 1), T(64, 64, "l", 4, 3), T(64, 64, "l", 4, 1, 168),
        T(32, 128, "l", 8, 1, 128), T(32, 128, "l", 8, 3, 128), T(64, 128, "l", 8, 1),
        T(64, 128, "l", 8, 3), T(64, 64, "l", 8, 1)]),
    ((257, 1024), "backward", [
        T(32, 64, "l", 4, 3, 168), T(64, 64, "l", 4, 1), T(64, 64, "l", 4, 3),
        T(32, 128, "l", 8, 3, 128), T(64, 128, "l", 8, 1), T(64, 128, "l", 8, 3)]),
]
NARROW = [
    ((33, 64), "backward", [T(64, 64, "s", 4, 1), T(64, 64, "s", 4, 1, 80)]),
    ((65, 128), "forward", [T(64, 128, "s", 4, 1), T(128, 128, "s", 8, 1), T(128, 128, "s", 4, 1)]),
    ((129, 1024), "forward", [
        T(64, 64, "l", 4, 3, 128), T(64, 64, "l", 4, 2), T(128, 64, "l", 8, 3)]),
    ((65, 128), "backward", [
        T(32, 128, "s", 8, 3, 128), T(64, 128, "s", 8, 3), T(32, 128, "s", 4, 3),
        T(64, 64, "l", 4, 3, 168)]),
    ((129, 1024), "backward", [
        T(32, 64, "l", 4, 3, 168), T(64, 64, "l", 4, 1), T(64, 64, "l", 4, 3, 168),
        T(32, 128, "l", 8, 3, 128), T(64, 128, "l", 8, 3)]),
]
SWEEPS = {64: WIDE, 32: NARROW}


def lengths_of(rows, seed=0):
    rng = np.random.default_rng(seed)
    drawn = rng.lognormal(np.log(123) - 0.125, 0.5, rows)
    return np.clip(np.round(drawn), 8, 512).astype(np.int64)


def titles(rows=2300):
    return np.clip(np.round(np.random.default_rng(1).lognormal(np.log(15), 0.3, rows)), 8, 40).astype(int)


def one_class(which, tiles, rows):
    return [(LengthClass(1024, tiles, tiles), rows)]


def buffers(tokens, width, dtype=BF16):
    qkv = torch.randn(tokens, 3, HEADS, width, device=DEVICE).to(dtype)
    out = torch.zeros(tokens, HEADS, width, device=DEVICE, dtype=dtype)
    grad = torch.randn(tokens, HEADS, width, device=DEVICE).to(dtype)
    lse = torch.zeros(2, HEADS, tokens, device=DEVICE)
    grad_qkv = torch.zeros_like(qkv)
    sums = torch.zeros(tokens, HEADS, width, device=DEVICE)
    return qkv, out, grad, lse, grad_qkv, sums


def run_pass(which, rows, buffer, dropout=0.0, seed=None):
    qkv, out, grad, lse, grad_qkv, sums = buffer
    tensors = (qkv, out, lse) if which == "forward" else (qkv, out, grad, lse, grad_qkv, sums)
    tokens, _, heads, width = qkv.shape
    sa._launch(which, rows, tensors, lse if seed is None else seed, dropout, heads, width, tokens)


def variants():
    """Every kernel of the probe: width, pass, tiles, dtype, dropout."""
    found = []
    for width, sweep in SWEEPS.items():
        for kind in sa.CLASSES:
            for which in ("forward", "backward"):
                for dtype, dropout in ((BF16, 0.0), (BF16, 0.1), (torch.float16, 0.0)):
                    found.append((width, which, getattr(kind, which), dtype, dropout))
        for _, which, cuts in sweep:
            found += [(width, which, cut, BF16, 0.0) for cut in cuts]
    return list(dict.fromkeys(found))


def worker(number):
    """Compile a share of the kernels into the shared cache, by running each on one row."""
    for width, which, cut, dtype, dropout in variants()[number::WORKERS]:
        begun = time.monotonic()
        try:
            rows = tables(np.array([9]), DEVICE)[0][1]
            seed = torch.ones(1, dtype=torch.int64, device=DEVICE) if dropout else None
            run_pass(which, one_class(which, cut, rows), buffers(9, width, dtype), dropout, seed)
            torch.cuda.synchronize()
            if time.monotonic() - begun > 8:
                note("slow_compile", which=which, width=width, tiles=describe(cut),
                     seconds=round(time.monotonic() - begun, 1))
        except Exception as error:
            note("compile", which=which, width=width, tiles=describe(cut), dtype=str(dtype),
                 dropout=dropout, failed=f"{type(error).__name__}: {error}"[:300])


def describe(cut):
    cap = f" cap{cut.registers}" if cut.registers else ""
    return f"M{cut.queries} N{cut.keys} {'single' if cut.single else 'loop'} w{cut.warps} s{cut.stages}{cap}"


# --- errors ---------------------------------------------------------------------------------

CHECKED = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 200, 256, 300, 0, 511, 512,
           513, 700, 1024)


def mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def kept(start, length, dropout, seed):
    at = torch.arange(length, device=DEVICE)
    heads = torch.arange(1, HEADS + 1, device=DEVICE)[:, None]
    drawn = mix((at + start) ^ (seed & 0xFFFFFFFF)) ^ (seed >> 32)
    drawn = mix(drawn + heads * 0x85EBCA77 & 0xFFFFFFFF)
    bits = mix(drawn[..., None] + at * 0x9E3779B1 & 0xFFFFFFFF) >> 8
    return bits >= round(dropout * (1 << 24))


def naive(qkv, lengths, dropout, seed):
    outputs, start = [], 0
    for part in torch.split(qkv, list(lengths)):
        q, k, v = part.permute(1, 2, 0, 3)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        if dropout:
            weights = weights * kept(start, len(part), dropout, seed) / (1 - dropout)
        outputs.append((weights @ v).transpose(0, 1))
        start += len(part)
    return torch.cat(outputs)


def error_of(actual, expected):
    return float(f"{float((actual.double() - expected).norm() / expected.norm()):.3g}")


def errors(width, dtype, dropout):
    torch.manual_seed(width)
    low = torch.randn(sum(CHECKED), 3, HEADS, width, device=DEVICE).to(dtype).requires_grad_()
    high = low.detach().double().requires_grad_()
    weights = torch.randn(sum(CHECKED), HEADS, width, device=DEVICE).to(dtype)
    torch.manual_seed(5)
    seed = int(torch.randint(1 << 62, (1,), device=DEVICE))
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        output = attend_short(low, tables(np.array(CHECKED), DEVICE), dropout)
        (gradient,) = torch.autograd.grad(output, low, weights)
    finally:
        torch.use_deterministic_algorithms(False)
    expected = naive(high, CHECKED, dropout, seed)
    (high_gradient,) = torch.autograd.grad(expected, high, weights.double())
    facts = {"output": error_of(output.detach(), expected.detach())}
    for name, part in zip("qkv", range(3)):
        facts[f"gradient_{name}"] = error_of(gradient[:, part], high_gradient[:, part])
    facts["finite"] = bool(output.isfinite().all() and gradient.isfinite().all())
    if not dropout:
        bounds = torch.from_numpy(np.concatenate([[0], np.cumsum([n for n in CHECKED if n])])).int().to(DEVICE)
        theirs = attend_packed(low, bounds, max(CHECKED), 0.0, None)
        (their_gradient,) = torch.autograd.grad(theirs, low, weights)
        facts["fa2_output"] = error_of(theirs.detach(), expected.detach())
        facts["fa2_gradient"] = error_of(their_gradient, high_gradient)
    ok = facts["finite"] and max(v for k, v in facts.items() if k != "finite") < 0.02
    note("errors", width=width, dtype=str(dtype), dropout=dropout, ok=ok, **facts)


# --- times ----------------------------------------------------------------------------------


def milliseconds(works, rounds=24, cycles=12_000_000):
    """Median of GPU times; a sleep lets the host run ahead, so that launches cost nothing."""
    for work in works:
        work()
        work()
    torch.cuda.synchronize()
    pairs = []
    torch.cuda._sleep(cycles)
    for number in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        works[number % len(works)]()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return round(float(np.median([a.elapsed_time(b) for a, b in pairs])), 4)


def bounds_of(lengths):
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(DEVICE)


def whole(name, lengths, width, dropout=0.0):
    """Time torch's kernel and ours on a batch, forward and both passes."""
    tokens = int(lengths.sum())
    inputs = [
        torch.randn(tokens, 3, HEADS, width, device=DEVICE).to(BF16).requires_grad_()
        for _ in range(2)
    ]
    grads = [torch.randn(tokens, HEADS, width, device=DEVICE).to(BF16) for _ in range(2)]
    bounds, longest, rows = bounds_of(lengths), int(lengths.max()), tables(lengths, DEVICE)

    def fa2(x):
        return attend_packed(x, bounds, longest, dropout, None)

    def ours(x):
        return attend_short(x, rows, dropout)

    facts = {}
    for label, function in (("fa2", fa2), ("ours", ours)):
        def forward(x, function=function):
            with torch.no_grad():
                function(x)

        def both(x, g, function=function):
            torch.autograd.grad(function(x), x, g)

        facts[f"{label}_forward"] = milliseconds(
            [lambda x=x: forward(x) for x in inputs], cycles=30_000_000
        )
        facts[f"{label}_both"] = milliseconds(
            [lambda x=x, g=g: both(x, g) for x, g in zip(inputs, grads)], cycles=30_000_000
        )
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        begun = time.perf_counter()
        for _ in range(5):
            both(inputs[0], grads[0])
        # What the host needs to queue both passes.
        facts[f"{label}_host"] = round((time.perf_counter() - begun) / 5 * 1e3, 3)
        torch.cuda.synchronize()
    facts["both_ratio"] = round(facts["fa2_both"] / facts["ours_both"], 2)
    note("whole", batch=name, rows=len(lengths), tokens=tokens, longest=longest, width=width,
         dropout=dropout, **facts)


def by_class(lengths, width):
    buffer = buffers(int(lengths.sum()), width)
    for kind, rows in tables(lengths, DEVICE):
        facts = {
            which: milliseconds([lambda which=which: run_pass(which, [(kind, rows)], buffer)])
            for which in ("forward", "backward")
        }
        note("class", width=width, longest=kind.longest, rows=len(rows),
             tokens=int(rows[:, 1].sum()), **facts)


def sweep(lengths, width, names):
    buffer = buffers(int(lengths.sum()), width)
    # Backward needs every row's output and sums of exponentials.
    run_pass("forward", tables(lengths, DEVICE), buffer)
    torch.cuda.synchronize()
    for (low, high), which, cuts in SWEEPS[width]:
        if (low, high) not in names:
            continue
        chosen = np.flatnonzero((lengths >= low) & (lengths <= high))
        if not len(chosen):
            continue
        chosen = chosen[np.argsort(-lengths[chosen], kind="stable")]
        starts = np.cumsum(lengths) - lengths
        rows = torch.from_numpy(
            np.stack([starts[chosen], lengths[chosen]], 1).astype(np.int32)
        ).to(DEVICE)
        first = None
        written = buffer[1] if which == "forward" else buffer[4]
        for cut in cuts:
            def measure(cut=cut):
                table = one_class(which, cut, rows)
                written.zero_()
                run_pass(which, table, buffer)
                torch.cuda.synchronize()
                return written.float().clone(), milliseconds(
                    [lambda: run_pass(which, table, buffer)], 20)

            found = guarded("sweep", measure, which=which, width=width, tiles=describe(cut))
            if found is None:
                continue
            result, ms = found
            first = result if first is None else first
            differs = float((result - first).norm() / first.norm())
            note("sweep", which=which, width=width, band=f"{low}-{high}", rows=len(chosen),
                 tokens=int(lengths[chosen].sum()), tiles=describe(cut), ms=ms,
                 differs=float(f"{differs:.2g}"))
        if which == "forward":
            run_pass("forward", tables(lengths, DEVICE), buffer)


def main():
    note("machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__, python=sys.version.split()[0],
         variants=len(variants()))
    workers = [subprocess.Popen([sys.executable, __file__, "--worker", str(n)]) for n in range(WORKERS)]
    guarded("errors", errors, 64, BF16, 0.0)
    for process in workers:
        try:
            process.wait(timeout=max(1, 45 - (time.monotonic() - STARTED)))
        except subprocess.TimeoutExpired:
            process.kill()
            note("compile", failed="a worker took too long")
    note("compiled")
    for width in (64, 32):
        for dtype in (BF16, torch.float16):
            for dropout in (0.0, 0.1) if dtype == BF16 else (0.0,):
                if (width, dtype, dropout) != (64, BF16, 0.0):
                    guarded("errors", errors, width, dtype, dropout)
    large, small = lengths_of(800), lengths_of(280, 1)
    for width in (64, 32):
        guarded("whole", whole, "papers", large, width)
        guarded("whole", whole, "fewer papers", small, width)
    guarded("whole", whole, "papers", large, 64, 0.1)
    guarded("whole", whole, "titles", titles(), 64)
    short = large[large <= 128]
    guarded("whole", whole, "papers up to 128", short, 64)
    # The same rows with one long one: the rest of torch's grid is empty.
    guarded("whole", whole, "papers up to 128 and one of 512", np.append(short, 512), 64)
    guarded("whole", whole, "papers above 128", large[large > 128], 64)
    for width in (64, 32):
        guarded("class", by_class, large, width)
    guarded("sweep", sweep, large, 64, {(33, 64), (65, 128), (129, 256), (257, 1024)})
    guarded("sweep", sweep, titles(), 64, {(1, 16), (17, 32)})
    guarded("sweep", sweep, large, 32, {(33, 64), (65, 128), (129, 1024)})
    note("done")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(int(sys.argv[-1]))
    elif "--list" in sys.argv:
        print(len(variants()))
    else:
        main()
