"""Read and write host snapshots, which are JSON documents in the format of ``ip -j -N``.

::

    {"schema": 1, "host": "node-7",
     "time":      what `date -u +%Y-%m-%dT%H:%M:%SZ` prints,
     "kernel":         `uname -sr`,
     "ip":             `ip -V`, which may be older than the kernel and omit rule selectors,
     "links":     what `ip -j -N -d link show` prints,
     "addresses":      `ip -j -N -d -4 address show`,
     "rules":          `ip -j -N -d -4 rule show`,
     "routes":         `ip -j -N -d -4 route show table all`,
     "nexthops":       `ip -j -N -d nexthop show`,
     "rules6":         `ip -j -N -d -6 rule show`,
     "routes6":        `ip -j -N -d -6 route show table all`,
     "neighbours6":    `ip -j -6 neigh show nud failed`, if the host doesn't forward IPv6,
     "labels6":              `ip -j addrlabel`; without it, a source that labels decide is unknown,
     "hasOddSources6": true,           sources of IPv6 packets don't follow RFC 6724,
     "usesDeleted6": true,             tables local and main are used without their deleted rules6,
     "uplink": [{"name": "eth0", "mac": "00:0d:3a:12:34:56"}],  uplinks with which the check passed
     "nameservers": ["10.0.0.10"],
     "ignoringLinkdown": ["eth0"],     their routes are ignored without a carrier (a sysctl),
     "strictDevs": ["ib0"],            they drop packets whose replies leave elsewhere (rp_filter),
     "isTorn": true,                   the host changed during the read,
     "isMerged": true,                 tables local and main share a trie (before any custom rule),
     "sources": [{...}, ...]}          routes with their connections' sources that can't be derived

Only links, addresses, rules and routes are required. With ``rules6`` and ``routes6``, the snapshot
also covers IPv6, and ``addresses`` must include both families (without ``-4``). ``isMerged``,
``sources``, ``hasOddSources6`` and ``usesDeleted6`` come from queries to the kernel, not from ip.
``save`` omits values that equal the default, and writes numbers instead of names.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import attrs

from hostrouting.config.documents import parse_document, read_document
from hostrouting.config.validation import kind, parse_items
from hostrouting.config.values import parse_boolean
from hostrouting.kernel import _ip, _ip_rules
from hostrouting.kernel._json_keys import NEEDED, Key, Keys
from hostrouting.kernel.known_host import KnownHost, UnknownFactError
from hostrouting.kernel.nexthops import Router, devs_with_shares, with_hops, with_shares
from hostrouting.kernel.release import numbers_of
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.sources import source_key
from hostrouting.model.errors import ConfigError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.jsonable import in_json
from hostrouting.model.links import Address, AddressLabel, Link
from hostrouting.model.opening import check_path, translate_errors
from hostrouting.model.parsing import parse_address
from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule
from hostrouting.model.text import shown
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import VerifiedUplink, is_recordable

SNAPSHOT_SCHEMA = 1

# The name for standard input.
STDIN = "-"

# A million routes take 250 MB in ip's JSON format.
_BYTES_MAX = 1 << 30


def unix_time(text: str | None) -> float | None:
    """Parse an RFC 3339 time; return None for None or any other text."""
    try:
        return datetime.strptime(text or "", "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None


@frozen
class Ipv6State:
    """A host's IPv6 addresses, rules and routes at a point in time.

    Args:
        addresses: the IPv6 addresses.
        rules: the policy rules, in evaluation order.
        routes: the entries in all tables, in the kernel's order, including the hops of nexthop
            objects.
        silent_routers: the unreachable routers, which the kernel avoids.
        has_odd_sources: whether the kernel's source address selection differs from RFC 6724, for
            example because of the sysctl use_oif_addrs_only.
        uses_deleted: whether the kernel still uses tables local and main after their rules were
            deleted; None if that isn't known.
        labels: the labels of addresses (ip-addrlabel(8)); None if they aren't known.
        is_ordered: whether the addresses are in the order in which the kernel considers them as
            sources. If False, only the order within each interface is known.
    """

    addresses: tuple[Address, ...]
    rules: tuple[Rule, ...]
    routes: tuple[Route, ...]
    silent_routers: frozenset[Router] = frozenset()
    has_odd_sources: bool = False
    uses_deleted: bool | None = None
    labels: tuple[AddressLabel, ...] | None = None
    is_ordered: bool = True


@frozen
class Snapshot:
    """A host's links, addresses, rules and routes at a point in time.

    Args:
        links: the links, sorted by index.
        addresses: the IPv4 addresses.
        rules: the policy rules, in evaluation order.
        routes: the entries in all tables, in the kernel's order, including the hops of nexthop
            objects.
        nameservers: the host's IPv4 DNS servers.
        host: the host name; None if it isn't known.
        time: when the snapshot was taken (RFC 3339, UTC, whole seconds); None if that isn't known.
        kernel: the kernel's name and release; None if they aren't known.
        is_merged: whether tables local and main share one trie; None if that isn't known.
        is_torn: whether the host changed during the read. A check refuses to judge such a snapshot,
            because the host may never have been in this state.
        sources: entries, each with the source addresses of connections through the entry, or
            through other entries with the same next hops. Sources that follow from addresses and
            entries are omitted.
        ignoring_linkdown: the interfaces with net.ipv4.conf.*.ignore_routes_with_linkdown; None if
            they aren't known.
        strict_devs: the interfaces with net.ipv4.conf.*.rp_filter = 1; None if they aren't known.
        ipv6: the IPv6 addresses, rules and routes; None if they aren't known.
        verified: the uplinks with which the check has passed on the host.
        expects_verified: whether the check that is installed on the host expects the uplinks in
            ``verified``.
        is_ours: whether hostrouting took the snapshot, rather than ip.
    """

    links: tuple[Link, ...]
    addresses: tuple[Address, ...]
    rules: tuple[Rule, ...]
    routes: tuple[Route, ...]
    nameservers: tuple[IpAddress, ...] = ()
    host: str | None = None
    time: str | None = None
    kernel: str | None = None
    is_merged: bool | None = None
    is_torn: bool = False
    sources: tuple[tuple[Route, tuple[IpAddress, ...]], ...] = ()
    ignoring_linkdown: tuple[str, ...] | None = None
    strict_devs: tuple[str, ...] | None = None
    ipv6: Ipv6State | None = None
    verified: tuple[VerifiedUplink, ...] = ()
    expects_verified: bool = True
    is_ours: bool = attrs.field(default=True, eq=False)

    def known(self, family: Family) -> KnownHost:
        """Return the host's known state in one address family.

        Raises:
            RouteError: the snapshot doesn't include this family.
        """
        if family is Family.IPV4:
            return KnownHost(
                family,
                self.links,
                self.addresses,
                self.rules,
                self.routes,
                is_merged=self.is_merged,
                sources={source_key(entry): sources for entry, sources in self.sources},
                kernel=self.kernel,
                is_torn=self.is_torn,
                is_recorded=self.is_ours,
            )
        if self.ipv6 is None:
            hint = "if the host has any, take the snapshot with hostrouting snapshot, "
            hint += "or with ip and only= as its --help shows"
            raise UnknownFactError("can't check IPv6: the snapshot holds no IPv6 routes", hint=hint)
        return KnownHost(
            family,
            self.links,
            self.ipv6.addresses,
            self.ipv6.rules,
            self.ipv6.routes,
            self.ipv6.labels,
            self.ipv6.silent_routers,
            kernel=self.kernel,
            is_torn=self.is_torn,
            has_odd_sources=self.ipv6.has_odd_sources,
            uses_deleted=self.ipv6.uses_deleted,
            is_ordered=self.ipv6.is_ordered,
            is_recorded=self.is_ours,
        )

    @property
    def taken(self) -> float | None:
        """Return ``time`` as a Unix timestamp; None if it isn't known, or isn't RFC 3339."""
        return unix_time(self.time)

    @classmethod
    def from_document(cls, document: object) -> Snapshot:
        """Parse a document from ``to_document`` or ip, ignoring unknown keys.

        Args:
            document: the document, as returned by ``json.load``.

        Returns:
            The snapshot.

        Raises:
            ConfigError: the document isn't a snapshot. The error lists all problems with their
                paths, like ``routes[3].gateway``.
        """
        if not isinstance(document, Mapping):
            expected = "an object with the lists links, addresses, rules and routes"
            raise ConfigError([("", f"expected {expected}, not {kind(document)}")])
        try:
            fields = _KEYS.read(document)
        except ConfigError as error:
            if document.keys().isdisjoint(("links", "addresses", "rules", "routes")):
                error.hint = "it has none of a snapshot's lists: is it a CONFIG?"
            raise
        _refuse_doubled_links(fields["links"])
        is_ours = fields.pop("schema") is not None
        ip = fields.pop("ip") or ""
        if not is_ours and not _prints_all_selectors(fields["kernel"] or "", ip):
            _add_unknown_selectors(fields)
        addresses = tuple(chain.from_iterable(fields["addresses"]))
        fields["addresses"] = tuple(each for each in addresses if each.local.version == 4)
        addresses6 = tuple(each for each in addresses if each.local.version == 6)
        _complete_routes(fields)
        ipv6 = _pop_ipv6(fields, addresses6, is_ordered=is_ours)
        return cls(**fields, ipv6=ipv6, is_ours=is_ours)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, bytes_max: int = _BYTES_MAX) -> Snapshot:
        """Read a file written by ``save``, ``hostrouting snapshot`` or a shell script that uses ip.

        Args:
            path: the file path, or ``-`` for standard input.
            bytes_max: the maximum size of the file in bytes.

        Returns:
            The snapshot. Its host name is that of the document, or else the file name without
            ``.json``.

        Raises:
            ConfigError: there is no such file, or it isn't a snapshot.
            FileError: the file can't be read.
        """
        if path != STDIN:
            document = read_document(path, "snapshot", bytes_max=bytes_max)
            # A crafted file name could inject lines into a report.
            name = "?".join(Path(path).name.removesuffix(".json").splitlines())
        else:
            document = _read_stdin(bytes_max)
            name = "standard input"
        loaded = cls.from_document(document)
        return loaded if loaded.host else attrs.evolve(loaded, host=name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for ``load`` and ``--snapshot`` atomically.

        Args:
            path: the file path. An existing file is replaced.

        Raises:
            FileError: the file can't be written. An existing file is left unchanged.
        """
        check_path(path, "Snapshot.save(path=…)")
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}")
        with translate_errors(f"write the snapshot {target}"):
            try:
                part.write_text(self.to_text(), encoding="ascii")
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)

    def to_document(self) -> dict[str, Any]:
        """Return the snapshot as a document that ``from_document`` can parse."""
        # The document doesn't need the nexthop objects, because the routes include their hops.
        fields = {
            **attrs.asdict(self, recurse=False),
            "schema": SNAPSHOT_SCHEMA,
            "ip": None,
            "nexthops": (),
        }
        fields |= {
            "rules6": None,
            "routes6": None,
            "neighbours6": (),
            "has_odd_sources6": False,
            "uses_deleted6": None,
            "labels6": None,
        }
        if (ipv6 := self.ipv6) is not None:
            silent = tuple(sorted(ipv6.silent_routers, key=str))
            fields |= {"rules6": ipv6.rules, "routes6": ipv6.routes, "neighbours6": silent}
            fields |= {"has_odd_sources6": ipv6.has_odd_sources, "labels6": ipv6.labels}
            fields["uses_deleted6"] = ipv6.uses_deleted
            fields["addresses"] = (*self.addresses, *ipv6.addresses)
        return _KEYS.write(fields)

    def to_text(self) -> str:
        """Return the document as JSON, with one list item a line."""
        parts = (f'"{key}": {_to_json(value)}' for key, value in self.to_document().items())
        return "{" + ",\n ".join(parts) + "}\n"


def _refuse_doubled_links(links: Iterable[Link]) -> None:
    for key, of_link in (("ifname", attrgetter("name")), ("ifindex", attrgetter("index"))):
        times = Counter(map(of_link, links))
        doubled = [f"{key} {each}" for each in times if times[each] > 1]
        if doubled:
            raise ConfigError([("links", f"several links have {doubled[0]}")])


def _complete_routes(fields: dict[str, Any]) -> None:
    """Complete a document's routes from its links, IPv4 addresses and nexthop objects."""
    nexthops = {nexthop.id: nexthop for nexthop in fields.pop("nexthops")}
    with_shares_by_family = {
        family: devs_with_shares(family, fields["links"], fields["addresses"]) for family in Family
    }

    def whole(route: Route) -> Route:
        may_have_share = with_shares_by_family[route.family].__contains__
        return with_hops(with_shares(route, may_have_share), lambda: nexthops)

    fields["sources"] = tuple((whole(route), sources) for route, sources in fields["sources"])
    for key in ("routes", "routes6"):
        if fields[key] is not None:
            fields[key] = tuple(map(whole, fields[key]))


def _pop_ipv6(
    fields: dict[str, Any],
    addresses: tuple[Address, ...],
    *,
    is_ordered: bool,
) -> Ipv6State | None:
    """Take the IPv6 state out of a document's fields."""
    rules, routes, silent, is_odd, uses_deleted, labels = map(fields.pop, _OF_IPV6)
    if rules is None and routes is None:
        return None
    if rules is None or routes is None:
        raise ConfigError([("rules6" if rules is None else "routes6", "is missing")])
    return Ipv6State(
        addresses,
        rules,
        routes,
        frozenset(silent),
        is_odd,
        uses_deleted,
        labels,
        is_ordered=is_ordered,
    )


def _add_unknown_selectors(fields: dict[str, Any]) -> None:
    """Mark each rule of other programs as having an unknown selector.

    The kernel's default rules and our own rules have no such selectors.
    """
    for key in ("rules", "rules6"):
        if fields[key] is not None:
            fields[key] = tuple(map(_with_unknown, fields[key]))


def _with_unknown(rule: Rule) -> Rule:
    is_known = rule in KERNEL_RULES or rule.is_ours
    return rule if is_known else attrs.evolve(rule, has_unknown=True, hides_selectors=True)


def _prints_all_selectors(kernel: str, ip: str) -> bool:
    """Return whether ip prints every rule selector that the kernel supports.

    A release of ip knows the selectors of the kernel with the same version number. Up to Linux
    6.12, all versions of ip print all selectors.
    """
    release = numbers_of(kernel)
    printer = numbers_of(ip.partition("iproute2-")[2])
    if release is None:
        return False
    return release < (6, 13) or (printer is not None and printer[:2] >= release[:2])


def _read_stdin(bytes_max: int) -> Any:
    if sys.stdin is None:
        raise ConfigError([("standard input", "is closed; expected a snapshot")])
    with translate_errors("read a snapshot from standard input"):
        return parse_document(sys.stdin.buffer, "standard input", "snapshot", bytes_max=bytes_max)


def _to_json(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    return json.dumps(value)


def _schema(value: object) -> int:
    if value != SNAPSHOT_SCHEMA or isinstance(value, bool):
        raise ValueError(
            f"{shown(value)} is not a schema that is known here; expected {SNAPSHOT_SCHEMA}"
        )
    return SNAPSHOT_SCHEMA


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, not {kind(value)}")
    return value


def _line(value: object) -> str:
    # Reports print this text, which must not inject lines or control a terminal.
    if not (line := _text(value)).isprintable():
        raise ValueError(f"{shown(line)} is not a line of text")
    return line


def _name(value: object) -> str:
    if len((name := _text(value)).splitlines()) > 1:
        raise ValueError(f"{shown(name)} is not the name of a host; expected a line")
    return name


def _list(
    key: str,
    parse: Callable[[Any], Any],
    default: Any = NEEDED,
    show: Callable[[Any], Any] = in_json,
    field: str = "",
) -> Key:
    def parse_list(value: object) -> tuple[Any, ...]:
        # Some versions of ip print {} for an interface with nothing to show.
        items = parse_items(value, lambda item: None if item == {} else parse(item))
        return tuple(item for item in items if item is not None)

    return Key(key, field or key, parse_list, default, lambda values: [*map(show, values)])


def _rules(key: str, family: Family, default: object) -> Key:
    parse, show = (
        partial(convert, family=family) for convert in (_ip_rules.read_rule, _ip_rules.write_rule)
    )
    listed = _list(key, parse, default, show)
    # Another tool may have changed the order of the rules in the file.
    return listed._replace(
        parse=lambda items: tuple(sorted(listed.parse(items), key=attrgetter("preference")))
    )


# For each family, the other family and the key of that family's routes.
_OTHER = {Family.IPV4: (Family.IPV6, "routes6"), Family.IPV6: (Family.IPV4, "routes")}


def _routes(family: Family, key: str, default: object) -> Key:
    listed = _list(key, partial(_ip.read_route, family=family), default, _ip.write_route)

    def parse(value: object) -> Any:
        items = value if isinstance(value, list) else []
        others = [each for each in items if _ip.is_of_other_family(each, family)]
        if others:
            other, place = _OTHER[family]
            such = f"{len(others)} of {len(items)}, such as {shown(others[0].get('dst'))}"
            command = f"ip -j -N -d -{family.value} route show table all"
            raise ValueError(f"has {other} routes ({such}), which belong in {place}: use {command}")
        return listed.parse(value)

    return listed._replace(parse=parse)


def _recorded(value: object) -> str:
    if not is_recordable(name := _text(value)):
        raise ValueError(f"{shown(name)} is not the name of a recorded uplink")
    return name


_VERIFIED = Keys(
    Key("name", "name", _recorded),
    Key("mac", "mac", _line, None),
    Key("since", "since", _line, None),
)


def _read_verified(value: object) -> VerifiedUplink:
    return VerifiedUplink(**_VERIFIED.read(value))


def _write_verified(uplink: VerifiedUplink) -> dict[str, Any]:
    return _VERIFIED.write(attrs.asdict(uplink))


_SOURCES = Keys(_list("sources", parse_address))


def _read_sources(value: object) -> tuple[Route, tuple[IpAddress, ...]]:
    return _ip.read_route(value), _SOURCES.read(value)["sources"]


def _write_sources(found: tuple[Route, tuple[IpAddress, ...]]) -> dict[str, Any]:
    route, sources = found
    return _ip.write_route(route) | {"sources": in_json(sources)}


_OF_IPV6 = ("rules6", "routes6", "neighbours6", "has_odd_sources6", "uses_deleted6", "labels6")

_KEYS = Keys(
    Key("schema", "schema", _schema, None),
    Key("host", "host", _name, None),
    Key("time", "time", _line, None),
    Key("kernel", "kernel", _line, None),
    Key("ip", "ip", _line, None),
    Key("isTorn", "is_torn", parse_boolean, False),
    Key("isMerged", "is_merged", parse_boolean, None),
    Key("hasOddSources6", "has_odd_sources6", parse_boolean, False),
    Key("usesDeleted6", "uses_deleted6", parse_boolean, None),
    _list("links", _ip.read_link, show=_ip.write_link),
    _list("addresses", _ip.read_addresses)._replace(show=_ip.write_addresses),
    _rules("rules", Family.IPV4, NEEDED),
    _routes(Family.IPV4, "routes", NEEDED),
    _list("nexthops", _ip.read_nexthop, ()),
    _list("uplink", _read_verified, (), _write_verified, "verified"),
    Key("keepsUplinks", "expects_verified", parse_boolean, True),
    _list("nameservers", parse_address, ()),
    _list("sources", _read_sources, (), _write_sources),
    _list("ignoringLinkdown", _text, None, field="ignoring_linkdown"),
    _list("strictDevs", _text, None, field="strict_devs"),
    _rules("rules6", Family.IPV6, None),
    _routes(Family.IPV6, "routes6", None),
    _list("neighbours6", _ip.read_router, (), _ip.write_router),
    _list("labels6", _ip.read_label, None, _ip.write_label),
)
