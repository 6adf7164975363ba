"""The unit that is held back: is there one?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.systemd import ANY_INSTANCE
from hostrouting.boot.unit_files import UNIT_PATH, unit_names

if TYPE_CHECKING:
    from hostrouting.boot.host import Host

__all__ = ["is_there"]


def is_there(host: Host, consumer: str) -> bool:
    """Whether there is such a unit, or template.

    Raises:
        UnitError: systemd can't be asked.
    """
    if host.is_image:
        paths = [host.layout.of(f"{folder}/{name}") for folder in UNIT_PATH for name in unit_names(consumer)[:2]]
        return any(path.is_symlink() or path.is_file() for path in paths)
    instance = consumer.replace("@.", f"@{ANY_INSTANCE}.")
    return host.units.show(instance, "LoadState")["LoadState"] != "not-found"
