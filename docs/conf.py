"""Build the site: ``sphinx-build -W docs site``."""

from __future__ import annotations

import re

import fp8parity
from docutils import nodes
from sphinx.application import Sphinx

project, author, release = "fp8-parity", "the fp8-parity authors", fp8parity.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["examples"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"exclude-members": "model_config, model_post_init"}
napoleon_google_docstring = True
nitpicky = False
html_theme = "furo"
html_title = f"fp8-parity {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1a5fb4", "color-brand-content": "#1a5fb4"},
    "dark_css_variables": {"color-brand-primary": "#8ab4f8", "color-brand-content": "#8ab4f8"},
}
pygments_style, pygments_dark_style = "friendly", "github-dark"


def name_pages(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Show the title of a page where the text of a link is its file, as it is on GitHub."""
    for link in tree.findall(nodes.reference):
        name = link.astext().removesuffix(".md")
        if link.astext().endswith(".md") and name in app.env.titles:
            link.children = [nodes.Text(app.env.titles[name].astext())]


def list_fields(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Make a list of docstring lines such as "``name``: what it is"."""
    inside = False
    for i, line in enumerate(lines):
        if re.match(r"``[^`]+``(, ``[^`]+``)*: ", line):
            lines[i] = f"{'' if inside else chr(10)}* {line}"
            inside = True
        elif inside and line:
            lines[i] = f"  {line}"
        else:
            inside = False
    lines[:] = "\n".join(lines).split("\n")


def shorten_defaults(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Name default operands and specs in a signature, in place of all their fields."""
    if signature:
        signature = re.sub(r"Operand\((?:[^()]|\([^()]*\))*\)", "BF16", signature)
        signature = re.sub(r"LinearSpec\([^()]*\)", "LinearSpec()", signature)
    return signature, returned


def setup(app: Sphinx) -> None:
    """Connect what changes pages."""
    app.connect("autodoc-process-docstring", list_fields)
    app.connect("autodoc-process-signature", shorten_defaults)
    app.connect("doctree-resolved", name_pages)
