"""A pass over every sample between two epochs: what clustering methods label their data with."""

import torch
from jaxtyping import Float
from torch import Tensor

from iecl import parallel
from iecl.data.loader import in_order
from iecl.data.source import Source
from iecl.methods.contract import Encode
from iecl.training.config import RunConfig
from iecl.views.pipeline import make_plain
from iecl.views.policies import plain_share


@torch.no_grad()
def survey_source(
    source: Source, config: RunConfig, device: torch.device, encode: Encode
) -> Float[Tensor, "samples width"]:
    """`encode` of a plain view of every sample, in the order of the source, on every process.

    Processes take turns batch by batch. The row of a file that cannot be read is zero; training draws another in its
    place, so that nobody asks for it. The training loop has reported such files already.
    """
    data, share, world = config.data, plain_share(config.data.image_size), parallel.world()
    batches = in_order(
        source, max(1, config.training.batch_size // world), data.num_workers, on_bad=lambda path, reason: None
    )
    found: Tensor | None = None
    for number, batch in enumerate(batches):
        if number % world != parallel.rank():
            continue
        here = batch.to(device)
        rows = encode(make_plain(here.images, batch.sizes, data.image_size, data.mean, data.std, share)).float()
        if found is None:
            found = rows.new_zeros(len(source), rows.shape[1])
        found[here.index] = rows
    # A process may have had no turn, where few files can be read: it learns the width from the others.
    width = max(parallel.gather_objects(0 if found is None else found.shape[1]))
    return parallel.total(torch.zeros(len(source), width, device=device) if found is None else found)
