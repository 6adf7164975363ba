"""Detect which network manager controls an interface, and explain how to stop it from removing routes.

The kernel reports that a route is gone, but not why. However, each manager keeps a state file per
interface.
"""

from __future__ import annotations

import errno as errnos
import re
from collections.abc import Iterable, Iterator
from itertools import chain, product
from pathlib import Path

from hostrouting.model.links import Link
from hostrouting.model.managers import NETWORK_MANAGER, NETWORKD, Manager
from hostrouting.model.opening import only_regular, translate_errors

# networkd's file format is private but hasn't changed since 2014. NetworkManager's is documented
# only in its source code.
_NOTES = {
    NETWORKD: ("run/systemd/netif/links", "ADMIN_STATE"),
    NETWORK_MANAGER: ("run/NetworkManager/devices", "managed"),
}
_ADVICE = {
    NETWORKD: "which drops routes that aren't its own when it configures an interface again: set "
    "ManageForeignRoutes=no in networkd.conf and KeepConfiguration=yes in the .network file (before systemd 257 "
    "neither helps), or give it the route: hostrouting fix --format networkd",
    NETWORK_MANAGER: "which drops routes when it activates a connection again: give it the route (nmcli connection "
    "modify … +ipv4.routes), or set unmanaged-devices in NetworkManager.conf",
}


def who_manages(root: Path, dev: str, index: int) -> str:
    """Return a clause that names an interface's manager and says how to stop it from removing routes.

    Args:
        root: the root directory for the managers' files.
        dev: the interface name.
        index: the interface index.

    Raises:
        FileError: a manager's file can't be read.
    """
    for manager, advice in _ADVICE.items():
        if is_managed(root, manager, index):
            return f"{dev} is managed by {manager}, {advice}"
    return f"no network manager claims {dev}: a person, a script or another daemon did it; ip monitor route shows when"


def is_managed(root: Path, manager: str, index: int) -> bool:
    """Return whether a manager controls an interface.

    Args:
        root: the root directory for the managers' files.
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
        open(path, encoding="utf-8", errors="surrogateescape", opener=only_regular) as file,
    ):
        pairs = [line.partition("=") for line in file]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    return found.get(key, "no").lower() not in ("unmanaged", "no", "false", "0")


def managers_of(root: Path, links: Iterable[Link]) -> tuple[Manager, ...]:
    """Return a host's network managers, and whether restarting them removes routes.

    Args:
        root: the root directory for the managers' files.
        links: the host's links.

    Raises:
        FileError: a manager's file can't be read.
    """
    devs = {
        name: tuple(link.name for link in links if is_managed(root, name, link.index))
        for name in _NOTES
    }
    return tuple(
        Manager(name, of_it, _drops_routes(root, name)) for name, of_it in devs.items() if of_it
    )


# Tested versions: networkd 252 keeps foreign routes, and 257 drops them unless configured
# otherwise. Versions in between are untested. NetworkManager 1.42 keeps foreign routes unless
# keep-configuration= says otherwise.
_KEEPING, _DROPPING = 252, 257
_LIBRARIES = (
    "usr/lib/systemd",
    "usr/lib64/systemd",
    "usr/lib/*/systemd",
    "lib/systemd",
    "lib/*/systemd",
)
_FILES = {
    NETWORKD: [
        f"systemd/{name}"
        for name in ("networkd.conf", "networkd.conf.d/*", "network/*.network*", "network/*/*")
    ],
    NETWORK_MANAGER: ["NetworkManager/NetworkManager.conf", "NetworkManager/conf.d/*.conf"],
}
_SETTING = re.compile(
    r"^(ManageForeignRoutes|KeepConfiguration|keep-configuration) *= *(\S+)", re.MULTILINE
)


def _drops_routes(root: Path, name: str) -> bool | None:
    said = set(_SETTING.findall("\n".join(_settings(root, name))))
    found = chain.from_iterable(
        root.glob(f"{folder}/libsystemd-shared-*.so") for folder in _LIBRARIES
    )
    versions = {int(number) for path in found for number in re.findall(r"shared-(\d+)", path.name)}
    if name == NETWORK_MANAGER:
        return None if said else False
    if not versions or (max(versions) > _KEEPING and min(versions) < _DROPPING):
        return None
    is_kept = max(versions) <= _KEEPING or said == {("ManageForeignRoutes", "no")}
    return False if is_kept else None if said else True


def _settings(root: Path, name: str) -> Iterator[str]:
    for folder, pattern in product(("etc", "run", "usr/lib", "usr/local/lib"), _FILES[name]):
        for path in filter(Path.is_file, root.glob(f"{folder}/{pattern}")):
            with translate_errors(f"read {path}"):
                yield path.read_text(encoding="utf-8", errors="surrogateescape")
