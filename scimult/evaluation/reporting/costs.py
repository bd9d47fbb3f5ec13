"""The cost of an evaluation: time, speed and index size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scimult.evaluation.protocols import PROTOCOLS
from scimult.evaluation.reporting.sources import Missing
from scimult.evaluation.results import Result
from scimult.table import ABSENT, Cell, Table, label, number

MEGA = 1e6
# What a system of each kind records; a fusion, like BM25, has nothing but its members' costs.
_RECORDED = {
    "bm25": (),
    "fused": (),
    "mteb": ("encode_seconds", "tokens"),
    "reranked": ("encode_seconds",),
    "stored": ("index_bytes",),
}
_ALL = ("encode_seconds", "tokens", "index_bytes")


def costs(results: Sequence[Result]) -> Table:
    """Return times and, where recorded, texts and tokens per second and index size."""
    headings = ["system", "sets", "seconds", "encode s", "texts/s", "tokens/s", "index MB"]
    notes = [
        "seconds: time to encode, index and rank all sets; a text in several sets is encoded once, "
        "one in a store not at all. index MB: what search stores of the candidates of all sets. "
        "Times from different or busy machines are not comparable.",
        *dict.fromkeys(f"{result.system}: {_machine(result)}." for result in results),
    ]
    return Table("Cost", headings, 1, [_row(result) for result in results], notes)


def missing_costs(results: Sequence[Result]) -> list[Missing]:
    """Return the cost figures that the results lack."""
    gaps = []
    for result in results:
        sets = result.sets.values()
        kinds = {kind for entry in sets for kind in entry.cost}
        wanted = _recorded(result.settings)
        # Linear models and clustering need no index.
        if not any(e.protocol in PROTOCOLS and PROTOCOLS[e.protocol].ranks for e in sets):
            wanted.discard("index_bytes")
        absent = [kind for kind in _ALL if kind in wanted and kind not in kinds]
        if absent:
            why = f"the result of {result.system} lacks {', '.join(absent)}"
            fix = "evaluate it again with this version; third-party encoders do not count tokens"
            gaps.append(Missing("Cost", why, fix))
    return gaps


def _recorded(settings: Mapping[str, Any]) -> set[str]:
    """Return the kinds of cost that a system records, those of its parts included."""
    parts = [*settings.get("members", {}).values(), *settings.get("first", {}).values()]
    return {*_RECORDED.get(str(settings.get("kind")), _ALL)}.union(*map(_recorded, parts))


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
    threads = hardware.get("threads", ABSENT)
    return f"{processor}, {threads} {'thread' if threads == 1 else 'threads'}, {gpus}"
