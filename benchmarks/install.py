"""Does `pip install iecl` work in an empty folder, and what does it take? The wheel, new environments, a run in each.

    python -m benchmarks.install --python 3.11 --python 3.13 --out benchmarks/results/install/linux.json
    python -m benchmarks.install --python 3.11 --torch-backend cpu     # prints, writes nothing

Each environment is made by uv, gets the wheel and everything that it needs from the package index, and is removed. All
arguments after `--` go to `uv pip install`. `make test-install` calls this.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TINY = ["--backbone", "resnet10-w16", "--epochs", "1", "--batch-size", "1000", "--set", "data.image_size=8"]
STEPS = (
    ["list", "methods"],
    ["views", "--data", "shapes", "--images", "1", "--out", "views.png"],
    ["pretrain", "--data", "shapes", "--method", "simclr", "--out", "run", *TINY],
    ["evaluate", "knn", "run"],
    ["export", "run", "--out", "backbone.safetensors"],
    ["verify", "backbone.safetensors"],
)
"""What a new user types, on generated images."""
LARGEST = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", required=True, help="version or path, as uv takes it")
    parser.add_argument("--torch-backend", default="", help="as uv takes it: cpu for torch's CPU wheels")
    parser.add_argument("--name", default="", help="what to call these installations")
    parser.add_argument("--out", type=Path, help="JSON to write, or to add to")
    parser.add_argument("options", nargs="*", help="for uv pip install")
    args = parser.parse_args()
    options = [*args.options, *([f"--torch-backend={args.torch_backend}"] if args.torch_backend else [])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uv("build", "--no-build-isolation", "--python", sys.executable, "--wheel", "--out-dir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        rows = [installed(wheel, python, options, folder / f"{i}") for i, python in enumerate(args.python)]
        kind = args.name or ("CPU only" if args.torch_backend == "cpu" else "as the index has it")
        found = {f"{kind}, Python {row['python']}": row for row in rows}
        size = round(wheel.stat().st_size / 1e6, 2)
    for title, row in found.items():
        print(title, json.dumps(row))
    if args.out:
        before = json.loads(args.out.read_text(encoding="utf-8"))["installations"] if args.out.is_file() else {}
        made: dict[str, Any] = {
            "question": "does the wheel work in an empty folder, and what does an installation take?",
            "machine": f"{platform.system()} {platform.machine()}",
            "date": datetime.now(UTC).date().isoformat(),
            "wheel_megabytes": size,
            "installations": before | found,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def uv(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "uv", *map(str, words), "--quiet"], check=True)


def installed(wheel: Path, python: str, options: list[str], folder: Path) -> dict[str, Any]:
    """Make an environment, use what is in it, and say what it holds."""
    environment, empty = folder / "environment", folder / "empty"
    empty.mkdir(parents=True)
    uv("venv", "--no-config", "--python", python, environment)
    uv("pip", "install", "--python", environment / "bin" / "python", *options, wheel)
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    here: dict[str, Any] = {"cwd": empty, "env": outside, "check": True, "stdout": subprocess.DEVNULL}
    for step in STEPS:
        subprocess.run([environment / "bin" / "iecl", *step, "--quiet"], **here)
    (site,) = (environment / "lib").glob("python*/site-packages")
    parts = {path.name: size_of(path) for path in site.iterdir() if path.is_dir() and not path.name.endswith("-info")}
    largest = sorted(parts, key=lambda name: -parts[name])[:LARGEST]
    versions = {path.name.partition("-")[0]: path.name.split("-")[1] for path in site.glob("*.dist-info")}
    known = ("torch", "torchvision", "numba", "numpy", "lightning_fabric", "pillow")
    return {
        "python": environment_version(environment),
        "versions": {name: versions[name].removesuffix(".dist") for name in known},
        "packages": len(versions),
        "megabytes": size_of(environment),
        "largest": {name: parts[name] for name in largest},
        "commands": [" ".join(["iecl", *step]) for step in STEPS],
    }


def environment_version(environment: Path) -> str:
    code = "import platform; print(platform.python_version())"
    done = subprocess.run([environment / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def size_of(folder: Path) -> int:
    """Megabytes of all files, without the bytecode and machine code that using them has written."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return round(sum(path.stat().st_size for path in files if "__pycache__" not in path.parts) / 1e6)


if __name__ == "__main__":
    main()
