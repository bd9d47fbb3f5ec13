"""What the compiler leaves alone; imported by what it compiles, as it takes a second to import."""

import torch

from scimult.models.dropout import scaled_mask as plain_mask

# It would read the words' storage as if they had the draws' size, and fail.
scaled_mask = torch.compiler.disable(plain_mask)  # type: ignore[no-untyped-call]
