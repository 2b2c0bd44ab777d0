"""The names of packages that import a module when one of its names is first used."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def import_name(package: str, module_of: Mapping[str, str], name: str) -> object:
    """The value of a name, which becomes an attribute of the package: Python asks for it once.

    Args:
        package: The name of the package.
        module_of: The module that has it, for each name.
        name: The name.

    Raises:
        AttributeError: The package has no such name.
    """
    if name not in module_of:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(module_of[name]), name)
    setattr(sys.modules[package], name, value)
    return value
