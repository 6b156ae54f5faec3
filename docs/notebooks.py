"""Tutorials as code: their blocks for the test that runs them, and notebooks of two of them.

python docs/notebooks.py writes docs/tutorials/*.ipynb; a test compares.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

TUTORIALS = Path(__file__).parent / "tutorials"
NOTEBOOKS = ("search", "few-labels")
BLOCK = re.compile(r"^```(?:\{code-block\} )?(\w+)\n(?::caption: (\S+)\n\n)?(.*?)^```\n", re.MULTILINE | re.DOTALL)
LEFT_OUT = ("## The same in a terminal", "## About the picture")
"""Sections that say nothing in a notebook."""


class Block(NamedTuple):
    """A piece of code of a page."""

    language: str
    file: str
    """The file that it is; empty if it is to be run."""
    code: str


def blocks(name: str) -> list[Block]:
    """The code of a tutorial, in order."""
    text = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    return [Block(*found) for found in BLOCK.findall(text)]


def notebook(name: str) -> str:
    """A tutorial as a notebook that needs nothing but itself: text without pictures and links, and Python."""
    text = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    text = "".join(section for section in sections if not section.startswith(LEFT_OUT))
    cells = [cell("code", "%pip install --quiet iecl")]
    end = 0
    for found in BLOCK.finditer(text):
        cells += [cell("markdown", plain(text[end : found.start()])), cell("code", found[3])]
        end = found.end()
    cells.append(cell("markdown", plain(text[end:])))
    kept = [one | {"id": f"cell-{number}"} for number, one in enumerate(cells) if one["source"]]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": kept, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def plain(text: str) -> str:
    """Without pictures, their captions, and links to other pages."""
    text = re.sub(r"^!\[.*?\]\(.*?\)\n(\n\*[^*]*\*\n)?", "", text, flags=re.MULTILINE)
    text = re.sub(r"^Next: .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def cell(kind: str, source: str) -> dict[str, Any]:
    """One cell; an empty one has no source."""
    lines = source.strip().splitlines(keepends=True)
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": lines, **code}


if __name__ == "__main__":
    for name in NOTEBOOKS:
        (TUTORIALS / f"{name}.ipynb").write_text(notebook(name), encoding="utf-8")
