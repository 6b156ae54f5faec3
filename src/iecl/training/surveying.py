"""A look at every sample between two epochs: what clustering methods label their data with."""

import torch
from jaxtyping import Float
from torch import Tensor

from iecl import parallel
from iecl.data.loader import in_order
from iecl.data.source import Source
from iecl.methods.contract import Encode
from iecl.training.plan import Plan
from iecl.views.making import make_plain
from iecl.views.policies import plain_share


@torch.no_grad()
def survey_source(source: Source, plan: Plan, device: torch.device, encode: Encode) -> Float[Tensor, "samples width"]:
    """`encode` of a plain view of every sample, in the order of the source, on every process.

    Processes take turns batch by batch. The row of a file that cannot be read is zero; training draws another in its
    place, so that nobody asks for it. The training loop has reported such files already.
    """
    data, share, world = plan.data, plain_share(plan.data.image_size), parallel.world()
    batches = in_order(source, max(1, plan.training.batch // world), data.workers, on_bad=lambda path, reason: None)
    seen: list[tuple[Tensor, Tensor]] = []
    for number, batch in enumerate(batches):
        if number % world == parallel.rank():
            here = batch.to(device)
            views = make_plain(here.images, here.sizes, data.image_size, data.mean, data.std, share)
            seen.append((here.index, encode(views).float()))
    # A process may have had no turn, where files cannot be read: it learns the width from the others.
    width = max(parallel.gather_objects(seen[0][1].shape[1] if seen else 0))
    found = torch.zeros(len(source), width, device=device)
    for index, rows in seen:
        found[index] = rows
    return parallel.total(found)
