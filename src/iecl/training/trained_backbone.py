"""The backbone in the state of a method: what a run writes at its end, and what is read from its checkpoints.

It is taken from the state and not from the method, which cannot always be built without the data.
"""

from collections.abc import Mapping

from torch import Tensor

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.parts.spectral_norm import fold, normalize_convolutions, sizes_in
from iecl.training.config import RunConfig
from iecl.weights.file import load_into
from iecl.weights.info import BackboneInfo
from iecl.weights.model import LoadedModel, load_backbone

PREFIXES = ("host.backbone.", "backbone.")
"""Where a state keeps its backbone: inside IE-CL, whose host is a method, or by itself."""


def trained_backbone(
    config: RunConfig, state: Mapping[str, Tensor], step: int, epoch: int | None = None, *, checkpoint: str, where: str
) -> LoadedModel:
    """The backbone in a method's state, under its plain names and with spectral norm folded into its kernels.

    Raises:
        UserError: the state, which is from `where`, does not hold it.
    """
    info = BackboneInfo(
        backbone=config.backbone.name,
        image_size=config.data.image_size,
        mean=config.data.mean,
        std=config.data.std,
        method=config.method_name,
        step=step,
        epoch=epoch,
        recipe=config.recipe(),
    )
    return load_backbone(_backbone_state(state, info, where), info, checkpoint, where)


def _backbone_state(method: Mapping[str, Tensor], info: BackboneInfo, where: str) -> dict[str, Tensor]:
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in method)), None)
    if prefix is None:
        raise UserError(f"the checkpoint holds no backbone: no name starts with {PREFIXES[-1]}", where=where)
    state = {name.removeprefix(prefix): tensor.cpu() for name, tensor in method.items() if name.startswith(prefix)}
    if not any(name.endswith(".parametrizations.weight.original") for name in state):
        return state
    module = make_backbone(info.backbone, channels=info.channels)
    normalize_convolutions(module, sizes_in(state), iterations=0)
    # As they lie in memory: the norm of a kernel is a sum, and another order gives other last bits.
    load_into(module, {name: tensor.clone() for name, tensor in state.items()}, where, assign=True)
    fold(module)
    return dict(module.state_dict())
