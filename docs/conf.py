"""Build the site: ``sphinx-build -W docs site``."""

from __future__ import annotations

import fp8parity

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
html_static_path: list[str] = []
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1a5fb4", "color-brand-content": "#1a5fb4"},
    "dark_css_variables": {"color-brand-primary": "#8ab4f8", "color-brand-content": "#8ab4f8"},
}
pygments_style, pygments_dark_style = "friendly", "github-dark"
