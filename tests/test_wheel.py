"""The wheel in an environment of its own, outside of the clone: every file is there, and the command works."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import iecl

ROOT = Path(__file__).parent.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
NOT_CORE = [
    "hypothesis",
    "lightly",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pyarrow",
    "pycocotools",
    "pytest",
]
NOT_CORE += ["pytorch_lightning", "timm", "torchmetrics"]
"""What only extras bring: the core must do without."""


@dataclass(frozen=True)
class Installed:
    """The wheel, an environment that has it, and an empty folder to work in."""

    wheel: Path
    environment: Path
    folder: Path

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment, which knows nothing of this clone."""
        outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        command = [str(self.environment / "bin" / program), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder, env=outside)

    def output(self, program: str, *words: str) -> str:
        """What it prints; it must succeed."""
        done = self.run(program, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


def uv(*words: object) -> None:
    done = subprocess.run([sys.executable, "-m", "uv", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from the source distribution, installed alone; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder / "dist", ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    uv("venv", "--no-config", "--python", sys.executable, folder / "environment")
    python = folder / "environment" / "bin" / "python"
    uv("pip", "install", "--no-config", "--offline", "--no-deps", "--python", python, wheel)
    (site,) = (folder / "environment" / "lib").glob("python*/site-packages")
    # A folder that is named in a .pth file is searched, but .pth files in it are not read: this clone stays unseen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    (folder / "empty").mkdir()
    return Installed(wheel, folder / "environment", folder / "empty")


def test_the_version_is_the_same_everywhere() -> None:
    assert iecl.__version__ == VERSION
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(installed: Installed) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    source = {path.relative_to(ROOT / "src") for path in (ROOT / "src/iecl").rglob("*") if path.is_file()}
    expected = {path.as_posix() for path in source if "__pycache__" not in path.parts}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {"iecl/py.typed", "iecl/data/imagenet100.txt", "iecl/recipes/simclr/default.toml"} <= expected


def test_the_wheel_says_what_it_needs_and_where_it_is_from(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        lines = file.read(name).decode().split("\n\n", 1)[0].splitlines()
    assert "Requires-Python: >=3.11" in lines
    assert "Requires-Dist: torch>=2.7" in lines
    assert "Requires-Dist: torchvision>=0.22" in lines
    assert "Classifier: Typing :: Typed" in lines
    assert any(line.startswith("Project-URL: Homepage, https://") for line in lines)


def test_the_installed_package_is_the_one_that_is_used(installed: Installed) -> None:
    found = installed.output("python", "-c", "import iecl, torch; print(iecl.__file__)")
    assert Path(found.strip()).is_relative_to(installed.environment)
    assert installed.output("iecl", "--version") == f"iecl {VERSION}\n"


def test_looking_around_works(installed: Installed) -> None:
    assert "simclr" in installed.output("iecl", "list", "methods")
    assert "imagenet" in installed.output("iecl", "list", "recipes")
    assert "simclr" in installed.output("iecl", "describe", "simclr")


def test_bench_says_that_it_needs_a_clone(installed: Installed) -> None:
    done = installed.run("iecl", "bench", "--list")
    assert done.returncode == 2
    assert done.stderr.startswith("error: iecl bench works from a clone of the repository")
    assert done.stderr.count("\n") == 1


def test_a_run_needs_no_extra(installed: Installed) -> None:
    words = ["pretrain", "--data", "shapes", "--method", "simclr", "--backbone", "resnet10-w16", "--out", "run"]
    words += ["--epochs", "1", "--batch-size", "1000", "--set", "data.image_size=8"]
    program = (
        f"import sys; sys.modules |= dict.fromkeys({NOT_CORE}); from iecl.cli.command import main; "
        f"sys.exit(main({words}))"
    )
    installed.output("python", "-c", program)
    assert (installed.folder / "run" / "weights.safetensors").is_file()
    assert list((installed.folder / "run" / "tensorboard").iterdir())
