"""What is chosen by the images and the machine: rules, limits, and the lines that say it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from iecl.data.defaults import resolve_data
from iecl.errors import UserError
from iecl.training.choices import (
    LIMIT,
    Said,
    check_batch,
    check_memory,
    choice_lines,
    estimate_lines,
    rungs,
    with_batch,
    within_limit,
    within_memory,
)
from iecl.training.config import RunConfig, layers, make_config, with_data


def given(data: str | Path = "shapes", *sets: str, method: str = "simclr", recipe: str = "") -> tuple[RunConfig, Said]:
    said: dict[str, Any] = {"method": method, "recipe": recipe, "flags": {"data": {"name": str(data)}}, "sets": sets}
    return make_config(**said), Said.of(*layers(**said))


@dataclass(frozen=True)
class Made:
    """A cost as a machine could have it, which grows with the network and the square of the views."""

    speed: float = 1.0
    busy: float = 1.0

    def epoch_seconds(self, config: RunConfig, images: int) -> float:
        weight = {"resnet18": 9.0, "resnet18-small": 90.0, "resnet10-w32": 10.0, "resnet10-w16": 2.5}
        return images * weight[config.backbone.name] * (config.data.image_size / 128) ** 2 / 1000 / self.speed

    def start_seconds(self, config: RunConfig, images: int) -> float:
        return 0.0

    def megabytes(self, config: RunConfig, images: int) -> float:
        return 500 + 10 * config.training.batch_size

    def disk_megabytes(self) -> float:
        return 100.0


@pytest.mark.parametrize(
    ("images", "batch"), [(2, 2), (3, 2), (7, 2), (40, 16), (200, 64), (511, 128), (512, 256), (10**6, 256)]
)
def test_a_batch_is_filled_even_if_half_of_the_images_cannot_be_read(images: int, batch: int) -> None:
    assert with_batch(*given(), images).training.batch_size == batch


def test_a_recipe_keeps_its_batch_unless_the_images_do_not_fill_it() -> None:
    config, said = given("shapes", recipe="simclr/cifar")
    assert with_batch(config, said, 50_000).training.batch_size == 512
    small = with_batch(config, said, 200)
    assert small.training.batch_size == 64
    assert small.optimizer.peak(64) == pytest.approx(1.0 * 64 / 256)  # the recipe's own rule


def test_a_batch_that_was_typed_is_kept_or_refused() -> None:
    assert with_batch(*given("shapes", "training.batch_size=30"), 40).training.batch_size == 30
    typed, _ = given("shapes", "training.batch_size=64")
    with pytest.raises(UserError, match=r"40 images do not fill a batch of 64 \(--batch-size\); give 40 or less"):
        check_batch(typed, 40)


def test_a_batch_is_shared_by_all_processes_and_never_below_what_the_method_needs() -> None:
    assert with_batch(*given("shapes", "training.devices=3"), 100).training.batch_size % 3 == 0
    assert with_batch(*given(), 300, least=200).training.batch_size == 200
    with pytest.raises(UserError, match="simclr needs batches of 512, there are 300 images"):
        with_batch(*given(), 300, least=512)


def test_without_a_gpu_smaller_networks_and_views_are_tried_in_turn() -> None:
    found = [(made.backbone.name, made.data.image_size) for made in rungs(*given("shapes"))]
    assert found == [("resnet18-small", 32), ("resnet10-w32", 32), ("resnet10-w16", 32)]
    config, said = given("shapes", "data.image_size=224")
    assert [(made.backbone.name, made.data.image_size) for made in rungs(config, said)] == [("resnet18", 224)]
    open_size = replace(said, fixed=said.fixed - {"data.image_size"})
    found = [(made.backbone.name, made.data.image_size) for made in rungs(config, open_size)]
    assert found == [("resnet10-w32", 64), ("resnet10-w16", 64), ("resnet10-w16", 32)]
    policies = [made.augmentation.policy for made in rungs(config, open_size)]
    assert policies == ["simclr-small"] * 3  # views follow the size


def test_what_was_said_is_never_changed_to_save_time() -> None:
    config, said = given("shapes", "training.epochs=1000", "backbone.name=resnet18", "data.image_size=96")
    made, _ = within_limit(config, said, 10**6, lambda tried: Made())
    assert (made.training.epochs, made.backbone.name, made.data.image_size) == (1000, "resnet18", 96)


@pytest.mark.parametrize(
    ("images", "epochs"), [(10, 400), (300, 200), (700, 100), (10_000, 50), (20_000, 30), (10**6, 2), (10**8, 1)]
)
def test_as_many_epochs_are_chosen_as_end_within_the_limit(images: int, epochs: int) -> None:
    config, said = given("shapes", "backbone.name=resnet10-w16", "data.image_size=128")
    made, cost = within_limit(config, said, images, lambda tried: Made(speed=1.0 if images < 10**6 else 4.0))
    assert made.training.epochs == epochs
    assert cost is not None
    assert epochs == 1 or epochs * cost.epoch_seconds(made, images) <= LIMIT


@pytest.mark.parametrize(("images", "batch"), [(200, 64), (700, 64), (2_000, 128), (10_000, 128), (40_000, 256)])
def test_a_batch_is_small_enough_for_a_thousand_steps(images: int, batch: int) -> None:
    made, _ = within_limit(*given(), images, lambda tried: Made())
    assert made.training.batch_size == batch
    typed, _ = within_limit(*given("shapes", "training.batch_size=256"), images, lambda tried: Made())
    assert typed.training.batch_size == 256


def test_a_smaller_network_is_chosen_where_a_large_one_has_no_time_to_learn() -> None:
    names = [within_limit(*given(), images, lambda tried: Made())[0].backbone.name for images in (1000, 40_000, 10**6)]
    assert names == ["resnet18-small", "resnet10-w32", "resnet10-w16"]


def test_what_cannot_be_tried_stays_as_it_is() -> None:
    config, said = given()
    made, cost = within_limit(config, said, 100, lambda tried: None)
    assert cost is None
    assert made == with_data(config, resolve_data(config.data))


def test_a_chosen_batch_is_halved_until_it_fits_and_a_typed_one_is_refused_only_when_it_is_far_too_large() -> None:
    config, said = given()
    assert within_memory(config, said, 10**6, Made(), 5000, 2).training.batch_size == 256
    assert within_memory(config, said, 10**6, Made(), 2500, 2).training.batch_size == 128
    typed = given("shapes", "training.batch_size=256")
    assert within_memory(*typed, 10**6, Made(), 2500, 2).training.batch_size == 256
    check_memory(typed[0], 10**6, Made(), 2500)  # forecasts are a fifth off
    with pytest.raises(UserError, match=r"it would take about 3,060 MB of memory, 2,000 MB are free"):
        check_memory(typed[0], 10**6, Made(), 2000)


def test_each_choice_is_a_line_with_its_flag_and_what_was_typed_has_none() -> None:
    config, said = given("shapes", "training.epochs=3")
    whole = with_data(config, resolve_data(config.data))
    lines = choice_lines(whole, said, 200, "2 cores and no GPU", 12.0)
    assert lines[0] == "chosen for 200 images, 2 cores and no GPU; each line ends with the flag that changes it:"
    for flag in ("--image-size", "--backbone", "--batch-size", "--precision", "--workers", "optimizer.warmup_epochs"):
        assert len([line for line in lines if flag in line]) == 1
    assert not any("--epochs" in line for line in lines)
    assert any("all images, 12 MB" in line for line in lines)


def test_the_estimate_says_how_to_shorten_a_run_of_hours() -> None:
    config, _ = given("shapes", "backbone.name=resnet10-w16", "data.image_size=128")
    (line,) = estimate_lines(config, 800, Made(), 8000)
    assert line.startswith("estimate: about 3 min, 3,060 MB of memory (8,000 MB are free), 100 MB on disk")
    long = estimate_lines(config, 100_000, Made(busy=2.0), 0)
    assert "13 h 53 min while others use this machine too" in long[0]
    assert long[1] == "this is long: --epochs 3 takes about 25 min"
