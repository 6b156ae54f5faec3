"""How many images a second does training take in, with everything around the step? A few steps of each arm in turn.

    python -m benchmarks.speed FOLDER     # FOLDER as for benchmarks.cifar10; on a machine with nothing else to do

The arms are those of `benchmarks.cifar10`, each with all threads of the machine, on the first images of each class.
"""

import sys
import tempfile
from pathlib import Path

from benchmarks.bench.turns import summary
from benchmarks.cifar10 import ARMS, BACKBONE
from benchmarks.result import write
from benchmarks.study import iecl

PER_CLASS, EPOCHS, BATCH, REPEATS = 205, 3, 256, 3
"""Eight steps in an epoch; the first step of a run is not timed."""


def part_of(data: Path, folder: Path, per_class: int = PER_CLASS) -> Path:
    """A folder with links to the first images of each class."""
    for label in sorted((data / "train").iterdir()):
        (folder / label.name).mkdir(parents=True)
        for image in sorted(label.iterdir())[:per_class]:
            (folder / label.name / image.name).symlink_to(image.absolute())
    return folder


def main(data: str) -> None:
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as scratch:
        images = part_of(Path(data), Path(scratch) / "images")
        common = ["--data", str(images), "--backbone", BACKBONE, "--epochs", str(EPOCHS), "--quiet"]
        common += ["--batch-size", str(BATCH), "--set", "training.loggers=[]", "--set", "training.online_eval_epochs=0"]
        for repeat in range(REPEATS):
            for number, (arm, words) in enumerate(ARMS.items()):
                out = f"{scratch}/{number}-{repeat}"
                made = iecl("pretrain", "--out", out, *common, *words, threads=0)
                found[arm].append(made["summary"]["images_per_second"])
    content = {
        "setting": f"CIFAR-10 images, {BACKBONE}, batch {BATCH}, arms in turn",
        "unit": "images a second",
        "results": {arm: summary(values) for arm, values in found.items()},
    }
    write("speed", "how many images a second does training take in?", content)


if __name__ == "__main__":
    main(sys.argv[1])
