"""Are features extracted as fast as by a bare torchvision loop? Pictures a second from files to features, interleaved.

python -m benchmarks.features FOLDER ...     # each holds train/<class>/

Both read the same files in one process, show the backbone the same middle square, use batches of one
size, no gradient, and the same weights.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

from benchmarks.result import summary, write
from benchmarks.stepping import ratios
from iecl.backbones.making import make_backbone
from iecl.data.opening import open_source
from iecl.data.resolve import resolve_data
from iecl.data.settings import DataSettings
from iecl.evaluation.features import extract
from iecl.views.policies import plain_share

BACKBONE, BATCH, REPEATS = "resnet10-w16", 64, 7


def torchvision_loop(folder: Path, settings: DataSettings, backbone: nn.Module) -> torch.Tensor:
    """What anyone would write."""
    side, share = settings.image_size, plain_share(settings.image_size)
    view = Compose([Resize(round(side / share)), CenterCrop(side), ToTensor(), Normalize(settings.mean, settings.std)])
    loader = DataLoader(ImageFolder(str(folder / "train"), view), BATCH, num_workers=0)
    with torch.inference_mode():
        return torch.cat([backbone(x) for x, _ in loader])


def ours(settings: DataSettings, backbone: nn.Module) -> torch.Tensor:
    source, share = open_source(settings, "train"), plain_share(settings.image_size)
    numbers = {"image_size": settings.image_size, "mean": settings.mean, "std": settings.std, "share": share}
    return extract(backbone, source, batch=BATCH, **numbers).values


def measured(folder: Path) -> tuple[str, dict[str, list[float]], float]:
    """What was read, seconds of both arms in turn, and the least cosine between a feature of one and of the other."""
    settings = resolve_data(DataSettings(name=str(folder), resident_megabytes=0))
    backbone, found = make_backbone(BACKBONE).eval(), {}
    times: dict[str, list[float]] = {"ours": [], "torchvision": []}
    for repeat in range(REPEATS + 1):  # the first round warms up
        for arm in times:
            began = time.process_time()  # no worker, one thread: its own seconds, whatever else the machine does
            if arm == "ours":
                found[arm] = ours(settings, backbone)
            else:
                found[arm] = torchvision_loop(folder, settings, backbone)
            if repeat:
                times[arm].append(time.process_time() - began)
        print(folder.name, repeat, {arm: values[-1:] for arm, values in times.items()}, flush=True)
    cosine = torch.cosine_similarity(found["ours"], found["torchvision"], dim=1).min().item()
    return f"{len(found['ours'])} files of {folder.name}, {settings.image_size} px", times, cosine


def main(folders: list[Path]) -> None:
    torch.set_num_threads(1)
    rows = [measured(folder) for folder in folders]
    speeds = {name: [1 / ratio for ratio in ratios(times, "torchvision")["ours"]] for name, times, _ in rows}
    content = {
        "setting": f"{BACKBONE}, batch {BATCH}, no worker",
        "unit": "speed over that of the torchvision loop in the same round, by processor time",
        "results": {name: summary(values) for name, values in speeds.items()},
        "torchvision_seconds": {name: summary(times["torchvision"]) for name, times, _ in rows},
        "least_cosine_between_features": {name: float(f"{cosine:.4f}") for name, _, cosine in rows},
    }
    write("features", "are features extracted as fast as by a bare torchvision loop?", content)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
