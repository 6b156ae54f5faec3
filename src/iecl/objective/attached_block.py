"""The input block for other people's training loops: attach it to an optimizer, pass one view through it."""

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from iecl import counter, parallel
from iecl.parts.gradient_reversal import reverse_gradient
from iecl.saib.certified import CertifiedSAIB


@final
class AttachedBlock(nn.Module):
    """A certified block that trains against a loss it knows nothing of.

    In training a view passes the block with fresh noise, and the gradient on its way back is turned round: the block
    climbs the loss within its budget. In evaluation views pass unchanged.
    """

    calls: Tensor

    def __init__(self, block: CertifiedSAIB, seed: int) -> None:
        super().__init__()
        self.block, self.seed = block, seed
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """The view as the block makes it; the same noise for the same seed, call and row."""
        if not self.training:
            return x
        rows = torch.arange(len(x), device=x.device) + parallel.rank() * len(x)
        noise = counter.Stream(counter.key(self.seed, "attached block", int(self.calls)), rows)
        self.calls += 1
        return reverse_gradient(self.block(x, noise))


def attach_block(optimizer: Optimizer, *, image_size: int, seed: int = 0, **choices: Any) -> AttachedBlock:
    """Give an existing training loop a learned view in two lines, whatever its modules and loss are.

    The block's weights join the optimizer (with its defaults) and return to their budget after each of its steps. Save
    the result's `state_dict` with your model to resume exactly.

    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    >>> optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    >>> block = attach_block(optimizer, image_size=8)                    # the first line
    >>> x = block(torch.randn(2, 3, 8, 8))                               # the second, for one of the views
    >>> x.shape, len(optimizer.param_groups)
    (torch.Size([2, 3, 8, 8]), 2)

    Args:
        optimizer: whose step moves the block; its first weight decides on the device.
        image_size: side of the square, normalized images.
        seed: decides the block's first weights and its noise.
        choices: further arguments of `iecl.CertifiedSAIB`, such as `budget`.
    """
    with counter.seeded(counter.key(seed, "weights/attached block")):
        block = CertifiedSAIB(image_size=image_size, **choices)
    block.to(optimizer.param_groups[0]["params"][0].device)
    optimizer.add_param_group({"params": list(block.parameters())})
    optimizer.register_step_post_hook(lambda *_: block.after_step())
    return AttachedBlock(block, seed)
