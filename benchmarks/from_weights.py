"""Folders for `benchmarks/studies/from-weights-*.toml`: the first images of each class of CIFAR-10.

python -m benchmarks.from_weights CIFAR10 HERE
"""

import shutil
import sys
from pathlib import Path

SIZES = (500, 2_000, 10_000)
TEST = 2_000


def main(cifar: Path, here: Path) -> None:
    for size in SIZES:
        for split, count in (("train", size), ("test", TEST)):
            for folder in sorted((cifar / split).iterdir()):
                made = here / f"cifar10-{size}" / split / folder.name
                made.mkdir(parents=True, exist_ok=True)
                for file in sorted(folder.iterdir())[: count // 10]:
                    shutil.copyfile(file, made / file.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
