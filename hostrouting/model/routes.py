"""Routes, using the terms from ip-route(8)."""

from __future__ import annotations

import re
from collections import Counter
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from socket import AF_INET, AF_INET6, inet_ntop
from typing import ClassVar, NamedTuple

import attrs

from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.field_types import ADDRESS, NETWORK, NONE, TUPLE, check_fields
from hostrouting.model.values import frozen

DEFAULT_DESTINATION = IPv4Network("0.0.0.0/0")


class RouteType(IntEnum):
    """Values for rtm_type; see rtnetlink(7)."""

    UNICAST = 1
    LOCAL = 2
    BROADCAST = 3
    ANYCAST = 4
    MULTICAST = 5
    BLACKHOLE = 6
    UNREACHABLE = 7
    PROHIBIT = 8
    THROW = 9

    @classmethod
    def _missing_(cls, _value: object) -> RouteType:
        # The kernel also has the types nat and xresolve. Lookups that match a route of these types
        # fail with EINVAL, as with a blackhole (fib_props).
        return cls.BLACKHOLE

    @property
    def is_discard(self) -> bool:
        """Return whether the kernel drops matching packets (blackhole, unreachable, prohibit)."""
        return RouteType.BLACKHOLE <= self <= RouteType.PROHIBIT


class Scope(IntEnum):
    """Values for rtm_scope; see rtnetlink(7). Closer destinations have larger values."""

    UNIVERSE = 0
    SITE = 200
    LINK = 253
    HOST = 254
    NOWHERE = 255


class Table(IntEnum):
    """Tables with predefined names. Any other number up to 2**32-1 is also a valid table."""

    DEFAULT = 253
    MAIN = 254
    LOCAL = 255


# The tables for packets from the addresses of interfaces in the config's ``keep``. No other program
# is known to use these numbers.
SIDE_TABLES = range(2_170_000, 2_180_000)


class Protocol(IntEnum):
    """Values for rtm_protocol, which identifies the origin of a route.

    The names are from iproute2's rt_protos.
    """

    UNSPEC = 0
    REDIRECT = 1
    KERNEL = 2
    BOOT = 3
    STATIC = 4
    RA = 9
    ZEBRA = 11
    BIRD = 12
    DHCP = 16
    KEEPALIVED = 18
    BGP = 186
    OSPF = 188
    HOSTROUTING = 217


# The protocol of the routes and rules that ``fix --format ip`` prints. Nothing of hostrouting
# installs or removes them, and no other program is known to use this number.
PRINTED = 216


def word_of(number: int, known: type[IntEnum]) -> str:
    """Return ip's name for a table, protocol or scope. Without a name, return its number."""
    try:
        return known(number).name.lower()
    except ValueError:
        return str(number)


_HOP_FIELDS = {"dev": (str, *NONE), "gateway": (*ADDRESS, *NONE), "weight": (int,)}

# Encapsulations that only set parameters for a tunnel device, so packets still leave through the
# hop's device.
BY_DEVICE = ("ip", "ip6")


@frozen(cache_hash=True)  # thousands of routes may share a hop
class NextHop:
    """A next hop: a gateway on a device, or just a device.

    Args:
        dev: outgoing interface; None if the kernel is to derive it from the gateway.
        gateway: an address of the route's family, or an IPv6 address in an IPv4 route (RFC 8950).
            None if the destination is on-link.
        onlink: whether to treat the gateway as on-link regardless of the routes.
        weight: relative weight in a multipath route (1-256).
        is_dead: whether the kernel ignores the hop because its device is down. In multipath routes,
            the kernel also shows some hops as dead that may still get packets: in a backend, these
            aren't dead (``with_shares``). Read-only.
        is_linkdown: whether the hop's device has no carrier. Read-only.
        encap: encapsulation that causes another route lookup (such as ``seg6``), or an empty
            string. Read-only.
    """

    dev: str | None = None
    gateway: IpAddress | None = None
    onlink: bool = False
    weight: int = 1
    is_dead: bool = False
    is_linkdown: bool = False
    encap: str = ""

    def __attrs_post_init__(self) -> None:
        check_fields(self, _HOP_FIELDS)

    @property
    def path(self) -> tuple[str | None, IpAddress | None, bool, int]:
        """Return the configurable attributes of the hop, without the read-only state."""
        return (self.dev, self.gateway, self.onlink, self.weight)

    def words(self, family: Family) -> str:
        """Return the hop of a route of this family in ip-route(8) syntax, without its weight."""
        is_foreign = self.gateway is not None and self.gateway.version != family.value
        via = "via inet6" if is_foreign else "via"
        given = ((via, self.gateway), ("dev", self.dev))
        return " ".join(f"{word} {value}" for word, value in given if value is not None)

    def flag_words(self) -> str:
        """Return the hop's flags in ip-route(8) syntax."""
        flags = (("dead", self.is_dead), ("onlink", self.onlink), ("linkdown", self.is_linkdown))
        return " ".join(word for word, is_set in flags if is_set)


class NexthopObject(NamedTuple):
    """A nexthop object (ip-nexthop(8)), to which a route without its own hops refers by ID.

    Args:
        id: the object's ID.
        hop: the next hop, or None for groups and blackhole objects.
        members: ID and weight of each member if the object is a group.
    """

    id: int
    hop: NextHop | None = None
    members: tuple[tuple[int, int], ...] = ()


def _usual_scope(route: Route) -> int:
    """Return the default scope that ip-route(8) assigns to a route."""
    if route.family is Family.IPV6:
        return Scope.UNIVERSE
    if route.type is RouteType.UNICAST:
        has_one_hop = isinstance(route.hops, TUPLE) and len(route.hops) == 1
        is_on_link = has_one_hop and route.hops[0].gateway is None
        return Scope.LINK if is_on_link else Scope.UNIVERSE
    if route.type is RouteType.LOCAL:
        return Scope.HOST
    is_near = route.type in (RouteType.BROADCAST, RouteType.MULTICAST, RouteType.ANYCAST)
    return Scope.LINK if is_near else Scope.UNIVERSE


@frozen
class Route:
    """A FIB entry. ``str(route)`` is in the format of ``ip route show``.

    Args:
        destination: the destination prefix.
        hops: the next hops. A multipath route has several, a discard route none.
        type: the route type.
        table: 1-4294967295.
        protocol: origin of the route; 217 is ours (see ``Protocol``).
        scope: distance to the destination; defaults to the scope that ip-route(8) would set.
        metric: 0-4294967295; lower values take precedence.
        tos: TOS value to match, or 0 for any.
        source: the preferred source address.
        mtu: MTU in bytes, or None to use the device's MTU.
        nexthop_id: ID of the nexthop object that provides the hops, if any.
    """

    family: ClassVar[Family] = Family.IPV4

    destination: IpNetwork
    hops: tuple[NextHop, ...] = ()
    type: RouteType = RouteType.UNICAST
    table: int = Table.MAIN
    protocol: int = Protocol.HOSTROUTING
    scope: int = attrs.field(default=attrs.Factory(_usual_scope, takes_self=True))
    metric: int = 0
    tos: int = 0
    source: IpAddress | None = None
    mtu: int | None = None
    nexthop_id: int | None = None

    def __attrs_post_init__(self) -> None:
        # Only two fields are checked, to save time: a table may have a million routes.
        if not isinstance(self.destination, NETWORK) or not isinstance(self.hops, TUPLE):
            check_fields(self, {"destination": NETWORK, "hops": TUPLE})

    @property
    def key(self) -> tuple[object, ...]:
        """Return table, destination, tos and metric, which identify a route (fib_find_alias)."""
        return (self.table, self.destination, self.tos, self.metric)

    @property
    def is_ours(self) -> bool:
        """Return whether the route has protocol 217, is in main, and isn't a default route."""
        return (
            self.protocol == Protocol.HOSTROUTING
            and self.table == Table.MAIN
            and self.destination.prefixlen > 0
        )

    @property
    def is_in_side_table(self) -> bool:
        """Return whether the route has protocol 217 and is in one of our side tables."""
        return self.protocol == Protocol.HOSTROUTING and self.table in SIDE_TABLES

    @property
    def is_printed(self) -> bool:
        """Return whether a command of ``fix --format ip`` has added the route."""
        return self.protocol == PRINTED

    @property
    def is_connected(self) -> bool:
        """Return whether the kernel added the route for an address's subnet."""
        is_of_kernel = self.protocol == Protocol.KERNEL and self.table == Table.MAIN
        return is_of_kernel and self.type is RouteType.UNICAST and self.is_near

    @property
    def is_near(self) -> bool:
        """Return whether a gateway inside the destination is on-link (fib_check_nh)."""
        return self.scope >= Scope.LINK

    @property
    def devs(self) -> tuple[str, ...]:
        """Return the interfaces of all live hops, sorted and without duplicates."""
        devs = [hop.dev for hop in self.hops if hop.dev is not None and not hop.is_dead]
        return tuple(sorted(set(devs)) if len(devs) > 1 else devs)

    @property
    def is_dead(self) -> bool:
        """Return whether all hops are dead, so the kernel skips the route (fib_table_lookup)."""
        return bool(self.hops) and all(hop.is_dead for hop in self.hops)

    @property
    def encap(self) -> str:
        """Return the encapsulation of the first hop that has one, or an empty string."""
        return next((hop.encap for hop in self.hops if hop.encap), "")

    def has_same_next_hops(self, other: Route) -> bool:
        """Return whether two routes have the same type and next hops, whatever else differs."""
        if self.type is not other.type:
            return False
        if self.hops == other.hops:
            return True
        ours, theirs = (Counter(hop.path for hop in route.hops) for route in (self, other))
        return ours == theirs

    def has_same_effect(self, other: Route) -> bool:
        """Return whether two routes with the same key agree in all attributes that can be set."""
        return self._effect == other._effect

    @property
    def _effect(self) -> tuple[object, ...]:
        hops = tuple(hop.path for hop in self.hops)
        return (
            self.type,
            hops,
            self.scope,
            self.source,
            self.mtu,
            self.nexthop_id,
            self.protocol,
        )

    def __str__(self) -> str:
        return self.words()

    def words(self, *, is_numeric: bool = False) -> str:
        """Return the route in the format of ``ip route show``.

        Args:
            is_numeric: whether to format tables, protocols and scopes as numbers, like ``ip -N``.
        """
        return self._words(is_numeric, f" tos {self.tos:#04x}" if self.tos else "")

    def _words(self, is_numeric: bool, selector: str) -> str:
        kind = "" if self.type is RouteType.UNICAST else f"{self.type.name.lower()} "
        numbers = (self.table, self.protocol, self.scope, self.metric, self.mtu, self.nexthop_id)
        tail = _tail(self.hops, self.source, numbers, is_numeric, self.family)
        return f"{kind}{destination_words(self.destination)}{selector}{tail}"


class Preference(IntEnum):
    """The two-bit preference that a router advertises for a route (RFC 4191)."""

    MEDIUM = 0
    HIGH = 1
    LOW = 3

    @classmethod
    def _missing_(cls, _value: object) -> Preference:
        return cls.MEDIUM  # the reserved value 2 means medium (IPV6_EXTRACT_PREF)


def _has_expired(expires: int | None) -> bool:
    return expires is not None and expires <= 0


@frozen
class Route6(Route):
    """An entry in the IPv6 FIB, which has neither a tos nor a scope.

    Args:
        source_prefix: the source prefix to match (``from`` in ip-route(8)), or None for any source.
        preference: preference among routes with the same metric.
        expires: seconds until the route expires; None if it never does. Read-only. In a comparison
            of routes, it only counts whether each has expired.
    """

    family: ClassVar[Family] = Family.IPV6

    source_prefix: IPv6Network | None = None
    preference: Preference = Preference.MEDIUM
    expires: int | None = attrs.field(default=None, eq=_has_expired)

    @property
    def is_expired(self) -> bool:
        """Return whether the route has expired. The kernel ignores expired routes."""
        return _has_expired(self.expires)

    @property
    def key(self) -> tuple[object, ...]:
        """Return table, destination, metric and source prefix, which identify a route."""
        return (self.table, self.destination, self.metric, self.source_prefix)

    @property
    def is_near(self) -> bool:
        """Return whether a gateway inside the destination is on-link (ip6_route_check_nh)."""
        return not all(hop.gateway for hop in self.hops)

    @property
    def devs(self) -> tuple[str, ...]:
        """Return the interfaces of all live hops, sorted and without duplicates.

        An expired route has none.
        """
        return () if self.is_expired else super().devs

    @property
    def is_dead(self) -> bool:
        """Return whether the kernel skips the route because it has expired or its hops are dead."""
        return self.is_expired or super().is_dead

    def words(self, *, is_numeric: bool = False) -> str:
        """Return the route in the format of ``ip -6 route show``, without its remaining lifetime.

        As the lifetime is left out, an unchanged route always has the same words.

        Args:
            is_numeric: see ``Route.words``.
        """
        source = ""
        if self.source_prefix is not None:
            source = f" from {destination_words(self.source_prefix)}"
        words = self._words(is_numeric, source)
        if self.is_expired:
            words += " expires 0sec"
        if self.preference is not Preference.MEDIUM:
            words += f" pref {self.preference.name.lower()}"
        return words


# Thousands of routes may share their hops: the cache saves two thirds of the time for 100,000.
@lru_cache
def _tail(
    hops: tuple[NextHop, ...],
    source: IpAddress | None,
    numbers: tuple[int, int, int, int, int | None, int | None],
    is_numeric: bool,
    family: Family,
) -> str:
    """Return the words after the destination, each with a leading space."""

    def unless_usual(number: int, known: type[IntEnum], usual: int) -> str | None:
        if number == usual:
            return None
        return str(int(number)) if is_numeric else word_of(number, known)

    table, protocol, scope, metric, mtu, nexthop_id = numbers
    single = hops[0] if len(hops) == 1 else None
    attributes = (
        ("nhid", nexthop_id),
        (single.words(family) if single else "", ""),
        ("table", unless_usual(table, Table, Table.MAIN)),
        # Like ip, omit protocol boot, which is the default of ``ip route add``.
        ("proto", unless_usual(protocol, Protocol, Protocol.BOOT)),
        ("scope", unless_usual(scope, Scope, Scope.UNIVERSE)),
        ("src", source),
        ("metric", metric or None),
        (single.flag_words() if single else "", ""),
        ("mtu", mtu),
    )
    words = [f"{name} {value}".strip() for name, value in attributes if value is not None]
    if not single:
        words += [
            f"nexthop {hop.words(family)} weight {hop.weight} {hop.flag_words()}".strip()
            for hop in hops
        ]
    return "".join(f" {word}" for word in words if word)


def destination_words(network: IpNetwork) -> str:
    """Return a destination in ip-route(8) syntax."""
    address = network.network_address
    length = network.prefixlen
    bits = network.max_prefixlen
    if length == 0:
        return "default"
    # inet_ntop(3) takes an eighth of the time of ipaddress, but writes some IPv6 addresses with
    # dots, such as ::10.1.0.0.
    if bits == 32:
        words = inet_ntop(AF_INET, address.packed)
    else:
        words = inet_ntop(AF_INET6, address.packed) if int(address) >> 48 else str(address)
    return words if length == bits else f"{words}/{length}"


_PASTEABLE = re.compile(r"[\w./: -]+")


def how_to_delete(route: Route) -> str:
    """Return the command that deletes a route, or an empty string if it isn't safe to paste."""
    words = str(route)
    has_state = any(hop.is_dead or hop.is_linkdown for hop in route.hops) or " expires " in words
    if has_state or not _PASTEABLE.fullmatch(words):
        return ""
    return f"ip -{route.family.value} route del {words}"


# The command that writes a fix into CONFIG.
FIX_IN_PLACE = "hostrouting fix --in-place CONFIG"


def how_to_delete_printed(family: Family) -> str:
    """Return the commands that delete all rules and routes of ``fix --format ip`` in a family."""
    ip = f"ip -{family.value}"
    return f"{ip} rule flush proto {PRINTED} && {ip} route flush table all proto {PRINTED}"


def how_to_delete_all_printed() -> str:
    """Return the commands that delete all of ``fix --format ip`` in both families."""
    return " && ".join(map(how_to_delete_printed, Family))
