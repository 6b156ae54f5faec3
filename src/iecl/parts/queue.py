"""A first-in, first-out store of past keys, saved with the model."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from iecl import counter


def equal_buffers(module: nn.Module) -> list[str]:
    """Buffers that every process has alike because all push the same keys: nobody need send them to the others."""
    queues = [(name, part) for name, part in module.named_modules() if isinstance(part, Queue)]
    return [f"{name}.{own}" for name, part in queues for own, _ in part.named_buffers()]


class Queue(nn.Module):
    """Unit rows; new keys overwrite the oldest ones, whatever the batch size."""

    rows: Tensor
    next: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        start = counter.normal(counter.key(0, "queue"), torch.arange(length), width)
        self.register_buffer("rows", normalize(start, dim=1))
        self.register_buffer("next", torch.zeros((), dtype=torch.long))

    def read(self) -> Tensor:
        """A copy of all rows: the store changes in place and a loss must not see that."""
        return self.rows.clone()

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Store keys (gathered from every process, so that all have the same queue)."""
        keys = normalize(keys.detach().to(self.rows.dtype), dim=1)[-len(self.rows) :]
        places = (self.next + torch.arange(len(keys), device=keys.device)) % len(self.rows)
        self.rows[places] = keys
        self.next.copy_((self.next + len(keys)) % len(self.rows))
