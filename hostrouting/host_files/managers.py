"""Detect which network manager controls an interface, and how to stop it from removing routes.

The kernel reports that a route is gone, but not which program has removed it. A network manager
keeps a state file for each interface. The file says whether the manager controls the interface.
Policy rules belong to no interface. networkd.conf says whether systemd-networkd removes other
programs' rules.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Iterator
from pathlib import Path

from hostrouting.boot.files import matching, read_text
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


# systemd-networkd.conf(5). Of drop-ins with the same name, the one in the first of these folders
# counts.
_NETWORKD_FOLDERS = tuple(
    f"{folder}/systemd" for folder in ("etc", "run", "usr/local/lib", "usr/lib")
)
_KEEPS_RULES = "ManageForeignRoutingPolicyRules"
_NO = ("0", "no", "n", "false", "f", "off")
_YES = ("1", "yes", "y", "true", "t", "on")


def keeps_foreign_rules(root: Path) -> bool:
    """Return whether systemd-networkd is configured to keep other programs' policy rules.

    Args:
        root: the host's root directory.

    Raises:
        FileError: a configuration file can't be read.
    """
    is_kept = False
    for path in _networkd_files(root):
        section = ""
        for line in map(str.strip, (read_text(path) or "").splitlines()):
            if line.startswith("["):
                section = line
                continue
            name, _, value = (word.strip() for word in line.partition("="))
            if (section, name) == ("[Network]", _KEEPS_RULES) and value.lower() in (*_NO, *_YES):
                is_kept = value.lower() in _NO
    return is_kept


def _networkd_files(root: Path) -> Iterator[Path]:
    """Yield the files of networkd's configuration in the order in which they are read."""
    main = (root / folder / "networkd.conf" for folder in _NETWORKD_FOLDERS)
    yield from [path for path in main if path.exists()][:1]
    drop_ins: dict[str, Path] = {}
    for folder in _NETWORKD_FOLDERS:
        for path in matching(root / folder / "networkd.conf.d", "*.conf"):
            drop_ins.setdefault(path.name, path)
    yield from (drop_ins[name] for name in sorted(drop_ins))
