"""Detect which network manager controls an interface, and how to stop it from removing routes.

The kernel reports that a route is gone, but not which program has removed it. A manager keeps a
state file for each interface, which tells whether the manager controls the interface.
"""

from __future__ import annotations

import errno as errnos
from pathlib import Path

from hostrouting.model.opening import only_regular, translate_errors

NETWORKD = "systemd-networkd"
NETWORK_MANAGER = "NetworkManager"

# The format of networkd's files is private, but hasn't changed since 2014. The format of
# NetworkManager's files is documented only in its source code.
_NOTES = {
    NETWORKD: ("run/systemd/netif/links", "ADMIN_STATE"),
    NETWORK_MANAGER: ("run/NetworkManager/devices", "managed"),
}
_ADVICE = {
    NETWORKD: "which drops routes that aren't its own when it configures an interface again: "
    "set ManageForeignRoutes=no in networkd.conf and KeepConfiguration=yes in the .network file "
    "(before systemd 257 neither helps), or give it the route: hostrouting fix --format networkd",
    NETWORK_MANAGER: "which drops routes when it activates a connection again: "
    "give it the route (nmcli connection modify … +ipv4.routes), "
    "or set unmanaged-devices in NetworkManager.conf",
}


def who_manages(root: Path, dev: str, index: int) -> str:
    """Return a clause with an interface's manager and how to stop it from removing routes.

    The arguments are those of ``is_managed``.

    Raises:
        FileError: a manager's file can't be read.
    """
    for manager, advice in _ADVICE.items():
        if is_managed(root, manager, index):
            return f"{dev} is managed by {manager}, {advice}"
    return (
        f"no network manager claims {dev}: a person, a script or another daemon did it; "
        "ip monitor route shows when"
    )


def is_managed(root: Path, manager: str, index: int) -> bool:
    """Return whether a manager controls an interface.

    Args:
        root: the host's root directory, which contains the managers' files.
        manager: ``NETWORKD`` or ``NETWORK_MANAGER``.
        index: the interface index.

    Raises:
        FileError: the manager's file can't be read.
    """
    folder, key = _NOTES[manager]
    path = root / folder / str(index)
    pairs: list[tuple[str, str, str]] = []
    with (
        translate_errors(f"read {path}", errnos.ENOENT),
        open(
            path,
            encoding="utf-8",
            errors="surrogateescape",
            opener=only_regular,
        ) as file,
    ):
        pairs = [line.partition("=") for line in file]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    return values.get(key, "no").lower() not in ("unmanaged", "no", "false", "0")
