"""How Sphinx builds the documentation; see scripts/docs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "softrun"
author = "The softrun authors"
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "from_code"]
exclude_patterns = ["_build", "_ext"]

html_theme = "furo"
html_title = "softrun"
smartquotes = False  # they make a dash of --flag
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
