"""The two ports and their values, for authors of a routes backend or a service manager.

``RouteBackend`` is the routes port. ``WholeTables`` adds the selective reads to a backend that reads whole tables.
``NetlinkBackend`` is the kernel's own, and ``hostrouting.testing.FakeKernel`` is in memory.
``hostrouting.testing.conformance`` compares any backend with it. ``UnitManager`` is the port of systemd, ``Systemctl``
the running one, and ``hostrouting.testing.FakeSystemd`` is in memory.
"""

from hostrouting.boot.systemctl import Systemctl
from hostrouting.boot.systemd import UnitManager
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.port import RouteBackend, WholeTables
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    Lookup,
    NextHop,
    Protocol,
    Route,
    RouteFailure,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule, RuleAction

# fmt: off
__all__ = [
    "DEFAULT_DESTINATION", "Address", "Hardware", "Link", "Lookup", "NetlinkBackend", "NextHop", "Protocol",
    "Route", "RouteBackend", "RouteFailure", "RouteType", "Rule", "RuleAction", "Scope", "Systemctl", "Table",
    "UnitManager", "WholeTables",
]
# fmt: on
