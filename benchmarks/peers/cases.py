"""Cases in which programs differ, each observed on a freshly booted machine without routes."""

from __future__ import annotations

import math
import time

from benchmarks.peers.programs import (
    FOLLOW,
    FOREIGN,
    GATEWAY,
    MOVED,
    NOWHERE,
    SHADOW,
    SHADOWED,
    TRIAL_SECONDS,
    many,
)
from benchmarks.peers.work import Facts, Node

_IMPOSSIBLE = "11.0.7.0/24"
_ONE = "11.0.0.0/24"
_NEW = "11.0.3.0/24"
_DOWN_SECONDS = 4
_TIMES = 3
_LEASE_SECONDS = 10
# Systemd-networkd reads no more routes from a file than this, and a few.
_KILL_AFTER, _KILL_SIZE = 100, 8000

# busybox serves any client, with a lease that is renewed after half of its seconds.
_UDHCPD = """
printf '%s\\n' 'start 10.1.0.50' 'end 10.1.0.59' 'interface eth0' \
  'option subnet 255.255.255.0' 'lease_file /dev/null' "pidfile /run/udhcpd.pid" \
  "option lease $2" "option router $1" 'min_lease 1' >/run/udhcpd.conf
! [ -e /run/udhcpd.pid ] || kill "$(cat /run/udhcpd.pid)"
busybox udhcpd /run/udhcpd.conf >/dev/null 2>&1
"""


def impossible(node: Node) -> Facts:
    """Give one of many routes a gateway that no interface reaches."""
    wanted = many(1000) | {_IMPOSSIBLE: NOWHERE}
    done = node.apply(wanted)
    left, bad = len(node.routes("11.")), node.routes(_IMPOSSIBLE)
    return {"left": left, "of": len(wanted), "as": bad, **done.facts("11.0.7.0", "11.0.8.0")}


def foreign(node: Node) -> Facts:
    """Add a route to one of the destinations, as another program does."""
    node.machine.ip("route", "add", _ONE, "via", FOREIGN, "dev", "eth0")
    done = node.apply(many(20))
    during = node.routes(_ONE)
    node.apply({})
    after = node.routes(_ONE)
    kept, added = [
        [via in route for route in during].count(True)
        for via in (f"via {FOREIGN}", f"via {GATEWAY}")
    ]
    return {
        "kept": bool(kept),
        "added": bool(added),
        "after": bool(after),
        **done.facts("11.0.0.0", "11.0.1.0"),
    }


def shadow(node: Node) -> Facts:
    """Connect a subnet that takes a part of a route's destination."""
    node.machine.add_nic("ib0", SHADOW.replace(".0/", ".7/"))
    return node.apply({SHADOWED: GATEWAY}).facts("172.20.5.0", "10.1.0.0/24")


def deleted(node: Node) -> Facts:
    """Delete one of the routes, as another program does."""
    node.apply(many(20))
    node.machine.ip("route", "del", _NEW)
    return _repaired(node)


def link(node: Node) -> Facts:
    """Set the interface down and up, and restore the default route for peers that don't.

    Returns the slowest of several repairs, because BIRD's depends on a race.
    """
    node.apply(many(20))
    found: list[Facts] = []
    while len(found) < _TIMES and all(facts["itself"] is not None for facts in found):
        node.machine.ip("link", "set", "eth0", "down")
        time.sleep(_DOWN_SECONDS)
        during = len(node.routes("11."))
        node.machine.ip("link", "set", "eth0", "up")
        if not node.peer.owns_link:
            node.machine.ip("route", "add", "default", "via", GATEWAY, "dev", "eth0")
        found.append({"during": during, **_repaired(node)})
    return max(found, key=lambda facts: math.inf if facts["itself"] is None else facts["itself"])


def carrier(node: Node) -> Facts:
    """Take the interface's carrier away for some seconds."""
    node.apply(many(20))
    node.machine.fabric("ip", "link", "set", "eth0", "down")
    time.sleep(_DOWN_SECONDS)
    during = len(node.routes("11."))
    node.machine.fabric("ip", "link", "set", "eth0", "up")
    return {"during": during, **_repaired(node)}


def _repaired(node: Node) -> Facts:
    by_itself = node.seconds_until("11.", 20, node.peer.patience)
    if by_itself is None:
        node.apply(many(20))
    return {"itself": by_itself, "next": len(node.routes("11.")) == 20}


def dry_run(node: Node) -> Facts:
    """Add a route to the file, and ask the peer what it would change."""
    if not node.peer.dry_run:
        return {"asked": False}
    node.apply(many(3))
    node.write(many(4))
    output = node.run(*node.peer.dry_run).output
    return {
        "asked": True,
        "listed": _NEW.partition("/")[0] in output,
        "changed": node.routes(_NEW) != [],
    }


def trial(node: Node) -> Facts:
    """Add a route to the file, try it for some seconds, and boot the machine again."""
    if not node.peer.trial:
        return {"tried": False}
    node.apply(many(3))
    node.write(many(4))
    node.machine.background(*node.peer.trial)
    began = node.seconds_until(_NEW, 1, 15)
    ended = None if began is None else node.seconds_until(_NEW, 0, 3 * TRIAL_SECONDS)
    node.machine.power_off()
    for route in node.routes("11."):
        node.machine.ip("route", "del", *route.split()[:1])
    node.machine.boot()
    booted = node.seconds_until("11.0.", 4, 5) is not None
    return {
        "tried": began is not None,
        "back": ended,
        "boot": booted,
        "routes": len(node.routes("11.")),
    }


def kill(node: Node) -> Facts:
    """Kill the command and the daemon while they install many routes."""
    wanted = many(_KILL_SIZE)
    node.apply(many(20))
    node.write(wanted)
    facts = node.follow(wanted, kill_after=_KILL_AFTER)
    healed = facts["complete"] if facts["there"] == len(wanted) else None
    if healed is None:
        node.follow(wanted)
    there = sum(route.split()[0] in wanted for route in node.routes("11."))
    return {
        "left": facts["left"],
        "of": len(wanted),
        "itself": healed,
        "next": there == len(wanted),
    }


def moved(node: Node) -> Facts:
    """Give the default route another gateway, by DHCP or as the program that manages it."""
    wanted = dict.fromkeys(many(20), FOLLOW)
    if node.peer.owns_link:
        _serve(node, GATEWAY)
        node.apply(wanted, leased=True)
        node.machine.wait_until(
            lambda: "10.1.0.5" in node.machine.ip("-4", "address", "show", "eth0"), "a lease"
        )
        node.seconds_until("11.", 20, 10)
        _serve(node, MOVED)
        node.seconds_until("default", 1, 3 * _LEASE_SECONDS, f"via {MOVED}")
    else:
        node.apply(wanted)
        node.machine.ip("route", "replace", "default", "via", MOVED, "dev", "eth0")
    by_itself = node.seconds_until("11.", 20, node.peer.patience, f"via {MOVED}")
    if by_itself is None:
        node.run(*node.peer.command)
    default = [f"via {MOVED}" in route for route in node.routes("default")]
    next_run = [f"via {MOVED}" in route for route in node.routes("11.")]
    return {
        "default": any(default),
        "itself": by_itself,
        "next": len(next_run) == 20 and all(next_run),
    }


def _serve(node: Node, gateway: str) -> None:
    node.machine.fabric("sh", "-euc", _UDHCPD, "sh", gateway, str(_LEASE_SECONDS))


CASES = (impossible, foreign, shadow, deleted, link, carrier, dry_run, trial, kill, moved)
