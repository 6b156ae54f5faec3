"""What every method keeps to, as checks for one of your own: `check_method(MyMethod)` in a test is all it takes.

They need no data and no run: small images of noise, a small backbone, some steps. A promise that is broken is an
`AssertionError` that names it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from iecl.arguments import Arguments
from iecl.brought import at_hand
from iecl.methods.contract import Method
from iecl.schedule import Clock
from iecl.training.config import make_config, with_data
from iecl.training.factory import build_method
from iecl.views.pipeline import Views
from iecl.views.policies import ViewSpec

SAMPLES, BATCH, SIDE, CLASSES = 24, 8, 16, 4
CLOCK = Clock(seed=0, step=0, steps=100, epoch=0, epochs=1)
Make = Callable[[], Method]
"""Builds the method anew, with the same weights each time."""


def check_method(method: Any, sets: Iterable[str] = (), *, learns: bool = True, ignores_order: bool = True) -> None:
    """Hold a method to the contract of `iecl.methods.contract.Method`.

    Args:
        method: its class, its name, or `package.module:Class`.
        sets: settings, as in `["method.hidden_dim=16"]`: small ones make it quick.
        learns: whether a batch that stays the same must be learned.
        ignores_order: whether the loss must not depend on the order of a batch.

    Raises:
        AssertionError: a promise is broken.
    """
    arguments = Arguments()
    name, chosen = arguments.method(method), list(sets)
    with at_hand(arguments.things):
        checks = [
            gradients_arrive,
            resuming_is_exact,
            odd_sizes_and_bfloat16_are_finite,
            passes_add_up,
            encoding_is_pure,
        ]
        checks += [learning_happens] * learns + [order_is_ignored] * ignores_order
        for check in checks:
            check(lambda: build(name, chosen))


def build(name: str, sets: Iterable[str], batch: int = BATCH) -> Method:
    """A method with a small backbone, for images of 16 px."""
    flags = {"data": {"name": "shapes"}, "backbone": {"name": "resnet10-w16"}, "training": {"batch_size": batch}}
    config = make_config(method=name, flags=flags, sets=sets)
    data = replace(config.data, image_size=SIDE, decode_size=SIDE, mean=(0.5,) * 3, std=(0.25,) * 3)
    return build_method(with_data(config, data), samples=SAMPLES, classes=CLASSES)


def noisy_views(spec: ViewSpec | None = None, count: int = BATCH, side: int = SIDE) -> Views:
    """Noisy views of the same images, which are the first of the dataset; labels repeat."""
    spec, noise = spec or ViewSpec(), torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, side, side, generator=noise)
    full = tuple(images + 0.1 * torch.randn(count, 3, side, side, generator=noise) for _ in range(spec.global_crops))
    part = spec.local_size(side)
    small = tuple(images[..., :part, :part] + 0.1 * i for i in range(spec.local_crops))
    return Views(full, torch.arange(count), torch.arange(count) % CLASSES, torch.arange(count), small)


def survey(encode: Callable[[Tensor], Tensor]) -> Tensor:
    """All samples of the dataset through a function."""
    return encode(torch.randn(SAMPLES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))).detach()


def ready(make: Make) -> Method:
    """A method at the start of its first epoch."""
    method = make()
    method.before_epoch(survey, CLOCK)
    return method


def optimizer_of(method: Method, lr: float = 1e-3) -> torch.optim.Optimizer:
    """AdamW over all that is trained."""
    return torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=lr)


def train(method: Method, first: int, steps: int, optimizer: torch.optim.Optimizer) -> list[float]:
    """Steps on one batch; returns the losses."""
    losses = []
    for step in range(first, first + steps):
        clock = replace(CLOCK, step=step)
        total = _total(method, noisy_views(method.views), clock)
        total.backward()  # type: ignore[no-untyped-call]
        method.after_backward(clock)
        optimizer.step()
        optimizer.zero_grad()
        method.after_step(clock)
        losses.append(total.item())
    return losses


def _total(method: Method, views: Views, clock: Clock = CLOCK) -> Tensor:
    return torch.stack([value.float() for value in method.step(views, clock).losses.values()]).sum()


def gradients_arrive(make: Make) -> None:
    """Losses are finite numbers; every trainable weight receives a gradient, and no other does."""
    method = ready(make)
    losses = method.step(noisy_views(method.views), CLOCK).losses
    wrong = [name for name, value in losses.items() if value.ndim or not value.isfinite()]
    assert not wrong, f"losses are finite scalars: {wrong} are not"
    sum(losses.values()).backward()  # type: ignore[union-attr]
    lost = [name for name, p in method.named_parameters() if p.requires_grad and p.grad is None]
    assert not lost, f"every trainable weight receives a gradient: {lost} do not"
    moved = [name for name, p in method.named_parameters() if not p.requires_grad and p.grad is not None]
    assert not moved, f"what is not trained receives no gradient: {moved} do"


def learning_happens(make: Make) -> None:
    """A batch that stays the same is learned."""
    method = ready(make)
    losses = train(method, 0, 30, optimizer_of(method, 3e-3))
    # Only from the fifth step on a queue of 32 holds no random keys any more; by then other methods know the batch.
    assert losses[-1] < max(losses[0], losses[4]) - 0.05, f"30 steps on one batch lower its loss: {losses[::5]}"


def resuming_is_exact(make: Make) -> None:
    """To save, load and go on equals to go on: all state is in parameters and persistent buffers."""
    straight, paused = ready(make), ready(make)
    mine, theirs = optimizer_of(straight), optimizer_of(paused)
    train(straight, 0, 4, mine)
    train(paused, 0, 2, theirs)
    resumed = make()
    resumed.load_state_dict(paused.state_dict())
    optimizer = optimizer_of(resumed)
    optimizer.load_state_dict(theirs.state_dict())
    train(resumed, 2, 2, optimizer)
    found = resumed.state_dict()
    assert straight.state_dict().keys() == found.keys(), "the state has the same names after every step"
    different = [name for name, value in straight.state_dict().items() if not torch.equal(value, found[name])]
    assert not different, f"all state is in parameters and persistent buffers: {different} differ after a pause"


def order_is_ignored(make: Make) -> None:
    """The order of a batch does not matter."""
    given, order = noisy_views(make().views), torch.tensor([5, 2, 7, 0, 1, 6, 3, 4])
    full, small = (tuple(x[order] for x in some) for some in (given.global_crops, given.local_crops))
    turned = Views(full, order, given.labels[order], order, small)
    first, second = (_total(ready(make), views).item() for views in (given, turned))
    assert abs(first - second) < 1e-5 + 1e-6 * abs(second), f"the order of a batch does not matter: {first}, {second}"


def odd_sizes_and_bfloat16_are_finite(make: Make, sides: Iterable[int] = (16, 17, 31)) -> None:
    """Losses and gradients are finite in bfloat16 and with images of any size."""
    for side in sides:
        method = ready(make)
        with torch.autocast("cpu", torch.bfloat16):
            total = _total(method, noisy_views(method.views, side=side))
        total.backward()  # type: ignore[no-untyped-call]
        is_finite = all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)
        assert is_finite, f"bfloat16 gives finite losses and gradients at {side} px"
        assert total.isfinite(), f"bfloat16 gives finite losses and gradients at {side} px"


def passes_add_up(make: Make) -> None:
    """Two backward passes may share an optimizer step."""
    method = ready(make)
    for _ in range(2):
        _total(method, noisy_views(method.views)).backward()  # type: ignore[no-untyped-call]
    method.after_backward(CLOCK)
    is_finite = all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)
    assert is_finite, "two backward passes may share an optimizer step"


def encoding_is_pure(make: Make) -> None:
    """To encode images in evaluation mode changes no state."""
    method = ready(make).eval()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    with torch.no_grad():
        method.encoder()(noisy_views().global_crops[0])
    changed = [name for name, value in method.state_dict().items() if not torch.equal(value, before[name])]
    assert not changed, f"encoding changes no state: {changed} change"
