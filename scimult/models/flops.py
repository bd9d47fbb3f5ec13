"""Floating point operations of an encoder's matrix products, from the real lengths of texts.

A multiply-add is two operations. Only products of linears and of attention count, once per token
(after the last block's attention once per row, unless all tokens are pooled):
neither padding nor recomputed activations, and no norms, softmax or embeddings, which are not
products (as in Chowdhery et al., "PaLM", 2022, appendix B). The backward pass repeats a product
of A and B once for each of the two that has a gradient, so frozen weights make training cheaper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from scimult.models.adapters import AdapterBank
from scimult.models.banks import ExpertBank
from scimult.models.blocks import Attention, Block, FeedForward
from scimult.models.encoder import Encoder
from scimult.models.low_rank import LowRankUpdates
from scimult.models.modern import GatedFeedForward, ModernAttention, ModernBlock
from scimult.models.pals import Pal, PalProjections
from scimult.types import IntArray


@dataclass
class _Cost:
    """Operations of one route's texts, gathered layer by layer.

    Per token, per attending pair of tokens by window (0 is the whole row), and per pair of a token
    and an instruction token.
    """

    training: bool
    per_token: int = 0
    per_pair: Counter[int] = field(default_factory=Counter)
    per_read: int = 0

    def product(self, operations: int, left_flows: bool, right_flows: bool) -> int:
        """Return the operations of a product, forward and in training also backward."""
        return operations * (1 + self.training * (left_flows + right_flows))

    def linear(self, layer: nn.Linear, flows: bool, times: int = 1) -> bool:
        """Add a linear over ``times`` vectors per token; return whether its output has gradients.

        ``flows`` says whether its input has.
        """
        operations = 2 * layer.in_features * layer.out_features * times
        self.per_token += self.product(operations, flows, layer.weight.requires_grad)
        return flows or _trains(layer)

    def attention(self, width: int, flows: bool, window: int | None = None) -> None:
        """Add the two products of self-attention over ``width`` features."""
        self.per_pair[window or 0] += 2 * self.product(2 * width, flows, flows)

    def reading(self, width: int, queries_flow: bool, context_flows: bool) -> None:
        """Add the two products of attention to instruction tokens."""
        weights_flow = queries_flow or context_flows
        self.per_read += self.product(2 * width, queries_flow, context_flows)
        self.per_read += self.product(2 * width, weights_flow, context_flows)


@dataclass(frozen=True)
class _RouteCost:
    """Cost of one route's texts, their pooled tokens alone, and its instruction in each pass."""

    text: _Cost
    pooled: _Cost
    extra_tokens: int
    instruction_tokens: int
    instruction: int

    def of(self, lengths: IntArray) -> int:
        tokens = lengths + self.extra_tokens
        pairs = sum(
            operations * int(_pairs(tokens, window).sum())
            for window, operations in self.text.per_pair.items()
        )
        per_token = self.text.per_token + self.text.per_read * self.instruction_tokens
        rows = self.pooled.per_token * len(lengths)
        return per_token * int(tokens.sum()) + rows + pairs + self.instruction


class EncoderFlops:
    """Counts the operations of batches; built once per model, before it is sharded.

    ``requires_grad`` is read now; ``training`` counts the backward pass too.
    """

    def __init__(self, model: Encoder, *, training: bool) -> None:
        self._routed = model.config.is_routed
        count = model.config.num_routes
        self._costs = [_route_cost(model, route, training) for route in range(count)]

    def of(self, lengths: Sequence[int], routes: int | Sequence[int]) -> int:
        """Return the operations of one forward pass and, in training, its backward pass.

        ``lengths`` are those of the texts as packed, without control codes; ``routes`` is that of
        all texts, or has one per text.
        """
        lengths_B = np.asarray(lengths, dtype=np.int64)
        if not self._routed:
            return self._costs[0].of(lengths_B)
        routes_B = np.broadcast_to(np.asarray(routes, dtype=np.int64), lengths_B.shape)
        return sum(
            self._costs[route].of(lengths_B[routes_B == route]) for route in np.unique(routes_B)
        )


def _pairs(tokens_B: IntArray, window: int) -> IntArray:
    """Return the number of attending (query, key) pairs; a window of 0 is the whole row."""
    if not window:
        squares_B: IntArray = tokens_B * tokens_B
        return squares_B
    reach_B = np.minimum(window, np.maximum(tokens_B - 1, 0))
    # Of 2 w + 1 keys each, the first tokens lack w, w - 1, ... 1, and so do the last ones.
    within_B: IntArray = tokens_B * (2 * reach_B + 1) - reach_B * (reach_B + 1)
    return within_B


def _trains(*modules: nn.Module | None) -> bool:
    return any(p.requires_grad for module in modules if module for p in module.parameters())


def _expert(layer: nn.Module, route: int) -> nn.Module:
    return layer.of(route) if isinstance(layer, ExpertBank) else layer


def _route_cost(model: Encoder, route: int, training: bool) -> _RouteCost:
    text, pooled = _Cost(training), _Cost(training)
    instruction, instruction_tokens = 0, 0
    flows = _trains(model.embeddings)
    reads_flow: list[bool] | None = None
    if model.config.instructions is not None:
        instruction_tokens = model.instruction_lengths[route]
        instruction, reads_flow = _instruction_cost(model, route, instruction_tokens, training)
    for number, block in enumerate(model.blocks):
        # The last block finishes the tokens that are pooled.
        all_tokens = number < len(model.blocks) - 1 or model.config.pooling == "mean"
        rest = text if all_tokens else pooled
        if isinstance(block, ModernBlock):
            flows = _modern_block(text, rest, block, route, flows)
        else:
            assert isinstance(block, Block)
            reads = None if reads_flow is None else reads_flow[number]
            flows = _block(text, rest, block, route, flows, model.pal_projections, reads)
    codes = int(model.config.codes is not None)
    return _RouteCost(text, pooled, codes, instruction_tokens, instruction)


def _instruction_cost(
    model: Encoder, route: int, tokens: int, training: bool
) -> tuple[int, list[bool]]:
    """Return the cost of one instruction, and for each block whether its states have gradients.

    Its own blocks run over it, and every block of the text encoder projects its states.
    """
    reader = model.instruction_encoder or model
    own, flows = _Cost(training), [_trains(reader.embeddings)]
    for block in list(reader.blocks)[: model.config.num_blocks - 1]:
        assert isinstance(block, Block)
        flows.append(_block(own, own, block, route, flows[-1]))
    for block, flow in zip(model.blocks, flows, strict=True):
        assert isinstance(block, Block)
        _projection(own, block.attention, route, flow)
    return _RouteCost(own, _Cost(training), 0, 0, 0).of(np.array([tokens])), flows


def _block(
    cost: _Cost,
    rest: _Cost,
    block: Block,
    route: int,
    flows: bool,
    projections: PalProjections | None = None,
    reads_flow: bool | None = None,
) -> bool:
    """Add a block, its layers after attention to ``rest``."""
    pal_flows = False
    if block.pal is not None:
        assert projections is not None
        pal_flows = _pal(cost, block.pal, projections, route, flows)
    flows = _attention(cost, rest, block.attention, route, flows, reads_flow)
    feed_forward = _expert(block.feed_forward, route)
    assert isinstance(feed_forward, FeedForward)
    flows = _feed_forward(rest, feed_forward, route, flows) or pal_flows
    return flows or _trains(block.feed_forward_norm)


def _projection(cost: _Cost, layer: Attention, route: int, flows: bool) -> bool:
    projected = cost.linear(_linear(layer.qkv, route), flows)
    return _updates(cost, layer.qkv_update, route, flows) or projected


def _attention(
    cost: _Cost, rest: _Cost, layer: Attention, route: int, flows: bool, reads_flow: bool | None
) -> bool:
    width = _linear(layer.output, route).in_features
    mixed = _projection(cost, layer, route, flows)
    if reads_flow is None:
        cost.attention(width, mixed)
    else:
        # Text and instruction keys are one tensor: if either has a gradient, both are computed.
        context = mixed or reads_flow or _trains(layer.qkv)
        cost.reading(width, mixed, context)
        cost.per_pair[0] += cost.product(2 * width, mixed, context)
        cost.per_pair[0] += cost.product(2 * width, mixed or context, context)
        mixed = context
    changed = rest.linear(_linear(layer.output, route), mixed)
    changed = _updates(rest, layer.output_update, route, mixed) or changed
    changed = _adapters(rest, layer.adapter, layer.norm, route, flows, changed)
    return flows or changed or _trains(_expert(layer.norm, route))


def _feed_forward(cost: _Cost, layer: FeedForward, route: int, flows: bool) -> bool:
    inner = cost.linear(layer.intermediate, flows)
    inner = _updates(cost, layer.inner_update, route, flows) or inner
    changed = cost.linear(layer.output, inner)
    changed = _updates(cost, layer.output_update, route, inner) or changed
    changed = _adapters(cost, layer.adapter, layer.norm, route, flows, changed)
    return flows or changed or _trains(layer.norm)


def _updates(cost: _Cost, updates: LowRankUpdates | None, route: int, flows: bool) -> bool:
    passes = False
    for bank in updates.lora.values() if updates is not None else ():
        expert = _expert(bank, route)
        down, up = _linear(expert.down), _linear(expert.up)
        passes |= cost.linear(up, cost.linear(down, flows))
    return passes


def _adapters(
    cost: _Cost,
    bank: AdapterBank | None,
    norm: nn.Module | None,
    route: int,
    flows: bool,
    changed: bool,
) -> bool:
    """Add adapters after a sub-layer whose input has gradients by ``flows``, output by ``changed``.

    Return whether the adapted output has gradients.
    """
    if bank is None:
        return changed
    reads = changed or (bank.reads_normed and (flows or _trains(norm)))
    adapters = list(bank.bank.experts) if bank.fusion else [bank.bank.of(route)]
    passes = changed
    for adapter in adapters:
        passes |= cost.linear(_linear(adapter.up), cost.linear(_linear(adapter.down), reads))
    if bank.fusion is None:
        return passes
    fusion, count = bank.fusion.of(route), len(adapters)
    query = cost.linear(_linear(fusion.query), changed)
    key = cost.linear(_linear(fusion.key), passes, times=count)
    value = cost.linear(_linear(fusion.value_change), passes, times=count)
    width = _linear(fusion.query).in_features
    cost.per_token += cost.product(2 * width * count, query, key)
    cost.per_token += cost.product(2 * width * count, query or key, value)
    return query or key or value


def _pal(cost: _Cost, pal: Pal, projections: PalProjections, route: int, flows: bool) -> bool:
    small = cost.linear(_linear(projections.down, route), flows)
    mixed = cost.linear(_linear(pal.qkv, route), small)
    cost.attention(pal.width, mixed)
    return cost.linear(_linear(projections.up, route), mixed)


def _modern_block(cost: _Cost, rest: _Cost, block: ModernBlock, route: int, flows: bool) -> bool:
    attention: ModernAttention = block.attention
    mixed = cost.linear(_linear(attention.qkv, route), flows or _trains(attention.norm))
    output = _linear(attention.output, route)
    cost.attention(output.in_features, mixed, attention.window)
    flows = rest.linear(output, mixed) or flows
    layer = _expert(block.feed_forward, route)
    assert isinstance(layer, GatedFeedForward)
    inner = rest.linear(layer.intermediate, flows or _trains(layer.norm))
    return rest.linear(layer.output, inner) or flows


def _linear(layer: object, route: int = 0) -> nn.Linear:
    linear = layer.of(route) if isinstance(layer, ExpertBank) else layer
    assert isinstance(linear, nn.Linear)
    return linear
