"""Which of the images that a backbone points at deserve it? Labels are swapped and strangers put among images.

    python -m benchmarks.doctor_faults --work WORK --case NAME LABELED RUN FOLDER [FOLDER ...] [--case ...]

LABELED has a folder for each class. Of up to 300 images each, 5 % get the label of another class, and 1 % as many
images of each FOLDER, squeezed to the same size, are put among them; WORK/NAME/faults holds all of it afterwards, and
RUN may be trained on that. An untrained network of the same kind looks too. Precision and recall of `label` are of
swapped labels, those of `outlier` of strangers: an image that was odd before counts as wrong. Rows of a case are kept
in WORK, so that cases may be looked at one after the other and written down together.
"""

import argparse
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.result import write
from iecl.checks.doctor import diagnose
from iecl.checks.table import CheckSettings
from iecl.evaluation.model import load_model

EACH, SWAPPED, STRANGE = 300, 0.05, 0.01
THRESHOLDS = {"label": (0.5, 0.6, 0.7, 0.8, 0.9), "outlier": (2.0, 3.0, 4.0, 5.0, 7.0)}
RANDOM = "random"
Truth = dict[str, str]


def some(folder: Path, count: int, draw: np.random.Generator) -> list[Path]:
    """So many of the files, spread by chance."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
    return [files[place] for place in sorted(draw.permutation(len(files))[:count].tolist())]


def make_faults(labeled: Path, strangers: list[Path], folder: Path) -> Truth:
    """Lay out the images; returns what was done to each that is not as it was."""
    draw, truth = np.random.default_rng(0), Truth()
    classes = sorted(path.name for path in labeled.iterdir() if path.is_dir())
    side = (0, 0)
    for name in classes:
        for path in some(labeled / name, EACH, draw):
            others = [other for other in classes if other != name]
            is_swapped = draw.random() < SWAPPED
            owner = str(draw.choice(others)) if is_swapped else name
            place = folder / owner / f"{name}-{path.name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
            truth |= {f"{owner}/{place.name}": "swapped"} if is_swapped else {}
            with Image.open(path) as image:
                side = image.size
    for other in strangers:
        for number, path in enumerate(some(other, round(STRANGE * EACH * len(classes)), draw)):
            place = folder / str(draw.choice(classes)) / f"stranger-{other.name}-{number}.png"
            with Image.open(path) as image:
                image.convert("RGB").resize(side, Image.Resampling.BOX).save(place)
            truth[f"{place.parent.name}/{place.name}"] = other.name
    return truth


def rows_of(name: str, run: str, folder: Path, truth: Truth, **network: Any) -> list[dict[str, Any]]:
    """One row for each threshold: all images that it points at, against those that were changed."""
    kinds = {"label": {"swapped"}, "outlier": set(truth.values()) - {"swapped"}}
    rows: list[dict[str, Any]] = []
    made = diagnose([str(folder)], run, workers=0, **network)
    for check, least in THRESHOLDS.items():
        # The other threshold stays as it is: what belongs to nothing is not asked for its label.
        made.neighborhood.settings = replace(made.settings, **{check: least[0]})
        told = [one for one in made.neighborhood.findings(made.copies) if one.check == check]
        found = {made.scan.name(one.number): float(one.value or 0) for one in told}
        for threshold in least:
            named = [image for image, value in found.items() if value >= threshold]
            recalls = {kind: share(named, truth, kind) for kind in sorted(kinds[check])}
            right = sum(truth.get(image) in kinds[check] for image in named)
            row = {"arm": f"{name}, {'untrained' if run == RANDOM else 'trained'}: {check} {threshold:g}"}
            row |= {"found": len(named), "precision": round(100 * right / max(1, len(named)), 1)}
            row |= {f"recall of {kind}": value for kind, value in recalls.items()}
            rows.append(row | {"votes for the label given": made.facts["labels_of_neighbors"]})
            print(rows[-1], flush=True)
    return rows


def share(named: list[str], truth: Truth, kind: str) -> float:
    """Percent of the images of a kind that are named."""
    return round(100 * sum(truth.get(name) == kind for name in named) / sum(one == kind for one in truth.values()), 1)


def looked_at(work: Path, name: str, labeled: str, run: str, *strangers: str) -> dict[str, Any]:
    """All rows of a case, and what was planted."""
    folder, truth_file = work / name / "faults", work / name / "faults.json"
    if not truth_file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        truth_file.write_text(json.dumps(make_faults(Path(labeled), [Path(one) for one in strangers], folder)))
    truth: Truth = json.loads(truth_file.read_text())
    model, rows_file = load_model(run), work / name / "rows.json"
    network = {"backbone": model.info.backbone, "image_size": model.image_size}
    if not rows_file.exists():
        rows = rows_of(name, run, folder, truth) + rows_of(name, RANDOM, folder, truth, **network)
        rows_file.write_text(json.dumps(rows))
    return {
        "images": sum(path.is_file() for path in folder.rglob("*")),
        "planted": dict(Counter(truth.values())),
        "rows": json.loads(rows_file.read_text()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--case", nargs="+", action="append", required=True, metavar="WORD")
    args = parser.parse_args()
    cases = {case[0]: looked_at(args.work, *case) for case in args.case}
    content = {
        "cases": {name: {key: case[key] for key in ("images", "planted")} for name, case in cases.items()},
        "defaults": {check: getattr(CheckSettings(), check) for check in THRESHOLDS},
        "rows": [row for case in cases.values() for row in case["rows"]],
    }
    write("doctor_faults", "which labels and strangers does a backbone point at, and are they wrong?", content)


if __name__ == "__main__":
    main()
