"""Two processes of one machine hold one copy of the images."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from images import save_numbered

from iecl import parallel
from iecl.data import folder, memory_cache
from iecl.data.factory import open_source
from iecl.data.settings import DataSettings
from iecl.data.source import ArraySource
from iecl.errors import UserError


def settings_for(images: str) -> DataSettings:
    return DataSettings(name=images, num_workers=0, labels="none", image_size=16, decode_size=16)


def work(rank: int, root: str) -> None:
    """Open three folders, one after the other: with shared memory, without, and one without a good image."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=2)
    decoded: list[int] = []
    decode = folder.decode
    folder.decode = lambda *words: (decoded.append(1), decode(*words))[1]
    found = {"open": seen(rank, f"{root}/good", decoded)}
    try:
        open_source(settings_for(f"{root}/bad"), on_bad=lambda *report: None, is_shared=True)
    except UserError as problem:
        found["bad"] = {"error": problem.what}
    memory_cache._from_process = lambda *words: None
    decoded.clear()
    found["closed"] = seen(rank, f"{root}/good", decoded)
    torch.save(found, f"{root}/{rank}.pt")
    parallel.leave()


def seen(rank: int, images: str, decoded: list[int]) -> dict[str, object]:
    reports: list[tuple[str, str]] = []
    source = open_source(settings_for(images), on_bad=lambda *report: reports.append(report), is_shared=True)
    assert isinstance(source, ArraySource)
    found = source.read(np.arange(len(source)))
    parallel.barrier()
    if rank == 0:
        source.images[0] = 77  # no program does this: it shows that the other one looks at the same memory
    parallel.barrier()
    return {
        "images": found.images,
        "sizes": found.sizes,
        "paths": [source.path(i) for i in range(len(source))],
        "reports": reports,
        "decoded": len(decoded),
        "is_same": bool((source.images[0] == 77).all()),
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, and what two processes made of them."""
    folder = tmp_path_factory.mktemp("shared")
    save_numbered(folder / "good", 9, bad=(2, 5))
    save_numbered(folder / "bad", 3, bad=(0, 1, 2))
    torch.multiprocessing.spawn(work, (str(folder),), nprocs=2)
    return folder


def results(root: Path, case: str) -> list[dict[str, object]]:
    return [torch.load(root / f"{rank}.pt", weights_only=True)[case] for rank in (0, 1)]


@pytest.mark.parametrize("case", ["open", "closed"])
def test_the_first_process_decodes_and_the_others_look_at_the_same_memory(root: Path, case: str) -> None:
    one, other = results(root, case)
    alone = open_source(settings_for(str(root / "good")), on_bad=lambda *report: None)
    expected = alone.read(np.arange(7))
    for found in (one, other):
        assert torch.equal(found["images"], expected.images)
        assert torch.equal(found["sizes"], expected.sizes)
        assert found["paths"] == [alone.path(i) for i in range(7)]
        assert found["reports"] == [(f"{root}/good/00{i}.png", "not an image") for i in (2, 5)]
    assert (one["decoded"], other["decoded"]) == ((9, 0) if case == "open" else (9, 9))
    assert (one["is_same"], other["is_same"]) == (True, case == "open")


def test_all_processes_are_told_that_nothing_can_be_read(root: Path) -> None:
    told = results(root, "bad")
    assert told[0] == told[1] == {"error": f"none of the 3 images in {root}/bad can be read: 3 not an image"}


def test_one_process_needs_nobody(tmp_path: Path) -> None:
    save_numbered(tmp_path / "images", 3)
    source = open_source(settings_for(str(tmp_path / "images")), is_shared=True)
    assert source.read(np.array([2])).images[0, 0, 0, 0] == 2
