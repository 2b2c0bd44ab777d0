"""The documentation site: `make docs` builds it into docs/_build."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# The error classes are documented as those of pds, which remote-store's replace where it is installed.
sys.modules["remote_store"] = None

project = "pds"
release = importlib.metadata.version("pds")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"pds {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["pds.css"]
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

# Links such as errors.md#notfound, also to headings of pages that GitHub renders.
myst_heading_anchors = 3

napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "inherited-members": True}
python_use_unqualified_type_names = True
# `Table.append` in a docstring links to the method; what is not the name of something here is code. Pages do not index
# names that would be found for those of Python, such as `list`.
default_role = "py:obj"
# Types of pyarrow, polars and Python have no pages here, and type aliases none at all.
nitpick_ignore_regex = [("py:.*", ".*")]

_FENCE = re.compile(r"^(\s*)```(?:python)?$")
_CODE = re.compile(r"(?<![`:\w])`([^`\n]+)`(?![`_])")
_RESULT = re.compile(r"(\s*)(?:Returns|Yields):")
_NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")


def convert_markdown(
    _app: Sphinx, _what: str, _name: str, documented: object, _options: object, lines: list[str]
) -> None:
    """Turn the Markdown of a docstring, code between backticks and fenced blocks, into reStructuredText."""
    arguments = find_arguments(documented)

    def quote(found: re.Match[str]) -> str:
        text = found[1]
        return found[0] if _NAME.fullmatch(text) and text not in arguments else f"``{text}``"

    converted = []
    fence = None
    for line in lines:
        found = _FENCE.match(line)
        if found and fence is None:
            fence = found[1]
            converted += [f"{fence}.. code-block:: python", ""]
        elif found:
            fence = None
        elif fence is not None:
            converted.append(f"    {line}" if line else line)
        else:
            # A colon in the text of a result would be taken for the end of a type.
            after = _RESULT.fullmatch(converted[-1]) if converted else None
            text = f"{after[1]}    : {line.strip()}" if after else line
            converted.append(_CODE.sub(quote, text))
    lines[:] = converted


def find_arguments(documented: object) -> set[str]:
    """The arguments of a function or class: their names in its docstring link to nothing, such as a property."""
    try:
        return set(inspect.signature(documented).parameters)
    except (TypeError, ValueError):
        return set()


def setup(app: Sphinx) -> None:
    """Convert docstrings before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", convert_markdown, priority=400)
