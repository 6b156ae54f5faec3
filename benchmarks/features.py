"""Are features extracted as fast as by a bare torchvision loop? Pictures a second from files to features, interleaved.

python -m benchmarks.features FOLDER [BACKBONE]     # FOLDER holds train/<class>/

Both read the same files with the same number of workers, show the backbone the same middle square, use batches of one
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

BATCH, REPEATS = 64, 7


def torchvision_loop(folder: Path, settings: DataSettings, backbone: nn.Module, workers: int) -> torch.Tensor:
    """What anyone would write."""
    side, share = settings.image_size, plain_share(settings.image_size)
    view = Compose([Resize(round(side / share)), CenterCrop(side), ToTensor(), Normalize(settings.mean, settings.std)])
    loader = DataLoader(ImageFolder(str(folder / "train"), view), BATCH, num_workers=workers)
    with torch.inference_mode():
        return torch.cat([backbone(x) for x, _ in loader])


def ours(settings: DataSettings, backbone: nn.Module, workers: int) -> torch.Tensor:
    source, share = open_source(settings, "train"), plain_share(settings.image_size)
    numbers = {"image_size": settings.image_size, "mean": settings.mean, "std": settings.std, "share": share}
    return extract(backbone, source, batch=BATCH, workers=workers, **numbers).values


def main(folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    settings = resolve_data(DataSettings(name=str(folder), resident_megabytes=0))
    backbone = make_backbone(name).eval()
    workers, found = 0, {}
    times: dict[str, list[float]] = {"ours": [], "torchvision": []}
    for repeat in range(REPEATS + 1):
        for arm in times:
            began = time.process_time()  # no workers, one thread: its own seconds, whatever else the machine does
            if arm == "ours":
                found[arm] = ours(settings, backbone, workers)
            else:
                found[arm] = torchvision_loop(folder, settings, backbone, workers)
            if repeat:
                times[arm].append(time.process_time() - began)
        print(repeat, {arm: values[-1:] for arm, values in times.items()}, flush=True)
    cosines = torch.cosine_similarity(found["ours"], found["torchvision"], dim=1)
    content = {
        "setting": f"{len(cosines)} files of {folder.name}, {settings.image_size} px, {name}, batch {BATCH}, no worker",
        "unit": "speed over that of the torchvision loop in the same round, by processor time",
        "results": {"ours": summary([1 / ratio for ratio in ratios(times, "torchvision")["ours"]])},
        "torchvision_images_per_second": summary([len(cosines) / seconds for seconds in times["torchvision"]]),
        "least_cosine_between_features": float(f"{cosines.min():.4f}"),
    }
    write("features", "are features extracted as fast as by a bare torchvision loop?", content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "resnet10-w16")
