"""What every method promises, for each row of the table."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from iecl.methods import METHODS
from iecl.methods.contract import Method
from iecl.parallel import gather
from iecl.schedule import Clock
from iecl.training.config import make_config, with_data
from iecl.training.factory import build_method
from iecl.views.pipeline import Views
from iecl.views.policies import ViewSpec

# Small parts, so that every method steps in milliseconds; a method that is not here keeps the sizes of its recipe.
CHOICES: dict[str, list[str]] = {
    "ie-cl": ["method.hidden_dim=16", "method.out_dim=8"],
    "simclr": ["method.hidden_dim=16", "method.out_dim=8"],
    "moco-v2": ["method.hidden_dim=16", "method.out_dim=8", "method.queue_size=32"],
    "moco-v3": ["method.hidden_dim=16", "method.out_dim=8", "method.predictor_hidden_dim=16"],
    "byol": ["method.hidden_dim=16", "method.out_dim=8", "method.predictor_hidden_dim=16"],
    "simsiam": ["method.hidden_dim=16", "method.out_dim=16", "method.predictor_hidden_dim=8"],
    "nnclr": ["method.hidden_dim=16", "method.out_dim=8", "method.predictor_hidden_dim=16", "method.queue_size=32"],
    "all4one": [
        "method.hidden_dim=16",
        "method.out_dim=8",
        "method.predictor_hidden_dim=16",
        "method.queue_size=32",
        "method.heads=2",
    ],
    "swav": ["method.hidden_dim=16", "method.out_dim=8", "method.num_prototypes=6"],
    "deepcluster": ["method.num_clusters=5", "method.components=8"],
    "deepcluster-v2": ["method.hidden_dim=16", "method.out_dim=8", "method.num_clusters=5"],
    "minent": ["method.hidden_dim=16", "method.heads=[8, 6]"],
    "s3oc": ["method.num_clusters=[8, 6]"],
    "dino": ["method.hidden_dim=16", "method.out_dim=8", "method.num_prototypes=6"],
    "light-moco": ["method.hidden_dim=16", "method.out_dim=8", "method.queue_size=32", "method.plain_epochs=0"],
    "matrix-ssl": ["method.hidden_dim=16", "method.out_dim=8", "method.predictor_hidden_dim=8"],
    "w-mse": ["method.hidden_dim=16", "method.out_dim=2"],
    "barlow-twins": ["method.hidden_dim=16", "method.out_dim=16"],
    "vicreg": ["method.hidden_dim=16", "method.out_dim=16"],
    "viewmaker": ["method.hidden_dim=16", "method.out_dim=8", "method.width=4"],
    "supervised": [],
    "random": [],
}
SAMPLES = 24
VARIANTS = [
    *((name, []) for name in METHODS),
    ("ie-cl", ["saib.form=certified"]),
    ("ie-cl", ["saib.form=batch", "objective.encoder=spectral-norm", "objective.kl=gaussian-diag"]),
    ("moco-v2", ["method.symmetric=true"]),
    ("moco-v2", ["method.queue_size=0"]),
    ("moco-v2", ["method.norm_groups=2"]),
    ("simclr", ["method.norm=false"]),
    ("moco-v3", ["method.predictor_norm=true", "method.num_layers=3", "method.temperature=1.0"]),
    ("light-moco", ["method.symmetric=false", "method.spread=halving"]),
    ("light-moco", ["method.norm_groups=2"]),
    ("swav", ["method.local_crops=2", "method.queue_size=16", "method.queue_start_epoch=0", "method.freeze_epochs=0"]),
    ("deepcluster-v2", ["method.local_crops=2", "method.bank=1"]),
    ("dino", ["method.local_crops=2", "method.freeze_epochs=1", "method.teacher_warmup_epochs=2"]),
    ("swav", ["saib.form=certified", "objective.entropy=coding-rate"]),
    ("minent", ["objective.entropy=coding-rate", "objective.encoder=spectral-norm"]),
    ("w-mse", ["method.num_views=4", "method.whitening_size=4", "method.whitening_repeats=2"]),
    ("matrix-ssl", ["method.ridge=0.5", "method.weight=0.5", "method.alignment=0.0"]),
    ("barlow-twins", ["method.scale=0.1", "method.bias_lr=0.01"]),
    ("viewmaker", ["method.num_layers=1", "saib.form=certified"]),
    ("vicreg", ["objective.entropy=coding-rate", "objective.kl=gaussian-diag"]),
]
IDS = ["+".join([name, *sets]) for name, sets in VARIANTS]
BY_SLOT = ("saib.form=batch", "norm_groups")
"""Variants in which the place in the batch matters: a block with weights for each slot, a norm over groups of slots."""


def make(name: str, sets: list[str], batch: int = 8) -> Method:
    from dataclasses import replace

    config = make_config(
        method=name,
        flags={"data": {"name": "shapes"}, "backbone": {"name": "resnet10-w16"}, "training": {"batch_size": batch}},
        sets=[*CHOICES.get(name, []), *sets],
    )
    data = replace(config.data, image_size=16, decode_size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    return build_method(with_data(config, data), samples=SAMPLES, classes=4)


def views(spec: ViewSpec | None = None, count: int = 8, side: int = 16) -> Views:
    """Noisy views of the same images, which are the first of the dataset; labels repeat."""
    spec, noise = spec or ViewSpec(), torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, side, side, generator=noise)
    full = tuple(images + 0.1 * torch.randn(count, 3, side, side, generator=noise) for _ in range(spec.global_crops))
    part = spec.local_size(side)
    small = tuple(images[..., :part, :part] + 0.1 * i for i in range(spec.local_crops))
    return Views(full, torch.arange(count), torch.arange(count) % 4, torch.arange(count), small)


def survey(encode: Callable[[Tensor], Tensor]) -> Tensor:
    """All samples of the dataset through a function."""
    return encode(torch.randn(SAMPLES, 3, 16, 16, generator=torch.Generator().manual_seed(1))).detach()


CLOCK = Clock(seed=0, step=0, steps=100, epoch=0, epochs=1)


def ready(name: str, sets: list[str]) -> Method:
    """A method at the start of its first epoch."""
    method = make(name, sets)
    method.before_epoch(survey, CLOCK)
    return method


def train(method: Method, first: int, steps: int, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        clock = Clock(seed=0, step=step, steps=100, epoch=0, epochs=1)
        total = sum(method.step(views(method.views), clock).losses.values())
        total.backward()
        method.after_backward(clock)
        optimizer.step()
        optimizer.zero_grad()
        method.after_step(clock)
        losses.append(total.item())
    return losses


def optimizer_of(method: Method, rate: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=rate)


@pytest.mark.parametrize(("name", "sets"), VARIANTS, ids=IDS)
def test_every_trainable_weight_receives_a_gradient(name: str, sets: list[str]) -> None:
    method = ready(name, sets)
    made = method.step(views(method.views), CLOCK)
    assert all(value.ndim == 0 and value.isfinite() for value in made.losses.values())
    sum(made.losses.values()).backward()
    assert [n for n, p in method.named_parameters() if p.requires_grad and p.grad is None] == []
    assert [n for n, p in method.named_parameters() if not p.requires_grad and p.grad is not None] == []


@pytest.mark.parametrize(
    ("name", "sets"), [v for v in VARIANTS if v[0] != "random"], ids=[i for i in IDS if i != "random"]
)
def test_a_fixed_batch_is_learnt(name: str, sets: list[str]) -> None:
    # `random` is the exception: it learns nothing by design.
    method = ready(name, sets)
    losses = train(method, 0, 30, optimizer_of(method, 3e-3))
    # Only from the fifth step on a queue of 32 holds no random keys any more; by then other methods know the batch.
    assert losses[-1] < max(losses[0], losses[4]) - 0.05


@pytest.mark.parametrize(("name", "sets"), VARIANTS, ids=IDS)
def test_saving_loading_and_going_on_equals_going_on(name: str, sets: list[str]) -> None:
    straight, paused = ready(name, sets), ready(name, sets)
    mine, theirs = optimizer_of(straight), optimizer_of(paused)
    train(straight, 0, 4, mine)
    train(paused, 0, 2, theirs)
    resumed = make(name, sets)
    resumed.load_state_dict(paused.state_dict())
    optimizer = optimizer_of(resumed)
    optimizer.load_state_dict(theirs.state_dict())
    train(resumed, 2, 2, optimizer)
    assert straight.state_dict().keys() == resumed.state_dict().keys()
    different = [n for n, value in straight.state_dict().items() if not torch.equal(value, resumed.state_dict()[n])]
    assert different == []


@pytest.mark.parametrize(
    ("name", "sets"),
    [v for v, i in zip(VARIANTS, IDS, strict=True) if not any(word in i for word in BY_SLOT)],
    ids=[i for i in IDS if not any(word in i for word in BY_SLOT)],
)
def test_the_order_of_a_batch_does_not_matter(name: str, sets: list[str]) -> None:
    given, order = views(make(name, sets).views), torch.tensor([5, 2, 7, 0, 1, 6, 3, 4])
    full, small = (tuple(x[order] for x in some) for some in (given.global_crops, given.local_crops))
    turned = Views(full, order, given.labels[order], order, small)
    first, second = (sum(ready(name, sets).step(v, CLOCK).losses.values()).item() for v in (given, turned))
    assert first == pytest.approx(second, abs=1e-5)


@pytest.mark.parametrize(("name", "sets"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("side", [16, 17, 31])
def test_bfloat16_and_odd_sizes_give_finite_losses_and_gradients(name: str, sets: list[str], side: int) -> None:
    if side != 16 and any("saib" in choice for choice in sets):
        pytest.skip("a block is built for one image size")
    method = ready(name, sets)
    with torch.autocast("cpu", torch.bfloat16):
        losses = method.step(views(method.views, side=side), CLOCK).losses
    total = sum(value.float() for value in losses.values())
    total.backward()
    assert total.isfinite()
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


@pytest.mark.parametrize(("name", "sets"), VARIANTS, ids=IDS)
def test_two_backward_passes_may_share_an_optimizer_step(name: str, sets: list[str]) -> None:
    method = ready(name, sets)
    for _ in range(2):
        sum(method.step(views(method.views), CLOCK).losses.values()).backward()
    method.after_backward(CLOCK)
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


@pytest.mark.parametrize(("name", "sets"), VARIANTS, ids=IDS)
def test_encoding_changes_no_state(name: str, sets: list[str]) -> None:
    method = ready(name, sets).eval()
    before = {n: value.clone() for n, value in method.state_dict().items()}
    with torch.no_grad():
        method.encoder()(views().global_crops[0])
    assert all(torch.equal(value, before[n]) for n, value in method.state_dict().items())


def test_a_method_that_no_table_here_names_is_built_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CHOICES, "simclr")
    assert isinstance(make("simclr", []), Method)


def test_the_same_seed_builds_the_same_method() -> None:
    first, second = make("ie-cl", ["saib.form=certified"]), make("ie-cl", ["saib.form=certified"])
    assert all(torch.equal(value, second.state_dict()[n]) for n, value in first.state_dict().items())


def test_gathering_without_other_processes_is_the_identity() -> None:
    rows = torch.randn(3, 2)
    assert gather(rows) is rows
