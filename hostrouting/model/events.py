"""Events that a host may meet at any time."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface

import attrs

from hostrouting.model.jsonable import JsonObject, StrEnum


class EventKind(StrEnum):
    """Something that may happen to an interface at any time."""

    FLAP = "flap"
    GONE = "gone"
    CARRIER_LOST = "carrier-lost"
    LATE_ADDRESS = "late-address"
    RENUMBERED = "renumbered"
    INTO_POD = "into-pod"
    RESTART = "restart"


@attrs.frozen
class HostEvent(JsonObject):
    """An event that a host may meet.

    Args:
        kind: ``flap``: it goes down and comes back; ``gone``: it is deleted, as when a driver restarts;
            ``carrier-lost``; ``late-address``: it gets an address after the check, like InfiniBand; ``renumbered``: it
            gets another address and gateway by DHCP; ``into-pod``: it moves to another network namespace; ``restart``
            of a network manager.
        subject: the interface, or the service.
        address: the new address, with its prefix length.
        gateway: the gateway of the new default route.
    """

    kind: EventKind
    subject: str
    address: IPv4Interface | None = None
    gateway: IPv4Address | None = None
