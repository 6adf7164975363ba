"""Where azure-vnet keeps what is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.boot.layout import Layout

__all__ = ["lock", "lock_files", "state"]


def state(layout: Layout) -> Path:
    """What azure-vnet thinks it serves."""
    return layout.of("/var/run/azure-vnet.json")


def lock(layout: Layout) -> Path:
    """Held with flock(2) by azure-vnet from its start to its exit, since v1.4.15."""
    return layout.of("/var/run/azure-vnet/azure-vnet.lock")


def lock_files(layout: Layout) -> tuple[Path, ...]:
    """Locks of earlier azure-vnets, each held as long as it exists."""
    names = (
        "run/azure-vnet.json.lock",
        "lock/azure-vnet/azure-vnet.json.lock",
        "run/azure-vnet/azure-vnet.json.lock",
    )
    return tuple(layout.of(f"/var/{name}") for name in names)
