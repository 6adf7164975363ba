"""Use the real kernel in a throw-away network namespace, where links, addresses and rules can be changed freely.

::

    enter_namespace()                      # for this thread and the threads that it starts later, with no way back
    kernel = NamespaceKernel()
    kernel.add_link("eth0")
    kernel.add_address("eth0", "10.1.0.4/24")
    kernel.in_fabric(lambda: kernel.add_address("eth0", "10.1.0.1/24"))      # the other end of the cable
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cached_property
from ipaddress import IPv4Interface
from typing import Any, TypeVar

from hostrouting.kernel._namespaces import Namespace, made, make_namespace, refusal, this_namespace
from hostrouting.kernel._namespaces import NamespaceError as NamespaceError
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.kernel.rtnetlink.requests import request
from hostrouting.model.errors import RouteError
from hostrouting.model.rules import Rule
from phases import CancelScope

T = TypeVar("T")

# A work queue updates the routes after a change of carrier (net/core/link_watch.c). On an idle machine, this takes
# microseconds.
_CARRIER_SECONDS = 10.0


def enter_namespace() -> None:
    """Move this thread into a new network namespace, in which only ``lo`` is up.

    Threads and processes that it starts later are in the same namespace. There is no way back. Without CAP_SYS_ADMIN,
    the whole process first enters a user namespace, as ``unshare -rn`` does, which only a single-threaded process can
    do.

    Raises:
        NamespaceError: the system refuses. The hint names the setting that forbids it, if known.
    """
    make_namespace()
    try:
        NamespaceKernel().set_link("lo", up=True)
    except RouteError as error:
        # AppArmor on Ubuntu allows the creation of a user namespace, but then denies the actions of its root.
        raise refusal(error.errno) from error


class NamespaceKernel(NetlinkBackend):
    """A ``Kernel`` in a network namespace that ``enter_namespace`` has made.

    Each link is one end of a veth pair. The other end has the same name in a second namespace, the *fabric*.
    ``links()`` doesn't show the other end. Its state is the state of the cable, and its addresses answer packets.

    This class works only in namespaces that this process has made. A thread that is still in the namespace of the host
    can't change anything there by mistake.

    Raises:
        NamespaceError: the calling thread is in a namespace that this process hasn't made.
    """

    def __init__(self) -> None:
        super().__init__()
        self._refuse_elsewhere()

    # --- links -------------------------------------------------------------------------------------------------

    def add_link(self, name: str, *, up: bool = True) -> None:
        """Add an interface with a carrier.

        Args:
            name: the name of both ends of the cable, here and in the fabric.
            up: whether to set the interface up.

        Raises:
            RouteError: the kernel refused, for example with EEXIST if there is a link with that name.
        """
        raw_name = os.fsencode(name)
        peer = {"attrs": [("IFLA_IFNAME", raw_name), ("IFLA_NET_NS_FD", self._fabric.fd)]}
        veth = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]})]}
        self._ask(
            f"add the link {name}", rtnl.RTM_NEWLINK, rtnl.ADD, {}, ("IFLA_IFNAME", raw_name), ("IFLA_LINKINFO", veth)
        )
        # This takes a second request, because veth_open refuses an end that isn't paired yet (ENOTCONN).
        self.set_link(name, up=up, carrier=True)

    def set_link(self, name: str, *, up: bool | None = None, carrier: bool | None = None) -> None:
        """Set an interface up or down, or plug or unplug its cable, and wait until the routes are updated.

        Raises:
            RouteError: the kernel refused, for example with ENODEV if there is no link with that name.
        """
        changes, scope = NetlinkBackend(), CancelScope(timeout=_CARRIER_SECONDS)
        changes.wait_for_change(scope)  # the first call returns at once
        if up is not None:
            self._set_up(name, up)
        if carrier is not None:
            self.in_fabric(lambda: self._set_up(name, carrier))
        while not self._is_settled(name):
            changes.wait_for_change(scope)

    def _is_settled(self, name: str) -> bool:
        (link,) = self._ask(f"look at the link {name}", rtnl.RTM_GETLINK, rtnl.GET, {"index": self._index(name)})
        # linkwatch_do_dev sets the operational state and updates the routes while it holds one lock.
        return bool(link["flags"] & rtnl.IFF_LOWER_UP) == bool(link["flags"] & rtnl.IFF_RUNNING)

    def del_link(self, name: str) -> None:
        """Delete an interface with its addresses and routes.

        Raises:
            RouteError: the kernel refused, for example with ENODEV if there is no link with that name.
        """
        self._ask(f"delete the link {name}", rtnl.RTM_DELLINK, rtnl.DELETE, {"index": self._index(name)})

    def _set_up(self, name: str, up: bool) -> None:
        fields = {"index": self._index(name), "flags": rtnl.IFF_UP if up else 0, "change": rtnl.IFF_UP}
        self._ask(f"set the link {name} {'up' if up else 'down'}", rtnl.RTM_NEWLINK, rtnl.CHANGE, fields)

    # --- addresses ---------------------------------------------------------------------------------------------

    def add_address(
        self, dev: str, address: str, *, peer: str | None = None, metric: int = 0, prefix_route: bool = True
    ) -> None:
        """Give an interface an address.

        Args:
            dev: the interface.
            address: the address, like ``10.1.0.4/24``.
            peer: the address at the far end of a point-to-point link. The prefix length then belongs to the peer.
            metric: the metric of the connected route.
            prefix_route: whether the kernel adds the connected route.

        Raises:
            RouteError: the kernel refused, for example with EEXIST if the interface already has the address.
        """
        interface = IPv4Interface(address)
        self._ask(
            f"add the address {address} to {dev}",
            rtnl.RTM_NEWADDR,
            rtnl.ADD,
            {"family": 2, "prefixlen": interface.network.prefixlen, "index": self._index(dev)},
            ("IFA_LOCAL", str(interface.ip)),
            ("IFA_ADDRESS", peer or str(interface.ip)),
            ("IFA_FLAGS", 0 if prefix_route else rtnl.IFA_F_NOPREFIXROUTE),
            *((("IFA_RT_PRIORITY", metric),) if metric else ()),
        )

    def del_address(self, dev: str, address: str) -> None:
        """Remove an address from an interface.

        Args:
            dev: the interface.
            address: the address with its original prefix length.

        Raises:
            RouteError: the kernel refused, for example with EADDRNOTAVAIL if the interface doesn't have the address.
        """
        interface = IPv4Interface(address)
        length = interface.network.prefixlen
        # The kernel compares the far end (IFA_ADDRESS) and the length only if the request has both.
        key = (dev, interface.ip, length)
        there = (each for each in self.addresses() if (each.dev, each.local, each.prefix_length) == key)
        far_end = next((each.peer or each.local for each in there), interface.ip)
        self._ask(
            f"delete the address {address} of {dev}",
            rtnl.RTM_DELADDR,
            rtnl.DELETE,
            {"family": 2, "prefixlen": length, "index": self._index(dev)},
            ("IFA_LOCAL", str(interface.ip)),
            ("IFA_ADDRESS", str(far_end)),
        )

    # --- rules -------------------------------------------------------------------------------------------------

    def add_rule(self, rule: Rule) -> None:
        """Add a policy rule.

        Raises:
            RouteError: the kernel refused, for example with EEXIST if the same rule exists.
        """
        self._ask_for("add", rtnl.RTM_NEWRULE, rtnl.ADD, rule)

    def del_rule(self, rule: Rule) -> None:
        """Delete a policy rule.

        Raises:
            RouteError: the kernel refused, for example with ENOENT if there is no such rule.
        """
        self._ask_for("delete", rtnl.RTM_DELRULE, rtnl.DELETE, rule)

    def _ask_for(self, verb: str, kind: int, flags: int, rule: Rule) -> None:
        fields, attributes = _encode_rule(rule)
        self._ask(f"{verb} the rule {rule.preference}", kind, flags, fields, *attributes)

    # --- the other end of the cables -----------------------------------------------------------------------------

    def in_fabric(self, function: Callable[[], T]) -> T:
        """Call a function in a thread inside the fabric, and return its result.

        In that thread, the methods of this object change the far ends. A socket that the function opens stays in the
        fabric.

        Args:
            function: a function without arguments.

        Returns:
            The result of the function. Its exceptions are raised here.
        """
        return self._fabric.run(function)

    @cached_property
    def _fabric(self) -> Namespace:
        return Namespace()

    # --- access to the kernel ------------------------------------------------------------------------------------

    def _connect(self) -> Conversation:
        self._refuse_elsewhere()
        return super()._connect()

    def _refuse_elsewhere(self) -> None:
        if this_namespace() not in made:
            raise NamespaceError(
                "refused to change a network namespace that this process hasn't made",
                hint="call enter_namespace() first",
            )

    def _index(self, name: str) -> int:
        self._refuse_elsewhere()
        with rtnl.translate_errors(f"find the link {name}"):
            return rtnl.Indexes()[name]

    def _ask(
        self, attempt: str, kind: int, flags: int, fields: dict[str, int], *attributes: tuple[str, object]
    ) -> tuple[Any, ...]:
        with rtnl.translate_errors(attempt), self._connect() as talk:
            return request(talk, kind, flags, fields, *attributes)


def _encode_rule(rule: Rule) -> tuple[dict[str, int], list[tuple[str, object]]]:
    """Return the fields and attributes that describe a rule completely.

    ``has_ports`` doesn't say which ports, so a destination port is used.
    """
    fields = {
        "family": socket.AF_INET,
        "src_len": rule.source.prefixlen if rule.source is not None else 0,
        "dst_len": rule.destination.prefixlen if rule.destination is not None else 0,
        "tos": rule.tos,
        "table": 0 if not rule.has_table else rule.table if rule.table <= 0xFF else rtnl.RT_TABLE_COMPAT,
        "action": rule.action,
        "flags": rtnl.FIB_RULE_INVERT if rule.is_inverted else 0,
    }
    values = (
        ("FRA_PRIORITY", rule.preference),
        ("FRA_TABLE", rule.table if rule.has_table else None),
        ("FRA_GOTO", rule.goto),
        ("FRA_SRC", str(rule.source.network_address) if rule.source is not None else None),
        ("FRA_DST", str(rule.destination.network_address) if rule.destination is not None else None),
        ("FRA_TUN_ID", rule.tun_id or None),
        ("FRA_FWMARK", rule.mark),
        ("FRA_FWMASK", rule.mark_mask if rule.mark is not None else None),
        ("FRA_IIFNAME", os.fsencode(rule.iif) if rule.iif is not None else None),
        ("FRA_OIFNAME", os.fsencode(rule.oif) if rule.oif is not None else None),
        ("FRA_UID_RANGE", f"{rule.uid_range[0]}:{rule.uid_range[1]}" if rule.uid_range is not None else None),
        ("FRA_IP_PROTO", rule.ip_protocol or None),
        ("FRA_DPORT_RANGE", "443:443" if rule.has_ports else None),
        ("FRA_SUPPRESS_PREFIXLEN", rule.suppress_prefix_length),
        ("FRA_SUPPRESS_IFGROUP", rule.suppress_group),
        ("FRA_L3MDEV", 1 if rule.is_l3mdev else None),
        ("FRA_PROTOCOL", rule.protocol),
    )
    return fields, [(name, value) for name, value in values if value is not None]
