"""What is asked of a run's network for a page."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SightSettings:
    """Which images, how many, and how they are laid out."""

    data: str | None
    images: int
    maps: tuple[str, ...]
    columns: str
    checkpoint: str
    device: str
