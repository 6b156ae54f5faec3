"""Which share of the block's change images get, where it follows from how hard the views are to match."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from iecl import parallel
from iecl.errors import UserError


@torch.no_grad()
def confusion(anchor: Float[Tensor, "n out"], query: Float[Tensor, "n out"]) -> Float[Tensor, ""]:
    """How often another image's query lies nearer to an anchor than its own: 0 is matched, 1/2 is chance.

    Its expectation does not depend on the size of the batch, which the accuracy of matching does.

    >>> confusion(torch.eye(4), torch.eye(4)).item(), confusion(torch.eye(4), 1 - torch.eye(4)).item()
    (0.0, 1.0)
    """
    a, q = (normalize(parallel.gather(z.detach().float()), dim=1) for z in (anchor, query))
    cosines = a @ q.T
    own = cosines.diagonal()[:, None]
    # A tie counts half: collapsed projections are at chance, and not matched.
    nearer = (cosines > own).sum() + (cosines == own).sum() / 2 - len(a) / 2
    return nearer / max(1, len(a) * (len(a) - 1))


class AdaptiveStrength(nn.Module):
    """Raises the share while views are matched too easily and lowers it while they are not.

    share <- share + rate * log(target / confusion), within [0, 1], after each optimizer step. Early in training nothing
    is matched and the block is off; it comes in as far as a run leaves room for it.
    """

    share: Tensor
    seen: Tensor
    calls: Tensor

    def __init__(self, target: float, rate: float = 0.01) -> None:
        """`rate`: share for each step at which the confusion is wrong by a factor of e or more."""
        super().__init__()
        self.target, self.rate = target, rate
        self.register_buffer("share", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))  # sum over the parts of a batch since the last step
        self.register_buffer("calls", torch.zeros(()))

    def see(self, projections: Mapping[str, Float[Tensor, "n out"]]) -> Float[Tensor, ""]:
        """Read how hard this batch was, by what the host made of both views; the share moves at the next `after_step`.

        Raises:
            UserError: the host does not show it.
        """
        # A host that contrasts one view only has a key of the other.
        pair = projections.get("anchor"), projections.get("query", projections.get("key"))
        if pair[0] is None or pair[1] is None:
            raise UserError(
                "this host does not show its projections of both views",
                where="saib.strength = auto",
                do="use saib.strength=uniform",
            )
        found = confusion(pair[0], pair[1])
        self.seen += found
        self.calls += 1
        return found

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the share, once for each optimizer step."""
        mean = self.seen / self.calls.clamp(min=1)
        change = (self.target / mean.clamp(min=1e-6)).log().clamp(-1, 1)
        self.share.add_(self.rate * change * (self.calls > 0)).clamp_(0, 1)
        self.seen.zero_()
        self.calls.zero_()
