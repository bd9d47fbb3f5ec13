"""Functions that ``torch.compile`` must skip; a module of its own, as the import takes a second."""

import torch

from scimult.models.dropout import scaled_mask as plain_mask

# Compiled, it would read the words' storage as if it had the draws' size, and fail.
scaled_mask = torch.compiler.disable(plain_mask)  # type: ignore[no-untyped-call]
