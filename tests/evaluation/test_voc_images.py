"""Scaling, mirroring and cutting: boxes and masks stay on what they belong to."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from iecl.data.voc import open_boxes, open_masks
from iecl.evaluation.voc.images import CropRules, Cut, boxed, crop, draws, moved_back, resized_mask
from iecl.evaluation.voc.loader import Sample, VocLoader
from made_voc import MadeVoc

RED = torch.tensor([220, 40, 40]) / 255
UNIT = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def made(tmp_path: Path) -> MadeVoc:
    """One red rectangle in an image of 60×40, away from the middle."""
    voc = MadeVoc(tmp_path)
    voc.add("p0", [("aeroplane", (5, 9, 24, 32)), ("bird", (51, 31, 56, 38))], size=(60, 40), difficult=[1])
    voc.lists("one", ["p0"])
    return voc


def is_red(image: Tensor) -> Tensor:
    return (image - RED[:, None, None]).abs().amax(dim=0) < 0.02


def edges(inside: Tensor) -> Tensor:
    """Left, top, right and bottom of the pixels that are true."""
    rows, columns = inside.nonzero().unbind(dim=1)
    return torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("short", "longest", "size"), [(40, 999, (40, 60)), (80, 999, (80, 120)), (80, 90, (60, 90))])
def test_a_box_stays_on_its_rectangle(
    tmp_path: Path, mirrored: bool, short: int, longest: int, size: tuple[int, int]
) -> None:
    (example,) = open_boxes(made(tmp_path).devkit, "one").examples
    seen = boxed(example, short, longest, mirrored=mirrored, with_difficult=False)
    assert seen.image.shape[1:] == size
    # Antialiasing blurs the border by about a pixel of the result.
    torch.testing.assert_close(seen.boxes[0], edges(is_red(seen.image)), atol=2.1, rtol=0)
    assert seen.labels.tolist() == [1]


def test_a_mirrored_box_has_its_left_before_its_right_and_comes_back(tmp_path: Path) -> None:
    (example,) = open_boxes(made(tmp_path).devkit, "one").examples
    seen = boxed(example, 80, 999, mirrored=True, with_difficult=True)
    # Of 120 columns, those from 2 * 4 to 2 * 24 are mirrored to 72 to 112; the difficult bird comes along.
    assert seen.boxes.tolist() == [[72, 16, 112, 64], [8, 60, 20, 76]]
    plain = boxed(example, 80, 999, mirrored=False, with_difficult=True)
    assert example.boxes is not None
    assert moved_back(plain.boxes, (80, 120), (40, 60)).tolist() == example.boxes.corners.tolist()


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("scale", [(1.0, 1.0), (2.0, 2.0), (0.5, 0.5)])
@pytest.mark.parametrize("place", [0.0, 0.4])
def test_a_mask_stays_on_its_rectangle(tmp_path: Path, mirror: bool, scale: tuple[float, float], place: float) -> None:
    (example,) = open_masks(made(tmp_path).devkit, "one").examples
    rules = CropRules(side=48, long=0, scale=scale, contrast=0.0, mirror=mirror)
    image, mask = crop(example, Cut(0.0, place, place, 0.5, 0.0), rules, *UNIT)
    assert image.shape == (3, 48, 48)
    assert mask.shape == (48, 48)
    red, labeled = is_red(image), mask == 1
    assert red.any()
    # Where it is red it is labeled. At the border of the rectangle colors are mixed, which the label is not.
    assert labeled[red].all()
    torch.testing.assert_close(edges(red), edges(labeled), atol=2.1, rtol=0)


def test_what_lies_outside_the_image_is_ignored_and_of_the_mean_color(tmp_path: Path) -> None:
    (example,) = open_masks(made(tmp_path).devkit, "one").examples
    rules = CropRules(side=64, long=0, scale=(1.0, 1.0), contrast=0.0, mirror=False)
    image, mask = crop(example, Cut(0, 0.9, 0.9, 0.5, 1), rules, (0.4, 0.4, 0.4), (0.2, 0.2, 0.2))
    assert (mask[40:] == 255).all()
    assert (mask[:, 60:] == 255).all()
    assert not image[:, 40:].any()
    assert (mask[1:40, :60] != 255).all()


def test_contrast_goes_from_less_to_more(tmp_path: Path) -> None:
    (example,) = open_masks(made(tmp_path).devkit, "one").examples
    rules = CropRules(side=40, long=0, scale=(1.0, 1.0), contrast=0.4, mirror=False)
    spreads = [float(crop(example, Cut(0, 0, 0, drawn, 1), rules, *UNIT)[0].std()) for drawn in (0.0, 0.5, 1.0)]
    assert spreads[0] == pytest.approx(0.6 * spreads[1], rel=0.05)
    assert spreads[2] == pytest.approx(1.4 * spreads[1], rel=0.1)  # some values reach the end of the scale


def test_images_are_first_brought_to_their_longer_side(tmp_path: Path) -> None:
    (example,) = open_masks(made(tmp_path).devkit, "one").examples
    rules = CropRules(side=40, long=30, scale=(1.0, 1.0), contrast=0.0, mirror=False)
    _, mask = crop(example, Cut(0, 0, 0, 0.5, 1), rules, *UNIT)
    assert (mask[20:] == 255).all()
    assert (mask[1:20, :30] != 255).all()


def test_a_resized_mask_has_the_numbers_at_the_middles_of_its_pixels() -> None:
    mask = torch.arange(36, dtype=torch.uint8).view(6, 6)
    # Each of the four new pixels covers 3×3 old ones, whose middles are in row and column 1 and 4.
    assert resized_mask(mask, (2, 2)).tolist() == [[7, 10], [25, 28]]


# --- order


def itself(sample: Sample) -> Sample:
    return sample


def test_an_epoch_holds_every_image_and_every_batch_is_full() -> None:
    steps = list(VocLoader(load=itself, images=5, batch_size=2, seed=3).batches(0, 6))
    assert all(len(samples) == 2 for samples in steps)
    for epoch in (0, 1):
        samples = [sample for step in steps[3 * epoch : 3 * epoch + 3] for sample in step]
        rows = [sample.row for sample in samples]
        assert sorted(rows[:5]) == [0, 1, 2, 3, 4]
        assert rows[5] == rows[0]  # the last batch is filled up
        assert [sample.position for sample in samples] == [0, 1, 2, 3, 4, 5]
        assert {sample.epoch for sample in samples} == {epoch}
    assert [sample.row for step in steps[:3] for sample in step] != [
        sample.row for step in steps[3:] for sample in step
    ]


def test_threads_give_the_same_batches_in_the_same_order_from_any_step_on() -> None:
    plain, threaded = (VocLoader(load=itself, images=5, batch_size=2, seed=3, num_workers=n) for n in (0, 3))
    assert list(threaded.batches(2, 6)) == list(plain.batches(0, 6))[2:]


def test_one_image_makes_a_batch_of_several_crops() -> None:
    assert [sample.row for sample in VocLoader(load=itself, images=1, batch_size=3, seed=0).samples(0)] == [0, 0, 0]
    assert draws(0, 0, 0, 2) != draws(0, 0, 1, 2) != draws(0, 1, 0, 2)
    assert draws(0, 0, 0, 2) == draws(0, 0, 0, 2)
