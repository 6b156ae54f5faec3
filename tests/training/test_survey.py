"""A look at every sample: each once, in order, and nothing else changes."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from iecl.data.defaults import resolve_data
from iecl.data.factory import open_source
from iecl.training.config import make_config
from iecl.training.survey import survey_source
from iecl.views.pipeline import make_plain
from made_images import make_images


def test_every_sample_is_seen_once_in_the_order_of_the_source(image_folder: Path) -> None:
    config = make_config(flags={"data": {"name": str(image_folder)}, "training": {"batch_size": 7}})
    config = replace(config, data=replace(resolve_data(config.data), num_workers=0))
    source = open_source(config.data, "pretrain")
    seen = []

    def encode(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return x.mean(dim=(2, 3))

    found = survey_source(source, config, torch.device("cpu"), encode)
    pixels = source.read(torch.arange(len(source)).numpy())
    data = config.data
    plain = make_plain(pixels.images, pixels.sizes, data.image_size, data.mean, data.std, 1.0)
    assert sum(seen) == len(source)
    assert torch.allclose(found, plain.mean(dim=(2, 3)), atol=1e-5)


def test_a_file_that_cannot_be_read_leaves_a_row_of_zeros(image_folder: Path) -> None:
    sorted(image_folder.rglob("*.png"))[3].write_bytes(b"no image")
    config = make_config(
        flags={"data": {"name": str(image_folder), "cache_megabytes": 0}, "training": {"batch_size": 7}}
    )
    config = replace(config, data=replace(resolve_data(config.data), num_workers=0))
    source = open_source(config.data, "pretrain")
    found = survey_source(source, config, torch.device("cpu"), lambda x: x.new_ones(len(x), 2))
    assert found.sum(dim=1).tolist() == [0.0 if row == 3 else 2.0 for row in range(len(source))]


def surveyed(case: str, rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Rows of each sample, with a batch of so many images; the second case has few files that can be read."""
    folder, batch = case.split(" ")
    config = make_config(
        flags={"data": {"name": folder, "cache_megabytes": 0}, "training": {"batch_size": int(batch)}},
    )
    config = replace(config, data=replace(resolve_data(config.data), num_workers=0))
    source = open_source(config.data, "pretrain")
    turns = []

    def encode(x: torch.Tensor) -> torch.Tensor:
        turns.append(len(x))
        return x.mean(dim=(2, 3))

    found = survey_source(source, config, torch.device("cpu"), encode)
    return {"rows": found, "turns": torch.tensor(len(turns))}


def work(rank: int, cases: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for number, case in enumerate(cases):
        torch.save(surveyed(case, rank, 2), Path(folder) / f"{number}-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture
def few_readable(tmp_path: Path) -> Path:
    """Forty files of which only the first ten are images."""
    folder = make_images(tmp_path / "few")
    for file in sorted(folder.rglob("*.png"))[10:]:
        file.write_bytes(b"no image")
    return folder


def test_two_processes_see_what_one_sees_even_where_one_of_them_has_no_batch(
    image_folder: Path, few_readable: Path, tmp_path: Path
) -> None:
    cases = [f"{image_folder} 40", f"{image_folder} 7", f"{few_readable} 40"]
    torch.multiprocessing.spawn(work, args=(cases, str(tmp_path)), nprocs=2)
    for number, case in enumerate(cases):
        alone = surveyed(case)["rows"]
        both = [torch.load(tmp_path / f"{number}-{rank}.pt", weights_only=True) for rank in (0, 1)]
        assert all(torch.equal(found["rows"], alone) for found in both)
    assert [int(found["turns"]) for found in both] == [1, 0]  # of the last case: nothing was left to the second
