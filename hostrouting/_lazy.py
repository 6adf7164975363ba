"""Names that are imported when they are first used (PEP 562), so that using a config class loads no netlink."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the hooks of a package for names that are defined in modules below it.

    Args:
        package: the package's name.
        homes: for each module, relative to the package, the names that it defines, separated by blanks.

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
