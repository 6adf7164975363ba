"""The ``hostNetworking`` section of AKSFlexNode's config, validated as strictly as ``hostRouting``.

This module does no I/O. The consumer is read from ``hostRouting.consumer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.config.documents import read_config
from hostrouting.config.routing import SECTION as HOST_ROUTING
from hostrouting.config.routing import Config
from hostrouting.config.validation import Section, checked_at_once, parse_items, read, read_section
from hostrouting.config.values import parse_boolean, parse_consumer, parse_seconds, parse_word
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.jsonable import StrEnum
from hostrouting.model.parsing import parse_any_address, parse_any_prefix, parse_device
from hostrouting.model.text import shown
from hostrouting.model.values import frozen

if TYPE_CHECKING:
    import os


SECTION = "hostNetworking"


class Ipv6Detection(StrEnum):
    """The ways in which ``apply`` determines whether a node has IPv6.

    With ``ALWAYS``, ``apply`` assumes IPv6. With ``METADATA``, ``apply`` asks Azure's metadata
    service whether the node has an IPv6 address.
    """

    ALWAYS = "ALWAYS"
    METADATA = "METADATA"


# --- rules ----------------------------------------------------------------------------------------


def _devices(value: Sequence[str]) -> tuple[str, ...]:
    devices = parse_items(value, parse_device)
    if len(devices) != 1:
        raise ValueError(
            "isn't one interface; name the one through which probes arrive: "
            "answers can use only one"
        )
    return devices


def _detection(value: str) -> Ipv6Detection:
    return parse_word(value, Ipv6Detection, "a way to tell", Ipv6Detection.ALWAYS)


def _cidrs(value: Sequence[str | IpNetwork]) -> tuple[IpNetwork, ...]:
    cidrs = parse_items(value, parse_any_prefix)
    if not cidrs:
        raise ValueError(
            "is empty; name the CIDRs of the pods: nothing outside of them is ever touched"
        )
    return cidrs


def _addresses(value: Sequence[str | IpAddress]) -> tuple[IpAddress, ...]:
    return parse_items(value, parse_any_address)


def _probe(value: LoadBalancerProbe | Mapping[str, Any]) -> LoadBalancerProbe:
    return read(LoadBalancerProbe, value)


def _stale(value: StaleAzureVnet | Mapping[str, Any] | None) -> StaleAzureVnet | None:
    return None if value is None else read(StaleAzureVnet, value)


# --- the config -----------------------------------------------------------------------------------


@frozen(field_transformer=checked_at_once)
class LoadBalancerProbe(Section):
    """Settings for rewriting the Azure load balancer's IPv6 health probes.

    Args:
        enabled: whether to rewrite probes. False removes an existing installation.
        devices: the interface that receives the probes, as a list with one item.
        ipv6_detection: how ``apply`` determines whether the node has IPv6. ``ALWAYS`` assumes IPv6;
            ``METADATA`` asks Azure's metadata service for an assigned IPv6 address. Without IPv6,
            nothing is installed.

    Raises:
        ConfigError: some fields are invalid; the error lists all of them.
    """

    enabled: bool = attrs.field(default=False, converter=parse_boolean)
    devices: tuple[str, ...] = attrs.field(default=("eth0",), converter=_devices)
    ipv6_detection: Ipv6Detection = attrs.field(default=Ipv6Detection.ALWAYS, converter=_detection)

    @property
    def device(self) -> str:
        """Return the interface that receives the probes."""
        return self.devices[0]


@frozen(field_transformer=checked_at_once)
class StaleAzureVnet(Section):
    """Settings for cleaning up azure-vnet's leftovers for pods that it no longer serves.

    Args:
        cidrs: the pod CIDRs, IPv4 or IPv6, without host bits. Addresses outside the pod CIDRs are
            never touched.
        keep: addresses inside the pod CIDRs whose rules and neighbours stay.
        bridge: the name of azure-vnet's bridge.
        uplink: the NIC attached to the bridge.
        lock_wait_seconds: the timeout for acquiring azure-vnet's own lock, from 0 to 600.

    Raises:
        ConfigError: some fields are invalid; the error lists all of them.
    """

    cidrs: tuple[IpNetwork, ...] = attrs.field(converter=_cidrs)
    keep: tuple[IpAddress, ...] = attrs.field(default=(), converter=_addresses)
    bridge: str = attrs.field(default="azure0", converter=parse_device)
    uplink: str = attrs.field(default="eth0", converter=parse_device)
    lock_wait_seconds: int = attrs.field(default=5, converter=parse_seconds)


@frozen(field_transformer=checked_at_once)
class Sections(Section):
    """The ``hostNetworking`` section itself."""

    load_balancer_probe: LoadBalancerProbe = attrs.field(
        default=LoadBalancerProbe(),
        converter=_probe,
    )
    stale_azure_vnet: StaleAzureVnet | None = attrs.field(default=None, converter=_stale)


@frozen(field_transformer=checked_at_once)
class HostNetworking(Sections):
    """The configuration for the Azure tasks.

    Args:
        load_balancer_probe: settings for rewriting health probes.
        stale_azure_vnet: settings for the azure-vnet clean-up, which is disabled by default.
        consumer: the unit to start after the rules are loaded; read from ``hostRouting.consumer``.

    Raises:
        ConfigError: some fields are invalid; the error lists all of them.
    """

    consumer: str = attrs.field(default=Config().consumer, converter=parse_consumer)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> HostNetworking:
        """Parse a document's ``hostNetworking`` key, and its ``hostRouting.consumer``.

        Args:
            mapping: the complete document, as returned by ``json.load``.

        Returns:
            The config; empty if the key is missing.

        Raises:
            ConfigError: a section is invalid; the error lists each problem with its path.
        """
        sections = read_section(Sections, mapping, SECTION) or Sections()
        return cls(
            sections.load_balancer_probe,
            sections.stale_azure_vnet,
            Config.from_mapping(mapping).consumer,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HostNetworking:
        """Read a config file.

        Raises:
            ConfigError: the file doesn't exist, isn't JSON, or isn't a valid config.
            FileError: the file can't be read.
        """
        return cls.from_mapping(read_config(path))

    def to_mapping(self, *keys: str) -> dict[str, Any]:
        """Return this config as a document that ``from_mapping`` takes."""
        section = super().to_mapping(*keys)
        consumer = section.pop("consumer", None)
        return {SECTION: section} | ({HOST_ROUTING: {"consumer": consumer}} if consumer else {})


def to_networking(value: HostNetworking) -> HostNetworking:
    """Validate the type of a task's config. Used as an attrs converter.

    Raises:
        TypeError: the value isn't a ``HostNetworking``.
    """
    if not isinstance(value, HostNetworking):
        raise TypeError(
            f"a task of the plug-in takes a HostNetworking, not {shown(value)}; "
            "make one with HostNetworking.load(path) from a file"
        )
    return value
