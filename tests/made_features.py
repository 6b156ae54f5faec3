"""Features without images: clouds whose classes can be told apart more or less well."""

import torch

from iecl.evaluation.features import Features


def clouds(count: int, seed: int, spread: float, classes: int = 5, width: int = 16) -> Features:
    """Gaussian clouds around centers that are the same for every seed."""
    made = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, width, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(classes, (count,), generator=made)
    return Features(centers[labels] + spread * torch.randn(count, width, generator=made), labels, torch.arange(count))


def skewed(count: int, seed: int, spread: float = 2.0, classes: int = 10, width: int = 32) -> Features:
    """Clouds as a backbone makes them: positive, correlated, and of scales that differ by a hundred."""
    plain = clouds(count, seed, spread, classes, width)
    turn = torch.randn(width, width, generator=torch.Generator().manual_seed(1)) * torch.logspace(-1, 1, width)
    return Features((plain.values @ turn).relu() + 0.1, plain.labels, plain.index)
