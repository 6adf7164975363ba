"""The two ports and their values, for authors of a routes backend or a service manager.

``RouteBackend`` is the port for routes, and ``WholeTables`` adds the selective reads to a backend that reads whole
tables. ``NetlinkBackend`` implements the port for the kernel, and ``hostrouting.testing.FakeKernel`` in memory;
``hostrouting.testing.conformance`` compares any other backend with the latter. ``UnitManager`` is the port for systemd.
``Systemctl`` implements it for the running systemd, and ``hostrouting.testing.FakeSystemd`` in memory.
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
