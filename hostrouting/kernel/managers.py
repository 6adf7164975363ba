"""Network managers: which of them claims an interface, and how to keep it from taking routes away.

The kernel tells that a route went, not why. But each manager keeps a file for every interface that it knows.
"""

from __future__ import annotations

from pathlib import Path

from hostrouting.model.errors import FileError
from hostrouting.model.opening import only_regular

NETWORKD, NETWORK_MANAGER = "systemd-networkd", "NetworkManager"

# networkd's is private, but has been like that since 2014; NetworkManager's is documented in its source only.
_NOTES = {
    NETWORKD: ("run/systemd/netif/links", "ADMIN_STATE"),
    NETWORK_MANAGER: ("run/NetworkManager/devices", "managed"),
}
_ADVICE = {
    NETWORKD: "which drops routes that aren't its own when it configures an interface anew: set "
    "ManageForeignRoutes=no in networkd.conf and KeepConfiguration=yes in the .network file (before systemd 257 "
    "neither helps), or give it the route: hostrouting fix --format networkd",
    NETWORK_MANAGER: "which drops routes when it activates a connection anew: give it the route (nmcli connection "
    "modify … +ipv4.routes), or set unmanaged-devices in NetworkManager.conf",
}


def who_manages(root: Path, dev: str, index: int) -> str:
    """Return which manager claims an interface, and what stops it from taking routes, as a clause.

    Args:
        root: the file system's, where the managers' files are.
        dev: the interface.
        index: its number.

    Raises:
        FileError: a manager's file can't be read.
    """
    for manager, advice in _ADVICE.items():
        if is_managed(root, manager, index):
            return f"{dev} is managed by {manager}, {advice}"
    return f"no network manager claims {dev}: a person, a script or another daemon does it; ip monitor route shows when"


def is_managed(root: Path, manager: str, index: int) -> bool:
    """Return whether a manager claims an interface.

    Args:
        root: as for ``who_manages``.
        manager: ``NETWORKD`` or ``NETWORK_MANAGER``.
        index: the interface's number.

    Raises:
        FileError: the manager's file can't be read.
    """
    folder, key = _NOTES[manager]
    path = root / folder / str(index)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", opener=only_regular) as file:
            pairs = [line.partition("=") for line in file]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileError.of(f"read {path}", error) from error
    found = {name.strip(): value.strip() for name, _, value in pairs}
    return found.get(key, "no").lower() not in ("unmanaged", "no", "false", "0")
