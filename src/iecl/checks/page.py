"""The page to look at: what each check found, with the images themselves. One file, no script, nothing fetched."""

import base64
import io
import os
import shlex
from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from iecl.checks.diagnosis import Diagnosis
from iecl.checks.findings import Finding
from iecl.checks.style import STYLE
from iecl.checks.table import CHECKS
from iecl.console import counted, duration, visible
from iecl.data.decoder import Unreadable, examine
from iecl.data.listing import printable

SHOWN = 24
"""Images of one check; the table has all of them."""
_SIDE = 132
_LONGEST = 160
"""Letters of a name."""
LEAD = (
    "What iecl doctor noticed in these images before anything is trained on them. Nothing was deleted or changed. "
    "<b>certain</b> is a fact of the file, <b>likely</b> is wrong now and then, a <b>hint</b> is worth a look."
)


def page(made: Diagnosis, result: dict[str, Any], exclude: str) -> str:
    """HTML of everything that was found; `exclude` is the list of images to leave out."""
    names = " + ".join(printable(os.fsencode(name)).rstrip("/").rpartition("/")[2] for name in result["data"])
    body = [
        f"<header><h1>{_text(names)}</h1><p>{_text(sentence(result))}</p>"
        f"<p>{LEAD} To train on {'the rest' if result['to_exclude'] else 'them'}:</p>"
        f"<p><code class=command>{escape(visible(next_command(result, exclude)))}</code></p></header>",
        _overview(result),
        *_shortcuts(result),
        *(_section(made, name, row) for name, row in result["checks"].items() if row["count"]),
        _classes(result["classes"]),
        _advice(result),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        f"<title>{_text(names)}: what was found</title><style>{STYLE}</style></head><body><main>"
        f"{''.join(body)}</main></body></html>\n"
    )


def sentence(result: dict[str, Any]) -> str:
    """What was looked at, how long that took, and what came of it."""
    parts = ", ".join(f"{count:,} {name}" for name, count in result["parts"].items() if name != "all")
    classes = f", {counted(len(result['classes']), 'class').replace('classs', 'classes')}" if result["classes"] else ""
    found = sum(row["count"] > 0 for row in result["checks"].values())
    said = f"{found} of {len(result['checks'])} checks found something" if found else "nothing was found"
    out = f", {counted(result['to_exclude'], 'image')} to leave out" if result["to_exclude"] else ""
    looked = f"{counted(result['images'], 'image')}{f' ({parts})' if parts else ''}{classes}"
    return f"{looked} in {duration(result['seconds'])}: {said}{out}"


def next_command(result: dict[str, Any], exclude: str) -> str:
    """How to train on these images without those on the list."""
    data = " ".join(f"--data {shlex.quote(name)}" for name in result["data"])
    is_needed = result["to_exclude"] or result["exclude"]
    return f"iecl pretrain {data}" + (f" --exclude {shlex.quote(exclude)}" if is_needed else "")


_TRUSTED = 0.6
"""Share of the labels from which on neighbors that contradict one are worth more than a guess."""


def of_votes(result: dict[str, Any]) -> str:
    """How far the backbone knows the labels at all; empty: there is none, or there are no labels."""
    votes = result.get("labels_of_neighbors")
    if votes is None:
        return ""
    doubt = "" if votes >= _TRUSTED else ", which is little: most hints on single labels will be wrong"
    return f"neighbors by the backbone vote for {100 * votes:.0f} % of the labels{doubt}"


def of_crowds(result: dict[str, Any]) -> str:
    """What to say where images are alike by nature; empty: they are not."""
    if not result["crowded"]:
        return ""
    return (
        f"{counted(result['crowded'], 'image')} are much like several others without being copies, as digits or scans "
        "are: of these only pairs that are all but equal were called near"
    )


def _text(words: str) -> str:
    """Any text as HTML; a name may be as long as it likes, the page shows its ends."""
    shown = visible(words)
    if len(shown) > _LONGEST:
        shown = f"{shown[: _LONGEST // 2]} … {shown[-_LONGEST // 2 :]}"
    return escape(shown, quote=True)


def _overview(result: dict[str, Any]) -> str:
    rows = []
    for name, row in result["checks"].items():
        label = f'<a href="#{name}">{name}</a>' if row["count"] else name
        of = result["parts"].get("test", 0) if name == "leak" else result["images"]
        percent = 100 * row["count"] / max(1, of)
        share = "" if not row["count"] else f"{percent:.1f} %" if percent >= 0.1 else "&lt; 0.1 %"
        threshold = "".join(f"{key} {value:,}" for key, value in row["threshold"].items())
        rows.append(
            f'<tr class="{"some" if row["count"] else "none"}"><th scope="row">{label}</th>'
            f'<td class="number">{row["count"]:,}</td><td class="number">{share}</td>'
            f'<td><span class="sure {row["sure"]}">{row["sure"]}</span></td><td>{_text(row["what"])}</td>'
            f'<td class="threshold">{threshold}</td></tr>'
        )
    head = "<tr><th>check</th><th>images</th><th></th><th>how sure</th><th>what</th><th>threshold</th></tr>"
    table = f'<table class="overview"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'
    notes = "".join(f'<p class="more">{note}</p>' for note in (of_crowds(result), of_votes(result)) if note)
    return f'<section><div class="wide">{table}</div>{notes}</section>'


def _section(made: Diagnosis, name: str, row: dict[str, Any]) -> str:
    found = made.of(name)
    if name in ("unreadable", "truncated"):
        return _list(made, name, row, found)
    shown = _chosen(found)
    more = f"{len(shown)} of {row['count']:,} shown; all are in findings.csv" if len(shown) < row["count"] else ""
    tiles = "".join(_tile(made, one) for one in shown)
    return (
        f'<section id="{name}"><h2>{name} <small>{row["count"]:,}</small></h2>'
        f"<p>{_said(row)}</p>"
        f'<div class="tiles">{tiles}</div><p class="more">{more}</p></section>'
    )


def _said(row: dict[str, Any]) -> str:
    excluded = ' · <span class="mark">on the list to leave out</span>' if row["excludes"] else ""
    return f'{_text(row["what"])} · <span class="sure {row["sure"]}">{row["sure"]}</span>{excluded}'


def _list(made: Diagnosis, name: str, row: dict[str, Any], found: list[Finding]) -> str:
    """Files that there is nothing to show of."""
    rows = "".join(
        f'<tr><th scope="row">{_text(made.scan.name(one.number))}</th><td>{_text(one.note)}</td></tr>'
        for one in found[: 4 * SHOWN]
    )
    more = f"{4 * SHOWN} of {row['count']:,}; all are in findings.csv" if row["count"] > 4 * SHOWN else ""
    return (
        f'<section id="{name}"><h2>{name} <small>{row["count"]:,}</small></h2><p>{_said(row)}</p>'
        f'<table class="list">{rows}</table><p class="more">{more}</p></section>'
    )


def _chosen(found: list[Finding]) -> list[Finding]:
    """Some that are spread over all; of the copies of one image the first, of two that found each other one."""
    first: dict[tuple[int, ...], Finding] = {}
    for one in found:
        pair = (one.number,) if one.other is None else tuple(sorted((one.number, one.other)))
        first.setdefault(pair if one.group is None else (-1, one.group), one)
    single = list(first.values())
    places = np.linspace(0, len(single) - 1, min(SHOWN, len(single))).round().astype(int)
    return [single[place] for place in places]


def _tile(made: Diagnosis, one: Finding) -> str:
    scan = made.scan
    numbers = [one.number] if one.other is None else [one.other, one.number]
    pictures = "".join(_picture(scan.path(number), scan.name(number), made.settings.max_pixels) for number in numbers)
    reads = CHECKS[one.check].value
    words = [reads.format(one.value)] if reads and one.value is not None else []
    words += [one.note] if one.note else []
    lines = "".join(
        f'<span class="name">{_text(scan.name(number))}</span>'
        + (f'<span class="label">{_text(_origin(made, number))}</span>' if _origin(made, number) else "")
        for number in numbers
    )
    kind = " pair" if len(numbers) > 1 else ""
    return (
        f'<figure class="tile{kind}"><div class="pictures">{pictures}</div>'
        f'<figcaption>{lines}<span class="value">{_text(" · ".join(words))}</span></figcaption></figure>'
    )


def _origin(made: Diagnosis, number: int) -> str:
    """Part and class of an image, where there are several."""
    part = made.scan.part(number).name
    return " · ".join(word for word in (part if part != "all" else "", made.scan.label(number)) if word)


def _picture(path: bytes, name: str, max_pixels: int) -> str:
    try:
        planes = examine(path, _SIDE, max_pixels).planes
    except Unreadable:
        return '<div class="missing">no image</div>'
    colors = planes[:3] if len(planes) >= 3 else planes[[0, 0, 0]]
    image = Image.fromarray(np.ascontiguousarray(colors.transpose(1, 2, 0)))
    small = min(image.size) * 3 <= _SIDE  # pixels of small images are shown as they are
    image.thumbnail((_SIDE * 2, _SIDE), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "PNG" if small else "JPEG", **({} if small else {"quality": 82}))
    content = base64.b64encode(file.getvalue()).decode("ascii")
    kind = "png" if small else "jpeg"
    look = ' class="pixels"' if small else ""
    return f'<img{look} src="data:image/{kind};base64,{content}" alt="{_text(name)}" loading="lazy">'


def _classes(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    top = max(counts.values()) or 1
    order = sorted(counts.items(), key=lambda item: -item[1])
    shown = order if len(order) <= 40 else [*order[:20], *order[-20:]]
    rows = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td class="number">{count:,}</td>'
        f'<td class="bar"><i style="width:{100 * count / top:.1f}%"></i></td></tr>'
        for name, count in shown
    )
    cut = (
        f"<p class=more>the 20 largest and the 20 smallest of {len(order)} classes</p>"
        if len(shown) < len(order)
        else ""
    )
    return f'<section><h2>classes <small>{len(order)}</small></h2><table class="bars">{rows}</table>{cut}</section>'


def shown(share: float) -> str:
    """A share of what there is to explain; predictions worse than a guess explain nothing."""
    return f"{max(0.0, share):.2f}"


def _shortcuts(result: dict[str, Any]) -> Iterable[str]:
    found = result.get("shortcuts")
    if not found:
        return
    rows = "".join(
        f'<tr class="{"some" if row["is_strong"] else "none"}"><th scope="row">{_text(row["property"])}</th>'
        f'<td class="bar"><i style="width:{100 * max(0.0, row["read"]):.1f}%"></i></td>'
        f'<td class="number">{shown(row["read"])}</td><td class="number">{shown(row["shuffled"])}</td>'
        f'<td class="bar"><i style="width:{100 * max(0.0, row["neighbors"]):.1f}%"></i></td>'
        f'<td class="number">{shown(row["neighbors"])}</td></tr>'
        for row in found
    )
    head = (
        '<tr><th>property</th><th colspan="2">read from the embedding</th><th>shuffled</th>'
        '<th colspan="2">shared by neighbors</th></tr>'
    )
    words = (
        "Cheap properties that say little of what an image shows, and how much of each a linear map reads from the "
        "embedding of images that it was not fitted to: 0 nothing, 1 all; shuffled values are what chance reads. "
        "Beside it how much closer in that property the nearest image is than any: 0 not at all, 1 it is the same."
    )
    yield (
        f'<section id="shortcuts"><h2>shortcuts</h2><p>{words}</p><div class="wide">'
        f'<table class="bars"><thead>{head}</thead><tbody>{rows}</tbody></table></div></section>'
    )


def _advice(result: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_text(row["what"])}</th><td>{_text(row["value"])}</td>'
        f"<td><code>{_text(row['flag'])}</code></td><td>{_text(row['why'])}</td></tr>"
        for row in result["suggestions"]
    )
    plan = f"<p>{_text(result['plan'])}</p>" if "plan" in result else ""
    return f'<section><h2>for a run</h2><div class="wide"><table class="advice">{rows}</table></div>{plan}</section>'
