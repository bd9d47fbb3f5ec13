"""The instruction encoder: token states of each route's instruction before every block.

Shape legend: I tokens of all instructions, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from torch import Tensor, nn

from scimult.models.blocks import Block, InstructionLayer, run_block
from scimult.models.config import EncoderConfig
from scimult.models.embeddings import Embeddings
from scimult.models.packing import PackedTexts, pack
from scimult.types import TokenIds

# What each block reads of the instructions (equation 4).
InstructionStates = list[InstructionLayer]


class InstructionEncoder(nn.Module):
    """The instruction encoder of the ``prefix`` variant: a copy of the text encoder.

    The state after the last block is never read, so there is no last block.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        plain = config.model_copy(update={"instructions": None})
        self.embeddings = Embeddings(plain)
        self.blocks = nn.ModuleList(Block(plain, number) for number in range(config.num_blocks - 1))


def read_instructions(
    embeddings: Embeddings,
    blocks: Sequence[nn.Module],
    instructions: Mapping[int, TokenIds],
    routes: Iterable[int],
    *,
    by_route: bool = False,
    recompute: bool = False,
) -> InstructionStates:
    """Run the instructions of ``routes`` through embeddings and all blocks but the last, at once.

    Each is run once, however many rows use it. ``by_route`` says that the blocks have experts, and
    each instruction passes those of its route; ``recompute`` keeps no activations within the
    blocks (`blocks.run_block`).
    """
    # In plan order: by route, or shortest first.
    ordered = sorted(set(routes), key=lambda route: (by_route or len(instructions[route]), route))
    device = embeddings.words.weight.device
    texts: PackedTexts = pack([instructions[route] for route in ordered]).to(device)
    plan = texts.plan(ordered if by_route else 0)
    ends = list(accumulate(texts.lengths))
    tokens = {
        route: slice(end - length, end)
        for route, length, end in zip(ordered, texts.lengths, ends, strict=True)
    }
    x_ID: Tensor = embeddings(texts.tokens_T[plan.order_T], plan)
    layers = [InstructionLayer(x_ID, tokens)]
    for block in blocks:
        x_ID = run_block(block, x_ID, plan, recompute=recompute)
        layers.append(InstructionLayer(x_ID, tokens))
    return layers
