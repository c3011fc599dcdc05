"""The documentation site: `make docs` writes it to docs/_build."""

from protonce import __version__

project, author, release = "protonce", "the authors of protonce", __version__
copyright = "the authors of protonce"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"protonce {release}"

# Links between pages and to their headings are checked: a broken one is a warning, and `make docs` fails on warnings.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
# Notebooks are shown as they were last executed; the tests execute them at a small size.
nb_execution_mode = "off"

default_role = "code"  # docstrings have names in single backticks
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
autoclass_content = "both"
napoleon_numpy_docstring = False
