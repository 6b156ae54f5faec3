"""Pages and tables from benchmarks/results/*/*.json: every number of the documentation that was measured."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.bench.report import made_on, reached_in_words

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
PERCENT = {"above_random", "knn", "linear", "online_knn", "knn_pretrained", "knn_random", "knn_pixels"}


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def benchmarks_page() -> str:
    """One section for each file of results that has one of the two common shapes."""
    parts = [
        "Made from the JSON in `benchmarks/results`, which holds every raw value. Compare within one table only: "
        "machines differ, and shared ones are noisy. `±` is the standard deviation over seeds, brackets are quartiles "
        "over repeats."
    ]
    for path in sorted(RESULTS.glob("*/*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        is_study = "results" not in found and "rows" in found
        body = rows_table(found["rows"]) if is_study else results_table(found.get("results", {}))
        if body:
            parts.append(f"## {path.parent.name}\n\n{found['question'].capitalize()}\n\n{body}\n\n{made_on(found)}")
    return "\n\n".join(parts)


def study_part(name: str) -> str:
    """The table of one study, to be included in a page that talks about it."""
    (path,) = (RESULTS / name).glob("*.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    return f"{rows_table(found['rows'])}\n\n{made_on(found)}\n"


def measured_part(method: str) -> str:
    """What the studies say of one method, to be included in its page."""
    studies = {name: loaded(name) for name in ("methods", "steps", "parity")}
    rows, parts = studies["methods"].get("rows", []), []
    arms = [arm for arm in (method, f"{method} + block", "random") if any(row["arm"] == arm for row in rows)]
    if arms:
        parts += [rows_table([row for row in rows if row["arm"] in arms]), made_on(studies["methods"])]
    steps = studies["steps"].get("results", {})
    named = {key: steps[key] for key in (f"{method} / simclr", f"{method} + block / {method}") if key in steps}
    if named:
        parts += ["Time of a training step as a ratio, arms in turn in one run:", results_table(named)]
        parts.append(made_on(studies["steps"]))
    peers = [row for row in studies["parity"].get("rows", []) if row["arm"].startswith(f"{method}, ")]
    if peers:
        parts += ["Beside the same method from lightly's modules:", rows_table(peers), made_on(studies["parity"])]
    return "\n\n".join(parts) + "\n" if parts else "No measurement is recorded.\n"


def entropy_part(name: str) -> str:
    """One of the measurements that the page on entropy shows, with its counts in words."""
    found = loaded(name)
    if not found:
        return "No measurement is recorded.\n"
    counts = [
        f"{words.capitalize()}: log|det J| is negative in **{row['negative']} of {row['cases']}** cases."
        for words, row in found.get("counts", {}).items()
    ]
    body = rows_table(found["rows"]) if "rows" in found else results_table(found["results"])
    return "\n\n".join([*counts, body, made_on(found)]) + "\n"


def selection_part() -> str:
    """What each score that needs no label is worth, by arm and over all of them."""
    found = loaded("selection")
    rows = [row for row in found.get("rows", []) if "scores" in row]
    if not rows:
        return "No measurement is recorded.\n"
    names = list(rows[0]["scores"])
    parts = []
    for title, key in (
        ("rank correlation with kNN over epochs", "correlation"),
        ("points lost by its choice", "regret"),
    ):
        body = []
        for arm in [*dict.fromkeys(row["arm"] for row in rows), "all"]:
            own = [row for row in rows if arm in (row["arm"], "all")]
            cells = [[row["scores"][name][key] for row in own] for name in names]
            body.append([arm, str(len(own)), *(f"{mean(cell):.2f}" for cell in cells)])
        parts.append(table([title, "runs", *(name.replace("_", " ") for name in names)], body))
    return "\n\n".join([*parts, made_on(found)]) + "\n"


def cost_and_knn(method: str) -> list[str]:
    """Time of its step beside SimCLR's, and its kNN accuracy after two short epochs."""
    step = loaded("steps").get("results", {}).get(f"{method} / simclr")
    found = [row["knn"] for row in loaded("methods").get("rows", []) if row["arm"] == method]
    cost = "1" if method == "simclr" else f"{step['median']:.1f}" if step else ""
    return [cost, spread("knn", found).replace(" %", "").replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")]


def block_part() -> str:
    """Methods that were measured with and without the block, with three seeds each."""
    rows = loaded("methods")["rows"]
    body = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        plain, block = ([row["knn"] for row in rows if row["arm"] == name] for name in (arm, f"{arm} + block"))
        if min(len(plain), len(block)) > 2:
            gain = f"{100 * (mean(block) - mean(plain)):+.1f} points"
            body.append([arm, spread("knn", plain), spread("knn", block), gain])
    return f"{table(['', 'kNN without', 'with the block', ''], body)}\n\n{made_on(loaded('methods'))}\n"


def photographs_part() -> str:
    """What the run behind the pictures of the tutorials gave."""
    found = loaded("photographs")
    if not found:
        return "No measurement is recorded.\n"
    names = {"same_photograph": "of five nearest tiles, from the same photograph"}
    names |= {f"few_{shots}": f"right answers from {shots} label{'s' * (shots > 1)} each" for shots in (1, 5, 10)}
    rows = [
        [row["arm"], *(f"{100 * row[name]:.1f} %" if name in row else "" for name in names)] for row in found["rows"]
    ]
    return f"{table(['', *names.values()], rows)}\n\n{made_on(found)}\n"


def first_hour_part() -> str:
    """What became of one command on folders of several kinds, and what it chose."""
    found = loaded("first_hour")
    rows = [
        [
            row["arm"] + ("" if row["command"].endswith(" photos") else f" (`{row['command'].split('photos ')[1]}`)"),
            "" if row["seconds_to_progress"] is None else f"{row['seconds_to_progress']:.0f} s",
            f"{row['seconds']:.0f} s",
            str(row["load"]),
            str(row["code"]),
            chosen_in_short(row["chosen"]) or row["last_line"].partition(" (--")[0],
            row["estimate"].partition(" of memory")[0].removeprefix("about ").replace(" ", "\N{NO-BREAK SPACE}"),
        ]
        for row in found.get("rows", [])
    ]
    heads = ["folder", "to the first progress", "total", "load", "exit code", "chosen", "estimate"]
    words = f"`iecl pretrain --data photos`: {found.get('setting', '')}. Load: others' work on these cores as it began."
    return f"{words}\n\n{table(heads, rows)}\n\n{beside_part(found)}{made_on(found)}\n"


def chosen_in_short(chosen: str) -> str:
    """What a run chose, in the words that a table has room for."""
    shorter = re.sub(r"image size |backbone ", "", chosen).replace("batch size", "batch")
    return re.sub(r"epochs (\d+)", r"\1 epochs", shorter)


def beside_part(found: Mapping[str, Any]) -> str:
    """The first run of iecl and of lightly-train, side by side."""
    rows = [
        [
            row["arm"],
            "never" if row["seconds_to_progress"] is None else f"{row['seconds_to_progress']:.0f} s",
            f"{row['seconds']:.0f} s",
            str(row["code"]),
            str(row["lines"]),
            ", ".join(row["files"]),
        ]
        for row in found.get("beside", [])
    ]
    if not rows:
        return ""
    heads = ["200 photographs", "to the first progress", "total", "exit code", "lines", "files at the end"]
    return f"{table(heads, rows)}\n\n"


def voc_part() -> str:
    """What the small trainings on VOC reached, each with its protocol."""
    rows, made = [], ""
    for name in ("voc_overfit", "voc_small"):
        found = loaded(name)
        made = made_on(found) if found else made
        for row in found.get("found", {}).values():
            values = [
                f"{key.replace('_', ' ')} {100 * value:.1f} %" for key, value in row.items() if type(value) is float
            ]
            counts = f"{row['n_train']} / {row['n_test']}"
            rows.append([name.removeprefix("voc_"), f"`{row['protocol_id']}`", counts, ", ".join(values)])
    return f"{table(['', 'protocol', 'trained on / tested on', 'reached'], rows)}\n\n{made}\n"


def loaded(name: str) -> dict[str, Any]:
    """The results of one study, or nothing."""
    found = sorted((RESULTS / name).glob("*.json"))
    return json.loads(found[0].read_text(encoding="utf-8")) if found else {}


def results_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Median and quartiles by name, and the goal where any row has one."""
    heads = ["", "median", "quartiles"]
    rows = [
        [name, shown(name, row["median"]), " to ".join(shown(name, value) for value in row["quartiles"])]
        for name, row in results.items()
    ]
    if any("goal" in row for row in results.values()):
        heads += ["goal", "reached"]
        for cells, row in zip(rows, results.values(), strict=True):
            cells += [row.get("goal", ""), reached_in_words(row)]
    return table(heads, rows) if rows else ""


def roofline_part() -> str:
    """How near steps come to bare products and convolutions, with the speeds that the shares are made from."""
    found = loaded("roofline")
    if not found:
        return "No measurement is recorded: `iecl bench roofline` makes one.\n"
    heads = ["backbone", "side", "batch", "precision", "product", "convolutions", "step"]
    heads += ["step over product", "step over convolutions"]
    rows = []
    for case in found["cases"]:
        speeds = [f"{case['gigaflops'][arm]['median']:.1f}" for arm in ("product", "convolutions", "step")]
        shares = [f"{case[f'step over {arm}']['median']:.2f}" for arm in ("product", "convolutions")]
        facts = [case["backbone"], f"{case['side']} px", str(case["batch"]), case["precision"]]
        rows.append([*facts, *speeds, *shares])
    return f"{table(heads, rows)}\n\nSpeeds in GFLOP/s, medians. {made_on(found)}\n"


def rows_table(rows: list[Mapping[str, Any]]) -> str:
    """Mean and deviation of each number over the seeds of an arm."""
    numbers = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name != "seed" and any(isinstance(row.get(name), int | float) for row in rows)
    ]
    arms = dict.fromkeys(row["arm"] for row in rows)
    body = []
    for arm in arms:
        own = [row for row in rows if row["arm"] == arm]
        body.append([arm, str(len(own)), *(spread(name, [row.get(name) for row in own]) for name in numbers)])
    return table(["arm", "seeds", *(name.replace("_", " ") for name in numbers)], body)


def spread(name: str, values: Iterable[Any]) -> str:
    """Mean ± deviation of the values that are there."""
    given = [value for value in values if isinstance(value, int | float)]
    if not given:
        return ""
    middle = shown(name, mean(given))
    return f"{middle} ± {shown(name, stdev(given)).removesuffix(' %')}" if len(given) > 1 else middle


def shown(name: str, value: float) -> str:
    """A share as per cent, anything else with three digits."""
    if name in PERCENT:
        return f"{100 * value:.1f} %"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
