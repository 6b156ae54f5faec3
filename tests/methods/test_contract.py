"""What every method promises, for each row of the table."""

import pytest
import torch

from iecl import testing
from iecl.methods import METHODS
from iecl.methods.contract import Method
from iecl.parallel import gather

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


def make(name: str, sets: list[str]) -> Method:
    return testing.build(name, [*CHOICES.get(name, []), *sets])


def some(*without: str) -> pytest.MarkDecorator:
    """All variants but those whose id has one of these words."""
    kept = [(v, i) for v, i in zip(VARIANTS, IDS, strict=True) if not any(word in i for word in without)]
    return pytest.mark.parametrize(("name", "sets"), [v for v, _ in kept], ids=[i for _, i in kept])


@some()
def test_every_trainable_weight_receives_a_gradient(name: str, sets: list[str]) -> None:
    testing.gradients_arrive(lambda: make(name, sets))


@some("random")  # it learns nothing by design
def test_a_fixed_batch_is_learnt(name: str, sets: list[str]) -> None:
    testing.learning_happens(lambda: make(name, sets))


@some()
def test_saving_loading_and_going_on_equals_going_on(name: str, sets: list[str]) -> None:
    testing.resuming_is_exact(lambda: make(name, sets))


@some(*BY_SLOT)
def test_the_order_of_a_batch_does_not_matter(name: str, sets: list[str]) -> None:
    testing.order_is_ignored(lambda: make(name, sets))


@some()
def test_bfloat16_and_odd_sizes_give_finite_losses_and_gradients(name: str, sets: list[str]) -> None:
    # A block is built for one image size, and IE-CL's default has one.
    is_blocked = name == "ie-cl" or any("saib" in choice for choice in sets)
    testing.odd_sizes_and_bfloat16_are_finite(lambda: make(name, sets), (16,) if is_blocked else (16, 17, 31))


@some()
def test_two_backward_passes_may_share_an_optimizer_step(name: str, sets: list[str]) -> None:
    testing.passes_add_up(lambda: make(name, sets))


@some()
def test_encoding_changes_no_state(name: str, sets: list[str]) -> None:
    testing.encoding_is_pure(lambda: make(name, sets))


def test_a_method_that_no_table_here_names_is_built_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CHOICES, "simclr")
    assert isinstance(make("simclr", []), Method)


def test_the_same_seed_builds_the_same_method() -> None:
    first, second = make("ie-cl", ["saib.form=certified"]), make("ie-cl", ["saib.form=certified"])
    assert all(torch.equal(value, second.state_dict()[n]) for n, value in first.state_dict().items())


def test_gathering_without_other_processes_is_the_identity() -> None:
    rows = torch.randn(3, 2)
    assert gather(rows) is rows
