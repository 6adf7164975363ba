"""Compare the node and DNS addresses that a document has next to ``hostRouting`` with the host.

The keys of these addresses belong to other components, and secrets are stored next to the keys. So
no other key is read, and values of an unexpected type are ignored. The values never reach a config,
a mapping, a file or a script.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address

from hostrouting.kernel.port import RouteBackend, read_default_routes
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.model.links import Address
from hostrouting.model.parsing import parse_any_unicast_address
from hostrouting.overlap.findings import Note, NoteKind, OverlapReport, Verdict


def _address(document: object, *keys: str) -> IPv4Address | None:
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    # A dual-stack node has two addresses separated by a comma.
    for word in document.split(",") if isinstance(document, str) else ():
        with suppress(ValueError):
            if isinstance(address := parse_any_unicast_address(word.strip()), IPv4Address):
                return address
    return None


def notes_on(document: object, report: OverlapReport, backend: RouteBackend) -> Iterator[Note]:
    """Yield a note for each IPv4 address that is inconsistent with the host or the expected CIDRs.

    Args:
        document: the config document. Its key ``node.kubelet.nodeIP`` has the kubelet's address,
            and ``networking.dnsServiceIP`` the cluster's DNS address. Invalid values are ignored.
        report: the result of a check. Without a verdict on an expected IPv4 CIDR, there are no
            notes.
        backend: the IPv4 kernel to query.
    """
    node_ip = _address(document, "node", "kubelet", "nodeIP")
    dns_service_ip = _address(document, "networking", "dnsServiceIP")
    cidrs = [cidr for cidr in report.cidrs if Family.of(cidr) is Family.IPV4]
    if all(report.verdict_on(cidr) is Verdict.UNKNOWN for cidr in cidrs):
        return
    if node_ip is not None:
        try:
            yield from _notes_on_node_ip(node_ip, report.default_devs, backend)
        except RouteError as error:  # a note must not prevent the verdict
            message = f"{node_ip} can't be compared with the host's addresses: {error.clause}"
            yield Note(NoteKind.NODE_IP, f"node.kubelet.nodeIP: {message}")
    if dns_service_ip is not None and not any(dns_service_ip in cidr for cidr in cidrs):
        message = f"{dns_service_ip} is in no expected CIDR, so no check covers it"
        hint = "name the Services' CIDR in routeOverlap.expectedCidrs"
        yield Note(NoteKind.NODE_IP, f"networking.dnsServiceIP: {message}; {hint}")


def _notes_on_node_ip(
    node_ip: IPv4Address,
    uplinks: tuple[str, ...],
    backend: RouteBackend,
) -> Iterator[Note]:
    addresses = backend.facts().addresses
    devs = tuple(sorted({each.dev for each in addresses if each.local == node_ip}))
    if set(devs) & set(uplinks):
        return
    where = "isn't an address of any interface"
    if devs:
        where = f"is an address of {','.join(devs)}, which isn't an uplink"
    hint = f"set it to {_address_on(uplinks, addresses)}"
    # An interface with a default route may be the intended uplink.
    meant = [dev for dev in devs if dev in _devs_with_default_route(backend)]
    if meant:
        hint = (
            f"if the cluster is reached through {','.join(meant)},"
            f" name that in hostRouting.uplinks; else {hint}"
        )
    message = f"{node_ip} {where}, and the cluster expects the kubelet there; {hint}"
    yield Note(NoteKind.NODE_IP, f"node.kubelet.nodeIP: {message}", devs=devs)


def _address_on(uplinks: Container[str], addresses: Iterable[Address]) -> str:
    for address in addresses:
        if address.dev in uplinks:
            return f"{address.local}, which {address.dev} has"
    return "an uplink's"


def _devs_with_default_route(backend: RouteBackend) -> set[str]:
    return {dev for route in read_default_routes(backend) for dev in route.devs}
