"""Are our baselines as good as a peer's? The same four methods from lightly's own modules, on the same CIFAR-10.

    pip install lightly && python -m benchmarks.parity FOLDER     # FOLDER holds train/<class>/ and test/<class>/

Both sides see the same images in the same order through the same views, and have the same backbone, head sizes,
temperatures, optimizer and schedule; what differs is the code of heads, losses, momentum and queue. Ours runs through
the command, theirs (`benchmarks.bench.peers`) through the short loop below.
"""

import json
import sys
import tempfile
import time
from typing import Any

import torch

from benchmarks.bench.peers import OUR_SETS, FromLightly
from benchmarks.study import PRECISION, Arms, iecl, pretrained, python, study
from iecl.backbones.factory import make_backbone
from iecl.data.defaults import resolve_data
from iecl.data.factory import open_source
from iecl.data.loader import Loader
from iecl.data.settings import DataSettings
from iecl.evaluation.features import extract
from iecl.evaluation.knn import knn
from iecl.schedule import Clock, Ramp, lr_factor
from iecl.views.pipeline import make_views
from iecl.views.policies import POLICIES, ViewSpec, plain_share

BACKBONE, EPOCHS, BATCH, SEEDS = "resnet10-w16", 1, 128, (0, 1, 2)
RATE, DECAY, POLICY = 1e-3, 1e-4, "simclr-small"
KEEP = {"moco-v2": Ramp.constant(0.99), "byol": Ramp(start=0.9, end=0.99, shape="linear")}
OURS: Arms = {name: [word for text in sets for word in ("--set", text)] for name, sets in OUR_SETS.items()}
ARMS: Arms = {f"{name}, {who}": words for name, words in OURS.items() for who in ("ours", "lightly")}


def theirs(data: str, name: str, seed: int) -> dict[str, Any]:
    """Train lightly's modules and measure the backbone as `iecl evaluate knn` does."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    settings = resolve_data(DataSettings(name=data))
    loader = Loader(open_source(settings, "pretrain"), batch=BATCH, seed=seed, workers=0)
    method = FromLightly(name, make_backbone(BACKBONE, seed)).to(memory_format=torch.channels_last)
    weights = [p for p in method.parameters() if p.requires_grad]
    thick, thin = [p for p in weights if p.ndim > 1], [p for p in weights if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": thick, "weight_decay": DECAY}, {"params": thin, "weight_decay": 0.0}])
    steps, began = loader.steps * EPOCHS, time.monotonic()
    for epoch in range(EPOCHS):
        for number, batch in enumerate(loader.epoch(epoch)):
            clock = Clock(seed, epoch * loader.steps + number, steps, epoch, EPOCHS)
            for group in optimizer.param_groups:
                group["lr"] = RATE * lr_factor(clock, warmup=min(loader.steps, steps // 10))
            where = {"size": settings.image_size, "mean": settings.mean, "std": settings.std}
            views = make_views(batch, POLICIES[POLICY], ViewSpec(), seed=seed, epoch=epoch, **where)
            full = [x.contiguous(memory_format=torch.channels_last) for x in views.global_crops]
            with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bf16-mixed"):
                loss = method(*full)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if name in KEEP:
                method.follow(KEEP[name].at(clock))
    seconds = time.monotonic() - began
    share, look = plain_share(settings.image_size), torch.device("cpu")
    bank, queries = (
        extract(
            method.backbone,
            open_source(settings, split),
            image_size=settings.image_size,
            mean=settings.mean,
            std=settings.std,
            device=look,
            share=share,
        )
        for split in ("train-part", "test")
    )
    return {"steps": steps, "images_per_second": round(steps * BATCH / seconds, 1), "knn": knn(bank, queries).top1}


def main(data: str) -> None:
    def cell(arm: str, seed: int) -> dict[str, Any]:
        name, _, who = arm.partition(", ")
        if who == "lightly":
            return python("-m", "benchmarks.parity", data, name, str(seed))
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/run"
            common = ["--data", data, "--method", name, "--backbone", BACKBONE, "--epochs", str(EPOCHS)]
            common += ["--batch-size", str(BATCH), "--seed", str(seed), "--set", f"augmentation.policy={POLICY}"]
            common += [
                "--set",
                "optimizer.name=adamw",
                "--set",
                f"optimizer.lr={RATE}",
                "--set",
                "optimizer.warmup_epochs=1",
            ]
            row = pretrained(out, [*common, "--set", f"optimizer.weight_decay={DECAY}", *OURS[name]])
            if "stopped" in row:
                return row
            kept = {key: row[key] for key in ("steps", "images_per_second")}
            return kept | {"knn": iecl("evaluate", "knn", out, "--quiet").get("top1")}

    question = "are our baselines as good as the same methods from lightly's modules?"
    setting = f"CIFAR-10, {BACKBONE}, {EPOCHS} epoch, batch {BATCH}, AdamW {RATE:g}, {POLICY}"
    study("parity", question, setting, ARMS, SEEDS, cell)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(theirs(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        main(sys.argv[1])
