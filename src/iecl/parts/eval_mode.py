"""A look through modules that leaves no trace in their statistics."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while: running statistics in batch norms, which do not move."""
    before = {part: part.training for module in modules for part in module.modules()}  # some may rest for good
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, was_training in before.items():
            part.training = was_training
