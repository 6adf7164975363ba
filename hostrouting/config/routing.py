"""Typed config classes for the ``hostRouting`` section of AKSFlexNode's config.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from ipaddress import IPv4Address
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import attrs

from hostrouting.config.documents import read_config
from hostrouting.config.validation import (
    Problem,
    Section,
    checked_at_once,
    kind,
    parse_items,
    read,
    read_section,
)
from hostrouting.config.values import (
    parse_boolean,
    parse_consumer,
    parse_integer,
    parse_named_patterns,
    parse_pattern,
    parse_patterns,
    parse_seconds,
    parse_textfile,
    parse_word,
)
from hostrouting.model.errors import ConfigError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, numbers
from hostrouting.model.jsonable import StrEnum
from hostrouting.model.links import is_like
from hostrouting.model.parsing import (
    parse_any_cidr,
    parse_any_prefix,
    parse_device,
    parse_gateway,
    parse_ipv4_gateway,
)
from hostrouting.model.text import shown
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import VerifiedUplink

if TYPE_CHECKING:
    import os


SECTION = "hostRouting"
ONLINK: Literal["onlink"] = "onlink"
METRIC_MAX = 2**32 - 1
WAIT_SECONDS = 30
PRIORITY_MAX = 32765  # the last preference before the rule for table main

# The preferences of the policy rules for ``keep``. No other program is known to use these numbers.
KEEP_PRIORITIES = range(2170, 2173)
STRICT_SETTLE_SECONDS = 60

# Interfaces of pods and their overlay networks. The interfaces of Docker, libvirt and VPNs are left
# out on purpose: the check must report a cluster's packets that leave through these.

# fmt: off
CONTAINER_DEVS = (
    "veth*", "cni*", "cbr*", "cali*", "tunl*", "vxlan*", "geneve*", "genev_sys*", "gre_sys*",
    "ipip*", "wireguard.cali", "bpf*.cali", "cilium_*", "lxc*", "azure*", "azv*", "flannel*",
    "kube-*", "nodelocaldns", "weave", "antrea-gw*", "ovn-k8s-*", "unbounded0", "gn[0-9]*",
    "localdns", "eni[0-9a-f]*", "gke[0-9a-f]*", "tun-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]*",
)
# fmt: on


Gateway = IpAddress | Literal["onlink"] | None
KeepGateway = IPv4Address | Literal["onlink"] | None


class OverlapMode(StrEnum):
    """How to handle failures: ``WARN`` reports them, ``STRICT`` also holds the node back."""

    WARN = "WARN"
    STRICT = "STRICT"


# --- converters (others are in config.values and model.parsing) ---


def _gateway(value: str | IpAddress | None) -> Gateway:
    if value is None or value == "":
        return None
    if _is_onlink(value):
        return ONLINK
    return _parsed_gateway(value) if isinstance(value, str) else parse_gateway(value)


def _is_onlink(value: str | IpAddress) -> bool:
    if value == ONLINK:
        return True
    if isinstance(value, str) and value.lower() in ("onlink", "on-link"):
        raise ValueError(f'{shown(value)} is not an address; did you mean "onlink"?')
    return False


# Thousands of routes may name the same gateway.
_parsed_gateway = lru_cache(parse_gateway)


def _dev(value: str | None) -> str | None:
    return None if value is None or value == "" else parse_device(value)


def _metric(value: int) -> int:
    return parse_integer(value, METRIC_MAX)


def _routes(value: Sequence[StaticRoute | Mapping[str, Any]]) -> tuple[StaticRoute, ...]:
    first: dict[tuple[int, Prefix, int], int] = {}
    positions = count()
    usual_metrics = {family.value: family.usual_metric for family in Family}

    def parse(item: object) -> StaticRoute:
        position = next(positions)
        route = read(StaticRoute, item)
        version = route.destination.version
        metric = route.metric or usual_metrics[version]
        # Use a pair of integers as the key: hashing a network, in Python code, takes several times
        # as long.
        earlier = first.setdefault((version, numbers(route.destination), metric), position)
        if earlier != position:
            raise ValueError(
                f"{route.destination} with metric {metric} is already routes[{earlier}]; "
                "the kernel has only one route for each destination and metric"
            )
        return route

    return parse_items(value, parse)


def _priority(value: int) -> int:
    parse_integer(value, PRIORITY_MAX, lowest=1)
    if value in KEEP_PRIORITIES:
        raise ValueError(f"{value} belongs to keep, as 2170 to 2172 do; choose another")
    return value


def _rules(value: Sequence[StaticRule | Mapping[str, Any]]) -> tuple[StaticRule, ...]:
    first: dict[IpNetwork, int] = {}
    positions = count()

    def parse(item: object) -> StaticRule:
        position = next(positions)
        rule = read(StaticRule, item)
        earlier = first.setdefault(rule.to, position)
        if earlier != position:
            raise ValueError(f"{rule.to} is already rules[{earlier}]")
        return rule

    return parse_items(value, parse)


def _keep(value: Sequence[Keep | str | Mapping[str, Any]]) -> tuple[Keep, ...]:
    def parse(item: Any) -> Keep:
        if isinstance(item, str):
            return Keep(parse_pattern(item))
        if not isinstance(item, Keep | Mapping):
            wanted = "a pattern of interface names or an object"
            raise ValueError(f"expected {wanted}, not {kind(item)}")
        return read(Keep, item)

    return parse_items(value, parse)


def _keep_gateway(value: str | IPv4Address | None) -> KeepGateway:
    if value is None or value == "":
        return None
    return ONLINK if _is_onlink(value) else parse_ipv4_gateway(value)


def _static_routes(value: StaticRoutes | Mapping[str, Any]) -> StaticRoutes:
    return read(StaticRoutes, value)


def _route_overlap(value: RouteOverlap | Mapping[str, Any]) -> RouteOverlap:
    return read(RouteOverlap, value)


def _watch(value: Watch | Mapping[str, Any]) -> Watch:
    return read(Watch, value)


def _mode(value: str) -> OverlapMode:
    return parse_word(value, OverlapMode, "a mode", OverlapMode.WARN)


def _cidrs(value: Sequence[str | IpNetwork]) -> tuple[IpNetwork, ...]:
    return parse_items(value, parse_any_cidr)


def _expected(
    value: Sequence[str | IpNetwork | ExpectedCidr | Mapping[str, Any]],
) -> tuple[ExpectedCidr, ...]:
    def parse(item: Any) -> ExpectedCidr:
        is_object = isinstance(item, ExpectedCidr | Mapping)
        return read(ExpectedCidr, item) if is_object else ExpectedCidr(parse_any_cidr(item))

    return parse_items(value, parse)


def _is_within(pattern: str, patterns: tuple[str, ...]) -> bool:
    """Return whether shell patterns cover another one: they match every name that it matches.

    For example, ``eth*`` matches every name that ``eth1*`` matches. In doubt, return False.
    """
    if not {*pattern} & {*"*?["}:
        return is_like(pattern, patterns)
    # Match the pattern's text as if it were a name. Its wildcards are then matched only by stars in
    # the other patterns.
    wide = tuple(each for each in patterns if not {*each} & {*"?["})
    return pattern in patterns or ("[" not in pattern and is_like(pattern, wide))


def _families(networks: Iterable[IpNetwork]) -> tuple[Family, ...]:
    versions = {network.version for network in networks}
    return tuple(family for family in Family if family.value in versions)


# --- the config ---


@frozen(field_transformer=checked_at_once)
class StaticRoute(Section):
    """A route that is more specific than the default route.

    Args:
        destination: an IPv4 or IPv6 prefix without host bits. The default route and prefixes inside
            0/8, 127/8, 224/4, 240/4, ::/127, ::ffff:0:0/96, fe80::/10 or ff00::/8 aren't allowed.
        gateway: the next hop's address, of the destination's family, or ``"onlink"`` if the
            destination is directly connected. A link-local IPv6 address requires ``dev``. If
            omitted, the route inherits the default route's gateways, source and MTU.
        dev: the interface; defaults to that of the default route through an uplink.
        metric: the route's metric, from 0 to 4294967295. For IPv6, 0 means 512.

    Raises:
        ConfigError: one or more fields are invalid; the error lists all of them.
    """

    destination: IpNetwork = attrs.field(converter=parse_any_prefix)
    gateway: Gateway = attrs.field(default=None, converter=_gateway)
    dev: str | None = attrs.field(default=None, converter=_dev)
    metric: int = attrs.field(default=0, converter=_metric)

    def _problems(self) -> list[Problem]:
        problems = super()._problems()
        if problems or self.gateway is None or self.gateway == ONLINK:
            return problems
        family = Family.of(self.destination)
        if Family.of(self.gateway) is not family:
            problem = f"'{self.gateway}' is not an {family} gateway for {self.destination}"
            return [("gateway", problem)]
        if family is Family.IPV6 and self.gateway.is_link_local and self.dev is None:
            return [("gateway", f"'{self.gateway}' is link-local; name dev")]
        return problems

    def __str__(self) -> str:
        words = [str(self.destination)]
        if self.gateway is not None:
            words.append(ONLINK if self.gateway == ONLINK else f"via {self.gateway}")
        if self.dev is not None:
            words.append(f"dev {self.dev}")
        if self.metric:
            words.append(f"metric {self.metric}")
        return " ".join(words)


@frozen(field_transformer=checked_at_once)
class StaticRule(Section):
    """A CIDR that is routed by table main, whatever later policy rules say.

    Args:
        to: an IPv4 or IPv6 prefix without host bits, with the limits of a route's destination.
        priority: the preference of the rule, from 1 to 32765. Rules with a lower preference still
            decide first. 2170 to 2172 belong to ``keep``.

    Raises:
        ConfigError: one or more fields are invalid; the error lists all of them.
    """

    to: IpNetwork = attrs.field(converter=parse_any_prefix)
    priority: int = attrs.field(converter=_priority)

    def __str__(self) -> str:
        return f"to {self.to} priority {self.priority}"


@frozen(field_transformer=checked_at_once)
class Keep(Section):
    """Interfaces that keep the packets sent from their own IPv4 addresses.

    A packet from an interface's address leaves through this interface if its destination is in the
    connected network. With a gateway, a packet for which table main has only a default route leaves
    through it, too. All other packets are sent as without this entry.

    Args:
        dev: a shell pattern for the interfaces.
        gateway: an IPv4 address, or ``"onlink"``. Defaults to the gateway of the interface's own
            default route, if it has one.

    Raises:
        ConfigError: one or more fields are invalid; the error lists all of them.
    """

    dev: str = attrs.field(converter=parse_pattern)
    gateway: KeepGateway = attrs.field(default=None, converter=_keep_gateway)

    def __str__(self) -> str:
        if self.gateway is None:
            return self.dev
        return f"{self.dev} {ONLINK if self.gateway == ONLINK else f'via {self.gateway}'}"

    def to_mapping(self, *keys: str) -> Any:
        """Return this object as JSON that can be parsed again."""
        return self.dev if self.gateway is None else super().to_mapping(*keys)


@frozen(field_transformer=checked_at_once)
class StaticRoutes(Section):
    """The static routes, rules and kept interfaces to install (opt-in).

    Args:
        enabled: the opt-in; must be true if there is anything to install.
        routes: the routes. Each combination of destination and metric must be unique.
        rules: the CIDRs that table main decides about. Each one must be unique; several may share a
            priority.
        keep: the interfaces that keep the packets sent from their own addresses. Each item is a
            shell pattern, or an object with ``dev`` and ``gateway``. The first item that matches an
            interface counts.

    Raises:
        ConfigError: one or more fields are invalid; the error lists all of them.
    """

    enabled: bool = attrs.field(default=False, converter=parse_boolean)
    routes: tuple[StaticRoute, ...] = attrs.field(default=(), converter=_routes)
    rules: tuple[StaticRule, ...] = attrs.field(default=(), converter=_rules)
    keep: tuple[Keep, ...] = attrs.field(default=(), converter=_keep)

    def _problems(self) -> list[Problem]:
        problems = super()._problems()
        # Check the opt-in even if a route or rule is invalid.
        if self.enabled is False and self.is_wanted:
            given = next(name for name in ("routes", "rules", "keep") if getattr(self, name))
            words = "is" if given == "keep" else "are"
            reason = f"must be true where {given} {words} given (explicit opt-in)"
            problems.insert(0, ("enabled", reason))
        return problems

    @property
    def is_wanted(self) -> bool:
        """Return whether there is anything to install."""
        return bool(self.routes or self.rules or self.keep)

    @cached_property
    def families(self) -> tuple[Family, ...]:
        """Return the address families of the routes and rules, and IPv4 if ``keep`` isn't empty."""
        versions = {network.version for network in self._networks()}
        if self.keep:
            versions.add(Family.IPV4.value)
        return tuple(family for family in Family if family.value in versions)

    def _networks(self) -> Iterator[IpNetwork]:
        for route in self.routes:
            yield route.destination
        for rule in self.rules:
            yield rule.to

    def rules_of(self, family: Family) -> tuple[StaticRule, ...]:
        """Return the rules in the given family."""
        return tuple(rule for rule in self.rules if Family.of(rule.to) is family)

    def of(self, family: Family) -> tuple[StaticRoute, ...]:
        """Return the routes in the given family."""
        if family not in self.families:
            return ()
        if self.families == (family,):
            return self.routes
        return tuple(route for route in self.routes if Family.of(route.destination) is family)


@frozen(cache_hash=True, field_transformer=checked_at_once)  # often a key of a dict or set
class ExpectedCidr(Section):
    """A CIDR that must be routed through specific interfaces.

    Args:
        cidr: an IPv4 or IPv6 CIDR. Host bits are masked.
        devs: shell patterns for the interfaces that may carry this CIDR. No other interfaces are
            allowed, not even container interfaces. Defaults to the uplinks.

    Raises:
        ConfigError: one or more fields are invalid; the error lists all of them.
    """

    cidr: IpNetwork = attrs.field(converter=parse_any_cidr)
    devs: tuple[str, ...] | None = attrs.field(default=None, converter=parse_named_patterns)

    def is_expected(self, dev: str, uplinks: Container[str]) -> bool:
        """Return whether an interface may carry the CIDR, given the uplinks."""
        return dev in uplinks if self.devs is None else is_like(dev, self.devs)

    def allows_all(self, uplinks: Collection[str]) -> bool:
        """Return whether all uplinks may carry the CIDR."""
        return all(self.is_expected(dev, uplinks) for dev in uplinks)

    def __str__(self) -> str:
        return str(self.cidr) if self.devs is None else f"{self.cidr} by {','.join(self.devs)}"

    def to_mapping(self, *keys: str) -> Any:
        """Return this object as JSON that can be parsed again."""
        return str(self.cidr) if self.devs is None else super().to_mapping(*keys)


@frozen(field_transformer=checked_at_once)
class RouteOverlap(Section):
    """The CIDRs that must be routed through the uplinks, and exceptions for other interfaces.

    Args:
        expected_cidrs: the cluster's networks: nodes, pods, Services. Each is a CIDR, or an object
            with ``cidr`` and ``devs``. CIDRs may overlap.
        mode: how to handle failures. ``WARN`` reports them and lets the node start. ``STRICT``
            reports them and holds the node back.
        container_devs: shell patterns for pod interfaces. Setting this key replaces the default
            list. Traffic through a pod interface is reported as a note, not a failure, if its route
            may lead to pods. A route can't lead to pods if its destination is wider than /8 (IPv6:
            /16) or contains an address or gateway of an uplink. In an uplink's subnet, a route to a
            single address may lead to pods. A route to a network there may lead to pods only if the
            subnet is /11 or wider (IPv6: /64 or wider). Traffic to 168.63.129.16 through a pod
            interface is a failure. So is traffic to 169.254.0.0/16, except to this host's own
            addresses, and to single addresses in 169.254.172.0/22, which EKS gives to pods.
        allowed_devs: shell patterns for interfaces that may carry expected traffic, such as
            secondary NICs, storage networks and VPNs.
        settle_seconds: how long to wait for InfiniBand interfaces to get an address, from 0 to 600.
            By default, a ``STRICT`` check waits up to 60 s for interfaces that are up: Azure's
            agent assigns their addresses late. A ``WARN`` check doesn't wait. Immediately before
            the node starts, the check waits for at most 5 s.
        foreseen: CIDRs that may be assigned to another interface later. If such a CIDR would shadow
            expected addresses, the check reports these addresses as a note.

    Raises:
        ConfigError: one or more fields are invalid; the error lists all of them.
    """

    expected_cidrs: tuple[ExpectedCidr, ...] = attrs.field(default=(), converter=_expected)
    mode: OverlapMode = attrs.field(default=OverlapMode.WARN, converter=_mode)
    container_devs: tuple[str, ...] = attrs.field(default=CONTAINER_DEVS, converter=parse_patterns)
    allowed_devs: tuple[str, ...] = attrs.field(default=(), converter=parse_patterns)
    settle_seconds: int | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(parse_seconds),
    )
    foreseen: tuple[IpNetwork, ...] = attrs.field(default=(), converter=_cidrs)

    @property
    def address_seconds(self) -> int:
        """Return how long to wait for InfiniBand addresses."""
        if self.settle_seconds is not None:
            return self.settle_seconds
        return STRICT_SETTLE_SECONDS if self.mode is OverlapMode.STRICT else 0

    @property
    def families(self) -> tuple[Family, ...]:
        """Return the address families that the expected CIDRs belong to."""
        return _families(expected.cidr for expected in self.expected_cidrs)

    def of(self, family: Family) -> RouteOverlap:
        """Return a copy of these settings with only the CIDRs in the given family."""
        expected = [
            expected for expected in self.expected_cidrs if Family.of(expected.cidr) is family
        ]
        foreseen = [cidr for cidr in self.foreseen if Family.of(cidr) is family]
        return attrs.evolve(self, expected_cidrs=tuple(expected), foreseen=tuple(foreseen))

    @property
    def judged(self) -> tuple[Prefix, ...]:
        """Return the expected and foreseen CIDRs as prefixes.

        The caller first limits the settings to one family (``of``). Routes outside of these CIDRs
        don't matter to the check.
        """
        cidrs = [expected.cidr for expected in self.expected_cidrs]
        return tuple(map(numbers, (*cidrs, *self.foreseen)))


@frozen(field_transformer=checked_at_once)
class Watch(Section):
    """Settings for the watcher, which monitors a host after boot.

    Args:
        enabled: whether ``hostrouting-watch.service`` restores lost routes and reports new
            failures.
        textfile: absolute path of the metrics file for the Prometheus node exporter, ending in
            ``.prom``. If omitted, no metrics are written.

    Raises:
        ConfigError: one or more fields are invalid; the error lists all of them.
    """

    enabled: bool = attrs.field(default=False, converter=parse_boolean)
    textfile: str | None = attrs.field(default=None, converter=parse_textfile)


@frozen
class UplinkRecord:
    """The verified uplinks that go with a config: those in the host's record.

    Args:
        uplinks: the uplinks with which the check has passed on a host. Empty until
            ``Host.with_verified`` has read them for a config that needs them.
    """

    uplinks: tuple[VerifiedUplink, ...] = ()


@frozen
class InstalledUplinkRecord(UplinkRecord):
    """The verified uplinks that go with a config without a document, as with ``--cidr`` alone.

    Such a config also needs the host's record if the installed check expects verified uplinks.
    """


@frozen
class FormerUplinkRecord(UplinkRecord):
    """The verified uplinks that went with a config when ``installed_config`` returned it.

    ``Configure`` with this config restores the host's record. A changed config, for example by
    ``attrs.evolve``, goes with the host's own record again.

    Args:
        config: the config as it was returned.
        restored: the record to restore, whether or not the config needs it.
    """

    config: Config = attrs.field(kw_only=True)
    restored: tuple[VerifiedUplink, ...] = attrs.field(kw_only=True)


@frozen(field_transformer=checked_at_once)
class Config(Section):
    """The complete hostrouting config.

    Args:
        static_routes: the routes to install.
        route_overlap: the CIDRs to check.
        wait_seconds: total time that a run waits for the default route, devices and gateways, from
            0 to 600.
        uplinks: shell patterns for the interfaces that connect the node to the cluster. Set this if
            several interfaces have a default route. Defaults to the verified uplinks, and until
            there are any, to the interface of the default route with the lowest metric.
        consumer: the unit that must not start before the routes are installed and, in ``STRICT``
            mode, the check has passed. A template covers all of its instances; single instances
            aren't supported. ``kubelet.service`` is a regular unit.
        watch: settings for the watcher.
        record: the verified uplinks. This field isn't a key: ``Host.with_verified`` fills it in.

    Raises:
        ConfigError: one or more fields are invalid; the error lists all of them.
    """

    static_routes: StaticRoutes = attrs.field(default=StaticRoutes(), converter=_static_routes)
    route_overlap: RouteOverlap = attrs.field(default=RouteOverlap(), converter=_route_overlap)
    wait_seconds: int = attrs.field(default=WAIT_SECONDS, converter=parse_seconds)
    uplinks: tuple[str, ...] | None = attrs.field(default=None, converter=parse_named_patterns)
    consumer: str = attrs.field(default="systemd-nspawn@.service", converter=parse_consumer)
    watch: Watch = attrs.field(default=Watch(), converter=_watch)
    record: UplinkRecord = attrs.field(default=UplinkRecord(), eq=False, repr=False)

    @property
    def verified(self) -> tuple[VerifiedUplink, ...]:
        """Return the verified uplinks, which count where ``uplinks`` is None."""
        return self.record.uplinks

    @property
    def is_as_installed(self) -> bool:
        """Return whether the config has no document, so that it asks about what is installed."""
        return isinstance(self.record, InstalledUplinkRecord)

    @property
    def former_record(self) -> FormerUplinkRecord | None:
        """Return the record to restore, if ``installed_config`` returned this config, or None.

        If the config has been changed since, the result is None, too.
        """
        record = self.record
        if isinstance(record, FormerUplinkRecord) and record.config == self:
            return record
        return None

    @property
    def keeps_uplinks(self) -> bool:
        """Return whether the check has a CIDR, so that it needs the host's verified uplinks."""
        return bool(self.route_overlap.expected_cidrs)

    @property
    def verifies_uplinks(self) -> bool:
        """Return whether a passing check verifies the uplinks.

        A check for CIDRs that all have ``devs`` proves nothing about the default route's interface.
        It only verifies uplinks that the config names.
        """
        is_about_uplinks = any(each.devs is None for each in self.route_overlap.expected_cidrs)
        return self.keeps_uplinks and (self.uplinks is not None or is_about_uplinks)

    @property
    def is_gated(self) -> bool:
        """Return whether the config needs the gate, because it has routes or expected CIDRs."""
        return self.static_routes.is_wanted or bool(self.route_overlap.expected_cidrs)

    def _problems(self) -> list[Problem]:
        problems = super()._problems()
        if problems or not self.uplinks:
            return problems
        for position, entry in enumerate(self.static_routes.keep):
            if _is_within(entry.dev, self.uplinks):
                reason = f"{shown(entry.dev)} matches only uplinks, whose packets follow the routes"
                problems.append((f"staticRoutes.keep[{position}]", reason))
        return problems

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Config:
        """Parse the ``hostRouting`` section of a document, ignoring other components' keys.

        Args:
            mapping: the entire document, as returned by ``json.load``.

        Returns:
            The config, or an empty one if the key is missing.

        Raises:
            ConfigError: the section is invalid, or the document has a key that resembles
                ``hostRouting`` or belongs inside it. The error lists all problems with their paths.
        """
        section = read_section(cls, mapping, SECTION)
        if section is not None:
            return section
        stray = [key for key in ("staticRoutes", "routeOverlap") if key in mapping]
        if stray:
            raise ConfigError((key, f"belongs into {SECTION}") for key in stray)
        return cls()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Load and parse a config file.

        Args:
            path: the path of a JSON file (RFC 8259, UTF-8).

        Returns:
            The config.

        Raises:
            ConfigError: the file doesn't exist or isn't a valid config.
            FileError: the file can't be read.
            TypeError: the argument isn't a path.
        """
        return cls.from_mapping(read_config(path))

    def to_mapping(self, *keys: str) -> dict[str, Any]:
        """Return a document that ``from_mapping`` can parse.

        Args:
            keys: the keys to include; by default, all.

        Raises:
            ValueError: a key isn't one of this config's.
        """
        return {SECTION: super().to_mapping(*keys)}
