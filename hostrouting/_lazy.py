"""Import names lazily, on first use (PEP 562).

A program that only uses a config class never imports netlink code.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def require_phases() -> None:
    """Import phases.

    Raises:
        ImportError: the package ``phases`` belongs to another distribution, or one of our
            dependencies is missing.
    """
    try:
        from phases import CancelScope  # noqa: F401
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "phases":
            raise  # a dependency of our own package is missing
        raise ImportError(
            f"the package phases is not hostrouting's, but another distribution's ({error}): "
            "pip uninstall phases, then pip install --force-reinstall /path/to/hostrouting"
        ) from error


def lazily(
    package: str,
    homes: Mapping[str, str],
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the module-level hooks for importing names lazily from a package's submodules.

    Args:
        package: the package's name.
        homes: maps each submodule, relative to the package, to its exported names, separated by
            spaces.

    Returns:
        The package's ``__all__``, ``__getattr__`` and ``__dir__``. ``dir()`` lists the exported
        names, and not what the package itself uses.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        require_phases()
        value = namespace[name] = getattr(
            importlib.import_module(f"{package}.{home_of[name]}"),
            name,
        )
        return value

    special = {name for name in namespace if name.startswith("__")}
    return sorted(home_of), get, lambda: sorted({*special, *home_of})
