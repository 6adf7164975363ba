"""Test our netplan and systemd-networkd files, and what a restart of networkd does, on a booted system."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

import attrs
import pytest

from boot.rig import Machine
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.routes.formats import as_netplan, as_networkd

FRAGMENT = "/etc/netplan/90-hostrouting.yaml"
DROP_IN = "/etc/systemd/network/10-{}.network.d/90-hostrouting.conf"

OWN, GATEWAY = IPv4Address("10.1.0.4"), IPv4Address("10.1.0.1")
ETH0, IB0 = NextHop("eth0", GATEWAY), NextHop("ib0", IPv4Address("172.16.0.1"))
IPV6 = NextHop("eth0", IPv6Address("fe80::1"))


def route(to: str, *hops: NextHop, **more: Any) -> Route:
    """Return a route that networkd should install after reading our files."""
    return Route(IPv4Network(to), hops or (ETH0,), **more)


FIXING = [route("172.16.0.0/17"), route("172.16.128.0/17", source=OWN, mtu=1400, metric=77)]
SAYABLE_BY_ALL = [
    *FIXING,
    route("172.17.1.1/32"),
    route("172.17.2.0/24", NextHop("eth0", IPv4Address("169.254.1.1"), onlink=True), mtu=65520),
    route("172.17.3.0/24", NextHop("ib0"), source=OWN, mtu=68, metric=2**31 - 1),
    # This route's gateway is reached through the next route.
    route("172.17.4.0/24", NextHop("eth0", IPv4Address("172.17.5.1"))),
    route("172.17.5.0/24", NextHop("eth0")),
]
SAYABLE_BY_NETWORKD = [
    *SAYABLE_BY_ALL,
    route("172.17.6.0/24", metric=2**32 - 1),
    route("172.17.7.0/24", IPV6),
    route("172.17.8.0/24", attrs.evolve(IPV6, onlink=True)),
    route("172.17.9.0/24", ETH0, attrs.evolve(IB0, weight=256), source=OWN, mtu=1400, metric=7),
    route("172.17.10.0/24", attrs.evolve(IPV6, weight=2), IB0),
]
ODD_NAMES = ("on", "null", "1e3", "0x1", "eth0.100", "-x", "---", ".inf", "version", "match", "lo")

NETPLAN = """\
network:
  version: 2
  ethernets:
    eth0: {addresses: [10.1.0.4/24], routes: [{to: default, via: 10.1.0.1}]}
    ib0: {addresses: [172.16.0.10/16]}
"""


def drop_ins(routes: list[Route]) -> dict[str, str]:
    """Return the contents of each interface's drop-in, which begins with a comment."""
    texts = as_networkd(routes).removeprefix("# ").split("\n\n# ")
    return {text.partition(":")[0]: f"# {text}\n" for text in texts}


def sections(text: str) -> set[frozenset[str]]:
    """Return the [Route] sections of a .network file as sets of lines, without defaults, which netplan omits."""
    lines = [line.replace("=true", "=yes") for line in text.splitlines() if line != "GatewayOnLink=no"]
    return {frozenset(filter(None, section.split("\n"))) for section in "\n".join(lines).split("[Route]\n")[1:]}


@pytest.fixture
def cabled(machine: Machine) -> Machine:
    """Return a machine whose interfaces have no addresses yet."""
    machine.add_nic("eth0")
    machine.add_nic("ib0")
    return machine


def await_routes(node: Machine, routes: list[Route]) -> None:
    """Wait until the installed routes are exactly these and the default route."""
    wanted = {str(attrs.evolve(route, protocol=Protocol.STATIC)) for route in routes}

    def are_there() -> bool:
        lines = node.ip("route", "show", "proto", "static").replace("\n\t", " ").splitlines()
        there = {" ".join(line.split()) for line in lines if not line.startswith("default ")}
        return there == {line.replace(" proto static", "") for line in wanted}

    node.wait_until(are_there, "every route, and no other, in table main")
    assert "failed" not in node.run("networkctl", "list", "--no-pager").stdout


def is_fixed(node: Machine) -> bool:
    checks = [node.python("check", "--cidr", cidr, check=False) for cidr in ("172.16.0.0/16", "172.16.128.0/17")]
    return all(done.returncode == 0 for done in checks)


def test_netplan_makes_the_sections_that_we_write_for_networkd(machine: Machine) -> None:
    routes = [*SAYABLE_BY_ALL, *(route("172.17.0.0/16", NextHop(name, GATEWAY)) for name in ODD_NAMES)]
    machine.write(f"/tmp/root{FRAGMENT}", as_netplan(routes), mode=0o600)
    machine.run_offline("netplan", "generate", "--root-dir", "/tmp/root")
    for dev, text in drop_ins(routes).items():
        assert sections(machine.read(f"/tmp/root/run/systemd/network/10-netplan-{dev}.network")) == sections(text)


def test_a_netplan_file_fixes_at_boot(cabled: Machine) -> None:
    cabled.write("/etc/netplan/01-node.yaml", NETPLAN, mode=0o600)
    cabled.boot()
    await_routes(cabled, [])
    assert not is_fixed(cabled)
    cabled.power_off()
    cabled.write(FRAGMENT, as_netplan(SAYABLE_BY_ALL), mode=0o600)
    cabled.boot()
    await_routes(cabled, SAYABLE_BY_ALL)
    assert is_fixed(cabled)


@pytest.mark.each_release
def test_drop_ins_in_any_folder_fix_after_a_reload(cabled: Machine) -> None:
    for dev, address in (("eth0", f"{OWN}/24\nGateway={GATEWAY}"), ("ib0", "172.16.0.10/16")):
        cabled.write(
            f"/usr/lib/systemd/network/10-{dev}.network", f"[Match]\nName={dev}\n[Network]\nAddress={address}\n"
        )
    cabled.systemctl("enable", "systemd-networkd.service")
    cabled.boot()
    await_routes(cabled, [])
    assert not is_fixed(cabled)
    for dev, text in drop_ins(SAYABLE_BY_NETWORKD).items():
        cabled.write(DROP_IN.format(dev), text)
    cabled.run("networkctl", "reload")
    await_routes(cabled, SAYABLE_BY_NETWORKD)
    assert is_fixed(cabled)


# --- what is predicted of a restart ----------------------------------------------------------------------------------

CIDR = "172.16.1.0/24"


def checked(node: Machine, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        node.python("check", "--cidr", CIDR, "--output", "json", *words, check=False).stdout
    )
    return found


def told(report: dict[str, Any]) -> tuple[object, ...]:
    return report["verdict"], [(each["kind"], each["probe"], each["devs"]) for each in report["findings"]]


@pytest.mark.parametrize("setting", ["", "ManageForeignRoutes=no"])
def test_a_restart_of_networkd_ends_as_predicted(machine: Machine, suite: str, setting: str) -> None:
    for dev, address in (("eth0", "10.1.0.4/24\nGateway=10.1.0.1"), ("ib0", "172.16.0.10/16")):
        machine.add_nic(dev)
        network = f"[Match]\nName={dev}\n[Network]\nAddress={address}\nLinkLocalAddressing=no\n"
        machine.write(f"/etc/systemd/network/10-{dev}.network", network)
    machine.write("/etc/systemd/networkd.conf.d/10.conf", f"[Network]\n{setting}\n")
    machine.systemctl("enable", "systemd-networkd.service")
    machine.boot()

    def is_configured() -> bool:
        listed = machine.run("networkctl", "list", "--no-pager").stdout.splitlines()
        return sum(" configured" in line for line in listed) == 2

    machine.wait_until(is_configured, "both interfaces are configured")
    machine.ip("route", "add", CIDR, "via", "10.1.0.1", "dev", "eth0", "proto", "217")
    (event,) = (each for each in checked(machine, "--one-event")["events"] if each["event"]["kind"] == "restart")
    assert event["event"]["subject"] == "systemd-networkd"
    machine.systemctl("restart", "systemd-networkd.service")
    machine.wait_until(is_configured, "both are configured again")
    now = checked(machine)
    assert told(now) == told(event)
    assert now["verdict"] == ("overlap" if suite == "trixie" and not setting else "ok")
