"""Features: what the backbone says of each image, and nothing done to the backbone."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from iecl.backbones.factory import make_backbone
from iecl.data.folder import FolderSource
from iecl.data.labels import class_folders, numbered
from iecl.data.listing import list_images
from iecl.data.source import ArraySource
from iecl.evaluation.features import Features, evaluating, extract, extract_crops

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)


def twelve(side: int = 16) -> ArraySource:
    images = torch.randint(0, 256, (12, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ArraySource("twelve", images, torch.arange(12).numpy() % 3, ("a", "b", "c"))


def plain(backbone: nn.Module, source: ArraySource | FolderSource, batch: int = 256, share: float = 1.0) -> Features:
    return extract(backbone, source, image_size=16, mean=MEAN, std=STD, share=share, batch=batch)


@pytest.fixture
def backbone() -> nn.Module:
    made = make_backbone("resnet10-w16", seed=5)
    made(torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(1)))  # batch norm takes note
    return made


def test_features_are_those_of_the_normalized_images_in_evaluation_mode(backbone: nn.Module) -> None:
    source = twelve()
    found = plain(backbone, source)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    with torch.no_grad():
        expected = backbone.eval()((source.images / 255 - mean) / std)
    torch.testing.assert_close(found.values, expected, atol=1e-5, rtol=1e-5)  # another memory layout rounds otherwise
    assert found.labels.tolist() == source.labels.tolist()
    assert found.index.tolist() == list(range(12))


def test_of_a_large_image_the_middle_is_seen(backbone: nn.Module) -> None:
    source = twelve(side=32)
    middle = ArraySource("middle", source.images[:, :, 8:24, 8:24].contiguous())
    torch.testing.assert_close(plain(backbone, source, share=0.5).values, plain(backbone, middle).values)


@pytest.mark.parametrize("batch", [1, 5, 12])
def test_the_size_of_a_batch_changes_nothing_but_rounding(backbone: nn.Module, batch: int) -> None:
    torch.testing.assert_close(plain(backbone, twelve(), batch).values, plain(backbone, twelve()).values)


def test_extraction_leaves_the_backbone_as_it_was(backbone: nn.Module) -> None:
    backbone.train()
    backbone.get_submodule("layer1").eval()  # frozen on purpose: it must not come back in training mode
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    modes = [part.training for part in backbone.modules()]
    plain(backbone, twelve())
    after = backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [part.training for part in backbone.modules()] == modes
    assert all(weight.grad is None for weight in backbone.parameters())


def test_the_mode_comes_back_after_an_error(backbone: nn.Module) -> None:
    backbone.train()
    with pytest.raises(RuntimeError), evaluating(backbone):
        backbone(torch.zeros(1))
    assert backbone.training


def test_features_can_be_learnt_from(backbone: nn.Module) -> None:
    found = plain(backbone, twelve())
    assert not found.values.requires_grad  # the backbone stays out of it
    head = nn.Linear(128, 1)
    head(found.values).sum().backward()
    torch.testing.assert_close(head.weight.grad, found.values.sum(dim=0, keepdim=True))


def test_a_broken_file_is_left_out_and_named(backbone: nn.Module, images: Path) -> None:
    listing = list_images(images)
    labels = numbered(listing, class_folders(listing, "folders"))
    source = FolderSource(listing, labels, ("blue", "green", "red"), side=16, max_pixels=10**6)
    named: list[str] = []
    found = extract(
        backbone, source, image_size=16, mean=MEAN, std=STD, share=1.0, on_bad=lambda path, _: named.append(path)
    )
    assert [Path(path).name for path in named] == ["broken.png"]
    assert found.values.shape == (30, 128)
    assert found.index.tolist() == [*range(20), *range(21, 31)]  # blue 0 to 9, green 10 to 19, broken, red
    assert found.labels.bincount().tolist() == [10, 10, 10]


def test_progress_ends_at_the_number_of_images(backbone: nn.Module) -> None:
    told: list[tuple[int, int]] = []
    extract(
        backbone,
        twelve(),
        image_size=16,
        mean=MEAN,
        std=STD,
        share=1.0,
        batch=5,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(5, 12), (10, 12), (12, 12)]


def crops(backbone: nn.Module, seed: int, epoch: int, batch: int = 256) -> Tensor:
    made = extract_crops(backbone, twelve(), image_size=16, mean=MEAN, std=STD, seed=seed, epoch=epoch, batch=batch)
    return made.values


def test_crops_are_decided_by_seed_and_epoch_and_not_by_the_batch(backbone: nn.Module) -> None:
    first = crops(backbone, seed=0, epoch=0)
    torch.testing.assert_close(crops(backbone, seed=0, epoch=0, batch=5), first)
    assert not torch.allclose(crops(backbone, seed=0, epoch=1), first)
    assert not torch.allclose(crops(backbone, seed=1, epoch=0), first)
    assert not torch.allclose(plain(backbone, twelve()).values, first)


def test_crops_keep_the_colors(backbone: nn.Module) -> None:
    flat = torch.tensor([200, 100, 50], dtype=torch.uint8)[None, :, None, None].expand(1, 3, 16, 16).contiguous()
    source = ArraySource("flat", flat)
    cut = extract_crops(backbone, source, image_size=16, mean=MEAN, std=STD, seed=0, epoch=0)
    torch.testing.assert_close(cut.values, plain(backbone, source).values, atol=1e-4, rtol=1e-4)


def test_rows_without_a_label_are_dropped_with_their_numbers() -> None:
    some = Features(torch.eye(3), torch.tensor([2, -1, 0]), torch.tensor([7, 8, 9])).labeled("train")
    assert (some.labels.tolist(), some.index.tolist()) == ([2, 0], [7, 9])
    assert torch.equal(some.values, torch.eye(3)[[0, 2]])
