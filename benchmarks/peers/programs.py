"""The compared programs: packages, file formats, and the commands that make them read a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

ADDRESS, GATEWAY, MOVED = "10.1.0.4/24", "10.1.0.1", "10.1.0.254"
FOREIGN, NOWHERE = "10.1.0.9", "192.0.2.1"
SHADOWED, SHADOW = "172.16.0.0/12", "172.20.5.0/24"
FOLLOW = "the default route's"
"""The gateway of a route that follows the default route, if the program's file can express that."""
TRIAL_SECONDS = 4

Wanted = Mapping[str, str]
"""The gateway of each route, by its destination."""


class Peer(NamedTuple):
    """A program that installs routes from a file.

    Args:
        name: its name on the page.
        package: the package with its version, or an empty string for hostrouting.
        path: its file.
        text: the function that returns the file's contents for some routes, and whether eth0 asks
            for a DHCP lease.
        command: the command that makes it read the file.
        mode: the file's permissions.
        more: other packages for the machine's tree.
        unit: its daemon's unit, or an empty string.
        files: other files that it needs, by their paths.
        owns_link: whether it configures the address and the default route of eth0, too.
        dry_run: the command that says what would change, or nothing if it has none.
        trial: the command that undoes a change after ``TRIAL_SECONDS``, or nothing if it has none.
        patience: how many seconds to wait for it to repair something by itself.
    """

    name: str
    package: str
    path: str
    text: Callable[[Wanted, bool], str]
    command: tuple[str, ...]
    mode: int = 0o644
    more: tuple[str, ...] = ()
    unit: str = ""
    files: Mapping[str, str] = {}
    owns_link: bool = False
    dry_run: tuple[str, ...] = ()
    trial: tuple[str, ...] = ()
    patience: float = 8.0


def many(count: int, start: int = 0) -> dict[str, str]:
    """Return routes through the gateway, numbered from ``start``."""
    return {
        f"11.{number // 256}.{number % 256}.0/24": GATEWAY for number in range(start, start + count)
    }


def _config(wanted: Wanted, *, watch: bool = False) -> str:
    def route(destination: str, gateway: str) -> dict[str, str]:
        named = {"gateway": gateway, "dev": "eth0"} if gateway not in (GATEWAY, FOLLOW) else {}
        return {"destination": destination, **named}

    section: dict[str, object] = {"waitSeconds": 2, "watch": {"enabled": watch}}
    if wanted:
        section["staticRoutes"] = {
            "enabled": True,
            "routes": [route(*each) for each in wanted.items()],
        }
    if SHADOWED in wanted:
        section["routeOverlap"] = {"expectedCidrs": [SHADOWED]}
    return json.dumps({"hostRouting": section})


def _networkd(wanted: Wanted, leased: bool) -> str:
    link = "DHCP=ipv4" if leased else f"Address={ADDRESS}\nGateway={GATEWAY}"
    routes = (
        f"[Route]\nDestination={to}\nGateway={'_dhcp4' if via == FOLLOW else via}\n"
        for to, via in wanted.items()
    )
    return (
        "[Match]\nName=eth0\n[Network]\nIPv6AcceptRA=no\n"
        f"LinkLocalAddressing=no\n{link}\n{''.join(routes)}"
    )


def _netplan(wanted: Wanted, leased: bool) -> str:
    eth0: dict[str, object] = {"link-local": [], "accept-ra": False}
    eth0 |= {"dhcp4": True} if leased else {"addresses": [ADDRESS]}
    routes = [{"to": to, "via": GATEWAY if via == FOLLOW else via} for to, via in wanted.items()]
    eth0["routes"] = routes if leased else [{"to": "default", "via": GATEWAY}, *routes]
    return json.dumps({"network": {"version": 2, "ethernets": {"eth0": eth0}}})  # JSON is YAML


def _network_manager(wanted: Wanted, leased: bool) -> str:
    link = "method=auto" if leased else f"method=manual\naddress1={ADDRESS},{GATEWAY}"
    vias = (GATEWAY if via == FOLLOW else via for via in wanted.values())
    routes = (
        f"route{at}={to},{via}\n" for at, (to, via) in enumerate(zip(wanted, vias, strict=True), 1)
    )
    return (
        "[connection]\nid=eth0\nuuid=0a6e0b5e-5b0a-4f2c-9c9d-3d9f2b1f0001\n"
        "type=ethernet\ninterface-name=eth0\n"
        f"[ipv4]\n{link}\nroute-metric=0\n{''.join(routes)}[ipv6]\nmethod=disabled\n"
    )


def _frr(wanted: Wanted, _: bool) -> str:
    lines = (
        f"ip route {to} {NOWHERE if via == FOLLOW else f'{via} eth0'}\n"
        for to, via in wanted.items()
    )
    follow = "ip nht resolve-via-default\n" if FOLLOW in wanted.values() else ""
    return f"hostname node\nlog syslog warnings\n!\n{follow}{''.join(lines)}!\nend\n"


def _bird(wanted: Wanted, _: bool) -> str:
    lines = (
        f"  route {to} {f'recursive {NOWHERE}' if via == FOLLOW else f'via {via}'};\n"
        for to, via in wanted.items()
    )
    learn, learnt = (
        ("learn; scan time 1; ", "import all; ") if FOLLOW in wanted.values() else ("", "")
    )
    return (
        "log stderr all;\nrouter id 10.1.0.4;\nprotocol device { }\nprotocol direct { ipv4; }\n"
        f"protocol kernel {{ {learn}ipv4 {{ {learnt}export where source = RTS_STATIC; }}; }}\n"
        f"protocol static {{ ipv4;\n{''.join(lines)}}}\n"
    )


_APPLY = "python3", "-m", "hostrouting", "apply"
_PLAN = "python3", "-m", "hostrouting", "plan"
_CONFIG = "/etc/aks-flex-node/config.json"
_RELOAD = "nmcli connection reload && nmcli device reapply eth0"
_FRR_RELOAD = "/usr/lib/frr/frr-reload.py"
_NM_CONF = (
    "[main]\nplugins=keyfile\ndns=none\n[keyfile]\n"
    "unmanaged-devices=none\n[device]\nmatch-device=*\nmanaged=1\n"
)

OURS = "hostrouting apply"
PEERS = {
    "apply": Peer(
        OURS,
        "",
        _CONFIG,
        lambda wanted, _: _config(wanted),
        _APPLY,
        dry_run=_PLAN,
        trial=(*_APPLY, "--try", str(TRIAL_SECONDS)),
    ),
    "routes-only": Peer(
        f"{OURS} --routes-only",
        "",
        _CONFIG,
        lambda wanted, _: _config(wanted),
        (*_APPLY, "--routes-only"),
        dry_run=_PLAN,
    ),
    "watch": Peer(
        f"{OURS}, with the watcher",
        "",
        _CONFIG,
        lambda wanted, _: _config(wanted, watch=True),
        _APPLY,
        unit="hostrouting-watch.service",
        dry_run=_PLAN,
        trial=(*_APPLY, "--try", str(TRIAL_SECONDS)),
    ),
    "networkd": Peer(
        "systemd-networkd",
        "systemd",
        "/etc/systemd/network/10-eth0.network",
        _networkd,
        ("networkctl", "reload"),
        unit="systemd-networkd.service",
        owns_link=True,
    ),
    "netplan": Peer(
        "netplan",
        "netplan.io",
        "/etc/netplan/10-eth0.yaml",
        _netplan,
        ("netplan", "apply"),
        0o600,
        # The machine has no udevd, and netplan fails without an answer from udevadm.
        unit="systemd-networkd.service",
        files={"/usr/local/bin/udevadm": "#!/bin/sh\n"},
        owns_link=True,
        dry_run=("netplan", "status", "--diff", "eth0"),
        trial=("script", "-qec", f"netplan try --timeout {TRIAL_SECONDS}", "/dev/null"),
    ),
    "network-manager": Peer(
        "NetworkManager",
        "network-manager",
        "/etc/NetworkManager/system-connections/eth0.nmconnection",
        _network_manager,
        ("sh", "-c", _RELOAD),
        0o600,
        more=("network-manager",),
        unit="NetworkManager.service",
        files={"/etc/NetworkManager/conf.d/machine.conf": _NM_CONF},
        owns_link=True,
        trial=(
            "nmcli",
            "device",
            "checkpoint",
            "--timeout",
            str(TRIAL_SECONDS),
            "eth0",
            "--",
            "sh",
            "-c",
            f"{_RELOAD}; sleep {2 * TRIAL_SECONDS}",
        ),
    ),
    "frr": Peer(
        "FRR",
        "frr",
        "/etc/frr/frr.conf",
        _frr,
        (_FRR_RELOAD, "--reload", "/etc/frr/frr.conf"),
        more=("frr", "frr-pythontools", "passwd"),
        unit="frr.service",
        dry_run=(_FRR_RELOAD, "--test", "--stdout", "/etc/frr/frr.conf"),
    ),
    "bird": Peer(
        "BIRD",
        "bird3",
        "/etc/bird/bird.conf",
        _bird,
        ("birdc", "configure"),
        more=("bird3",),
        unit="bird.service",
        dry_run=("birdc", "configure", "check"),
        trial=("birdc", f"configure timeout {TRIAL_SECONDS}"),
        patience=70.0,  # it compares the kernel's table with its own once a minute
    ),
}
