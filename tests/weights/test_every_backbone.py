"""The exported file of every backbone that is listed loads where iecl cannot be imported, and gives its features."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from iecl.backbones import BACKBONES
from iecl.backbones.catalog import families
from iecl.weights.export import write_export
from iecl.weights.external import random_model

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "weights.md"
FAMILIES = {
    "torchvision": sorted(families("torchvision")),
    "timm": ["convnext", "deit", "efficientnet", "resnet", "swin_transformer", "vision_transformer"],
}
NAMES = [*BACKBONES, *(f"{package}/{family}" for package, some in FAMILIES.items() for family in some)]
"""A family stands for its first model."""
ELSEWHERE = """
import json, sys
sys.modules["iecl"] = None  # not to be imported
found = {}
for name, lines in json.load(sys.stdin).items():
    try:
        shown = []
        exec(lines, {"print": shown.append})
        found[name] = shown[0].item()
    except Exception as problem:
        found[name] = repr(problem)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """How far features of each file are from those that it carries, in a process without iecl; or what went wrong."""
    (check,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "proof_feat" in block)
    folder, programs, failed = tmp_path_factory.mktemp("exports"), {}, {}
    for number, name in enumerate(NAMES):
        package, _, family = name.partition("/")
        backbone = f"{package}/{families(package)[family][0]}" if family else name
        try:
            made = write_export(random_model(backbone), folder / f"{number}.safetensors")
        except Exception as problem:  # the others are looked at all the same
            failed[name] = repr(problem)
            continue
        programs[name] = f"{made['snippet']}\n{check.replace('backbone.safetensors', f'{number}.safetensors')}"
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, cwd=folder, input=json.dumps(programs), capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found | failed


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_export_loads_without_iecl(name: str, differences: dict[str, object]) -> None:
    difference = differences[name]
    assert isinstance(difference, float), difference
    assert difference < 1e-4
