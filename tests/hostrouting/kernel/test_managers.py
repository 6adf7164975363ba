"""Tests that network managers and their interfaces are found in the managers' state files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostrouting.kernel.managers import NETWORK_MANAGER, NETWORKD, Manager, is_managed, managers_of, who_manages
from hostrouting.model.errors import FileError
from hostrouting.model.links import Link

NETWORKDS, NETWORK_MANAGERS = "run/systemd/netif/links/2", "run/NetworkManager/devices/2"


def note(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("path", "text", "managed_by"),
    [
        (NETWORKDS, "# Do not parse.\nADMIN_STATE=configured\nOPER_STATE=routable\n", NETWORKD),
        (NETWORKDS, "ADMIN_STATE=configuring", NETWORKD),
        (NETWORKDS, "ADMIN_STATE=unmanaged\n", None),
        (NETWORKDS, "OPER_STATE=routable\n", None),
        (NETWORKDS, "", None),
        (NETWORKDS, "SSID=\udcff\nADMIN_STATE=configured\n", NETWORKD),
        (NETWORK_MANAGERS, "[device]\nmanaged=full\n", NETWORK_MANAGER),
        (NETWORK_MANAGERS, "[device]\nmanaged = true\n", NETWORK_MANAGER),
        (NETWORK_MANAGERS, "[device]\nmanaged=false\n", None),
        ("run/systemd/netif/links/3", "ADMIN_STATE=configured\n", None),
    ],
)
def test_a_managers_file_claims_an_interface(tmp_path: Path, path: str, text: str, managed_by: str | None) -> None:
    note(tmp_path, path, text)
    managers = {manager for manager in (NETWORKD, NETWORK_MANAGER) if is_managed(tmp_path, manager, 2)}
    assert managers == ({managed_by} if managed_by else set())
    assert (managed_by or "no network manager") in who_manages(tmp_path, "eth0", 2)


def test_a_folder_in_the_files_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / NETWORKDS).mkdir(parents=True)
    with pytest.raises(FileError, match="netif/links/2"):
        who_manages(tmp_path, "eth0", 2)


LIBRARY, CONF = "usr/lib/systemd/libsystemd-shared-{}.so", "etc/systemd/networkd.conf"
KEEP = "[device]\nkeep-configuration=no\n"


@pytest.mark.parametrize(
    ("manager", "files", "drops"),
    [
        (NETWORKD, {LIBRARY.format(252): ""}, False),
        (NETWORKD, {LIBRARY.format("257.9-1"): ""}, True),
        (NETWORKD, {LIBRARY.format(257): "", CONF: "[Network]\nManageForeignRoutes=no\n"}, False),
        (NETWORKD, {LIBRARY.format(257): "", "etc/systemd/network/a.network": "KeepConfiguration = yes\n"}, None),
        (NETWORKD, {LIBRARY.format(255): ""}, None),
        (NETWORKD, {}, None),
        (NETWORK_MANAGER, {"etc/NetworkManager/NetworkManager.conf": "[main]\ndns=none\n"}, False),
        (NETWORK_MANAGER, {"usr/lib/NetworkManager/conf.d/10.conf": KEEP}, None),
    ],
)
def test_a_restarts_dropped_routes(tmp_path: Path, manager: str, files: dict[str, str], drops: bool | None) -> None:
    claim = {NETWORKD: (NETWORKDS, "ADMIN_STATE=configured\n"), NETWORK_MANAGER: (NETWORK_MANAGERS, "managed=true\n")}
    for path, text in (claim[manager], *files.items()):
        note(tmp_path, path, text)
    assert managers_of(tmp_path, [Link(2, "eth0"), Link(3, "eth1")]) == (Manager(manager, ("eth0",), drops),)
