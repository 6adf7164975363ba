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
        kind: ``flap`` goes down and comes back; ``gone`` is deleted, as by a driver's restart; ``carrier-lost``;
            ``late-address`` gets an address after the check, as InfiniBand does; ``renumbered`` gets another address
            and gateway by DHCP; ``into-pod`` moves to another network namespace; ``restart`` of a network manager.
        subject: the interface, or the service.
        address: the new one, with its length.
        gateway: of the new default route.
    """

    kind: EventKind
    subject: str
    address: IPv4Interface | None = None
    gateway: IPv4Address | None = None
