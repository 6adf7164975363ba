"""Who may be taking our routes away, and which setting stops it: as far as a host tells.

The kernel tells that a route went, not why; but each manager keeps a file about every interface that is its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.model.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.boot.layout import Layout
    from hostrouting.model.links import Link
    from hostrouting.model.routes import Route

__all__ = ["managers_of"]

_NETWORKD = (
    "{dev} is managed by systemd-networkd, which drops routes that aren't its own when it configures an interface "
    "anew: set ManageForeignRoutes=no in networkd.conf and KeepConfiguration=yes in the .network file (before "
    "systemd 257 neither helps), or give it the route: hostrouting fix --format networkd"
)
_NETWORK_MANAGER = (
    "{dev} is managed by NetworkManager, which drops routes when it activates a connection anew: give it the route "
    "(nmcli connection modify … +ipv4.routes), or set unmanaged-devices in NetworkManager.conf"
)
_NOBODY = "no network manager claims {dev}: a person, a script or another daemon does it; ip monitor route shows when"


def managers_of(routes: Iterable[Route], links: Sequence[Link], layout: Layout) -> dict[Route, str]:
    """For each route, who manages its interface and what stops that one.

    Args:
        routes: that somebody keeps removing.
        links: of the host.
        layout: where the managers' files are.
    """
    indexes = {link.name: link.index for link in links}
    return {
        route: "; ".join(_manager_of(dev, indexes.get(dev, 0), layout) for dev in route.devs)
        or _NOBODY.format(dev="it")
        for route in routes
    }


def _manager_of(dev: str, index: int, layout: Layout) -> str:
    # networkd's is private, but has been like that since 2014; NetworkManager's is documented in its source only.
    if re.search(r"^ADMIN_STATE=(?!unmanaged)", _read(layout, f"run/systemd/netif/links/{index}"), re.MULTILINE):
        return _NETWORKD.format(dev=dev)
    if re.search(r"^managed=(?!unmanaged|false)", _read(layout, f"run/NetworkManager/devices/{index}"), re.MULTILINE):
        return _NETWORK_MANAGER.format(dev=dev)
    return _NOBODY.format(dev=dev)


def _read(layout: Layout, name: str) -> str:
    try:
        return files.read_text(layout.root / name) or ""
    except FileError:
        return ""  # not for us to read: as if it weren't there
