"""The ``hostNetworking`` section of AKSFlexNode's config: the two neighbours of host routing, read as strictly.

Which unit is held back is one fact of a host, so it is said once, as ``hostRouting.consumer``, and read from there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.config.overlap import WAIT_SECONDS_MAX
from hostrouting.config.routing import SECTION as HOST_ROUTING
from hostrouting.config.routing import Config, read_config
from hostrouting.config.schema import (
    attempt,
    each,
    parse_boolean,
    parse_consumer,
    parse_integer,
    parse_word,
    raise_invalid,
    read,
    read_section,
    write,
)
from hostrouting.model.errors import ConfigError
from hostrouting.model.parsing import parse_any_address, parse_any_prefix, parse_device

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from hostrouting.model.parsing import IpAddress, IpNetwork

__all__ = ["HostNetworking", "Ipv6Detection", "LoadBalancerProbe", "StaleAzureVnet"]

SECTION = "hostNetworking"


class Ipv6Detection(StrEnum):
    """How it is told whether a node has IPv6.

    ``KERNEL``: by the addresses of the devices in question; ``METADATA``: by what Azure's metadata service says that
    it has assigned; ``ALWAYS``: it is taken to have it.
    """

    KERNEL = "KERNEL"
    METADATA = "METADATA"
    ALWAYS = "ALWAYS"


# --- converters ----------------------------------------------------------------------------------------------------


def _boolean(value: bool) -> bool:
    return attempt(parse_boolean, value)


def _parse_devices(value: object) -> tuple[str, ...]:
    devices = tuple(dict.fromkeys(each(value, parse_device)))
    if len(devices) > 1:
        raise ValueError("names several; name the one by which probes come in: answers can leave by one alone")
    return devices


def _devices(value: Sequence[str]) -> tuple[str, ...]:
    return attempt(_parse_devices, value)


def _device(value: str) -> str:
    return attempt(parse_device, value)


def _detection(value: str) -> Ipv6Detection:
    return attempt(lambda given: parse_word(given, Ipv6Detection, "a way to tell", Ipv6Detection.KERNEL), value)


def _seconds(value: int) -> int:
    return attempt(lambda given: parse_integer(given, WAIT_SECONDS_MAX), value)


def _parse_cidrs(value: object) -> tuple[IpNetwork, ...]:
    cidrs = each(value, parse_any_prefix)
    if not cidrs:
        raise ValueError("is empty; name the CIDRs of the pods: nothing outside of them is ever touched")
    return cidrs


def _cidrs(value: Sequence[str | IpNetwork]) -> tuple[IpNetwork, ...]:
    return attempt(_parse_cidrs, value)


def _addresses(value: Sequence[str | IpAddress]) -> tuple[IpAddress, ...]:
    return attempt(lambda given: each(given, parse_any_address), value)


def _probe(value: LoadBalancerProbe | Mapping[str, Any]) -> LoadBalancerProbe:
    return attempt(
        lambda given: given if isinstance(given, LoadBalancerProbe) else read(LoadBalancerProbe, given), value
    )


def _stale(value: StaleAzureVnet | Mapping[str, Any] | None) -> StaleAzureVnet | None:
    return attempt(
        lambda given: given if given is None or isinstance(given, StaleAzureVnet) else read(StaleAzureVnet, given),
        value,
    )


def _consumer(value: str) -> str:
    return attempt(parse_consumer, value)


# --- the config ----------------------------------------------------------------------------------------------------


@attrs.frozen
class LoadBalancerProbe:
    """Whether, and where, the IPv6 health probes of Azure's load balancer are rewritten.

    Args:
        enabled: the opt-in; must be true where it is required.
        devices: the interface by which probes come in, one at most; empty: that of the default route.
        ipv6_detection: how it is told whether the node has IPv6; without it nothing is installed.
        required: whether the node must not start without the rules; then they are installed also where no IPv6 address
            has come in time.
        wait_seconds: 0-600; how long to wait for a default route and an IPv6 address as it is configured.

    Raises:
        ConfigError: with every field that breaks its rule.
    """

    enabled: bool = attrs.field(default=False, converter=_boolean, metadata={"key": "enabled"})
    devices: tuple[str, ...] = attrs.field(default=(), converter=_devices, metadata={"key": "devices"})
    ipv6_detection: Ipv6Detection = attrs.field(
        default=Ipv6Detection.KERNEL, converter=_detection, metadata={"key": "ipv6Detection"}
    )
    required: bool = attrs.field(default=False, converter=_boolean, metadata={"key": "required"})
    wait_seconds: int = attrs.field(default=5, converter=_seconds, metadata={"key": "waitSeconds"})

    def __attrs_post_init__(self) -> None:
        opt_in = [("required", "is true, and enabled isn't: say both (explicit opt-in)")]
        raise_invalid(self, more=opt_in if self.required is True and self.enabled is False else ())

    def to_mapping(self) -> dict[str, Any]:
        """The JSON object that reads back as this."""
        out = write(self)
        plain = {key: str(value) for key, value in out.items() if isinstance(value, str)}
        return {"enabled": self.enabled} | out | plain | ({"devices": list(self.devices)} if self.devices else {})


@attrs.frozen
class StaleAzureVnet:
    """What azure-vnet may have left for pods that it no longer serves, and where to look for it.

    Args:
        cidrs: of the pods, IPv4 or IPv6, without host bits; nothing outside of them is touched.
        keep: addresses inside of them that stay as they are, whatever is found.
        bridge: azure-vnet's.
        uplink: the NIC that is its port.
        lock_wait_seconds: 0-600; how long to wait for azure-vnet's own lock.

    Raises:
        ConfigError: with every field that breaks its rule.
    """

    cidrs: tuple[IpNetwork, ...] = attrs.field(converter=_cidrs, metadata={"key": "cidrs"})
    keep: tuple[IpAddress, ...] = attrs.field(default=(), converter=_addresses, metadata={"key": "keep"})
    bridge: str = attrs.field(default="azure0", converter=_device, metadata={"key": "bridge"})
    uplink: str = attrs.field(default="eth0", converter=_device, metadata={"key": "uplink"})
    lock_wait_seconds: int = attrs.field(default=5, converter=_seconds, metadata={"key": "lockWaitSeconds"})

    def __attrs_post_init__(self) -> None:
        raise_invalid(self)
        # What contradicts itself, now that each field is what it says.
        problems = [
            (f"keep[{position}]", f"'{address}' lies in none of the cidrs, so nothing of it is touched; a slip?")
            for position, address in enumerate(self.keep)
            if not any(address in cidr for cidr in self.cidrs)
        ]
        if self.bridge == self.uplink:
            problems.append(("uplink", f"'{self.uplink}' is the bridge; it is the NIC that is its port"))
        raise_invalid(self, more=problems)

    def to_mapping(self) -> dict[str, Any]:
        """The JSON object that reads back as this."""
        out = write(self)
        return out | {key: list(map(str, value)) for key, value in out.items() if isinstance(value, tuple)}


@attrs.frozen
class _Sections:
    """What ``hostNetworking`` itself holds."""

    load_balancer_probe: LoadBalancerProbe = attrs.field(
        default=LoadBalancerProbe(), converter=_probe, metadata={"key": "loadBalancerProbe"}
    )
    stale_azure_vnet: StaleAzureVnet | None = attrs.field(
        default=None, converter=_stale, metadata={"key": "staleAzureVnet"}
    )

    def __attrs_post_init__(self) -> None:
        raise_invalid(self)


@attrs.frozen
class HostNetworking(_Sections):
    """What hostrouting is told about its neighbours.

    Args:
        load_balancer_probe: the rewriting of health probes.
        stale_azure_vnet: the clean-up after azure-vnet; None: there is none.
        consumer: the unit that starts after all this; in a document it is ``hostRouting.consumer``.

    Raises:
        ConfigError: with every field that breaks its rule.
    """

    consumer: str = attrs.field(default=Config().consumer, converter=_consumer, metadata={"key": "consumer"})

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> HostNetworking:
        """Read the ``hostNetworking`` key of a document, and the consumer of its ``hostRouting``.

        Args:
            mapping: the whole document, as ``json.load`` gives it.

        Returns:
            The config; an empty one if there is no such key.

        Raises:
            ConfigError: with all problems of both sections, each with its path.
        """
        problems: list[tuple[str, str]] = []
        routing, sections = Config(), None
        try:
            routing = Config.from_mapping(mapping)
        except ConfigError as error:
            # What is wrong with the whole document is said below.
            problems += [(path, message) for path, message in error.problems if path]
        try:
            sections = read_section(_Sections, mapping, SECTION)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        sections, consumer = sections or _Sections(), routing.consumer
        return cls(sections.load_balancer_probe, sections.stale_azure_vnet, consumer)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HostNetworking:
        """Read a config file.

        Raises:
            ConfigError: there is no such file, it isn't JSON, or its content breaks the rules.
            FileError: it can't be read.
        """
        return cls.from_mapping(read_config(path))

    def to_mapping(self) -> dict[str, Any]:
        """The document that ``from_mapping`` reads back as this config."""
        probe, stale = self.load_balancer_probe, self.stale_azure_vnet
        section = {} if probe == LoadBalancerProbe() else {"loadBalancerProbe": probe.to_mapping()}
        section |= {} if stale is None else {"staleAzureVnet": stale.to_mapping()}
        consumer = {} if self.consumer == Config().consumer else {HOST_ROUTING: {"consumer": self.consumer}}
        return {SECTION: section} | consumer
