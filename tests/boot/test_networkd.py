"""Test our netplan and systemd-networkd files, and what networkd does to our routes, on a booted
system.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from itertools import count
from typing import Any

import attrs
import pytest

from boot.rig import Machine
from boot.test_gate import FIXED, installed
from boot.test_watch import TEXTFILE, UNIT, WATCH, entries, is_there, routes
from hostrouting.model.routes import NextHop, Protocol, Route, Table
from hostrouting.model.rules import Rule
from hostrouting.routes.formats import PlacedRule, as_netplan, as_networkd

FRAGMENT = "/etc/netplan/90-hostrouting.yaml"
DROP_IN = "/etc/systemd/network/10-{}.network.d/90-hostrouting.conf"

OWN, GATEWAY = IPv4Address("10.1.0.4"), IPv4Address("10.1.0.1")
KEPT = IPv4Address("172.16.0.10")
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
# What a rule of a config, and two kept interfaces stand for, one with a gateway.
SIDE = Route(IPv4Network("172.16.0.0/16"), (NextHop("ib0"),), table=2170000, source=KEPT)
SIDE_DEFAULT = attrs.evolve(SIDE, destination=IPv4Network("0.0.0.0/0"), hops=(IB0,), source=None)
FROM_KEPT = Rule(2170, table=2170000, source=IPv4Network(KEPT))
LONGER = attrs.evolve(FROM_KEPT, suppress_prefix_length=0)
FOR_CIDR = Rule(5269, destination=IPv4Network("10.244.0.0/16"))
RULES = [
    PlacedRule(attrs.evolve(FOR_CIDR, table=Table.LOCAL), "eth0"),
    PlacedRule(FOR_CIDR, "eth0"),
    PlacedRule(FROM_KEPT, "ib0"),
]
RULES_WITH_GATEWAY = [
    *RULES[:2],
    PlacedRule(LONGER, "ib0"),
    PlacedRule(attrs.evolve(LONGER, preference=2171, table=Table.MAIN), "ib0"),
    PlacedRule(attrs.evolve(FROM_KEPT, preference=2172), "ib0"),
]
ODD_NAMES = ("on", "null", "1e3", "0x1", "eth0.100", "-x", "---", ".inf", "version", "match", "lo")

CIDR = "172.16.1.0/24"
# The node's two interfaces in the format of systemd.network(5).
UPLINK, SHADOW = f"Address={OWN}/24\nGateway={GATEWAY}\n", "Address=172.16.0.10/16\n"
NO_IPV6 = "LinkLocalAddressing=no\n"


def drop_ins(routes: list[Route], rules: Sequence[PlacedRule] = ()) -> dict[str, str]:
    """Return the contents of each interface's drop-in, which begins with a comment."""
    texts = as_networkd(routes, rules).removeprefix("# ").split("\n\n# ")
    return {text.partition(":")[0]: f"# {text}\n" for text in texts}


def sections(text: str) -> set[frozenset[str]]:
    """Return the sections of a .network file about routes and rules as sets of lines, without
    defaults, which netplan omits.
    """
    lines = [
        line.replace("=true", "=yes") for line in text.splitlines() if line != "GatewayOnLink=no"
    ]
    parts = re.split(r"^(?=\[)", "\n".join(lines), flags=re.MULTILINE)
    return {
        frozenset(filter(None, section.split("\n")))
        for section in parts
        if section.startswith(("[Route]", "[RoutingPolicyRule]"))
    }


def manage(machine: Machine, folder: str = "/etc/systemd/network", **networks: str) -> None:
    """Add interfaces that networkd manages, with these lines in the [Network] sections of their
    files.
    """
    for dev, network in networks.items():
        machine.add_nic(dev)
        machine.write(f"{folder}/10-{dev}.network", f"[Match]\nName={dev}\n[Network]\n{network}")
    machine.systemctl("enable", "systemd-networkd.service")


def shown(node: Machine, dev: str) -> str:
    """Return networkd's view of an interface."""
    return " ".join(node.run("networkctl", "list", "--no-pager", "--no-legend", dev).stdout.split())


def await_configured(node: Machine, *devs: str) -> None:
    node.wait_until(
        lambda: all("configured" in shown(node, dev).split() for dev in devs), "networkd is done"
    )


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
    checks = [
        node.python("check", "--cidr", cidr, check=False)
        for cidr in ("172.16.0.0/16", "172.16.128.0/17")
    ]
    return all(done.returncode == 0 for done in checks)


def test_netplan_makes_the_sections_that_we_write_for_networkd(machine: Machine) -> None:
    routes = [
        *SAYABLE_BY_ALL,
        *(route("172.17.0.0/16", NextHop(name, GATEWAY)) for name in ODD_NAMES),
    ]
    routes.append(SIDE)
    machine.write(f"/tmp/root{FRAGMENT}", as_netplan(routes, RULES), mode=0o600)
    machine.run_offline("netplan", "generate", "--root-dir", "/tmp/root")
    for dev, text in drop_ins(routes, RULES).items():
        assert sections(
            machine.read(f"/tmp/root/run/systemd/network/10-netplan-{dev}.network")
        ) == sections(text)


@pytest.mark.each_release
def test_drop_ins_in_any_folder_fix_after_a_reload(machine: Machine) -> None:
    manage(machine, "/usr/lib/systemd/network", eth0=UPLINK, ib0=SHADOW)
    machine.boot()
    await_routes(machine, [])
    assert not is_fixed(machine)
    for dev, text in drop_ins(SAYABLE_BY_NETWORKD).items():
        machine.write(DROP_IN.format(dev), text)
    machine.run("networkctl", "reload")
    await_routes(machine, SAYABLE_BY_NETWORKD)
    assert is_fixed(machine)


@pytest.mark.each_release
def test_networkd_keeps_the_rules_and_side_tables_of_our_drop_ins(machine: Machine) -> None:
    """It drops those of other programs, such as ours, at each of these operations."""
    manage(machine, eth0=UPLINK + NO_IPV6, ib0=SHADOW + NO_IPV6)
    for dev, text in drop_ins([SIDE, SIDE_DEFAULT], RULES_WITH_GATEWAY).items():
        machine.write(DROP_IN.format(dev), text)
    machine.boot()
    wanted = {
        "5268: from all to 10.244.0.0/16 lookup local proto static",
        "5269: from all to 10.244.0.0/16 lookup main proto static",
        "2170: from 172.16.0.10 lookup 2170000 suppress_prefixlength 0 proto static",
        "2171: from 172.16.0.10 lookup main suppress_prefixlength 0 proto static",
        "2172: from 172.16.0.10 lookup 2170000 proto static",
    }

    def are_there() -> bool:
        rules = {" ".join(line.split()) for line in machine.ip("rule").splitlines()}
        side = machine.ip("route", "show", "table", "2170000").splitlines()
        return wanted <= rules and len(side) == 2

    machine.wait_until(are_there, "the rules and the side table")
    more = DROP_IN.format("eth0").replace("90-hostrouting", "91-mtu")
    for operation in (partial(reload_changed, path=more), reconfigure, restart_networkd):
        operation(machine)
        await_configured(machine, "eth0", "ib0")
        machine.wait_until(are_there, f"the rules after {operation}")
    found = machine.ip("route", "get", "172.16.5.5", "from", "172.16.0.10").split()
    assert found[found.index("dev") + 1] == "ib0"


# --- what networkd removes ------------------------------------------------------------------------


def accepts(node: Machine) -> bool:
    """Return whether the kernel accepts our route, which requires the default route's gateway to be
    reachable.
    """
    return any(line.startswith("default via 10.1.0.1 dev eth0") for line in routes(node))


def take_three_times(node: Machine) -> None:
    """Delete our route three times, after which the watcher complains."""
    for _ in range(3):
        node.ip("route", "del", CIDR)
        node.wait_until(lambda: is_there(node), "the route is back")
        # The watcher counts losses in quick succession as one.
        node.run("sleep", "0.3")


MTUS = count(1400)


def reload_changed(node: Machine, path: str = DROP_IN.format("eth0")) -> None:
    node.write(path, f"[Link]\nMTUBytes={next(MTUS)}\n")
    node.run("networkctl", "reload")


def reconfigure(node: Machine) -> None:
    node.run("networkctl", "reconfigure", "eth0")


def restart_networkd(node: Machine) -> None:
    node.systemctl("restart", "systemd-networkd.service")


def link_down_and_up(node: Machine) -> None:
    node.ip("link", "set", "eth0", "down")
    # networkd 252 fails permanently if both events arrive together.
    node.wait_until(lambda: "eth0 ether off" in shown(node, "eth0"), "networkd has seen it")
    node.ip("link", "set", "eth0", "up")


def lose_carrier(node: Machine) -> None:
    node.fabric("ip", "link", "set", "eth0", "down")
    node.wait_until(lambda: not accepts(node), "networkd has seen it")
    node.fabric("ip", "link", "set", "eth0", "up")


# The events marked "gone" in facts/systemd.md. By day they take turns, so each list has its own
# order.
GONE: dict[int, list[Callable[[Machine], None]]] = {
    252: [reload_changed, link_down_and_up, lose_carrier, reconfigure],
    257: [reload_changed, restart_networkd, lose_carrier, reconfigure, link_down_and_up],
}


def settle(node: Machine) -> None:
    """Wait until networkd has finished and the kernel accepts our route again."""
    node.wait_until(lambda: accepts(node), "the default route is back")
    await_configured(node, "eth0")


@pytest.mark.each_release
def test_only_the_watcher_restores_what_networkd_removes(machine: Machine, by_turns: Any) -> None:
    manage(machine, eth0=UPLINK + NO_IPV6)
    machine.add_nic("ib0", "172.16.0.10/16")
    payload = installed(machine, FIXED, waitSeconds=30, watch=WATCH)
    machine.write(TEXTFILE, "")
    payload.boot()
    pid = payload.main_pid()
    machine.wait_for(UNIT, "active/running")
    assert is_there(machine)
    for operation in by_turns(GONE[machine.systemd_version]):
        machine.systemctl("stop", UNIT)
        operation(machine)
        settle(machine)
        assert not is_there(machine), f"{operation.__name__} takes nothing away"
        machine.systemctl("start", UNIT)
        assert is_there(machine)
        watcher = machine.main_pid(UNIT)
        operation(machine)
        settle(machine)
        machine.wait_until(lambda: is_there(machine), f"the route after {operation.__name__}")
        assert machine.main_pid(UNIT) == watcher
    take_three_times(machine)
    assert (
        "eth0 is managed by systemd-networkd" in entries(machine, "routes-contested")[-1]["MESSAGE"]
    )
    assert payload.main_pid() == pid
    assert len(payload.starts()) == 1
    assert machine.show(UNIT, "NRestarts")["NRestarts"] == "0"


@pytest.mark.parametrize("setting", ["", "ManageForeignRoutes=no"])
def test_a_restart_of_networkd_may_drop_our_routes(
    machine: Machine, suite: str, setting: str
) -> None:
    manage(machine, eth0=UPLINK + NO_IPV6, ib0=SHADOW + NO_IPV6)
    machine.write("/etc/systemd/networkd.conf.d/10.conf", f"[Network]\n{setting}\n")
    machine.boot()
    await_configured(machine, "eth0", "ib0")
    machine.ip("route", "add", CIDR, "via", "10.1.0.1", "dev", "eth0", "proto", "217")
    restart_networkd(machine)
    await_configured(machine, "eth0", "ib0")
    report = json.loads(
        machine.python("check", "--cidr", CIDR, "--output", "json", check=False).stdout
    )
    assert report["verdict"] == ("overlap" if suite == "trixie" and not setting else "ok")
