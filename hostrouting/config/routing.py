"""The ``hostRouting`` section of AKSFlexNode's config as typed values, read strictly as ``schema`` describes."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import attrs

from hostrouting.config.documents import read_document
from hostrouting.config.schema import Section, checked_at_once, each, read, read_section
from hostrouting.config.values import (
    parse_boolean,
    parse_consumer,
    parse_integer,
    parse_pattern,
    parse_textfile,
    parse_word,
)
from hostrouting.model.errors import ConfigError
from hostrouting.model.jsonable import StrEnum
from hostrouting.model.links import is_like
from hostrouting.model.parsing import parse_cidr, parse_device, parse_prefix, parse_unicast_address
from hostrouting.model.prefixes import Prefix, numbers
from hostrouting.model.text import shown

if TYPE_CHECKING:
    import os


SECTION = "hostRouting"
ONLINK: Literal["onlink"] = "onlink"
METRIC_MAX = 2**32 - 1
CONFIG_BYTES_MAX = 64 << 20
WAIT_SECONDS, WAIT_SECONDS_MAX = 30, 600
STRICT_SETTLE_SECONDS = 60

# Interfaces of pods and of their overlay networks. Those of Docker, libvirt and VPNs are left out on purpose, because
# their networks really shadow the cluster's.
# fmt: off
CONTAINER_DEVS = (
    "veth*", "cni*", "cbr*", "cali*", "tunl*", "vxlan*", "geneve*", "genev_sys*", "gre_sys*", "ipip*",
    "wireguard.cali", "bpf*.cali", "cilium_*", "lxc*", "azure*", "azv*", "flannel*", "kube-*", "nodelocaldns",
    "weave", "antrea-gw*", "ovn-k8s-*", "unbounded0", "gn[0-9]*",
)
# fmt: on


Gateway = IPv4Address | Literal["onlink"] | None


class OverlapMode(StrEnum):
    """What a failed check does: ``WARN`` only reports it, and ``STRICT`` also holds the node back."""

    WARN = "WARN"
    STRICT = "STRICT"


# --- rules: for others see values, and model.parsing ---


def _gateway(value: str | IPv4Address | None) -> Gateway:
    if value is None or value == "":
        return None
    if value == ONLINK:
        return ONLINK
    if isinstance(value, str) and value.lower() in ("onlink", "on-link"):
        raise ValueError(f'{shown(value)} is not an IPv4 address; did you mean "onlink"?')
    return parse_unicast_address(value)


def _dev(value: str | None) -> str | None:
    return None if value is None or value == "" else parse_device(value)


def _metric(value: int) -> int:
    return parse_integer(value, METRIC_MAX)


def _routes(value: Sequence[StaticRoute | Mapping[str, Any]]) -> tuple[StaticRoute, ...]:
    first: dict[tuple[Prefix, int], int] = {}
    positions = count()

    def parse(item: object) -> StaticRoute:
        position = next(positions)
        route = read(StaticRoute, item)
        earlier = first.setdefault((numbers(route.destination), route.metric), position)
        if earlier != position:
            twin = f"{route.destination} with metric {route.metric} is already routes[{earlier}]"
            raise ValueError(f"{twin}; the kernel has only one route for each destination and metric")
        return route

    return each(value, parse)


def _static_routes(value: StaticRoutes | Mapping[str, Any]) -> StaticRoutes:
    return read(StaticRoutes, value)


def _route_overlap(value: RouteOverlap | Mapping[str, Any]) -> RouteOverlap:
    return read(RouteOverlap, value)


def _watch(value: Watch | Mapping[str, Any]) -> Watch:
    return read(Watch, value)


def read_config(path: str | os.PathLike[str]) -> Any:
    """Return the document of a config file as it is written; ``Config.load`` also parses it.

    Raises:
        ConfigError: the file doesn't exist, or isn't JSON.
        FileError: the file can't be read.
    """
    return read_document(path, "config", bytes_max=CONFIG_BYTES_MAX)


def seconds(value: int) -> int:
    """Return a waiting time in seconds after checking its range."""
    return parse_integer(value, WAIT_SECONDS_MAX)


def _settle_seconds(value: int | None) -> int | None:
    return None if value is None else seconds(value)


def _mode(value: str) -> OverlapMode:
    return parse_word(value, OverlapMode, "a mode", OverlapMode.WARN)


def _cidrs(value: Sequence[str | IPv4Network]) -> tuple[IPv4Network, ...]:
    return each(value, parse_cidr)


def _patterns(value: Sequence[str]) -> tuple[str, ...]:
    return each(value, parse_pattern)


def _uplinks(value: Sequence[str] | None) -> tuple[str, ...] | None:
    patterns = None if value is None else each(value, parse_pattern)
    if patterns == ():
        raise ValueError("names no interface; leave uplinks out to expect the default route's")
    return patterns


def _expected_devs(value: Sequence[str] | None) -> tuple[str, ...] | None:
    patterns = None if value is None else each(value, parse_pattern)
    if patterns == ():
        raise ValueError("names no interface; leave devs out to expect the default route's")
    return patterns


def _expected(value: Sequence[str | IPv4Network | ExpectedCidr | Mapping[str, Any]]) -> tuple[ExpectedCidr, ...]:
    def parse(item: Any) -> ExpectedCidr:
        is_object = isinstance(item, ExpectedCidr | Mapping)
        return read(ExpectedCidr, item) if is_object else ExpectedCidr(parse_cidr(item))

    return each(value, parse)


# --- the config ---


@attrs.frozen(field_transformer=checked_at_once)
class StaticRoute(Section):
    """A more specific route for the host.

    Args:
        destination: an IPv4 prefix without host bits. It can't be the default route, and can't lie inside 0/8, 127/8,
            224/4 or 240/4.
        gateway: the address of the next router. ``"onlink"`` means that there is none, because the destination is on
            the link. Without this key the route takes the default route's whole next hop: its gateways, source and MTU.
        dev: the interface. Without this key the route takes the default route's interface through an uplink.
        metric: a number from 0 to 4294967295. 0 is the kernel's default.

    Raises:
        ConfigError: fields break their rules; the error lists all of them.
    """

    destination: IPv4Network = attrs.field(converter=parse_prefix)
    gateway: Gateway = attrs.field(default=None, converter=_gateway)
    dev: str | None = attrs.field(default=None, converter=_dev)
    metric: int = attrs.field(default=0, converter=_metric)

    def __str__(self) -> str:
        gateway = ONLINK if self.gateway == ONLINK else f"via {self.gateway}"
        given = ((self.gateway, gateway), (self.dev, f"dev {self.dev}"), (self.metric, f"metric {self.metric}"))
        return " ".join([str(self.destination), *(words for value, words in given if value)])


@attrs.frozen(field_transformer=checked_at_once)
class StaticRoutes(Section):
    """The routes to install, which need an explicit opt-in.

    Args:
        enabled: the opt-in. It must be true if there are routes.
        routes: the routes. No two of them may have the same destination and metric.

    Raises:
        ConfigError: fields break their rules; the error lists all of them.
    """

    enabled: bool = attrs.field(default=False, converter=parse_boolean)
    routes: tuple[StaticRoute, ...] = attrs.field(default=(), converter=_routes)

    def __attrs_post_init__(self) -> None:
        problems = self._apply_rules()
        # Invalid routes count as routes too.
        if self.enabled is False and self.routes:
            problems.insert(0, ("enabled", "must be true where routes are given (explicit opt-in)"))
        if problems:
            raise ConfigError(problems)


@attrs.frozen(field_transformer=checked_at_once)
class ExpectedCidr(Section):
    """A CIDR whose traffic must leave through certain interfaces.

    Args:
        cidr: an IPv4 CIDR. Host bits are masked.
        devs: shell patterns of the interfaces that may carry this CIDR. No other interface may, not even a container's.
            Without this key the uplinks may.

    Raises:
        ConfigError: fields break their rules; the error lists all of them.
    """

    cidr: IPv4Network = attrs.field(converter=parse_cidr)
    devs: tuple[str, ...] | None = attrs.field(default=None, converter=_expected_devs)

    def is_expected(self, dev: str, uplinks: Container[str]) -> bool:
        """Return whether an interface may carry the CIDR, given the uplinks."""
        return dev in uplinks if self.devs is None else is_like(dev, self.devs)

    def allows_all(self, uplinks: Collection[str]) -> bool:
        """Return whether all uplinks may carry the CIDR."""
        return all(self.is_expected(dev, uplinks) for dev in uplinks)

    def __str__(self) -> str:
        return str(self.cidr) if self.devs is None else f"{self.cidr} by {','.join(self.devs)}"

    def to_mapping(self) -> Any:
        """Return this value as JSON that can be read back."""
        return str(self.cidr) if self.devs is None else super().to_mapping()


@attrs.frozen(field_transformer=checked_at_once)
class RouteOverlap(Section):
    """The CIDRs that must leave through the node's uplinks, and the other interfaces that may carry them.

    Args:
        expected_cidrs: the networks of the cluster: nodes, pods, Services. Each is a CIDR, or an object with the keys
            below. They may overlap.
        mode: what a failure does. ``WARN`` reports it, and the node starts. ``STRICT`` reports it and holds the node
            back.
        container_devs: shell patterns of interfaces that belong to pods. Traffic through one of them is a note and not
            a failure. If this key is given, it replaces the default list.
        allowed_devs: shell patterns of interfaces that may carry expected traffic, such as second NICs, storage
            networks and VPNs.
        settle_seconds: how long the check waits for InfiniBand interfaces that have no address yet, from 0 to 600.
            Without this key, a ``STRICT`` check waits 60 s for those that are up, because Azure's agent assigns their
            addresses late, and a ``WARN`` check doesn't wait. Right before a start of the node, the check waits at most
            5 s.
        foreseen: CIDRs that another interface may get later. The check notes which addresses they would shadow.

    Raises:
        ConfigError: fields break their rules; the error lists all of them.
    """

    expected_cidrs: tuple[ExpectedCidr, ...] = attrs.field(default=(), converter=_expected)
    mode: OverlapMode = attrs.field(default=OverlapMode.WARN, converter=_mode)
    container_devs: tuple[str, ...] = attrs.field(default=CONTAINER_DEVS, converter=_patterns)
    allowed_devs: tuple[str, ...] = attrs.field(default=(), converter=_patterns)
    settle_seconds: int | None = attrs.field(default=None, converter=_settle_seconds)
    foreseen: tuple[IPv4Network, ...] = attrs.field(default=(), converter=_cidrs)

    @property
    def address_seconds(self) -> int:
        """Return how long the check waits for InfiniBand's addresses."""
        if self.settle_seconds is not None:
            return self.settle_seconds
        return STRICT_SETTLE_SECONDS if self.mode is OverlapMode.STRICT else 0

    @property
    def judged(self) -> tuple[Prefix, ...]:
        """The prefixes that a check judges; it needs no routes outside of them."""
        return tuple(map(numbers, (*(expected.cidr for expected in self.expected_cidrs), *self.foreseen)))


@attrs.frozen(field_transformer=checked_at_once)
class Watch(Section):
    """The settings of the watcher, which watches a host after boot.

    Args:
        enabled: whether ``hostrouting-watch.service`` restores lost routes and reports new failures.
        textfile: the file to which the watcher writes metrics for Prometheus' node exporter, as an absolute path that
            ends in ``.prom``. Without this key it writes none.

    Raises:
        ConfigError: fields break their rules; the error lists all of them.
    """

    enabled: bool = attrs.field(default=False, converter=parse_boolean)
    textfile: str | None = attrs.field(default=None, converter=parse_textfile)


@attrs.frozen(field_transformer=checked_at_once)
class Config(Section):
    """The complete config of hostrouting.

    Args:
        static_routes: the routes to install.
        route_overlap: the CIDRs to check.
        wait_seconds: how long a run waits in all for the default route, devices and gateways, from 0 to 600.
        uplinks: shell patterns of the interfaces through which the cluster is reached. Name them if several interfaces
            have a default route. Without this key the uplink is the interface of the default route with the lowest
            metric.
        consumer: the unit that must not start before the routes are installed and the check has passed. A template
            stands for all of its instances, and a single instance can't be named. ``kubelet.service`` is a single unit.
        watch: whether and how the watcher keeps everything correct afterwards.

    Raises:
        ConfigError: fields break their rules; the error lists all of them.
    """

    static_routes: StaticRoutes = attrs.field(default=StaticRoutes(), converter=_static_routes)
    route_overlap: RouteOverlap = attrs.field(default=RouteOverlap(), converter=_route_overlap)
    wait_seconds: int = attrs.field(default=WAIT_SECONDS, converter=seconds)
    uplinks: tuple[str, ...] | None = attrs.field(default=None, converter=_uplinks)
    consumer: str = attrs.field(default="systemd-nspawn@.service", converter=parse_consumer)
    watch: Watch = attrs.field(default=Watch(), converter=_watch)

    @property
    def is_gated(self) -> bool:
        """Return whether the config asks for routes or a check, and therefore for the gate."""
        return bool(self.static_routes.routes or self.route_overlap.expected_cidrs)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Config:
        """Read the ``hostRouting`` key of a document, and ignore its other keys, which belong to other components.

        Args:
            mapping: the whole document, as returned by ``json.load``.

        Returns:
            The config, or an empty one if the key is missing.

        Raises:
            ConfigError: the section breaks the rules, or the document has a key that looks like ``hostRouting`` or
                belongs below it. The error lists all problems, each with its path.
        """
        section = read_section(cls, mapping, SECTION)
        if section is None and (stray := [key for key in ("staticRoutes", "routeOverlap") if key in mapping]):
            raise ConfigError((key, f"belongs into {SECTION}") for key in stray)
        return section or cls()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Read a config file.

        Args:
            path: the path of a JSON document (RFC 8259, UTF-8).

        Returns:
            The config.

        Raises:
            ConfigError: the file doesn't exist, isn't JSON, or has content that breaks the rules.
            FileError: the file can't be read.
        """
        return cls.from_mapping(read_config(path))

    def to_mapping(self) -> dict[str, Any]:
        """Return a document from which ``from_mapping`` can read this config."""
        return {SECTION: super().to_mapping()}
