"""Import names lazily, on first use (PEP 562).

A program that only uses a config class never imports netlink code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the module-level hooks for importing names lazily from a package's submodules.

    Args:
        package: the package's name.
        homes: maps each submodule, relative to the package, to its exported names, separated by spaces.

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
