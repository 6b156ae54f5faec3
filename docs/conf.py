"""How the documentation is built: Markdown pages, the Furo theme, nothing fetched from a network."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
_project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "iecl"
author = "iecl maintainers"
copyright = "iecl maintainers"
version = release = _project["version"]

sys.path.insert(0, str(Path(__file__).parent))  # for mathml.py
extensions = ["myst_parser", "mathml"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
html_math_renderer = "mathml"
myst_heading_anchors = 3  # a link may name a heading of another page
exclude_patterns = [  # parts of other pages
    "_build",
    "generated/install.md",
    "generated/paper-rate.md",
    "generated/measured-*.md",
    "generated/printed-block.md",
    "generated/certificate.md",
    "generated/first-hour.md",
    "generated/preservation.md",
    "generated/entropy-cost.md",
    "generated/block-gain.md",
    "generated/photographs.md",
    "generated/reproduction.md",
]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["iecl.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e6e", "color-brand-content": "#0b6e6e"},
    "dark_css_variables": {"color-brand-primary": "#5cc8c0", "color-brand-content": "#5cc8c0"},
}
html_title = f"iecl {release}"
html_copy_source = False
html_show_sphinx = False
