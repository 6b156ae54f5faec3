"""What is asked of a run's network for a page."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from iecl.errors import UserError, did_you_mean, lacking

MAPS = ("pca", "tsne", "umap")
"""Ways to lay embeddings out on a plane."""


@dataclass(frozen=True)
class SightSettings:
    """Which images, how many, and how they are laid out."""

    data: str | None
    images: int
    maps: tuple[str, ...]
    columns: str
    checkpoint: str
    device: str


def check_maps(names: Iterable[str]) -> None:
    """Refuse a map that nobody knows, or whose package is missing, before images are looked at."""
    for name in names:
        if name not in MAPS:
            raise UserError(f"no map is called {name!r}", where="--map", do=did_you_mean(name, MAPS))
        if name == "umap" and find_spec("umap") is None:
            raise lacking("a map by UMAP", "umap", extra="map", where="--map")
