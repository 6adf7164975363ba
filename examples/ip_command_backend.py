"""A custom routes backend, which runs ``ip`` of iproute2 instead of using netlink.

Write such a backend if this process may not write routes itself, but a helper may, or if a router
has its own command. It takes 2 ms for each lookup and for each route that it writes. It has races,
and needs care because ``ip`` shows less than the kernel:

- ``ip`` prints the kernel's error message *instead of* the errno, so ``_ERRNO_OF`` has to keep up
  with new kernels. If a message stands for several errnos, ``_why_invalid`` asks the kernel again.
  In rare cases with a device, it is wrong.
- ``ip route del`` matches loosely, and a missing device doesn't always have its own error. So look
  before you delete.
- ``ip rule show`` shows what a rule suppresses only if the rule names a table. ``ip rule save``
  shows everything.
- ``ip monitor`` doesn't say when it starts to listen. The socket of ``NetlinkBackend`` listens when
  the call returns.
"""

from __future__ import annotations

import errno as errnos
import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import Any, TypeVar

import attrs

from hostrouting import RouteError
from hostrouting.backend import (
    EVERYTHING,
    Address,
    ChangeListener,
    Entries,
    Facts,
    Family,
    Hardware,
    IpAddress,
    Link,
    Lookup,
    NetlinkBackend,
    NextHop,
    Prefix,
    Route,
    RouteFailure,
    RouteType,
    Rule,
    RuleAction,
    RuleFailure,
    Scope,
    Selection,
    Sent,
    Write,
    devs_with_shares,
    rule_deleted_for,
    with_shares,
)

T = TypeVar("T")

_READ = ("-4", "-details", "-json", "-Numeric")
_NO_ENTRY = {errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL}
# Any other message means EINVAL.
_ERRNO_OF = {os.strerror(number): number for number in errnos.errorcode} | {
    "Device for nexthop is not up": errnos.ENETDOWN,
    "Nexthop device is not up": errnos.ENETDOWN,
    "Nexthop device required for onlink": errnos.ENODEV,
    "IPv6 is disabled on nexthop device": errnos.EACCES,
}
# The FRA_* attributes of linux/fib_rules.h, by the names of the fields of Rule.
_FRA = {
    1: "destination",
    2: "source",
    3: "iif",
    4: "goto",
    6: "preference",
    10: "mark",
    12: "tun_id",
    13: "suppress_group",
    14: "suppress_prefix_length",
    15: "table",
    16: "mark_mask",
    17: "oif",
    19: "is_l3mdev",
    20: "uid_range",
    21: "protocol",
    22: "ip_protocol",
    23: "has_ports",
    24: "has_ports",
    25: "dscp",
}


class IpCommandBackend:
    """A ``RouteBackend`` for the network namespace of the calling thread. Threads may share it."""

    family = Family.IPV4

    def __init__(self) -> None:
        self._listening = NetlinkBackend()

    def facts(self) -> Facts:
        addresses = (
            _address(link["ifname"], item)
            for link in _show("address")
            for item in link.get("addr_info", ())
        )
        return Facts(
            links=tuple(sorted(map(_link, _show("link")), key=lambda link: link.index)),
            addresses=tuple(addresses),
            rules=tuple(self._rules()),
        )

    def _rules(self) -> list[Rule]:
        found = _cut_netlink("=I12x", _run("-4", "rule", "save").stdout[4:])
        return [_rule(message) for _, message in found]

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        return wanted.filter(self._routes(wanted.table))

    def _routes(self, table: int | None = None) -> list[Route]:
        if table is not None and not 0 < table < 2**32:
            return []
        items = _show("route", "table", "all" if table is None else f"{table:d}")
        return self._with_shares(_route(item, table) for item in items)

    def _with_shares(self, routes: Iterable[Route]) -> list[Route]:
        """Return routes whose hops aren't dead if they may get packets (``NextHop.is_dead``)."""
        facts = cache(self.facts)

        def may_have_share(dev: str) -> bool:
            return dev in devs_with_shares(self.family, facts().links, facts().addresses)

        return [with_shares(route, may_have_share) for route in routes]

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        chosen = ("" if source is None else f" from {source}") + (" ipproto tcp" if is_tcp else "")
        batch = "".join(f"route get fibmatch {address}{chosen} uid 0\n" for address in addresses)
        done = _run(*_READ, "-force", "-batch", "-", text=batch, check=False)
        found, reasons = done.stdout.splitlines(), done.stderr.decode()
        refused = {
            int(line): _errno(text)
            for text, line in re.findall(r"(.*)\nCommand failed -:(\d+)", reasons)
        }
        if len(found) + len(refused) < len(addresses) or not _NO_ENTRY.issuperset(refused.values()):
            raise RouteError(f"can't look up routes: {reasons.strip()}", errno=_errno(reasons))
        entries = iter(self._with_shares(_route(_parse(line)[0]) for line in found))
        return tuple(
            Lookup(address, None, refused[line])
            if line in refused
            else Lookup(address, next(entries))
            for line, address in enumerate(addresses, 1)
        )

    def sources(
        self, sent: Sequence[Sent], *, is_tcp: bool = False
    ) -> tuple[tuple[IpAddress, ...], ...]:
        return tuple(
            _sources(entry, addresses, is_tcp) if entry is not None else ()
            for entry, addresses in sent
        )

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        if change is Write.DELETE:
            return self._delete(routes)
        failures = _each(routes, lambda route: self._put(change.value, route))
        return tuple(RouteFailure(*failure) for failure in failures)

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        if change is Write.REPLACE:
            raise ValueError("the kernel can't replace a rule")
        there = self._rules() if change is Write.DELETE and rules else []

        def write(rule: Rule) -> None:
            if change is Write.DELETE:
                _take(there, rule)
            elif rule.has_ports or rule.has_unknown:
                raise RouteError("its selectors aren't known", errno=errnos.EOPNOTSUPP)
            _run("-4", "rule", "del" if change is Write.DELETE else "add", *_rule_words(rule))

        return tuple(RuleFailure(*failure) for failure in _each(rules, write))

    def _delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        there = self._routes() if routes else []

        def delete(route: Route) -> None:
            # Scope NOWHERE matches any scope. If there are several hops, the kernel compares only
            # the first.
            words = _words(
                attrs.evolve(route, scope=Scope.NOWHERE, hops=route.hops[:1], source=None, mtu=None)
            )
            entry = next((entry for entry in there if _is_meant(entry, route)), None)
            if entry is None:
                raise RouteError("no such route", errno=errnos.ESRCH)
            there.remove(entry)
            _run("-4", "route", "del", *words)

        return tuple(RouteFailure(*failure) for failure in _each(routes, delete))

    def _put(self, verb: str, route: Route) -> None:
        try:
            _run("-4", "route", verb, *_words(route))
        except RouteError as error:
            if "Nexthop has invalid gateway" in str(error):
                error.errno = self._why_invalid(route)
            raise

    def _why_invalid(self, route: Route) -> int:
        """Return fib_check_nh_v4_gw's errno for a route (net/ipv4/fib_semantics.c)."""
        if all(hop.onlink for hop in route.hops):
            return errnos.EINVAL
        for hop in route.hops:
            if isinstance(hop.gateway, IPv4Address) and not hop.gateway.is_unspecified:
                found = (
                    self._routes(255)
                    if hop.onlink
                    else [answer.route for answer in self.lookup([hop.gateway])]
                )
                near = [
                    e for e in found if e and hop.gateway in e.destination and e.scope > route.scope
                ]
                fits = {RouteType.UNICAST, RouteType.UNICAST if hop.onlink else RouteType.LOCAL}
                if any(
                    (hop.onlink or hop.dev in (None, *entry.devs)) and entry.type not in fits
                    for entry in near
                ):
                    return errnos.EINVAL
                # The kernel looks up a gateway with scope link, and so does this connect, which
                # sends no packet.
                with (
                    suppress(OSError),
                    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as probe,
                ):
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                    if not hop.onlink and (errno := probe.connect_ex((str(hop.gateway), 0))):
                        return errno
        return errnos.ENETUNREACH  # reachable, but via another device

    def changes(
        self, inside: Sequence[Prefix] | None = None
    ) -> AbstractContextManager[ChangeListener]:
        return self._listening.changes(inside)


def _sources(entry: Route, addresses: Sequence[IpAddress], is_tcp: bool) -> tuple[IpAddress, ...]:
    """Return the sources of packets that use an entry. A lookup shows only one hop's source."""
    protocol = " ipproto tcp" if is_tcp else ""
    flows = [(address, "") for address in addresses]
    if len(addresses) > 1:
        flows = [(address, f" dport {port}") for port, address in enumerate(addresses, 50_000)]
        # They may all take the same hop.
        flows += [(addresses[0], f" oif {dev}") for dev in entry.devs]
    batch = "".join(f"route get {address} uid 0{protocol}{way}\n" for address, way in flows)
    done = _run(*_READ, "-force", "-batch", "-", text=batch, check=False)
    told = (_parse(line)[0].get("prefsrc") for line in done.stdout.splitlines())
    return tuple(sorted({IPv4Address(source) for source in told if source}))


def _run(*words: str, text: str = "", check: bool = True) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["ip", *words], input=text.encode(), capture_output=True, env=environment, check=False
        )
    except OSError as error:
        raise RouteError(
            f"can't run ip, which is part of iproute2: {error}", errno=error.errno
        ) from error
    if b"Dump was interrupted" in done.stderr:
        return _run(*words, text=text, check=check)
    if b"FIB table does not exist" in done.stderr:
        done.stdout = b"[]"
    elif check and done.returncode:
        raise RouteError(
            f"ip {' '.join(words)}: {done.stderr.decode().strip()}",
            errno=_errno(done.stderr.decode()),
        )
    return done


def _show(what: str, *words: str) -> Any:
    return _parse(_run(*_READ, what, "show", *words).stdout or "[]")


def _parse(text: bytes | str) -> Any:
    return json.loads(text, object_pairs_hook=_without_tunnel)


def _without_tunnel(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return ip's object without the keys of a route's tunnel that the route has, too.

    The first ``dst`` is the route's. The tunnel's ``tos`` is a number, the route's a string.
    """
    own = [(key, value) for key, value in pairs if key != "tos" or isinstance(value, str)]
    return dict(reversed(own))


def _errno(reason: str) -> int:
    return _ERRNO_OF.get(
        reason.partition("\n")[0].partition(": ")[2].removesuffix("."), errnos.EINVAL
    )


def _each(items: Sequence[T], write: Callable[[T], None]) -> list[tuple[T, int, str]]:
    """Write each route or rule, and return those that fail, each with its errno and the reason."""
    failures: list[tuple[T, int, str]] = []
    for item in items:
        try:
            write(item)
        except RouteError as error:
            failures.append((item, error.errno or errnos.EINVAL, str(error)))
    return failures


def _take(there: list[Rule], rule: Rule) -> None:
    """Mark a rule as deleted, or raise an error if the kernel would delete another one or none."""
    if rule not in there:
        raise RouteError("no such rule", errno=errnos.ENOENT)
    if rule_deleted_for(rule, there) != rule:
        raise RouteError("the kernel would delete another rule", errno=errnos.ENOTRECOVERABLE)
    there.remove(rule)


def _is_meant(entry: Route, route: Route) -> bool:
    if (entry.key, entry.type, entry.protocol) != (route.key, route.type, route.protocol):
        return False
    if not entry.hops or not route.hops or entry.nexthop_id or route.nexthop_id:
        return (bool(entry.hops), entry.nexthop_id) == (bool(route.hops), route.nexthop_id)
    return entry.hops[0].gateway == route.hops[0].gateway and route.hops[0].dev in (
        None,
        entry.hops[0].dev,
    )


def _words(route: Route) -> list[str]:
    words = (
        f"{route.type.name} {route.destination} tos {route.tos:#x} table {route.table:d} ".lower()
    )
    words += f"proto {route.protocol:d} scope {route.scope:d} metric {route.metric}"
    for name, value in (("src", route.source), ("mtu", route.mtu), ("nhid", route.nexthop_id)):
        words += "" if value is None else f" {name} {value}"
    for hop in route.hops if route.nexthop_id is None else ():
        if hop.dev not in (None, *(name for _, name in socket.if_nameindex())):
            raise RouteError(f"no interface is named {hop.dev!r}", errno=errnos.ENODEV)
        way = f"{hop.words(Family.IPV4)} onlink" if hop.onlink else hop.words(Family.IPV4)
        words += f" nexthop {way} weight {hop.weight}" if len(route.hops) > 1 else f" {way}"
    return words.split()


def _rule_words(rule: Rule) -> list[str]:
    named = attrs.evolve(rule, has_ports=False, has_unknown=False)
    words = str(named).replace("lookup [l3mdev-table]", "l3mdev")
    return f"preference {rule.preference} protocol {rule.protocol} {words}".split()


def _link(item: dict[str, Any]) -> Link:
    words = ("UP", "LOWER_UP", "POINTOPOINT")
    is_up, has_carrier, is_point_to_point = (word in item["flags"] for word in words)
    kind, hardware = item.get("linkinfo", {}).get("info_kind"), int(item["link_type"].strip("[]"))
    name, master = item["ifname"], item.get("master")
    mac = item.get("address") if hardware in (Hardware.ETHER, Hardware.INFINIBAND) else None
    group, mtu = int(item["group"]), item["mtu"]
    return Link(
        item["ifindex"],
        name,
        is_up,
        has_carrier,
        kind,
        hardware,
        master,
        group,
        mtu,
        is_point_to_point,
        mac,
    )


def _address(dev: str, item: dict[str, Any]) -> Address:
    local, peer = (
        IPv4Address(item["local"]),
        IPv4Address(item["address"]) if "address" in item else None,
    )
    is_secondary, has_prefix_route = "secondary" in item, "noprefixroute" not in item
    return Address(
        dev,
        local,
        item["prefixlen"],
        peer,
        item.get("metric", 0),
        is_secondary,
        has_prefix_route,
        int(item["scope"]),
    )


def _route(item: dict[str, Any], table: int | None = None) -> Route:
    kind = RouteType(int(item["type"]))
    return Route(
        destination=IPv4Network("0.0.0.0/0" if item["dst"] == "default" else item["dst"]),
        hops=tuple(
            map(
                _hop,
                item.get(
                    "nexthops", [item] if "dev" in item and kind < RouteType.BLACKHOLE else []
                ),
            )
        ),
        type=kind,
        table=int(item.get("table") or table or 0),  # ip omits it if a table was named
        protocol=int(item["protocol"]),
        scope=int(item["scope"]),
        metric=item.get("metric", 0),
        tos=int(item.get("tos", "0"), 16),
        source=IPv4Address(item["prefsrc"]) if "prefsrc" in item else None,
        mtu=next((metrics["mtu"] for metrics in item.get("metrics", ()) if "mtu" in metrics), None),
        nexthop_id=item.get("nhid"),
    )


def _hop(item: dict[str, Any]) -> NextHop:
    gateway, flags = item.get("gateway") or item.get("via", {}).get("host"), item["flags"]
    onlink, is_dead, is_linkdown = (word in flags for word in ("onlink", "dead", "linkdown"))
    address, weight = ip_address(gateway) if gateway else None, item.get("weight", 1)
    # The others only set parameters for the hop's tunnel device.
    encap = "" if item.get("encap") in ("ip", "ip6") else item.get("encap", "")
    return NextHop(item.get("dev"), address, onlink, weight, is_dead, is_linkdown, encap)


def _cut_netlink(header: str, data: bytes) -> Iterator[tuple[tuple[int, ...], bytes]]:
    while data:
        numbers = struct.unpack_from(header, data)
        yield numbers, data[struct.calcsize(header) : numbers[0]]
        data = data[(numbers[0] + 3) & ~3 :]


def _rule(message: bytes) -> Rule:
    _, to_length, from_length, tos, _, _, _, action, flags = struct.unpack_from("=8BI", message)
    fields: dict[str, Any] = {"preference": 0}
    for (_, kind), value in _cut_netlink("=HH", message[12:]):
        name = _FRA.get(kind, "")
        if name in ("iif", "oif"):
            fields[name] = value.rstrip(b"\0").decode()
        elif name in ("source", "destination"):
            fields[name] = IPv4Network((value, from_length if name == "source" else to_length))
        elif name == "uid_range":
            fields[name] = struct.unpack("=II", value)
        elif name == "tun_id":
            fields[name] = int.from_bytes(value, "big")
        # -1 suppresses nothing.
        elif name and not (name.startswith("suppress") and value == b"\xff" * 4):
            fields[name] = int.from_bytes(value, sys.byteorder)
    fields |= {name: bool(fields.get(name)) for name in ("has_ports", "is_l3mdev")}
    fields |= {"mark": fields.get("mark", 0)} if "mark_mask" in fields else {}
    if action != RuleAction.TO_TABLE or fields["is_l3mdev"]:
        del fields["table"]
    return Rule(
        action=RuleAction(action),
        is_inverted=bool(flags & 2),
        tos=fields.pop("dscp", tos >> 2) << 2,
        **fields,
    )
