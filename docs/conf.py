"""How the documentation is built: Markdown pages, the Furo theme, nothing fetched from a network."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
_project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "iecl"
author = "iecl maintainers"
copyright = "iecl maintainers"
version = release = _project["version"]

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3  # a link may name a heading of another page
exclude_patterns = [  # parts of other pages
    "_build",
    "generated/paper-rate.md",
    "generated/measured-*.md",
    "generated/printed-block.md",
    "generated/certificate.md",
    "generated/first-hour.md",
    "generated/preservation.md",
    "generated/entropy-cost.md",
]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True

html_theme = "furo"
html_title = f"iecl {release}"
html_copy_source = False
html_show_sphinx = False
