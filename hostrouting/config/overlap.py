"""The ``routeOverlap`` part of the config: what is expected to leave by which interfaces."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any

import attrs

from hostrouting.config.schema import Section, collecting, each, parse_integer, parse_pattern, parse_word, read
from hostrouting.model.links import is_like
from hostrouting.model.parsing import parse_cidr
from hostrouting.model.text import StrEnum

WAIT_SECONDS, WAIT_SECONDS_MAX = 30, 600

# Interfaces of pods and of the overlays that carry them. Docker's, libvirt's and VPNs' are missing on purpose:
# their networks really shadow the cluster's.
# fmt: off
CONTAINER_DEVS = (
    "veth*", "cni*", "cbr*", "cali*", "tunl*", "vxlan*", "geneve*", "genev_sys*", "gre_sys*", "ipip*",
    "wireguard.cali", "bpf*.cali", "cilium_*", "lxc*", "azure*", "azv*", "flannel*", "kube-*", "nodelocaldns",
    "weave", "antrea-gw*", "ovn-k8s-*", "unbounded0", "gn[0-9]*",
)
# fmt: on


class OverlapMode(StrEnum):
    """What a failed check means: ``WARN`` reports it, ``STRICT`` holds the node back."""

    WARN = "WARN"
    STRICT = "STRICT"


def seconds(value: int) -> int:
    """A time to wait."""
    return parse_integer(value, WAIT_SECONDS_MAX)


def _mode(value: str) -> OverlapMode:
    return parse_word(value, OverlapMode, "a mode", OverlapMode.WARN)


def _cidrs(value: Sequence[str | IPv4Network]) -> tuple[IPv4Network, ...]:
    return each(value, parse_cidr)


def _patterns(value: Sequence[str]) -> tuple[str, ...]:
    return each(value, parse_pattern)


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


@attrs.frozen(field_transformer=collecting)
class ExpectedCidr(Section):
    """A CIDR whose traffic must leave by certain interfaces.

    Args:
        cidr: an IPv4 CIDR. Host bits are masked.
        devs: shell patterns of the interfaces that may carry this CIDR. No other interface may, also none of
            containers. Without this key the default route's interfaces may.

    Raises:
        ConfigError: with every field that breaks its rule.
    """

    cidr: IPv4Network = attrs.field(converter=parse_cidr)
    devs: tuple[str, ...] | None = attrs.field(default=None, converter=_expected_devs)

    def is_expected(self, dev: str, default_devs: Container[str]) -> bool:
        """Whether an interface may carry it, where these are the default route's."""
        return dev in default_devs if self.devs is None else is_like(dev, self.devs)

    def is_default(self, default_devs: Collection[str]) -> bool:
        """Whether all interfaces of the default route may carry it."""
        return all(self.is_expected(dev, default_devs) for dev in default_devs)

    def __str__(self) -> str:
        return str(self.cidr) if self.devs is None else f"{self.cidr} by {','.join(self.devs)}"

    def to_mapping(self) -> Any:
        """The JSON value that reads back as this."""
        return str(self.cidr) if self.devs is None else super().to_mapping()


@attrs.frozen(field_transformer=collecting)
class RouteOverlap(Section):
    """The CIDRs that must leave by the default route's interface, and what may carry them besides.

    Args:
        expected_cidrs: the networks of the cluster: nodes, pods, Services. Each is a CIDR, or an object with the keys
            below. They may overlap.
        mode: what a failure means. ``WARN`` reports it and the node starts; ``STRICT`` reports it and holds the node
            back.
        container_devs: shell patterns of interfaces that belong to pods. What leaves by one of them is a note and no
            failure. A given list replaces the default.
        allowed_devs: shell patterns of interfaces that may carry expected traffic, such as second NICs, storage
            networks and VPNs.
        settle_seconds: how long the check waits for InfiniBand interfaces that have no address yet: 0 to 600.
        foreseen: CIDRs that another interface may get later. The check notes what they would shadow.

    Raises:
        ConfigError: with every field that breaks its rule.
    """

    expected_cidrs: tuple[ExpectedCidr, ...] = attrs.field(default=(), converter=_expected)
    mode: OverlapMode = attrs.field(default=OverlapMode.WARN, converter=_mode)
    container_devs: tuple[str, ...] = attrs.field(default=CONTAINER_DEVS, converter=_patterns)
    allowed_devs: tuple[str, ...] = attrs.field(default=(), converter=_patterns)
    settle_seconds: int = attrs.field(default=0, converter=seconds)
    foreseen: tuple[IPv4Network, ...] = attrs.field(default=(), converter=_cidrs)
