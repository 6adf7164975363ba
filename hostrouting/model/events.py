"""Events that may affect a host at any time."""

from __future__ import annotations

from ipaddress import IPv4Interface

import attrs

from hostrouting.model.family import IpAddress
from hostrouting.model.jsonable import JsonObject, StrEnum


class EventKind(StrEnum):
    """Kinds of events that may affect an interface or a service."""

    FLAP = "flap"
    GONE = "gone"
    CARRIER_LOST = "carrier-lost"
    LATE_ADDRESS = "late-address"
    RENUMBERED = "renumbered"
    INTO_POD = "into-pod"
    RESTART = "restart"
    EXPIRED = "expired"


@attrs.frozen
class HostEvent(JsonObject):
    """An event that may affect a host.

    Args:
        kind: ``flap``: the interface goes down and comes back up; ``gone``: it is deleted, for
            example by a driver restart; ``carrier-lost``: it loses its carrier; ``late-address``:
            it gets an address after the check, as InfiniBand interfaces do; ``renumbered``: it gets
            a different address and gateway from DHCP; ``into-pod``: it moves to another network
            namespace; ``restart``: a network manager restarts; ``expired``: a router on the
            interface stops advertising itself, and its IPv6 routes expire.
        subject: the interface or the service.
        address: the new address and its prefix length, if any.
        gateway: gateway for the new default route, or the router that stops advertising itself, if
            any.
    """

    kind: EventKind
    subject: str
    address: IPv4Interface | None = None
    gateway: IpAddress | None = None
