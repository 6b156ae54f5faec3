"""Which input block a run has, its shape, where it stands and what trains it."""

from dataclasses import dataclass, replace

from iecl.errors import UserError
from iecl.settings import setting

SKIPS = ("inner", "stack", "image")
PRINTED = ("batch", "sample")
"""The forms of the printed block."""


def sides(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width, given as one side or as both.

    >>> sides(32), sides((32, 48))
    ((32, 32), (32, 48))
    """
    both = (image_size, image_size) if isinstance(image_size, int) else image_size
    if not isinstance(both, tuple | list) or len(both) != 2 or not all(isinstance(s, int) and s > 0 for s in both):
        raise UserError(f"image_size is {image_size!r}", where="SAIB", do="give a side in pixels, or height and width")
    return both[0], both[1]


@dataclass(frozen=True, kw_only=True)
class SAIBSettings:
    """The input block. `batch` and `sample` are the printed block; `certified` is ours, with a guaranteed expansion."""

    form: str = setting(
        "none",
        "batch: images are channels, as printed; sample: each image alone; certified: never contracts volume",
        choices=("none", "batch", "sample", "certified"),
    )
    side: str = setting(
        "auto",
        "which view passes the block; target: both, where a branch without gradient sees them; auto: the query, or "
        "the anchor for a certified block that could learn only there",
        choices=("auto", "query", "anchor", "both", "target"),
        needs="saib.form",
    )
    weights: str = setting(
        "learned",
        "learned by gradients; frozen: as they were drawn; redrawn: drawn again at each step",
        choices=("learned", "frozen", "redrawn"),
        needs="saib.form",
    )
    init_from: str = setting(
        "", "a run whose trained block this one begins with; empty: it is drawn", needs="saib.form"
    )
    host_gradient: str = setting(
        "auto",
        "what the host's loss does to a learned block: reversed (it climbs the loss), cooperative (descends it), none; "
        "the block always climbs entropy and expansion and descends the divergence. auto: reversed for a certified "
        "block; for a printed one none, or cooperative if no term of [objective] reaches it",
        choices=("auto", "reversed", "cooperative", "none"),
        needs="saib.form",
    )
    weight_decay: float = setting(1e-4, "weight decay γ of the block", low=0, needs="saib.form")
    probability: float = setting(
        1.0,
        "chance that an image passes the block; 0: 1 where views are crops only, else a half",
        low=0,
        high=1,
        needs="saib.form",
    )
    strength: str = setting(
        "constant",
        "share of the block's change that an image gets; uniform: drawn between 0 and 1 for each image; auto: drawn "
        "between 0 and a share that rises while views are matched too easily",
        choices=("constant", "uniform", "auto"),
        needs="saib.form",
    )
    confusion: float = setting(
        0.03,
        "strength=auto: how often another image should look nearer than the own other view; above it the block is "
        "turned down",
        above=0,
        high=0.5,
        needs="saib.form",
    )
    mix: float = setting(
        0.0,
        "chance that a query is mixed with another image of the batch, with answers mixed alike (i-Mix); with any form",
        low=0,
        high=1,
    )
    patch_size: int = setting(
        0, "side of a patch in pixels; 0: 4 below 128 pixels, else 16", low=0, high=1024, needs="saib.form"
    )
    cascade: int = setting(1, "blocks in a row", low=1, high=3, needs="saib.form")
    convs: int = setting(
        3, "printed block: 3 as in its main text, 4 as in its appendix", low=3, high=4, needs="saib.form"
    )
    skips: tuple[str, ...] = setting(
        SKIPS, "printed block: which skip connections it has", choices=SKIPS, needs="saib.form"
    )
    norm: str = setting(
        "batch", "printed block: after each convolution", choices=("batch", "group", "none"), needs="saib.form"
    )
    activation: str = setting(
        "silu", "printed block: after each norm", choices=("silu", "relu", "softplus"), needs="saib.form"
    )
    pos_embed: str = setting(
        "learned", "printed block: code added to the tokens", choices=("learned", "sincos", "none"), needs="saib.form"
    )
    hidden_dim: int = setting(
        32,
        "certified block: hidden units of the patch map; the 3×3 map has half as many",
        low=2,
        high=65_536,
        needs="saib.form",
    )
    noise: str = setting(
        "image",
        "certified block: one draw per unit and image, per position, or none",
        choices=("image", "pixel", "none"),
        needs="saib.form",
    )
    noise_scale: float = setting(
        1.0, "certified block: standard deviation of the noise before the activation", low=0, needs="saib.form"
    )
    budget: float = setting(
        0.5, "certified block: how large the change is, in units of the normalized image", low=0, needs="saib.form"
    )
    budget_kind: str = setting(
        "rms",
        "certified block: rms: the budget is the RMS of the change over a batch; image: of the change of each image; "
        "pixel: no pixel ever changes by more",
        choices=("rms", "image", "pixel"),
        needs="saib.form",
    )

    @property
    def is_absent(self) -> bool:
        """Whether views reach the host as they are."""
        return self.form == "none" and not self.mix

    def for_views(self, *, are_crops_only: bool) -> "SAIBSettings":
        """The same block with its probability chosen: on every image where it stands in for changes of color."""
        return replace(self, probability=1.0 if are_crops_only else 0.5) if self.probability == 0 else self

    def for_size(self, image_size: int) -> "SAIBSettings":
        """The same block with its patch chosen for this image size."""
        return replace(self, patch_size=(4 if image_size < 128 else 16)) if self.patch_size == 0 else self
