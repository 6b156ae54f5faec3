"""The architecture page tells which files an image passes; a run and its card are traced and compared with it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import iecl

PAGE = Path(iecl.__file__).parents[2] / "docs" / "architecture.md"
TRACED = """
import json, sys
from pathlib import Path
import iecl
from made_images import TINY, make_images

source, here, called = f"{Path(iecl.__file__).parent}/", sys._getframe().f_code.co_filename, {}

def note(frame, event, argument):
    name = frame.f_code.co_filename
    if event != "call" or not name.startswith(source) or name in called:
        return
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename == here:  # else it is called by an import
        called[name] = True

out = Path(sys.argv[1])
images = make_images(out)
sys.setprofile(note)
run = {"method": "simclr", "backbone": "resnet10-w16", "epochs": 1, "batch_size": 16, "sets": TINY, "quiet": True}
iecl.pretrain(images, out / "run", **run)
iecl.evaluate_all(out / "run", only=["knn"])
sys.setprofile(None)
print(json.dumps([name.removeprefix(source) for name in called]))
"""


def test_the_page_names_files_that_an_image_passes_and_counts_all_that_are_called(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## The way of one image\n")[2].partition("\n## ")[0]
    listed = [line.split()[0] for line in section.split("```")[1].splitlines()[1:]]
    program = [sys.executable, "-c", TRACED, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    called = json.loads(done.stdout.splitlines()[-1])
    assert not set(listed) - set(called)
    files, modules = map(int, re.findall(r"(\d+) (?:files|modules)", section))
    assert files == len(listed)
    assert modules == pytest.approx(len(called), rel=0.05), sorted(called)  # what is cached, or absent, decides on some
