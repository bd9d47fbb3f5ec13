"""What an evaluation cost: time, speed, size of the index."""

from __future__ import annotations

from collections.abc import Sequence

from scimult.evaluation.reporting.sources import Missing
from scimult.evaluation.results import Result
from scimult.table import ABSENT, Cell, Table, label, number

MEGA = 1e6


def costs(results: Sequence[Result]) -> Table:
    """Return time and, where the results have them, texts and tokens per second and index size."""
    headings = ["system", "sets", "seconds", "encode s", "texts/s", "tokens/s", "index MB"]
    notes = [
        "seconds: encode, index and rank, all sets; a text that several sets share is encoded "
        "once, one that a store holds not at all. Index: what search keeps of the candidates, all "
        "sets. Times of results that other machines or a busy one wrote do not compare.",
        *dict.fromkeys(f"{result.system}: {_machine(result)}." for result in results),
    ]
    return Table("Cost", headings, 1, [_row(result) for result in results], notes)


def missing_costs(results: Sequence[Result]) -> list[Missing]:
    """Name what the results do not say about cost."""
    gaps = []
    for result in results:
        kinds = {kind for entry in result.sets.values() for kind in entry.cost}
        absent = [kind for kind in ("encode_seconds", "tokens", "index_bytes") if kind not in kinds]
        # A word index encodes nothing.
        lacking = [] if result.settings.get("kind") == "bm25" else absent
        if lacking:
            names = ", ".join(lacking)
            why = f"the result of {result.system} does not have {names}"
            fix = "evaluate it again with this version; third-party encoders do not count tokens"
            gaps.append(Missing("Cost", why, fix))
    return gaps


def _row(result: Result) -> list[Cell]:
    sets = result.sets.values()
    seconds = sum(entry.seconds for entry in sets)

    def total(kind: str) -> float | None:
        values = [entry.cost[kind] for entry in sets if kind in entry.cost]
        return sum(values) if len(values) == len(result.sets) else None

    encode, texts, tokens = total("encode_seconds"), total("texts"), total("tokens")
    size = total("index_bytes")
    return [
        label(result.system),
        Cell(str(len(result.sets)), len(result.sets)),
        number(seconds, "{:,.1f}"),
        number(encode, "{:,.1f}"),
        number(_rate(texts, encode), "{:,.0f}"),
        number(_rate(tokens, encode), "{:,.0f}"),
        number(size, "{:,.1f}", 1 / MEGA),
    ]


def _rate(amount: float | None, seconds: float | None) -> float | None:
    return amount / seconds if amount and seconds else None


def _machine(result: Result) -> str:
    hardware = result.provenance.get("hardware", {})
    gpus = ", ".join(hardware.get("gpus", [])) or "no GPU"
    processor = hardware.get("processor", ABSENT)
    return f"{processor}, {hardware.get('threads', ABSENT)} thread(s), {gpus}"
