"""Import names when they are first used (PEP 562).

So a program that only uses a config class doesn't import netlink.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the hooks with which a package imports names from the modules below it.

    Args:
        package: the package's name.
        homes: the names that each module defines, separated by blanks, by the module's name relative to the package.

    Returns:
        The package's ``__all__``, ``__getattr__`` and ``__dir__``.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        return value

    return sorted(home_of), get, lambda: sorted({*namespace, *home_of})
