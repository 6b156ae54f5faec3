"""Where images come from and how they are read."""

from dataclasses import dataclass

from iecl.data.shard_files import refuse_secrets
from iecl.data.shortcuts import parse_shortcut
from iecl.files import LARGEST
from iecl.settings import setting

LEAST_SIDE = 8
"""Networks that halve an image three times have nothing left below this."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Everything that decides which pixels a run sees."""

    name: str = setting(
        "shapes", "folder of images, list of paths, pattern, packed file, shards, or a name from: iecl list datasets"
    )
    more: tuple[str, ...] = setting((), "further folders, lists or patterns whose images are a part of the same data")
    exclude: str = setting("", "list of images to leave out, as iecl doctor writes it", flag="--exclude")
    plant: str = setting(
        "", "for experiments: bits in every image that a method may take for its content, as stripes=0.25"
    )
    root: str = setting("", "folder that holds named datasets; empty: the user's cache folder")
    download: bool = setting(False, "fetch a named dataset that is not there yet")
    labels: str = setting(
        "auto", "class folders as labels: auto decides from the layout", choices=("auto", "folders", "none")
    )
    channels: int = setting(
        3,
        "channels of an image; other numbers than 3 read gray images, NPY, and TIFF with a page for each",
        low=1,
        high=64,
    )
    image_size: int = setting(
        0, "side of a view in pixels; 0: chosen from the images", low=0, high=1024, flag="--image-size"
    )
    decode_size: int = setting(0, "side of the square on which decoded images are kept; 0: chosen", low=0, high=2048)
    mean: tuple[float, ...] = setting(
        (), "mean of each channel on the scale 0 to 1; empty: of the dataset, or ImageNet's"
    )
    std: tuple[float, ...] = setting((), "standard deviation of each channel; empty: as for mean", above=0)
    cache_megabytes: int = setting(
        4096, "decode once and keep in memory up to this size; 0: decode each epoch", low=0, high=LARGEST
    )
    num_workers: int = setting(-1, "processes that decode; -1: one for each core, at most 8", low=-1, high=256)
    max_pixels: int = setting(
        100_000_000, "an image with more pixels than this is skipped, not decoded", low=1, high=LARGEST
    )
    max_unreadable: float = setting(
        0.5, "share of the files above which unreadable ones end the work; 1: never", low=0, high=1
    )

    bad_shards: str = setting(
        "stop", "what a shard that is missing or damaged does: end the work, or be left out", choices=("stop", "skip")
    )
    validation: bool = setting(
        False, "keep a tenth of the training images out of training, and measure on it and not on the test images"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """All that the images are taken from."""
        return (self.name, *self.more)

    def __post_init__(self) -> None:
        if self.plant:
            parse_shortcut(self.plant)
            if self.channels != 3:
                raise ValueError("data.plant needs images with three channels")
        for name in self.names:
            refuse_secrets(name)
        if 0 < self.image_size < LEAST_SIDE:
            raise ValueError(f"data.image_size is {self.image_size}, it must be at least {LEAST_SIDE}, or 0")
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (0, self.channels):
                count = "three numbers, one for each of red, green and blue" if self.channels == 3 else self.channels
                raise ValueError(f"data.{name} needs {count}{'' if self.channels == 3 else ' numbers, one a channel'}")
