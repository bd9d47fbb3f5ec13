"""Several encoders of one architecture as one: the mean of their embeddings.

Training from one base leaves embeddings comparable, so that their mean is an embedding of the same
width. It costs a pass of each encoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from scimult.models.config import EncoderConfig
from scimult.models.encoder import Encoder
from scimult.models.instructions import InstructionStates
from scimult.models.packing import PackedTexts
from scimult.types import TokenIds

MemberStates = Sequence[InstructionStates | None]


class MeanEncoder(Encoder):
    """The weighted mean of what several encoders make of a text; for inference.

    Parameters
    ----------
    config : EncoderConfig
        The architecture of each encoder, and in ``mean`` their shares.
    """

    def __init__(self, config: EncoderConfig) -> None:
        nn.Module.__init__(self)
        assert config.mean is not None, "not a mean of encoders"
        self.config = config
        one = config.model_copy(update={"mean": None})
        self.members = nn.ModuleList(Encoder(one) for _ in config.mean.shares)

    def set_instructions(self, rows: Sequence[TokenIds]) -> None:
        """Set the token ids of each route's instruction, in route order."""
        for member in self._encoders:
            member.set_instructions(rows)

    @property
    def instruction_lengths(self) -> list[int]:
        """Number of tokens in each route's instruction."""
        return self._encoders[0].instruction_lengths

    def forward(
        self,
        texts: PackedTexts,
        routes: int | Sequence[int] = 0,
        states: MemberStates | None = None,  # type: ignore[override]
    ) -> Tensor:
        """Return one embedding per row, shape ``(B, D)``, as `Encoder.forward`."""
        each = states or [None] * len(self.members)
        return self._mean(
            [
                member(texts, routes, state)
                for member, state in zip(self._encoders, each, strict=True)
            ]
        )

    def forward_each(
        self,
        texts: PackedTexts,
        routes: Sequence[int],
        states: Sequence[MemberStates | None] | None = None,  # type: ignore[override]
    ) -> list[Tensor]:
        """Return the embeddings of all rows for each of several routes, as `Encoder` does."""
        none: MemberStates = [None] * len(self.members)
        by_route = [state or none for state in states or [none] * len(routes)]
        by_member = [
            member.forward_each(texts, routes, [state[number] for state in by_route])
            for number, member in enumerate(self._encoders)
        ]
        return [self._mean(vectors_BD) for vectors_BD in zip(*by_member, strict=True)]

    def read_instructions(  # type: ignore[override]
        self, routes: Iterable[int], instead: Mapping[int, TokenIds] | None = None
    ) -> MemberStates | None:
        """Return each encoder's instruction states; ``None`` for models without instructions."""
        if self.config.instructions is None:
            return None
        wanted = list(routes)
        return [member.read_instructions(wanted, instead) for member in self._encoders]

    @property
    def _encoders(self) -> list[Encoder]:
        return [member for member in self.members if isinstance(member, Encoder)]

    def _mean(self, members: Sequence[Tensor]) -> Tensor:
        """Return the mean in float32, and in the members' type."""
        assert self.config.mean is not None
        shares, unit = self.config.mean.shares, self.config.mean.unit
        mean_BD = torch.zeros_like(members[0], dtype=torch.float32)
        for share, vectors_BD in zip(shares, members, strict=True):
            wide_BD = vectors_BD.float()
            if unit:
                wide_BD = nn.functional.normalize(wide_BD, dim=1)
            mean_BD = mean_BD + share / sum(shares) * wide_BD
        return mean_BD.to(members[0].dtype)


def new_encoder(config: EncoderConfig) -> Encoder:
    """Return an encoder of this architecture, or several with the mean of their embeddings."""
    return Encoder(config) if config.mean is None else MeanEncoder(config)
