"""Shards of a few images."""

from pathlib import Path

from iecl.data import tar_samples
from iecl.data.shard_writer import pack_shards


def make_shards(images: Path, out: Path, block: int = 6000, megabytes: float = 0.02) -> Path:
    """Shards of some 20 kilobytes in blocks of a few images each."""
    before, tar_samples.BLOCK = tar_samples.BLOCK, block
    try:
        pack_shards(str(images), out, shard_megabytes=megabytes)
    finally:
        tar_samples.BLOCK = before
    return out
