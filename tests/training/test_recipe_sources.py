"""Numbers of recipes that a published command or file has: what the first line of a recipe claims must hold."""

from pathlib import Path

import pytest

import iecl.recipes
from iecl.recipes import list_recipes
from iecl.training.config import RunConfig, make_config, with_data


def resolved(recipe: str) -> RunConfig:
    return make_config(recipe=recipe, flags={"data": {"name": "shapes"}})


def is_solo_learns(recipe: str) -> bool:
    """Whether a recipe is solo-learn's file for CIFAR with LARS."""
    text = (Path(iecl.recipes.__file__).parent / f"{recipe}.toml").read_text(encoding="utf-8")
    return recipe.endswith("/cifar") and "solo-learn" in text and 'name = "lars"' in text


@pytest.mark.parametrize("recipe", [name for name in list_recipes() if is_solo_learns(name)])
def test_solo_learns_lars_is_clipped(recipe: str) -> None:
    # scripts/pretrain/cifar/*.yaml of solo-learn: wherever the optimizer is lars, eta is 0.02 and clip_lr is true.
    optimizer = resolved(recipe).optimizer
    assert (optimizer.name, optimizer.trust_coefficient, optimizer.trust_clip) == ("lars", 0.02, True)


def test_dino_on_imagenet_is_the_authors_command() -> None:
    # README: ResNet-50, one node of 8 GPUs, 100 epochs; main_dino.py: 64 images on each, the rest of its defaults.
    config = resolved("dino/imagenet")
    assert (config.training.epochs, config.training.batch_size) == (100, 512)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.weight_decay, optimizer.warmup_epochs, optimizer.grad_clip) == (
        "sgd",
        1e-4,
        10,
        3,
    )
    peak = optimizer.peak(512)
    assert peak == pytest.approx(0.06)
    assert peak * optimizer.min_lr_ratio == pytest.approx(1e-6, rel=1e-3)
    method = config.method
    assert (method["local_crops"], method["crop_split"], method["num_prototypes"]) == (8, 0.14, 65536)


@pytest.mark.parametrize(
    ("recipe", "is_zero"),
    [
        ("simsiam/imagenet", True),
        ("matrix-ssl/imagenet", True),
        ("matrix-ssl/cifar", True),  # after the same source
        ("barlow-twins/imagenet", True),
        ("vicreg/imagenet", True),
        ("simsiam/cifar", False),  # these three after solo-learn, which leaves residuals as torchvision draws them
        ("barlow-twins/cifar", False),
        ("vicreg/cifar", False),
        ("simclr/imagenet", False),
        ("simsiam/default", False),
    ],
)
def test_residuals_start_at_zero_where_the_source_starts_them_so(recipe: str, is_zero: bool) -> None:
    config = resolved(recipe)
    assert config.backbone.zero_init_residual == is_zero
    chosen = with_data(config, config.data).backbone  # choices that follow from the data keep it
    assert chosen.zero_init_residual == is_zero
