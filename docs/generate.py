"""Writes docs/generated/*.md from the code: settings, lists, help, public functions. Nothing here is typed twice."""

import contextlib
import inspect
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from advice import ADVICE
from benchmarks.bench import QUESTIONS
from benchmarks.bench.report import made_on
from exhibits import reproduction_part
from measurements import (
    RESULTS,
    benchmarks_page,
    block_part,
    cost_and_knn,
    entropy_part,
    first_hour_part,
    measured_part,
    photographs_part,
    roofline_part,
    selection_part,
    study_part,
    table,
    voc_part,
)

import iecl
from iecl.arguments import PLACES
from iecl.backbones import BACKBONES
from iecl.cli.command import VERBS, main
from iecl.data.datasets import DATASETS, FACTS
from iecl.estimators import DIVERGENCES, ENTROPIES
from iecl.evaluation import EVALUATIONS
from iecl.methods import DEFAULT_HOST, METHODS, WRAPPER
from iecl.names import ELSEWHERE
from iecl.recipes import list_recipes, read_recipe
from iecl.training.config import SECTIONS
from iecl.views.policies import POLICIES, Policy
from iecl.weights.formats import EXPORT_FORMATS
from iecl.weights.layouts import LAYOUTS

OUT = Path(__file__).parent / "generated"
READINGS = (
    ("loss/contrast", "contrast (log 256 = 5.545 if all images look the same)", 3),
    ("iecl/entropy", "entropy of the query, as the loss sees it", 2),
    ("iecl/kl", "divergence", 2),
    ("meter/effective_rank", "effective rank of the 128 features", 1),
    ("meter/feature_std", "feature standard deviation (1: isotropic, 0: collapsed)", 2),
    ("meter/uniformity", "uniformity of the projections (about -4: spread, 0: one point)", 2),
)
CHANGED = (
    "data.image_size",
    "training.epochs",
    "training.batch_size",
    "backbone.name",
    "optimizer.lr",
    "augmentation.policy",
    "training.seed",
    "optimizer.weight_decay",
    "training.precision",
    "data.num_workers",
    "training.devices",
    "optimizer.warmup_epochs",
    "method.temperature",
    "method.ema_momentum",
    "method.out_dim",
    "augmentation.scale",
    "training.grad_accumulation",
    "training.online_eval_epochs",
    "training.loggers",
    "data.cache_megabytes",
    "data.labels",
    "optimizer.name",
    "saib.form",
    "objective.entropy_weight",
)
"""Settings that people change, the most common first."""
ORDER = ("data", "training", "optimizer", "backbone", "augmentation", "saib", "objective")
NO_LIMIT = 2**62
"""A limit from here on is that of the file format."""
NOTE = "<!-- Written by docs/generate.py; edit the code instead. -->"


def write(name: str, title: str, body: str) -> None:
    """One page."""
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.md").write_text(f"{NOTE}\n\n# {title}\n\n{body.strip()}\n", encoding="utf-8")


def part(kind: str, body: str) -> str:
    """A part of a page that the style sheet knows by its kind."""
    return f":::{{container}} {kind}\n{body}\n:::"


def code(text: str, language: str = "text") -> str:
    """A fenced block."""
    return f"```{language}\n{text.rstrip()}\n```"


# --- settings ---


def settings_table(cls: type, recipe: Mapping[str, Any] | None = None) -> str:
    """One row for each setting of a dataclass; of a method also what its default recipe says, which a run gets."""
    rows = [[f"`{f.name}`", default_of(f), f.metadata["doc"], range_of(f.metadata)] for f in fields(cls)]
    heads, kind = ["setting", "default", "meaning", "values"], "settings"
    if recipe is not None:
        kind += " of-method"
        for row, f in zip(rows, fields(cls), strict=True):
            given = f"`{json.dumps(recipe[f.name], ensure_ascii=False)}`" if f.name in recipe else row[1]
            row.insert(1, given)
        heads[1:2] = ["in the default recipe", "in a recipe that leaves it out"]
    return part(kind, table(heads, rows))


def changed_table() -> str:
    """The settings that people change, with their flags and what they are called elsewhere."""
    flags = {place: f"`--{name.replace('_', '-')}`" for name, place in PLACES.items()}
    flags["data.num_workers"] = "`--workers`"
    flags["saib.form"] = "`--saib`"
    classes = SECTIONS | {"method": METHODS[DEFAULT_HOST].load().Settings}
    rows = []
    for place in CHANGED:
        section, _, key = place.partition(".")
        (field,) = (f for f in fields(classes[section]) if f.name == key)
        others = ", ".join(ELSEWHERE.get(place, "").split()[:3])
        rows.append([f"`{place}`", flags.get(place, ""), field.metadata["doc"], others])
    return part("settings changed", table(["setting", "flag", "meaning", "called elsewhere"], rows))


def default_of(field: Field[Any]) -> str:
    """The default as TOML and JSON both write it."""
    value = field.default
    if is_dataclass(value):
        value = value.given() if hasattr(value, "given") else asdict(value)
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def range_of(rules: Mapping[str, Any]) -> str:
    """What a setting may be, in words."""
    if rules.get("choices"):
        return ", ".join(f"`{choice}`" for choice in rules["choices"])
    words = {"low": "at least", "above": "above", "high": "at most"}
    said = {word: rules[rule] for rule, word in words.items() if rules.get(rule) is not None}
    return ", ".join(f"{word} {value:,}" for word, value in said.items() if abs(value) < NO_LIMIT)


def settings_page() -> str:
    parts = [
        "Every key of a recipe, of `--set section.key=value` and of a run's `settings.toml`. "
        "How they are laid over each other: [Settings](../guides/settings.md).",
        f"## What people change\n\nThe most common first.\n\n{changed_table()}",
    ]
    parts += [
        f"## `[{name}]`\n\n{inspect.getdoc(SECTIONS[name])}\n\n{settings_table(SECTIONS[name])}" for name in ORDER
    ]
    for name, entry in METHODS.items():
        if name == WRAPPER:
            where = "the block is in `[saib]`, the terms are in `[objective]`"
            host = f"`host`, by default [{DEFAULT_HOST}](#method-of-{DEFAULT_HOST}), and the settings of that method"
            parts.append(f"## `[method]` of {name}\n\n{host}; {where}.")
        else:
            cls = entry.load().Settings
            own = settings_table(cls, read_recipe("default", name)["method"])
            parts.append(f"## `[method]` of {name}\n\n{inspect.getdoc(cls)}\n\n{own}")
    for name, entry in EVALUATIONS.items():
        cls = entry.load().Settings
        parts.append(f"## Options of `evaluate {name}`\n\n{inspect.getdoc(cls)}\n\n{settings_table(cls)}")
    return "\n\n".join(parts)


# --- methods ---


def methods_page() -> str:
    """What each does, what it costs, when to take it; the pages below it in the tree."""
    rows = [
        [f"[{name}](../methods/{name}.md)", entry.summary, ADVICE[name], *cost_and_knn(name)]
        for name, entry in METHODS.items()
    ]
    parts = [
        "`iecl pretrain --data photos/ --method NAME`. Without `--method` you get `ie-cl`.",
        part("methods", table(["method", "what it does", "advice", "cost", "kNN, %"], rows)),
        "**Cost**: time of a training step beside SimCLR's. **kNN**: after two epochs on generated images, which shows "
        "that a method learns and not how good it can become; ± is over three seeds, one run otherwise. Both with "
        "`resnet10-w16` and the default recipes, `ie-cl` without its block; where the numbers come from: "
        "[Measurements](benchmarks.md).",
        ":::{toctree}\n:hidden:\n\n" + "\n".join(f"../methods/{name}" for name in METHODS) + "\n:::",
    ]
    return "\n\n".join(parts)


# --- lists ---


def lists_page() -> str:
    named = [
        [
            f"`{name}`",
            DATASETS[name].summary,
            *map(str, (f.classes, f.train, f.test, f.image_size, f.decode_size)),
            f.origin,
        ]
        for name, f in FACTS.items()
    ]
    parts = ["The same tables as `iecl list`."]
    for title, entries in (("Methods", METHODS), ("Backbones", BACKBONES)):
        parts.append(f"## {title}\n\n" + table(["name", "what"], [[f"`{n}`", e.summary] for n, e in entries.items()]))
    heads = ["name", "what", "classes", "train", "test", "view", "decode size", "origin"]
    parts.append("## Datasets\n\n" + table(heads, named))
    parts.append("## Recipes\n\n" + table(["name", "what"], [[f"`{n}`", line] for n, line in list_recipes().items()]))
    for title, entries in (
        ("Evaluations", EVALUATIONS),
        ("Entropies", ENTROPIES),
        ("Divergences", DIVERGENCES),
    ):
        parts.append(f"## {title}\n\n" + table(["name", "what"], [[f"`{n}`", e.summary] for n, e in entries.items()]))
    layouts = [
        [f"`{name}`", f"`{row.table}`" if row.table else "the file itself", f"`{row.prefix}`", row.source]
        for name, row in LAYOUTS.items()
    ]
    parts.append("## Layouts\n\nHow files from elsewhere name a backbone's tensors; a file must fit exactly one.\n\n")
    parts[-1] += table(["name", "table", "prefix", "known from"], layouts)
    formats = [
        [f"`{name}`", ", ".join(f"`{end}`" for end in row.suffixes), row.summary]
        for name, row in EXPORT_FORMATS.items()
    ]
    parts.append("## Formats\n\nWhat `iecl export` writes.\n\n" + table(["name", "file", "what"], formats))
    parts.append(
        "## Policies\n\nOne column for each view; a single one holds for every view. "
        "Operators that no policy uses: [Augmentations](../guides/augmentations.md).\n\n" + policies_table()
    )
    return "\n\n".join(parts)


def policies_table() -> str:
    """Every number of every policy, one column for each view."""
    columns = [(name, number, p) for name, row in POLICIES.items() for number, p in enumerate(row)]
    heads = [name if len(POLICIES[name]) == 1 else f"{name}, view {number + 1}" for name, number, _ in columns]
    rows, is_used = [], True
    for field in fields(Policy):
        values = [getattr(policy, field.name) for _, _, policy in columns]
        if field.name.endswith("_prob"):
            is_used = any(values)  # its parameters follow it
        if not is_used:
            continue
        rows.append([f"`{field.name}`", *(numbers(value) for value in values)])
    return table(["", *heads], rows)


def numbers(value: Any) -> str:
    return " to ".join(f"{part:.3g}" for part in value) if isinstance(value, tuple) else f"{value:g}"


def recipes_page() -> str:
    parts = ["The files as they are. A key that is missing has its default: [Settings](settings.md)."]
    root = Path(iecl.__file__).parent / "recipes"
    for name in list_recipes():
        read_recipe(name)  # a page about a recipe that cannot be read would be wrong
        parts.append(f"## {name}\n\n" + code((root / f"{name}.toml").read_text(encoding="utf-8"), "toml"))
    return "\n\n".join(parts)


# --- command and functions ---


def help_of(words: list[str]) -> str:
    """What `iecl WORDS --help` prints."""
    os.environ["COLUMNS"] = "100"  # argparse wraps to the terminal; the pages must not depend on it
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return shown.getvalue()


def commands_page() -> str:
    parts = [code(help_of([]))]
    parts += [f"## iecl {verb}\n\n{code(help_of([verb]))}" for verb in VERBS]
    return "\n\n".join(parts)


def public_things() -> Iterator[tuple[str, Any]]:
    for name in sorted(iecl.__all__):
        thing = getattr(iecl, name)
        if callable(thing):
            yield f"iecl.{name}", thing
    for name in iecl.entropy.__all__:
        yield f"iecl.entropy.{name}", getattr(iecl.entropy, name)


def api_page() -> str:
    parts = ["What `import iecl` offers. Everything is loaded on first use."]
    for name, thing in public_things():
        parts.append(f"## {name}\n\n{code(described(name, thing), 'python')}")
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            own = {member: part for member, part in vars(thing).items() if is_shown(member, part)}
            rows = [[f"`{member}`", (part.__doc__ or "").partition("\n")[0]] for member, part in own.items()]
            parts.append(table(["member", "what"], rows))
    return "\n\n".join(parts)


def is_shown(name: str, part: Any) -> bool:
    """Whether a member of a class is for users: `extra_repr` is for `print`."""
    is_method = inspect.isfunction(part) or isinstance(part, property)
    return is_method and not name.startswith("_") and name != "extra_repr"


def described(name: str, thing: Any) -> str:
    """Signature and docstring."""
    text = inspect.getdoc(thing) or ""
    made = vars(thing).get("__init__") if inspect.isclass(thing) else None
    if made is not None and made.__doc__:  # not getdoc, which would take the words of object
        text += f"\n\n{inspect.getdoc(made)}"
    return f'{name}(\n{parameters(thing)})\n"""{text}\n"""'


def parameters(thing: Any) -> str:
    """One line for each parameter, with its default; types stand in the code."""
    shown = []
    starred = False
    for p in inspect.signature(thing).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        starred = starred or p.kind is p.VAR_POSITIONAL
        shown.append(prefix + p.name + ("" if p.default is p.empty else f"={p.default!r}"))
    return "".join(f"    {part},\n" for part in shown)


# --- measurements ---


def questions_table() -> str:
    """What `iecl bench` asks, to be included in the page about it."""
    return table(["name", "question"], [[f"`{name}`", entry.summary] for name, entry in QUESTIONS.items()]) + "\n"


def paper_rate_table() -> str:
    """The runs of benchmarks/paper_rate.py side by side: the common first step, and the end of each."""
    found = json.loads((RESULTS / "paper_rate" / "cpu.json").read_text(encoding="utf-8"))
    arms = found["arms"]
    ends = [{name: value for row in arm["rows"] for name, value in row.items()} for arm in arms]
    columns = [arms[0]["rows"][0], *ends]
    rows = [
        [words, *(f"{column[name]:.{digits}f}" if name in column else "" for column in columns)]
        for name, words, digits in READINGS
    ]
    rows.append(["online kNN", "", *(f"{100 * end['knn']:.1f} %" for end in ends)])
    rows.append(["kNN of test images", f"{100 * found['knn_of_random_backbone']:.1f} % (untrained)"])
    rows[-1] += [f"{100 * arm['knn_test']:.1f} %" if "knn_test" in arm else "" for arm in arms]
    rows.append(["verdict of the run", "", *(arm["verdict"] for arm in arms)])
    head = ["", "first step of both", *(f"learning rate {arm['rate']:g}, step {arm['steps']}" for arm in arms)]
    note = f"One run each, seed {arms[0]['seed']}. {made_on(found)}"
    return f"{table(head, rows)}\n\n{note}\n"


def install_table() -> str:
    """What environments take that benchmarks/install.py has made and used."""
    found = json.loads((RESULTS / "install" / "linux.json").read_text(encoding="utf-8"))
    rows = []
    for name, row in found["installations"].items():
        kind, _, python = name.partition(", Python ")
        parts = ", ".join(f"{package} {size:,}" for package, size in row["largest"].items())
        versions = row["versions"]
        rows.append([python, kind, versions["torch"], versions["numba"], f"{row['megabytes']:,}", parts])
    heads = ["Python", "packages", "torch", "numba", "all", "largest parts"]
    if len({row[1] for row in rows}) == 1:  # nothing to tell apart
        heads, *rows = ([*row[:1], *row[2:]] for row in (heads, *rows))
    shown = table(heads, rows)
    return f"{shown}\n\nThe wheel of iecl itself: {found['wheel_megabytes']} MB. {found['machine']}, {found['date']}.\n"


if __name__ == "__main__":
    write("settings", "All settings", settings_page())
    write("methods", "Methods", methods_page())
    write("lists", "What there is", lists_page())
    write("recipes", "Recipes", recipes_page())
    write("commands", "The command", commands_page())
    write("api", "Python", api_page())
    write("benchmarks", "Measurements", benchmarks_page())
    for name in METHODS:
        (OUT / f"measured-{name}.md").write_text(measured_part(name), encoding="utf-8")
    for name in ("printed_block", "certificate", "preservation", "entropy_cost", "gain_cost", "incremental"):
        (OUT / f"{name.replace('_', '-')}.md").write_text(entropy_part(name), encoding="utf-8")
    (OUT / "questions.md").write_text(questions_table(), encoding="utf-8")
    (OUT / "roofline.md").write_text(roofline_part(), encoding="utf-8")
    (OUT / "block-gain.md").write_text(block_part(), encoding="utf-8")
    (OUT / "photographs.md").write_text(photographs_part(), encoding="utf-8")
    (OUT / "voc.md").write_text(voc_part(), encoding="utf-8")
    (OUT / "first-hour.md").write_text(first_hour_part(), encoding="utf-8")
    (OUT / "grad-cache.md").write_text(study_part("grad_cache"), encoding="utf-8")
    (OUT / "selection.md").write_text(selection_part(), encoding="utf-8")
    (OUT / "paper-rate.md").write_text(paper_rate_table(), encoding="utf-8")  # a part of a page, without a title
    (OUT / "install.md").write_text(install_table(), encoding="utf-8")
    (OUT / "reproduction.md").write_text(reproduction_part(OUT), encoding="utf-8")
