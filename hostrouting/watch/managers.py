"""Who may be taking our routes away, and which setting stops it: as far as a host tells.

The kernel tells that a route went, not why; but each manager keeps a file about every interface that is its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.boot.unit_files import settings

if TYPE_CHECKING:
    from hostrouting.boot.layout import Layout


NETWORKD, NETWORK_MANAGER = "systemd-networkd", "NetworkManager"

# networkd's is private, but has been like that since 2014; NetworkManager's is documented in its source only.
_NOTES = {
    NETWORKD: ("/run/systemd/netif/links", "ADMIN_STATE"),
    NETWORK_MANAGER: ("/run/NetworkManager/devices", "managed"),
}
_ADVICE = {
    NETWORKD: "which drops routes that aren't its own when it configures an interface anew: set "
    "ManageForeignRoutes=no in networkd.conf and KeepConfiguration=yes in the .network file (before systemd 257 "
    "neither helps), or give it the route: hostrouting fix --format networkd",
    NETWORK_MANAGER: "which drops routes when it activates a connection anew: give it the route (nmcli connection "
    "modify … +ipv4.routes), or set unmanaged-devices in NetworkManager.conf",
}


def who_manages(layout: Layout, dev: str, index: int) -> str:
    """Who manages an interface, and what stops that one from taking routes.

    Raises:
        FileError: that can't be read.
    """
    for manager, advice in _ADVICE.items():
        if noted(layout, manager, index):
            return f"{dev} is managed by {manager}, {advice}"
    return f"no network manager claims {dev}: a person, a script or another daemon does it; ip monitor route shows when"


def noted(layout: Layout, manager: str, index: int) -> dict[str, str]:
    """What a manager has noted about an interface; nothing if the interface isn't its own.

    Raises:
        FileError: that can't be read.
    """
    folder, key = _NOTES[manager]
    found = dict(settings(files.read_text(layout.of(f"{folder}/{index}")) or ""))
    return {} if found.get(key, "no").lower() in ("unmanaged", "no", "false", "0") else found
