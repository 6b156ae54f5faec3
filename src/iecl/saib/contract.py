"""What an input block is: images in, images of the same shape out, for training views only; it is never exported."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from iecl.counter import Stream
from iecl.errors import UserError
from iecl.meters.entropy_gain import EntropyGain, entropy_gain
from iecl.saib.certificate import Certificate

Images = Float[Tensor, "n c h w"]


class InputBlock(nn.Module, ABC):
    """The contract of a block. What it says here holds for one that mixes images and has no noise: the printed one."""

    batch: int = 0
    """The only number of images that it takes; 0: any."""
    is_mixing: bool = True
    """Whether an image's output depends on the others: then its determinant is that of a whole batch."""
    is_certified: bool = False
    """Whether it never contracts volume, and its `certificate` proves it."""
    has_expansion: bool = False
    """Whether its `entropy_gain` can be maximized."""
    gain_images: int | None = None
    """On how many images of a batch its gain is read while training; None: all of them."""
    gain_steps: int = 4
    """Lanczos steps of that reading: its products are expensive, and 4 are 0.001 to 0.007 nats too high, measured."""
    gain_interval: int = 4
    """At every so many readings of the meters its gain is read, to stay below 2 % of a run's time."""

    @abstractmethod
    def forward(self, x: Images, stream: Stream | None = None) -> Images:
        """Images to images of the same shape; noise, if the block has any, comes from the stream."""

    def after_step(self) -> None:
        """Once after each optimizer step: return to the budget."""

    def redraw(self, key: int) -> None:
        """Draw all weights again; the same key gives the same weights, on every device."""
        raise UserError(
            "only a certified block can be drawn again",
            where="saib.weights = redrawn",
            do="use saib.form=certified, or saib.weights=frozen",
        )

    def at(self, stream: Stream | None) -> Callable[[Images], Images]:
        """The block as a plain map with its noise fixed; no buffer changes."""
        return self

    def certificate(self, x: Images, stream: Stream | None = None, *, exact: bool = True) -> Certificate | None:
        """Proved bounds on what the block does to small changes of each image; None: nothing is proved."""
        return None

    def entropy_gain(
        self, x: Images, stream: Stream | None = None, *, probes: int = 2, steps: int = 8, seed: int = 0
    ) -> EntropyGain:
        """What the block adds to the entropy of images: see `iecl.entropy.entropy_gain`."""
        return entropy_gain(self.at(stream), x, probes=probes, steps=steps, seed=seed, is_mixing=self.is_mixing)
