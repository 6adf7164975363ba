"""Events that may happen to a host at any time."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface

import attrs

from hostrouting.model.jsonable import JsonObject, StrEnum


class EventKind(StrEnum):
    """The kinds of events that may happen to an interface or a service at any time."""

    FLAP = "flap"
    GONE = "gone"
    CARRIER_LOST = "carrier-lost"
    LATE_ADDRESS = "late-address"
    RENUMBERED = "renumbered"
    INTO_POD = "into-pod"
    RESTART = "restart"


@attrs.frozen
class HostEvent(JsonObject):
    """An event that may happen to a host.

    Args:
        kind: ``flap`` means that the interface goes down and comes back; ``gone`` that it is deleted, as when a driver
            restarts; ``carrier-lost`` that it loses its carrier; ``late-address`` that it gets an address after the
            check, as InfiniBand interfaces do; ``renumbered`` that it gets another address and gateway from DHCP;
            ``into-pod`` that it moves to another network namespace; and ``restart`` that a network manager restarts.
        subject: the interface or the service.
        address: the new address with its prefix length, if there is one.
        gateway: the gateway of the new default route, if there is one.
    """

    kind: EventKind
    subject: str
    address: IPv4Interface | None = None
    gateway: IPv4Address | None = None
