"""A document as one HTML file: scripts, style and data inside, and a policy that lets nothing else in.

Data are JSON in which no letter can end the element around them; the scripts put text on the page as text only. The
policy names the one script and the one style by their hashes: whatever a run directory holds is never executed, and
nothing is fetched.
"""

import html
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from iecl.errors import UserError
from iecl.files import open_plain, write_atomically
from iecl.runs.directory import strict_json

MARK = "<!doctype html>\n<!-- written by iecl report -->\n"
"""How every page begins: what begins so may be written over."""
SCRIPTS = ("tools.js", "chart.js", "pictures.js", "map.js", "sections.js", "start.js")
HEIGHT = 760
"""Of a page within a notebook, in pixels."""


@dataclass(frozen=True)
class ReportPage:
    """A page, and the file that holds it if there is one. A notebook shows it inline."""

    html: str
    path: Path | None = None

    def __repr__(self) -> str:
        return f"ReportPage({str(self.path) if self.path else f'{len(self.html):,} letters'})"

    def _repr_html_(self) -> str:
        """The page in a frame of its own: its scripts and those of the notebook do not meet."""
        inside = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{inside}" sandbox="allow-scripts allow-modals" title="iecl report" width="100%" '
            f'height="{HEIGHT}" style="border: 1px solid #8886; border-radius: 8px"></iframe>'
        )


def written(document: dict[str, Any], out: Path | None = None, *, is_live: bool = False) -> ReportPage:
    """The page of a document, in `out` too if that is given; a live one may ask its own server for newer data."""
    script, style = _script(), _asset("style.css")
    policy = (
        f"default-src 'none'; img-src data:; script-src '{_hashed(script)}'; style-src '{_hashed(style)}'; "
        f"connect-src '{'self' if is_live else 'none'}'; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "title": html.escape(document["title"]), "style": style, "script": script}
    parts["data"] = embedded(document | {"is_live": is_live})
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))  # once: parts may say anything
    made = ReportPage(MARK + page, out)
    if out is not None:
        write_atomically(out, made.html)
    return made


def embedded(document: dict[str, Any]) -> str:
    r"""JSON for the inside of a script element.

    >>> embedded({"name": "</script><!--"})
    '{"name": "\\u003c/script\\u003e\\u003c!--"}'
    """
    text = strict_json(document)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def check_place(out: Path) -> None:
    """Refuse a place where no page can be written, before any work is done."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{out} is no .html", where="--out", do="name a file that ends in .html")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", where="--out", do="make it, or name another")
    if out.exists():
        with open_plain(out) as file:
            if file.read(len(MARK)) != MARK.encode():
                raise UserError(f"{out} is there, and is no report", where="--out", do="name another file")


@cache
def _script() -> str:
    """All scripts in one closure: nothing of theirs is a global name."""
    parts = "\n".join(_asset(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


@cache
def _asset(name: str) -> str:
    return (files("iecl.reporting") / "page" / name).read_text(encoding="utf-8")


def _hashed(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
