"""Outlines, textures, noise and colors of the drawn dataset: functions of coordinates, whole batches at a time.

Everything is float64. Processors and libraries disagree in the last bits of a sine; rounded to 8-bit pixels from here,
those bits are lost.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from iecl import counter

SIDE = 32
Plane = Float64[Tensor, "n height width"]
Column = Float64[Tensor, " n"]
_LUMINANCE = (0.299, 0.587, 0.114)


def wide(values: Column) -> Float64[Tensor, "n 1 1"]:
    """One number for each image, to be combined with planes."""
    return values[:, None, None]


def turned(x: Plane, y: Plane, angle: Column) -> tuple[Plane, Plane]:
    """Coordinates along and across the direction `angle`."""
    along, across = wide(angle.cos()), wide(angle.sin())
    return x * along + y * across, y * along - x * across


def outline(shape: str, u: Plane, v: Plane) -> Plane:
    """How far each point lies outside a shape that fills about the unit circle; negative inside.

    >>> point = torch.tensor([[[0.0, 0.5, 2.0]]], dtype=torch.float64)
    >>> [round(d, 2) for d in outline("ring", point, torch.zeros_like(point)).flatten().tolist()]  # hole, body, outside
    [0.42, -0.08, 1.06]
    """
    radius = (u.square() + v.square()).sqrt()
    near, far = torch.minimum(u.abs(), v.abs()), torch.maximum(u.abs(), v.abs())
    match shape:
        case "disc":
            return radius - 0.86
        case "ring":
            return (radius - 0.68).abs() - 0.26
        case "dome":
            return torch.maximum(radius - 1.0, -0.25 - u)
        case "moon":
            return torch.maximum(radius - 0.95, 0.72 - ((u - 0.5).square() + v.square()).sqrt())
        case "square":
            return far - 0.76
        case "frame":
            return (far - 0.6).abs() - 0.22
        case "bar":
            return torch.maximum(u.abs() - 1.0, v.abs() - 0.42)
        case "cross":
            return torch.maximum(far - 0.98, near - 0.33)
        case "triangle":
            return _sides(3, 0.56, u, v).amax(dim=0)
        case "star":  # inside a pentagram a point may lie beyond one side of the five, but not beyond two
            return _sides(5, 0.36, u, v).topk(2, dim=0).values[1]
    raise AssertionError(shape)


def _sides(count: int, distance: float, u: Plane, v: Plane) -> Float64[Tensor, "sides n height width"]:
    """How far each point lies beyond each of the lines through the sides of a regular polygon."""
    angles = [2 * math.pi * side / count for side in range(count)]
    return torch.stack([u * math.cos(angle) + v * math.sin(angle) - distance for angle in angles])


def texture(kind: str, a: Plane, b: Plane, grain: Plane) -> Plane:
    """Which of an object's two tones each point has, from 0 to 1.

    Args:
        kind: name of the texture.
        a: first coordinate in periods of the texture.
        b: second coordinate, at a right angle.
        grain: noise of standard deviation 1, which speckles follow.
    """
    wave_a, wave_b = (2 * math.pi * a).cos(), (2 * math.pi * b).cos()
    match kind:
        case "plain":
            tone = torch.full_like(a, -1)
        case "striped":
            tone = 2 * wave_a
        case "checked":
            tone = 3 * wave_a * wave_b
        case "spotted":
            tone = 2 * (wave_a + wave_b - 0.55)
        case "speckled":
            tone = 2.2 * grain
        case _:
            raise AssertionError(kind)
    return (tone.clamp(-1, 1) + 1) / 2


def noise(key: int, positions: Tensor, grids: Sequence[int]) -> Plane:
    """Smooth noise of mean 0: one random grid for each size, all brought to 32 x 32 and added.

    Grids of 2, 4, 8, 16 and 32 cells, each with the same share, have the 1/f spectrum of natural images.
    """
    cells = [grid * grid for grid in grids]
    draws = counter.uniform(key, positions, sum(cells)).double() - 0.5
    total = torch.zeros(len(positions), SIDE, SIDE, dtype=torch.float64)
    for grid, values in zip(grids, torch.split(draws, cells, dim=1), strict=True):
        blend = _blend(grid)
        total += blend @ values.reshape(-1, grid, grid) @ blend.T
    return total * math.sqrt(12 / len(grids))


def _blend(grid: int) -> Float64[Tensor, "pixels grid"]:
    """The weights of linear interpolation from the cells of a row to the pixels of a row."""
    pixels = (torch.arange(SIDE, dtype=torch.float64) + 0.5) * grid / SIDE - 0.5
    distance = pixels.clamp(0, grid - 1)[:, None] - torch.arange(grid, dtype=torch.float64)
    return (1 - distance.abs()).clamp(min=0)


def color(luminance: Column, chroma: Column | float, hue: Column) -> Float64[Tensor, "n 3 1 1"]:
    """Red, green and blue for a luminance and a hue in turns; a hue alone never changes the luminance.

    >>> half = torch.tensor([0.5], dtype=torch.float64)
    >>> [round(channel, 3) for channel in color(half, 0.2, 0 * half).flatten().tolist()]     # a red
    [0.71, 0.41, 0.41]
    """
    thirds = torch.tensor([0, 1 / 3, 2 / 3], dtype=torch.float64)
    tint = (2 * math.pi * (hue[:, None] - thirds)).cos()
    tint = tint - (tint * torch.tensor(_LUMINANCE, dtype=torch.float64)).sum(dim=1, keepdim=True)
    strength = torch.as_tensor(chroma, dtype=torch.float64).reshape(-1, 1)
    return (luminance[:, None] + strength * tint)[:, :, None, None]
