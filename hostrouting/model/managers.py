"""Define network managers, which configure interfaces and may remove other programs' routes."""

from __future__ import annotations

import attrs

from hostrouting.model.jsonable import JsonObject
from hostrouting.model.routes import Protocol, Route

NETWORKD, NETWORK_MANAGER = "systemd-networkd", "NetworkManager"

_ADDED = (Protocol.RA, Protocol.DHCP, Protocol.STATIC)


@attrs.frozen
class Manager(JsonObject):
    """A network manager and the interfaces that it configures.

    Args:
        name: its service name.
        devs: the interfaces that it configures.
        drops_routes: whether it removes other programs' routes from these interfaces on restart, or
            null if unknown.
    """

    name: str
    devs: tuple[str, ...]
    drops_routes: bool | None = None

    def adds(self, route: Route) -> bool:
        """Return whether a route looks like one that the manager would restore, from a lease or its config files."""
        return route.protocol in _ADDED and not set(self.devs).isdisjoint(route.devs)

    def drops(self, route: Route) -> bool:
        """Return whether the manager removes a given foreign route on restart."""
        is_foreign = route.protocol not in (*_ADDED, Protocol.KERNEL)
        return bool(self.drops_routes) and is_foreign and not set(self.devs).isdisjoint(route.devs)
