"""From settings to a block."""

from iecl.saib.certified import CertifiedSAIB
from iecl.saib.contract import InputBlock
from iecl.saib.printed import SAIB
from iecl.saib.settings import SAIBSettings

OF_CERTIFIED = ("patch_size", "hidden_dim", "cascade", "noise", "noise_scale", "budget", "budget_kind")
OF_PRINTED = ("patch_size", "form", "cascade", "convs", "skips", "norm", "activation", "pos_embed")


def make_saib(settings: SAIBSettings, *, image_size: int, batch: int, channels: int = 3) -> InputBlock | None:
    """The block that the settings describe, for `batch` images in each process; None when they ask for none."""
    settings = settings.for_size(image_size)
    if settings.form == "none":
        return None
    if settings.form == "certified":
        return CertifiedSAIB(
            image_size=image_size, channels=channels, **{name: getattr(settings, name) for name in OF_CERTIFIED}
        )
    return SAIB(
        image_size=image_size, batch=batch, channels=channels, **{name: getattr(settings, name) for name in OF_PRINTED}
    )
