"""Formulas as MathML, which browsers draw by themselves: no script, and nothing is fetched from a network."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def markup(latex: str, display: str) -> str:
    """MathML of one formula; several lines are aligned at their `&`."""
    if r"\\" in latex and r"\begin" not in latex:
        latex = rf"\begin{{align*}}{latex}\end{{align*}}"
    return convert(latex, display=display)


def inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(markup(node.astext(), "inline"))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.Element) -> None:
    translator.body.append(f'<div class="formula">{markup(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
