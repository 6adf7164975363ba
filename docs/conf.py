"""How Sphinx builds the site and the man pages:  ./run docs."""

from hostrouting import __version__

project = "hostrouting"
copyright = "the hostrouting authors, MIT license"  # noqa: A001 (Sphinx reads this name)
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
smartquotes = False  # options begin with two hyphens

html_theme = "furo"
html_title = f"hostrouting {version}"
html_show_sphinx = False

autodoc_member_order = "alphabetical"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True

man_pages: list[tuple[str, str, str, list[str], int]] = [
    ("reference/commands", "hostrouting", "give a node's traffic the right interface, and prove it", [], 1),
    ("reference/config", "hostrouting-config", "the config file of hostrouting", [], 5),
]
