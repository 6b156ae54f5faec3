"""A look at every sample: each once, in order, and nothing else changes."""

from dataclasses import replace
from pathlib import Path

import torch

from iecl.data.opening import open_source
from iecl.data.resolve import resolve_data
from iecl.training.plan import make_plan
from iecl.training.surveying import survey_source
from iecl.views.making import make_plain


def test_every_sample_is_seen_once_in_the_order_of_the_source(picture_folder: Path) -> None:
    plan = make_plan(flags={"data": {"name": str(picture_folder)}, "training": {"batch": 7}})
    plan = replace(plan, data=replace(resolve_data(plan.data), workers=0))
    source = open_source(plan.data, "pretrain")
    seen = []

    def encode(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return x.mean(dim=(2, 3))

    found = survey_source(source, plan, torch.device("cpu"), encode)
    pixels = source.read(torch.arange(len(source)).numpy())
    data = plan.data
    plain = make_plain(pixels.images, pixels.sizes, data.image_size, data.mean, data.std, 1.0)
    assert sum(seen) == len(source)
    assert torch.allclose(found, plain.mean(dim=(2, 3)), atol=1e-5)


def test_a_file_that_cannot_be_read_leaves_a_row_of_zeros(picture_folder: Path) -> None:
    sorted(picture_folder.rglob("*.png"))[3].write_bytes(b"no picture")
    plan = make_plan(flags={"data": {"name": str(picture_folder), "resident_megabytes": 0}, "training": {"batch": 7}})
    plan = replace(plan, data=replace(resolve_data(plan.data), workers=0))
    source = open_source(plan.data, "pretrain")
    found = survey_source(source, plan, torch.device("cpu"), lambda x: x.new_ones(len(x), 2))
    assert found.sum(dim=1).tolist() == [0.0 if row == 3 else 2.0 for row in range(len(source))]
