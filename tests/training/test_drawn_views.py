"""Views drawn again are those that training saw."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from iecl.data.factory import open_source
from iecl.data.loader import Loader
from iecl.errors import UserError
from iecl.files import write_atomically
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig, config_from_values
from iecl.training.drawn_views import look, save_image
from iecl.views.pipeline import make_views
from iecl.views.policies import POLICIES, ViewSpec

BATCH, ACCUMULATE, EPOCHS = 5, 2, 2


@pytest.fixture
def config(image_folder: Path, tmp_path: Path) -> RunConfig:
    """A run of 40 images: four steps of ten in each epoch."""
    data = {"name": str(image_folder), "image_size": 16, "decode_size": 16, "mean": [0.5] * 3, "std": [0.25] * 3}
    values = {
        "method": {"name": "swav", "hidden_dim": 8, "out_dim": 4, "num_prototypes": 4, "local_crops": 2},
        "data": data | {"num_workers": 0},
        "augmentation": {"policy": "simclr"},
        "backbone": {"name": "resnet10-w16"},
        "training": {"batch_size": BATCH, "grad_accumulation": ACCUMULATE, "epochs": EPOCHS, "seed": 3},
    }
    made = config_from_values(values)
    write_atomically(RunDirectory.fresh(tmp_path / "run").settings, made.to_toml("made for a test"))
    return made


def test_a_row_of_a_step_is_what_training_saw(config: RunConfig, tmp_path: Path) -> None:
    loader = Loader(open_source(config.data, "pretrain"), batch=BATCH, seed=3)
    batches = list(loader.epoch(1))
    batch = batches[2 * ACCUMULATE + 1]  # the second half of the third step of the second epoch
    wanted = ViewSpec(local_crops=2, global_scale=(0.14, 1.0))
    where = {"size": 16, "mean": config.data.mean, "std": config.data.std}
    views = make_views(batch, POLICIES["simclr"], wanted, seed=3, epoch=1, **where)
    seen = look(tmp_path / "run", 4 + 3, row=BATCH + 2)
    assert (seen.epoch, seen.index, seen.step) == (1, int(batch.index[2]), 7)
    assert len(seen.views) == len(seen.draws) == 4
    for mine, theirs in zip(seen.views, (*views.global_crops, *views.local_crops), strict=True):
        assert torch.equal(mine, theirs[2])


def test_an_image_is_found_in_the_epoch_of_a_step(config: RunConfig, tmp_path: Path) -> None:
    row = look(tmp_path / "run", 2, row=7)
    again = look(tmp_path / "run", 1, index=row.index)
    assert (again.step, again.row, again.position) == (2, 7, 17)
    assert torch.equal(again.views[0], row.views[0])
    assert Path(row.path).name == Path(again.path).name


@pytest.mark.parametrize(
    ("step", "choice", "words"),
    [
        (0, {"row": 0}, "the run has steps 1 to 8"),
        (9, {"row": 0}, "the run has steps 1 to 8"),
        (1, {}, r"which image\?"),
        (1, {"row": 0, "index": 0}, r"which image\?"),
        (1, {"row": 10}, "a step has rows 0 to 9"),
        (1, {"index": 40}, "the data have images 0 to 39"),
    ],
)
def test_what_does_not_exist_is_told(
    config: RunConfig, tmp_path: Path, step: int, choice: dict[str, int], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        look(tmp_path / "run", step, **choice)


def test_the_image_has_the_plain_image_and_every_view(config: RunConfig, tmp_path: Path) -> None:
    seen = look(tmp_path / "run", 1, row=0)
    save_image(seen, config.data.mean, config.data.std, tmp_path / "seen.png")
    with Image.open(tmp_path / "seen.png") as image:
        assert image.size == (5 * 132 - 4, 128)
        corner = image.getpixel((0, 0))
    wanted = (seen.plain[:, 0, 0] * 0.25 + 0.5).clamp(0, 1) * 255
    assert corner == tuple(wanted.round().int().tolist())
    with pytest.raises(UserError, match=r"name a file that ends in \.png"):
        save_image(seen, config.data.mean, config.data.std, tmp_path / "seen.gif")
