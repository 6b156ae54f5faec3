"""Random numbers by counter: every draw is a pure function of (seed, purpose, epoch, sample position).

There is no generator whose history matters. A run can therefore be resumed at any step, with any number of workers or
processes, and any view of any image can be drawn again. `key` folds names and numbers into 64 bits; `uniform`,
`normal` and `permutation` hash a key with positions. The hash is SplitMix64's finalizer (Steele et al. 2014), applied
to the counter and once more after the key went in. Integer arithmetic only, so CPU and GPU give the same bits.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

_CHUNK = 2**16
_CPU = torch.device("cpu")


def key(seed: int, purpose: str, *numbers: int) -> int:
    """A signed 64-bit key for one stream of draws, as in `key(seed, "crop", epoch, view)`."""
    text = ":".join((str(seed), purpose, *map(str, numbers)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


@contextmanager
def seeded(key: int, device: torch.device = _CPU) -> Iterator[None]:
    """Let torch's own generators, which first weights and dropout draw from, follow from the key, then be as before.

    On the CPU generators of other devices are left alone: `torch.manual_seed` would seed them too.
    """
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        if device.type == "cpu":
            torch.default_generator.manual_seed(key)
        else:
            torch.manual_seed(key)
        yield


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64; multiplication wraps, and the mask turns `>>` into a logical shift."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9 as a signed number
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def bits(key: int, positions: Tensor, columns: int = 1) -> Tensor:
    """64 random bits for each position and column: int64 of shape (len(positions), columns)."""
    column = torch.arange(columns, device=positions.device)
    # Rows first, then columns: widening a draw does not change the columns that were there before.
    row = _mix(positions.long() * -0x61C8864680B583EB + key)  # the golden ratio's odd 64-bit multiplier
    return _mix(_mix(row[:, None] + column * -0x61C8864680B583EB) ^ key)


def uniform(key: int, positions: Tensor, columns: int = 1) -> Tensor:
    """Uniform float32 numbers in [0, 1), one row per position.

    >>> positions = torch.tensor([7, 8])
    >>> bool((uniform(1, positions, 3)[1] == uniform(1, positions[1:], 3)[0]).all())      # a row knows no neighbors
    True
    """
    return ((bits(key, positions, columns) >> 40) & 0xFFFFFF).float() / 2**24


def normal(key: int, positions: Tensor, columns: int = 1) -> Tensor:
    """Standard normal float32 numbers, one row per position (Box-Muller)."""
    drawn = uniform(key, positions, 2 * columns)
    first, second = drawn[:, :columns], drawn[:, columns:]
    return (-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * math.pi * second)


def permutation(key: int, length: int) -> Tensor:
    """A random order of `length` things."""
    drawn = torch.empty(length, dtype=torch.int64)
    for start in range(0, length, _CHUNK):  # the steps of the hash need several times the memory of their result
        part = torch.arange(start, min(start + _CHUNK, length))
        drawn[start : start + _CHUNK] = bits(key, part).squeeze(1)
    return torch.from_numpy(drawn.numpy().argsort(kind="stable"))  # torch's own takes three times the memory


@dataclass(frozen=True)
class Stream:
    """Draws for the rows of one batch, handed to a part that needs noise and should not know what time it is."""

    key: int
    positions: Tensor

    def normal(self, columns: int, part: int = 0) -> Tensor:
        """Standard normal numbers, one row per image; `part` tells several draws of one owner apart."""
        return normal(key(self.key, "part", part), self.positions, columns)
