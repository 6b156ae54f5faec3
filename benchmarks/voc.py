"""Can the detector and the segmenter memorize 16 images, and what do they reach on a small VOC in minutes?

    python -m benchmarks.voc VOCDIR overfit      # 16 images, trained on and measured with
    python -m benchmarks.voc VOCDIR small        # the lists train and val, a few epochs
    python -m benchmarks.voc                     # draw the curves again

Both start from a small ResNet that was never trained: they show that the code learns and measures, nothing about
pretraining. Images, channels and numbers of regions are small and rates high, so that one core is enough; the printed
rates would need a pretrained backbone and days.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import RESULTS, write
from iecl.console import ProgressLine
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.contract import Evaluation
from iecl.evaluation.detection import Detection, DetectionSettings
from iecl.evaluation.model import load_model
from iecl.evaluation.segmentation import Segmentation, SegmentationSettings
from iecl.settings import as_values
from iecl.weights.external import random_model
from iecl.weights.model import save_model

FEW = 16
FIGURE = Path(__file__).parent.parent / "docs" / "images" / "voc.svg"
BACKBONES = {
    ("overfit", "detection"): "resnet18",
    ("overfit", "segmentation"): "resnet10-w32",  # its own stride is 8, and its first layers see every pixel
    ("small", "detection"): "resnet18",
    ("small", "segmentation"): "resnet18",
}
SMALL_DETECTOR: dict[str, Any] = {
    "anchors": (16, 32, 64, 128, 256),
    "channels": 64,
    "hidden_dim": 256,
    "rois": 64,
    "proposals": 100,
    "max_size": 256,
    "min_sizes": (128,),
    "test_min_size": 128,
    "num_workers": 0,
}
SMALL_SEGMENTER: dict[str, Any] = {"long_side": 160, "crop": 128, "num_workers": 0}
ARMS: dict[str, dict[str, Evaluation]] = {
    "overfit": {
        "detection": Detection(
            DetectionSettings(
                **SMALL_DETECTOR,
                train="few",
                test="few",
                hflip=False,
                epochs=150,
                batch_size=4,
                lr=0.02,
                schedule="cosine",
                warmup_steps=50,
            )
        ),
        "segmentation": Segmentation(
            SegmentationSettings(
                # A fine map, for thin objects. Crops of the images' height: DeepLab pools over all that it sees, and
                # a network that memorized crops of two thirds does not know the whole image (0.83 instead of 0.89);
                # larger ones would learn the padding. The norm behind the pool has eight numbers to go by, not four.
                **(SMALL_SEGMENTER | {"output_stride": 8, "long_side": 224, "crop": 168}),
                train="few",
                test="few",
                contrast=0.0,
                epochs=200,
                batch_size=8,
                lr=1e-3,
                schedule="cosine",
            )
        ),
    },
    "small": {
        "detection": Detection(
            DetectionSettings(**SMALL_DETECTOR, epochs=4, batch_size=4, lr=0.02, schedule="cosine", warmup_steps=50)
        ),
        "segmentation": Segmentation(
            SegmentationSettings(**SMALL_SEGMENTER, epochs=4, batch_size=8, lr=1e-3, schedule="cosine", hflip=True)
        ),
    },
}
QUESTIONS = {
    "overfit": "can detector and segmenter memorize 16 images of VOC?",
    "small": "what do both evaluations reach on a small VOC in minutes, without pretraining?",
}


def with_few(source: Path, folder: Path) -> Path:
    """The same images with one more list, `few`, of every so many of the training images."""
    year = next(source.rglob("ImageSets")).parent
    made = folder / year.name
    for name in ("JPEGImages", "Annotations", "SegmentationClass"):
        made.mkdir(exist_ok=True)
        (made / name).symlink_to((year / name).absolute())
    for kind in ("Main", "Segmentation"):
        lists = made / "ImageSets" / kind
        lists.mkdir(parents=True)
        names = (year / "ImageSets" / kind / "train.txt").read_text(encoding="utf-8").split()
        for name in ("train", "val"):
            (lists / f"{name}.txt").write_bytes((year / "ImageSets" / kind / f"{name}.txt").read_bytes())
        (lists / "few.txt").write_text("\n".join(names[:: len(names) // FEW][:FEW]) + "\n", encoding="utf-8")
    return made


def untrained(folder: Path, backbone: str) -> Path:
    """A file of weights that nobody trained."""
    path = folder / f"{backbone}.safetensors"
    save_model(path, random_model(backbone, image_size=224))
    return path


def measured(name: str, evaluation: Any, weights: Path, data: Path, work: Path) -> dict[str, Any]:
    """One evaluation; its training goes on where it was if the folder for work holds a part of it."""
    with ProgressLine() as line:
        scores = evaluation.measure(EvaluationContext(load_model(weights), weights, str(data), line, work=work))
    return {
        "evaluation": name,
        "epochs": evaluation.settings.epochs,
        "protocol_id": f"{evaluation.summary} {scores.seen}",
        **scores.values,
        **scores.counts,
        **scores.details,
        "settings": as_values(evaluation.settings),
        "protocol": scores.protocol,
    }


def draw() -> None:
    """The loss of each epoch of every training on record, and what it reached."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(QUESTIONS), figsize=(10, 4), layout="constrained")
    for axis, arm in zip(axes, QUESTIONS, strict=True):
        for file in (RESULTS / f"voc_{arm}").glob("*.json"):
            for name, row in json.loads(file.read_text(encoding="utf-8"))["found"].items():
                number = "ap50_voc12" if name == "detection" else "miou"
                axis.plot(row["curve"]["loss"], label=f"{name}: {number} {100 * row[number]:.1f} %")
        axis.set(title={"overfit": "16 images memorized", "small": "260 images, from scratch"}[arm], xlabel="epoch")
        axis.set_yscale("log")
        axis.legend()
    axes[0].set_ylabel("training loss")
    figure.savefig(FIGURE, metadata={"Date": None})


def main(source: Path, arm: str, only: list[str], work: Path | None = None) -> None:
    """Run one arm and write what it found; `only`: detection or segmentation alone, merged into what is there."""
    with tempfile.TemporaryDirectory() as made:
        data = with_few(source, Path(made))
        for name in only or list(ARMS[arm]):
            weights = untrained(Path(made), BACKBONES[arm, name])
            row = measured(name, ARMS[arm][name], weights, data, work or Path(made))
            known = [json.loads(file.read_text(encoding="utf-8")) for file in (RESULTS / f"voc_{arm}").glob("*.json")]
            others = {key: value for one in known for key, value in one["found"].items() if key != name}
            write(f"voc_{arm}", QUESTIONS[arm], {"found": others | {name: row}})
            print(name, {key: round(value, 4) for key, value in row.items() if isinstance(value, float)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    kept = next((Path(word.removeprefix("--work=")) for word in sys.argv if word.startswith("--work=")), None)
    words = [word for word in sys.argv[1:] if not word.startswith("--work=")]
    if words:
        main(Path(words[0]), words[1], words[2:], kept)
    draw()
