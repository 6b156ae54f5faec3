"""Is `iecl doctor` quick, small and right? Beside cleanvision and imagededup, on the same files.

    python -m benchmarks.doctor PHOTOS ... --others FOLDER --work WORK [--peers PYTHON] [--run RUN] [--only pairs ...]

PHOTOS are folders of photographs, of which up to 160 each are copied with changes (`benchmarks.doctor_pairs`) and laid
among those of FOLDER, which is looked at for speed too. PYTHON is
the interpreter of an environment with both peers: `pip install cleanvision imagededup`; without it nobody is compared.
RUN is a run or file of weights to look with, too. Seconds are of processor time, of one process each, so that other
work on the machine has no part in them. WORK keeps the made images.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.doctor_pairs import CHANGES, make_pairs
from benchmarks.result import write

PEER = Path(__file__).parent / "doctor_peers.py"
EXTENSIONS = (".jpg", ".jpeg")
RADII = (0, 2, 4, 6, 8, 10, 12, 14)
LEAST = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
PRECISION, DEFAULT = 0.99, 0.75
MOST = 160
"""Photographs of a folder that are copied."""


def photographs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)


def processor_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def asked(peers: str, what: str, folder: Path) -> Any:
    """What a peer says of a folder, in a process of its environment."""
    done = subprocess.run([peers, str(PEER), what, str(folder)], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{what}: {done.stderr[-2000:]}")
    return json.loads(lines[-1])


def speed(folder: Path, out: Path, peers: str, repeats: int = 3) -> dict[str, Any]:
    """Images a second of processor time: all checks of either, with our page and lists; files were read before."""
    from iecl.checks.call import doctor

    count = len(photographs(folder))
    doctor(folder, out=out / "warm", workers=0, overwrite=True)  # compiles, and reads every file
    rates: dict[str, list[float]] = {"iecl": [], "cleanvision": []}
    for number in range(repeats):
        began = processor_seconds()
        doctor(folder, out=out / f"{number}", workers=0, overwrite=True)
        rates["iecl"].append(count / (processor_seconds() - began))
        if peers:
            rates["cleanvision"].append(count / asked(peers, "cleanvision", folder)["seconds"])
    rows = [{"arm": name, "images_per_second": round(rate, 1)} for name, each in rates.items() for rate in each]
    return {"images": count, "versions": asked(peers, "versions", folder) if peers else {}, "rows": rows}


def scored(found: dict[tuple[str, str], float], pairs: dict[tuple[str, str], str]) -> dict[str, Any]:
    """Recall by change, and precision, of pairs that were found."""
    right = {pair for pair in found if pair in pairs}
    recall = {
        kind: sum(pair in right for pair, each in pairs.items() if each == kind)
        / sum(each == kind for each in pairs.values())
        for kind in CHANGES
    }
    precision = len(right) / len(found) if found else 1.0
    return {"recall": recall, "mean_recall": float(np.mean(list(recall.values()))), "precision": precision}


def best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of greatest recall among those that are precise enough, else the most precise one."""
    good = [row for row in rows if row["precision"] >= PRECISION]
    return max(good, key=lambda row: row["mean_recall"]) if good else max(rows, key=lambda row: row["precision"])


def found_by_doctor(folder: Path, run: str) -> dict[tuple[str, str], float]:
    """Pairs with their likeness, at the lowest threshold of interest."""
    from iecl.checks.doctor import diagnose

    made = diagnose([str(folder)], run, workers=0, settings={"likeness": min(LEAST)})
    name, near = made.scan.name, made.copies.near
    found = {
        tuple(sorted((name(one), name(other)))): float(value)
        for one, other, value in zip(near.one.tolist(), near.other.tolist(), near.likeness, strict=True)
    }
    for group in made.copies.exact:
        found |= {tuple(sorted((name(one), name(other)))): 1.0 for one in group for other in group if one < other}
    return found


def spread(paths: list[Path]) -> list[Path]:
    """Some that are spread over all."""
    return [paths[place] for place in np.linspace(0, len(paths) - 1, min(MOST, len(paths))).astype(int)]


def compare_pairs(photos: list[Path], others: Path, work: Path, peers: str, run: str) -> dict[str, Any]:
    folder, truth = work / "pairs", work / "pairs.json"
    if not truth.exists():
        originals = [path for each in photos for path in spread(photographs(each))]
        made = make_pairs(originals, photographs(others), folder)
        truth.write_text(json.dumps([[*pair, kind] for pair, kind in made.items()]))
    pairs = {(one, other): kind for one, other, kind in json.loads(truth.read_text())}
    curves: dict[str, list[dict[str, Any]]] = {}
    for name, with_run in (("iecl", ""), *((("iecl with a run", run),) if run else ())):
        found = found_by_doctor(folder, with_run)
        curves[name] = [
            {"likeness": least} | scored({pair: v for pair, v in found.items() if v >= least}, pairs) for least in LEAST
        ]
    if peers:
        same = {tuple(pair): 1.0 for pair in asked(peers, "cleanvision-pairs", folder)["pairs"]}
        curves["cleanvision"] = [scored(same, pairs)]
        near = asked(peers, "imagededup", folder)["pairs"]
        for method, each in near.items():
            curves[f"imagededup {method}"] = [
                {"distance": radius} | scored({(a, b): 1.0 for a, b, d in each if d <= radius}, pairs)
                for radius in RADII
            ]
    return {
        "originals": sum(kind == "resize" for kind in pairs.values()),
        "images": len(list(folder.iterdir())),
        "precision_at_least": PRECISION,
        "versions": asked(peers, "versions", folder) if peers else {},
        "rows": [row for name, rows in curves.items() for row in shown(name, rows)],
        "curves": curves,
    }


def shown(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the table: at the threshold of greatest recall among the precise ones, and for us at the default."""
    chosen = {str(row): row for row in (best(rows), *(row for row in rows if row.get("likeness") == DEFAULT))}
    made = []
    for row in chosen.values():
        threshold = next((f", {key} {row[key]:g}" for key in ("likeness", "distance") if key in row), "")
        recall = {kind: round(100 * value, 1) for kind, value in row["recall"].items()}
        means = {"mean recall": round(100 * row["mean_recall"], 1), "precision": round(100 * row["precision"], 2)}
        made.append({"arm": f"{name}{threshold}", **recall, **means})
    return made


def memory(work: Path, counts: list[int]) -> list[dict[str, Any]]:
    """The most memory that a process takes for so many files: small images of which no two are alike.

    A small radius saves time and takes the same memory: candidates are looked at some thousand at a time.
    """
    rows = []
    for count in counts:
        folder = work / f"many-{count}"
        if not folder.exists():
            folder.mkdir(parents=True)
            draw = np.random.default_rng(count)
            for number in range(count):
                small = Image.fromarray(draw.integers(0, 255, (6, 6, 3), dtype=np.uint8))
                small.resize((32, 32)).save(folder / f"{number:06d}.jpg", quality=80)
        program = (
            "import resource, sys; from iecl.checks.call import doctor;"
            f"made = doctor({str(folder)!r}, out={str(work / 'memory')!r}, workers=0, overwrite=True, "
            "settings={'radius': 7});"
            "print(made['images'], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
        )
        began, spent = time.monotonic(), processor_seconds()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        images, megabytes = map(int, done.stdout.split()[-2:])
        row = {"arm": f"{images:,} images", "images": images, "megabytes": megabytes}
        row["processor_seconds"] = round(processor_seconds() - spent, 1)
        rows.append(row | {"seconds": round(time.monotonic() - began, 1)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--others", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--peers", default="")
    parser.add_argument("--run", default="")
    parser.add_argument("--files", type=int, nargs="+", default=[3_000, 30_000, 300_000], help="for memory")
    parser.add_argument("--only", nargs="+", default=["speed", "pairs", "memory"])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if "pairs" in args.only:
        content = compare_pairs(args.photos, args.others, args.work, args.peers, args.run)
        write("doctor_pairs", "who finds changed copies of photographs, and what else?", content)
    if "speed" in args.only:
        content = speed(args.others, args.work / "reports", args.peers)
        write("doctor_speed", "how many images a second are looked at?", content)
    if "memory" in args.only:
        write("doctor_memory", "how much memory do so many files take?", {"rows": memory(args.work, args.files)})


if __name__ == "__main__":
    main()
