"""The shape of the code: layers, sizes, what importing costs."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import iecl

SOURCE = Path(iecl.__file__).parent
LAYERS = {
    "errors": 0, "names": 0, "files": 0, "settings": 0, "registry": 0, "console": 0, "allocation": 0, "compiled": 0,
    "brought": 1, "counter": 1, "launch": 1, "repository": 1, "schedule": 1, "parallel": 1, "transfer": 1, "runs": 1,
    "estimators": 1, "recipes": 1,
    "data": 2, "views": 2, "losses": 2, "meters": 2, "comparison": 2,
    "parts": 3, "backbones": 3,
    "weights": 4, "saib": 4, "entropy": 4, "objective": 4, "methods": 5,
    "training": 6, "arguments": 7, "evaluation": 7, "inspection": 8,
    "continuation": 9, "pretraining": 9, "reporting": 9, "studies": 9, "checks": 9, "api": 10, "demo": 10,
    "drawing": 10, "reproduction": 10, "testing": 10,
    "cli": 11, "__main__": 12, "__init__": 12,
}  # fmt: skip
SAME_LAYER = {
    0: {"errors", "names", "files", "settings"},
    1: {"counter", "runs", "schedule"},
    4: {"saib"},
    9: {"continuation", "pretraining"},
    10: {"api"},
}
"""What the modules of one layer may take from each other: the ground floor stands on errors, layer 1 on the counter."""
MODULES = sorted(SOURCE.rglob("*.py"))
BENCH = sorted((SOURCE.parents[1] / "benchmarks" / "bench").glob("*.py"))
LONGEST_MODULE, LONGEST_METHOD, LONGEST_FUNCTION = 400, 150, 60


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else f"bench/{path.name}"


def imports_of(path: Path) -> set[str]:
    """Names right under `iecl` that a module imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "iecl":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("iecl.")}
    return found & set(LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_from_lower_layers(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    wrong = {other for other in imports_of(path) if other != own and LAYERS[other] >= LAYERS[own]}

    assert not wrong - SAME_LAYER.get(LAYERS[own], set())


def test_every_folder_and_module_has_a_layer_and_the_architecture_page_lists_it() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = page.partition("\nsrc/iecl/\n")[2].partition("\n\n")[0]
    rows = [re.fullmatch(r"  (\S.*?)  +(\d+)   \S.*", line) for line in tree.splitlines()]
    listed = {name: int(row[2]) for row in rows if row for name in row[1].split()}
    paths = {path.relative_to(SOURCE) for path in MODULES}
    folders = {f"{path.parent}/": LAYERS[path.parts[0]] for path in paths if len(path.parts) > 1}
    modules = {path.stem: LAYERS[path.stem] for path in paths if len(path.parts) == 1 and path.stem[:2] != "__"}

    assert listed == folders | modules
    assert set(LAYERS) == {path.parts[0].removesuffix(".py") for path in paths}


@pytest.mark.parametrize("folder", sorted({path.parent.name for path in MODULES} - {"iecl", "runs"}))
def test_the_modules_of_a_folder_do_not_import_each_other_in_a_circle(folder: str) -> None:
    """`runs` is left out: a directory and its claim know each other."""
    inside = {path.stem: path for path in MODULES if path.parent.name == folder}
    found = {
        name: set(re.findall(rf"iecl\.(?:\w+\.)*{folder}\.(\w+) import", path.read_text())) & set(inside)
        for name, path in inside.items()
    }
    try:
        TopologicalSorter(found).prepare()
    except CycleError as problem:
        pytest.fail(" -> ".join(problem.args[1]))


@pytest.mark.parametrize("path", [*MODULES, *BENCH], ids=name_of)
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= (LONGEST_METHOD if path.parent.name == "methods" else LONGEST_MODULE)
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno + 1 > LONGEST_FUNCTION}
    assert not long


@pytest.mark.parametrize("word", ["utils", "helpers", "misc", "common", "manager", "handler", "base"])
def test_no_file_has_a_name_that_says_nothing(word: str) -> None:
    assert not [path for path in MODULES if path.stem == word]


@pytest.mark.parametrize(
    "code",
    [
        "import iecl",
        "import iecl.cli.command as c; c.main(['list'])",
        "import iecl.cli.command as c; c.main(['bench', '--list'])",
        "import iecl.cli.command as c, contextlib\nwith contextlib.suppress(SystemExit): c.main(['bench', '--help'])",
        "import iecl.cli.command as c; c.main(['reproduce', '--list', '--scale', 'smoke'])",
        "import iecl.cli.command as c; c.main(['reproduce', 'T33'])",
        "import iecl.api",
        "import iecl.studies.engine as e, iecl.studies.cell as c; e.look_at_cells([c.Cell(data='digits')], 'nowhere')",
        "import iecl.training.config as p; p.make_config(flags={'data': {'name': 'shapes'}})",
        "import iecl.data.defaults",
        "import iecl.checks.doctor, iecl.checks.call",
        "import iecl.reporting.live, iecl.reporting.making",
    ],
)
def test_looking_around_does_not_import_torch(code: str) -> None:
    program = (
        f"{code}\nimport sys\n"
        "assert not {'torch', 'torchvision', 'sklearn', 'lightning_fabric', 'numba'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_two_classes_never_share_a_name() -> None:
    classes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name.lstrip("_"), []).append(name_of(path))
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}
