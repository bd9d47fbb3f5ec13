"""The encoder: embeddings, blocks and pooling over packed rows.

Shape legend: B rows, T tokens of all rows, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from scimult.models.adapters import Adapter, Fusion
from scimult.models.blocks import Block, run_block
from scimult.models.config import EncoderConfig
from scimult.models.embeddings import CODE_POSITION, Embeddings
from scimult.models.instructions import InstructionEncoder, InstructionStates, read_instructions
from scimult.models.low_rank import LowRankUpdate
from scimult.models.modern import ModernBlock, ModernEmbeddings, modern_norm
from scimult.models.packing import PackedTexts, PackingPlan
from scimult.models.pals import PalProjections
from scimult.types import TokenIds

_INITIALLY_NEUTRAL = (Adapter, Fusion, LowRankUpdate, PalProjections)


class Encoder(nn.Module):
    """A BERT-family encoder that treats each row by its route, an integer.

    Parameters
    ----------
    config : EncoderConfig
        Sizes, pooling, and what differs by route.

    Attributes
    ----------
    checkpoints_activations : bool
        In training, keep only each block's input and recompute the rest for the gradients
        (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016), with the same
        dropout.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpoints_activations = False
        modern = config.modern is not None
        self.embeddings = ModernEmbeddings(config) if modern else Embeddings(config)
        block = ModernBlock if modern else Block
        self.blocks = nn.ModuleList(block(config, number) for number in range(config.num_blocks))
        self.final_norm = modern_norm(config) if modern else nn.Identity()
        self.pal_projections = (
            PalProjections(config.hidden_size, config.pals) if config.pals else None
        )
        own_encoder = config.instructions is not None and config.instructions.own_encoder
        self.instruction_encoder = InstructionEncoder(config) if own_encoder else None
        self._instructions: list[TokenIds] = []

    def set_instructions(self, rows: Sequence[TokenIds]) -> None:
        """Set the token ids of each route's instruction, in route order."""
        layout = self.config.instructions
        assert layout is not None, "this encoder reads no instructions"
        assert len(rows) == layout.count, f"{len(rows)} instructions for {layout.count} routes"
        assert max(map(len, rows)) <= self.config.max_positions, "instruction is too long"
        self._instructions = list(rows)

    @property
    def instruction_lengths(self) -> list[int]:
        """Number of tokens in each route's instruction."""
        return [len(row) for row in self._instructions]

    def forward(
        self,
        texts: PackedTexts,
        routes: int | Sequence[int] = 0,
        states: InstructionStates | None = None,
    ) -> Tensor:
        """Return one embedding per row, shape ``(B, D)``.

        Parameters
        ----------
        texts : PackedTexts
            Token ids of B rows, each starting with ``[CLS]``.
        routes : int or sequence of int
            The route of all rows, or one per row.
        states : InstructionStates, optional
            The result of ``read_instructions`` for these routes, if it is reused.
        """
        device = texts.tokens_T.device
        if not len(texts):
            return torch.zeros(0, self.config.width, device=device)
        plan, states, x_TD = self._start(texts, routes, states)
        x_TD = self._run_blocks(range(len(self.blocks)), x_TD, plan, states, self._pooled(plan))
        return self._pool(x_TD, plan)

    def forward_each(
        self,
        texts: PackedTexts,
        routes: Sequence[int],
        states: Sequence[InstructionStates | None] | None = None,
    ) -> list[Tensor]:
        """Return the embeddings of all rows, shape ``(B, D)``, for each of several routes.

        Blocks before the first that differs by route run once. Every product has the same shape
        as for one route, so that embeddings equal those of `forward` bit for bit.

        Parameters
        ----------
        texts : PackedTexts
            Token ids of B rows.
        routes : sequence of int
            At least one.
        states : sequence, optional
            The result of ``read_instructions`` for each route alone.
        """
        shared = self.config.shared_blocks
        if shared == 0 or len(routes) == 1 or not len(texts):
            states = states or [None] * len(routes)
            return [self(texts, *each) for each in zip(routes, states, strict=True)]
        plans = [self._plan(texts, route) for route in routes]
        x_TD = self.embeddings(texts.tokens_T[plans[0].order_T], plans[0])
        x_TD = self._run_blocks(range(shared), x_TD, plans[0], None, self._pooled(plans[0]))
        rest = range(shared, len(self.blocks))
        return [
            self._pool(self._run_blocks(rest, x_TD, plan, None, self._pooled(plan)), plan)
            for plan in plans
        ]

    def token_states(self, texts: PackedTexts, routes: int | Sequence[int] = 0) -> Tensor:
        """Return the final hidden state of every token, shape ``(T, D)``, in packed order.

        With control codes, T includes one more token per row.
        """
        plan, states, x_TD = self._start(texts, routes, None)
        x_TD = self._run_blocks(range(len(self.blocks)), x_TD, plan, states, None)
        sorted_TD = self._finish(x_TD, plan)
        return torch.empty_like(sorted_TD).index_copy(0, plan.order_T, sorted_TD)

    def read_instructions(
        self, routes: Iterable[int], instead: Mapping[int, TokenIds] | None = None
    ) -> InstructionStates | None:
        """Return the instruction states of ``routes``; ``None`` for a model without instructions.

        ``instead`` replaces the instructions of routes.
        """
        if self.config.instructions is None:
            return None
        assert self._instructions, "set_instructions was not called"
        reader = self.instruction_encoder or self
        blocks = list(reader.blocks)[: self.config.num_blocks - 1]
        rows = dict(enumerate(self._instructions)) | dict(instead or {})
        embeddings = reader.embeddings
        assert isinstance(embeddings, Embeddings), "modernbert supports no instructions"
        return read_instructions(
            embeddings,
            blocks,
            rows,
            routes,
            by_route=self.config.experts is not None,
            recompute=self._recomputes,
        )

    @property
    def _recomputes(self) -> bool:
        return self.checkpoints_activations and self.training and torch.is_grad_enabled()

    def _start(
        self, texts: PackedTexts, routes: int | Sequence[int], states: InstructionStates | None
    ) -> tuple[PackingPlan, InstructionStates | None, Tensor]:
        """Return the plan, the states of instructions and the first block's input."""
        if self.config.codes is not None:
            texts = texts.with_gap(CODE_POSITION)
        plan = self._plan(texts, routes)
        if states is None:
            states = self.read_instructions(route for route, _ in plan.route_slices)
        return plan, states, self.embeddings(texts.tokens_T[plan.order_T], plan)

    def _plan(self, texts: PackedTexts, routes: int | Sequence[int]) -> PackingPlan:
        plan = texts.plan(routes)
        assert plan.longest <= self.config.max_positions, "a row is longer than max_positions"
        highest, count = plan.route_slices[-1][0], self.config.num_routes
        routed = self.config.is_routed
        assert not routed or highest < count, f"route {highest} of {count} does not exist"
        return plan

    def _run_blocks(
        self,
        numbers: range,
        x_TD: Tensor,
        plan: PackingPlan,
        states: InstructionStates | None,
        only_B: Tensor | None,
    ) -> Tensor:
        """Run some blocks; the encoder's last one returns only the states of tokens ``only_B``."""
        for number in numbers:
            x_TD = run_block(
                self.blocks[number],
                x_TD,
                plan,
                None if states is None else states[number],
                self.pal_projections,
                only_B if number == len(self.blocks) - 1 else None,
                recompute=self._recomputes,
            )
        return x_TD

    def _finish(self, x_TD: Tensor, plan: PackingPlan) -> Tensor:
        if not torch.is_grad_enabled():
            # As large as the states; the second pass of an embedding cache recomputes them.
            plan.rotations.clear()
        states_TD: Tensor = self.final_norm(x_TD)
        return states_TD

    def _pooled(self, plan: PackingPlan) -> Tensor | None:
        """Return the token of each row that is its embedding; None if all tokens are."""
        if self.config.pooling == "mean":
            return None
        return plan.tokens_at(
            self.config.pooling_position if self.config.pooling == "position" else 0
        )

    def _pool(self, x_TD: Tensor, plan: PackingPlan) -> Tensor:
        """Return embeddings in the order of the texts, given what the last block returned."""
        pooled_BD = self._finish(x_TD, plan)
        if self.config.pooling == "mean":
            pooled_BD = _mean_of_tokens(pooled_BD, plan)
        return pooled_BD[plan.restore_B, : self.config.width]

    def initialise(self, seed: int) -> None:
        """Draw all weights as BERT does: normal(0, initializer_range), biases 0, norms 1.

        Additions to a plain encoder (adapters and the like) start out changing nothing.
        """
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.data.normal_(0, self.config.initializer_range, generator=generator)
            if isinstance(module, nn.LayerNorm):
                module.weight.data.fill_(1)
            if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
                module.bias.data.zero_()
        for module in self.modules():
            if isinstance(module, _INITIALLY_NEUTRAL):
                module.start_neutral()


def _mean_of_tokens(x_TD: Tensor, plan: PackingPlan) -> Tensor:
    """Return the mean token state of each row, shape ``(B, D)``, summed in float32 at least."""
    wide_TD = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    none_BD = wide_TD.new_zeros(len(plan.starts_B), x_TD.shape[-1])
    sums_BD = none_BD.index_add(0, plan.row_of_token_T, wide_TD)
    return (sums_BD / plan.lengths_B[:, None]).to(x_TD.dtype)
