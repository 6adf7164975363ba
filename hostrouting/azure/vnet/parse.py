"""Pure: what ebtables-save prints -> the rules of pods; azure-vnet's state -> its endpoints.

A rule is a pod's if its whole line is one of these two (the address and the MAC apart); one more match, another
option, chain or target, and it is somebody else's::

    -A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.1.0.32 -j arpreply --arpreply-mac a2:06:00:20:0b:06
    -A PREROUTING -p IPv4 -i eth0 --ip-dst 10.1.0.32 -j dnat --to-dst a2:06:00:20:0b:06 --dnat-target ACCEPT

The second one also for IPv6, with ``-p IPv6`` and ``--ip6-dst``.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING

import attrs

from hostrouting.azure.errors import AzureVnetError
from hostrouting.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.model.parsing import IpAddress

__all__ = ["TUNNEL_MAC", "Endpoint", "PodRule", "RuleKind", "parse_endpoints", "parse_pod_rule", "parse_rules"]

# What azure-vnet answers ARP with in tunnel mode: the fabric's virtual gateway, which stands for every pod.
TUNNEL_MAC = "12:34:56:78:9a:bc"

_MAC_BYTES = 6
_MAC = r"(?P<mac>[0-9a-fA-F]{1,2}(?::[0-9a-fA-F]{1,2}){5})"
_IPV4 = r"(?P<address>[0-9]+(?:\.[0-9]+){3})"
# The legacy ebtables prints the mask of an IPv6 address even if it is the whole of it.
_IPV6 = r"(?P<address>[0-9a-fA-F:.]+)(?:/ffff(?::ffff){7})?"
_DNAT = rf"-j dnat --to-dst {_MAC} --dnat-target ACCEPT"


class RuleKind(StrEnum):
    """What azure-vnet does for a pod."""

    ARP_REPLY = "arpreply"
    DNAT = "dnat"


_SHAPES = (
    (RuleKind.ARP_REPLY, rf"-p ARP --arp-op Request --arp-ip-dst {_IPV4} -j arpreply --arpreply-mac {_MAC}"),
    (RuleKind.DNAT, rf"-p IPv4 -i (?P<uplink>\S+) --ip-dst {_IPV4} {_DNAT}"),
    (RuleKind.DNAT, rf"-p IPv6 -i (?P<uplink>\S+) --ip6-dst {_IPV6} {_DNAT}"),
)
_POD_RULES = tuple((kind, re.compile(rf"-A (?P<chain>PREROUTING) {shape}", re.ASCII)) for kind, shape in _SHAPES)


@attrs.frozen
class PodRule:
    """A rule as azure-vnet makes it for one address of a pod.

    Args:
        chain: where it is, PREROUTING.
        kind: what it does.
        address: the pod's.
        mac: what ARP is answered with, or frames are sent to; in six pairs of lower-case digits.
        uplink: the NIC that frames come in by; None: any interface.
    """

    chain: str
    kind: RuleKind
    address: IpAddress
    mac: str
    uplink: str | None = None

    @property
    def is_tunnel(self) -> bool:
        """Whether the MAC stands for every pod, and so tells nothing of whose rule it is."""
        return self.kind is RuleKind.ARP_REPLY and self.mac == TUNNEL_MAC

    def __str__(self) -> str:
        return f"{self.kind} {self.mac}" + ("" if self.uplink is None else f" from {self.uplink}")


def parse_rules(text: str) -> tuple[str, ...]:
    """The rules of table nat.

    Args:
        text: what ebtables-save prints.

    Returns:
        Their lines as they are, for that is what deletes them.
    """
    table, rules = "", []
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif table == "nat" and line.startswith("-A "):
            rules.append(line)
    return tuple(rules)


def parse_pod_rule(line: str) -> PodRule | None:
    """Read a rule that azure-vnet makes for a pod.

    Args:
        line: as ebtables-save prints it.

    Returns:
        The rule; None if the line says anything less, more or else.
    """
    for kind, shape in _POD_RULES:
        if match := shape.fullmatch(line):
            given = match.groupdict()
            try:
                address = ip_address(given["address"])
            except ValueError:
                return None
            return PodRule(given["chain"], kind, address, _mac(given["mac"]), given.get("uplink"))
    return None


def _mac(text: str) -> str:
    """A MAC in six pairs of lower-case digits: nft and the legacy ebtables print ``a:6:0:20:b:6``."""
    return ":".join(byte.rjust(2, "0") for byte in text.lower().split(":"))


# --- azure-vnet's state ----------------------------------------------------------------------------------------------


@attrs.frozen
class Endpoint:
    """A pod as azure-vnet's state lists it, whether it still lives or not.

    Args:
        interface: the host's end of its veth pair; empty if the state doesn't say.
        mac: of the pod's end, in six pairs of lower-case digits; None if the state doesn't say.
        addresses: the pod's.
    """

    interface: str
    mac: str | None
    addresses: tuple[IpAddress, ...]


def parse_endpoints(text: str, source: str = "azure-vnet's state") -> tuple[Endpoint, ...]:
    """Read azure-vnet's state file.

    Args:
        text: its content; an empty one is fine, as azure-vnet may not have written any yet.
        source: what the file is called in an error.

    Returns:
        Every endpoint of every network, in the order of the file.

    Raises:
        AzureVnetError: it isn't JSON, or something in it isn't what azure-vnet writes.
    """
    if not text.strip():
        return ()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(source, f"it isn't JSON: {error}") from error
    try:
        return tuple(_endpoints(document))
    except ValueError as error:
        raise _refusal(source, str(error)) from error


def _refusal(source: str, reason: str) -> AzureVnetError:
    return AzureVnetError(
        f"can't tell which pods azure-vnet still serves: {source} can't be understood, {reason}. "
        "Is azure-vnet writing it just now? If it stays like that, have azure-vnet write it anew, or move it aside: "
        "without it the interfaces alone decide"
    )


def _endpoints(document: object) -> Iterator[Endpoint]:
    network = _child(_object(document, "the document"), "Network")
    for interface in _children(network, "ExternalInterfaces"):
        for one in _children(interface, "Networks"):
            for endpoint in _children(one, "Endpoints"):
                addresses = [_object(item, "an item of IPAddresses") for item in _list(endpoint, "IPAddresses")]
                yield Endpoint(
                    interface=_text(endpoint, "HostIfName"),
                    mac=_decode_mac(_text(endpoint, "MacAddress")),
                    addresses=tuple(map(_decode_address, addresses)),
                )


def _children(parent: dict[str, object], key: str) -> Iterator[dict[str, object]]:
    for name, value in _child(parent, key).items():
        if value is not None:
            yield _object(value, f"{key}.{name}")


def _child(parent: dict[str, object], key: str) -> dict[str, object]:
    value = parent.get(key)
    return {} if value is None else _object(value, key)


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object but {shown(value)}")
    return value


def _list(parent: dict[str, object], key: str) -> list[object]:
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key} is not a list but {shown(value)}")
    return value


def _text(parent: dict[str, object], key: str) -> str:
    value = parent.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a string but {shown(value)}")
    return value


def _decode_mac(text: str) -> str | None:
    """A MAC as Go writes bytes: in base64."""
    if not text:
        return None
    try:
        raw = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _MAC_BYTES:
        raise ValueError(f"MacAddress is not a MAC in base64 but {shown(text)}")
    return raw.hex(":")


def _decode_address(address: dict[str, object]) -> IpAddress:
    """An address as Go writes it: in words, unlike its mask."""
    text = _text(address, "IP")
    try:
        return ip_address(text)
    except ValueError:
        raise ValueError(f"IP is not an address but {shown(text)}") from None
