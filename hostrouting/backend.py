"""The two ports and their types, for implementing a routes backend or a service manager.

``RouteBackend`` is the port for routes: facts, entries, lookup, sources, write, write_rules and
changes. ``read_routes`` and similar functions are built on these methods. ``ForwardingBackend`` is
the base class for wrappers that change some calls of another backend. ``NetlinkBackend`` implements
``RouteBackend`` for the kernel's IPv4 routes, ``NetlinkBackend6`` for the IPv6 routes, and
``hostrouting.testing.FakeKernel`` in memory. To check another backend against ``FakeKernel``, use
``hostrouting.testing.conformance``.

``UnitManager`` is the port for systemd. ``Systemctl`` implements ``UnitManager`` for the running
systemd, and ``hostrouting.testing.FakeSystemd`` in memory.
"""

from hostrouting.boot.systemctl import NoAnswerError, NoSystemdError, Systemctl
from hostrouting.boot.systemd import UnitManager
from hostrouting.kernel.forwarding import ForwardingBackend
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.nexthops import Router, devs_with_shares, with_shares
from hostrouting.kernel.port import (
    ChangeListener,
    Facts,
    RouteBackend,
    Sent,
    UnstableHostError,
    Write,
    read_default_routes,
    read_our_routes,
    read_routes,
)
from hostrouting.kernel.refusals import rule_deleted_for
from hostrouting.kernel.selection import EVERYTHING, Entries, Group, Selection
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix
from hostrouting.model.links import Address, AddressLabel, Hardware, Link
from hostrouting.model.lookups import Lookup, RouteFailure, RuleFailure
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    NextHop,
    Protocol,
    Route,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule, RuleAction

# fmt: off
__all__ = [
    "DEFAULT_DESTINATION", "EVERYTHING", "Address", "AddressLabel", "ChangeListener", "Entries",
    "Facts", "Family", "ForwardingBackend", "Group", "Hardware", "IpAddress", "IpNetwork", "Link",
    "Lookup", "NetlinkBackend", "NetlinkBackend6", "NextHop", "NoAnswerError", "NoSystemdError",
    "Prefix", "Protocol", "Route", "RouteBackend", "RouteFailure", "RouteType", "Router", "Rule",
    "RuleAction", "RuleFailure", "Scope", "Selection", "Sent", "Systemctl", "Table", "UnitManager",
    "UnstableHostError", "Write", "devs_with_shares", "read_default_routes", "read_our_routes",
    "read_routes", "rule_deleted_for", "with_shares",
]
# fmt: on
