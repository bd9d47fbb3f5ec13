"""Suggest a layout of experts from an interference map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scimult.models.layouts import Sublayer
from scimult.training.interference.cosines import InterferenceMap

_VARIANTS: dict[tuple[Sublayer, ...], str] = {
    ("attention",): "mha_expert",
    ("feed_forward",): "ffn_expert",
    ("attention", "feed_forward"): "mha_ffn_expert",
}
SUBLAYERS: tuple[Sublayer, ...] = ("attention", "feed_forward")


@dataclass(frozen=True)
class SuggestedLayout:
    """A variant with its blocks, and the reason; ``vanilla`` has no blocks."""

    variant: str
    blocks: list[int]
    reason: str

    @property
    def model(self) -> dict[str, Any]:
        """The layout as keys of a configuration's section ``model``."""
        options = {"options": {"blocks": self.blocks}} if self.blocks else {}
        return {"variant": self.variant, **options}

    @property
    def snippet(self) -> str:
        """The layout as lines of a configuration."""
        lines = ["model:", f"  variant: {self.variant}"]
        if self.blocks:
            lines.append(f"  options: {{blocks: {self.blocks}}}")
        return "\n".join(lines)


def suggest_layout(interference: InterferenceMap) -> SuggestedLayout:
    """Suggest experts where tasks conflict, else in up to half of the blocks, most apart first.

    A sub-layer of a block counts by the verdict of its worst pair of tasks (`PairCell`). If no
    pair is in conflict or apart, the suggestion is ``vanilla``.
    """
    cells = [cell for cell in interference.pairs if cell.location.sublayer in SUBLAYERS]
    locations = sorted({cell.location for cell in cells if cell.verdict == "conflict"})
    if locations:
        kinds = tuple(kind for kind in SUBLAYERS if any(p.sublayer == kind for p in locations))
        return SuggestedLayout(
            _VARIANTS[kinds],
            sorted({location.block for location in locations}),
            f"gradients of two tasks oppose each other in {len(locations)} sub-layers",
        )
    gaps: dict[tuple[int, str], float] = {}
    for cell in cells:
        if cell.verdict == "apart":
            key = cell.location.block, cell.location.sublayer
            gaps[key] = max(gaps.get(key, 0.0), cell.gap.mean)
    if not gaps:
        return SuggestedLayout(
            "vanilla", [], "in no sub-layer do two tasks differ beyond the noise of batches"
        )
    means = {kind: sum(gap for (_, own), gap in gaps.items() if own == kind) for kind in SUBLAYERS}
    kind = max(SUBLAYERS, key=means.__getitem__)
    ranked = sorted(
        (block for block, own in gaps if own == kind), key=lambda block: -gaps[block, kind]
    )
    return SuggestedLayout(
        _VARIANTS[kind,],
        sorted(ranked[: max(1, interference.num_blocks // 2)]),
        "no sub-layer is in conflict; in these, tasks agree least with each other, compared with "
        "themselves",
    )
