"""From settings to a block."""

from iecl.saib.certified import CertifiedSAIB
from iecl.saib.contract import InputBlock
from iecl.saib.printed import SAIB
from iecl.saib.settings import SAIBSettings


def make_saib(settings: SAIBSettings, *, image_size: int, batch: int) -> InputBlock | None:
    """The block that the settings describe, for `batch` images in each process; None when they ask for none."""
    settings = settings.for_size(image_size)
    if settings.form == "none":
        return None
    if settings.form == "certified":
        return CertifiedSAIB(
            image_size=image_size,
            patch_size=settings.patch_size,
            hidden_dim=settings.hidden_dim,
            cascade=settings.cascade,
            noise=settings.noise,
            noise_scale=settings.noise_scale,
            budget=settings.budget,
            budget_kind=settings.budget_kind,
        )
    return SAIB(
        image_size=image_size,
        batch=batch,
        patch_size=settings.patch_size,
        form=settings.form,
        cascade=settings.cascade,
        convs=settings.convs,
        skips=settings.skips,
        norm=settings.norm,
        activation=settings.activation,
        pos_embed=settings.pos_embed,
    )
