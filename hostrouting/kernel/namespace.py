"""The real kernel in a disposable network namespace, where everything can be changed freely.

::

    enter_namespace()                      # can't be undone; threads started later inherit it
    kernel = NamespaceKernel()
    kernel.add_link("eth0")
    kernel.add_address("eth0", "10.1.0.4/24")
    # The other end of the cable:
    kernel.in_fabric(lambda: kernel.add_address("eth0", "10.1.0.1/24"))
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from ipaddress import IPv4Interface, IPv6Address, ip_interface
from pathlib import Path
from typing import Any, TypeVar

from hostrouting.kernel.ip_commands import IpCommands
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import read_routes
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import rule_messages
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.kernel.unshare import Namespace, is_made_here, make_namespace, refusal
from hostrouting.kernel.unshare import NamespaceError as NamespaceError
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.model.routes import Table
from hostrouting.model.rules import Rule
from phases import CancelScope, TimedOut

T = TypeVar("T")

# How long to wait for the kernel's work queue, which updates routes after some changes. On an idle
# machine, this takes microseconds.
_WORK_SECONDS = 10.0

# The fabric of each namespace, by the namespace's inode. A fabric must outlive the
# ``NamespaceKernel`` that made it, because the kernel's links are deleted with the fabric.
_FABRICS: dict[int, Namespace] = {}


def enter_namespace() -> None:
    """Move this thread into a new network namespace and bring ``lo`` up.

    This can't be undone. Threads and processes that this thread starts later inherit the namespace.
    Without CAP_SYS_ADMIN, the process must have a single thread, and first enters a user namespace,
    like ``unshare -rn``.

    Raises:
        NamespaceError: the namespace can't be created.
    """
    make_namespace()
    _FABRICS.clear()
    try:
        NamespaceKernel().set_link("lo", up=True)
    except RouteError as error:
        # AppArmor on Ubuntu allows creating a user namespace, but then denies capabilities inside
        # it.
        raise refusal(error.errno) from error


class NamespaceKernel(IpCommands, NetlinkBackend):
    """A ``Kernel`` in a network namespace created by ``enter_namespace``.

    Each link is one end of a veth pair. The other end has the same name and is in a second
    namespace, the *fabric*. ``facts`` doesn't list the other end. Setting the other end down
    unplugs the cable. The addresses of the other end respond to packets. The fabric exists until
    the next ``enter_namespace``.

    In a namespace that this process didn't create, each call raises NamespaceError. So a thread in
    the host's namespace can't change the host by mistake.
    """

    # --- links ------------------------------------------------------------------------------------

    def add_link(self, name: str, *, up: bool = True, mac: str | None = None) -> None:
        """Add an interface with a carrier.

        Args:
            name: the name for both ends of the cable, here and in the fabric.
            up: whether to set the interface up.
            mac: the MAC address, or None for a random one.

        Raises:
            RouteError: the kernel rejected the request, for example with EEXIST if the name is
                already in use.
        """
        raw_name = os.fsencode(name)
        peer = {"attrs": [("IFLA_IFNAME", raw_name), ("IFLA_NET_NS_FD", self._fabric.fd)]}
        veth = {
            "attrs": [
                ("IFLA_INFO_KIND", "veth"),
                ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]}),
            ]
        }
        self._ask(
            f"add the link {name}",
            rtnl.RTM_NEWLINK,
            rtnl.ADD,
            {},
            ("IFLA_IFNAME", raw_name),
            ("IFLA_LINKINFO", veth),
            *([] if mac is None else [("IFLA_ADDRESS", mac)]),
        )
        # Setting the link up takes a second request, because veth_open fails until both ends are
        # paired (ENOTCONN).
        self.set_link(name, up=up, carrier=True)

    def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        carrier: bool | None = None,
        group: int | None = None,
    ) -> None:
        """Set an interface up or down, plug or unplug its cable, or set its group.

        When this method returns, the routes are updated.

        Raises:
            RouteError: the kernel rejected the request. For example, ENODEV: no link has that name.
        """
        scope = CancelScope(timeout=_WORK_SECONDS)
        with NetlinkBackend().changes() as changes:
            if group is not None:
                self._ask(
                    f"set the group of the link {name}",
                    rtnl.RTM_NEWLINK,
                    rtnl.CHANGE,
                    {"index": self._index(name)},
                    ("IFLA_GROUP", group),
                )
            if up is not None:
                self._set_up(name, up)
            if carrier is not None:
                self.in_fabric(lambda: self._set_up(name, carrier))
            while not self._is_settled(name):
                changes.wait(scope)

    def _is_settled(self, name: str) -> bool:
        body = rtnl.LINK.pack(0, 0, self._index(name), 0, 0)
        link = self._read(f"look at the link {name}", lambda talk: talk.get(rtnl.RTM_GETLINK, body))
        _, _, _, flags, _ = rtnl.LINK.unpack_from(link, rtnl.HEADER_BYTES)
        # linkwatch_do_dev sets the operational state (IFF_RUNNING), and updates the routes under
        # the same lock. So once IFF_RUNNING equals IFF_LOWER_UP, the routes are up to date.
        return bool(flags & rtnl.IFF_LOWER_UP) == bool(flags & rtnl.IFF_RUNNING)

    def del_link(self, name: str) -> None:
        """Delete an interface along with its addresses and routes.

        Raises:
            RouteError: the kernel rejected the request. For example, ENODEV: no link has that name.
        """
        self._ask(
            f"delete the link {name}",
            rtnl.RTM_DELLINK,
            rtnl.DELETE,
            {"index": self._index(name)},
        )

    def _set_up(self, name: str, up: bool) -> None:
        fields = {
            "index": self._index(name),
            "flags": rtnl.IFF_UP if up else 0,
            "change": rtnl.IFF_UP,
        }
        self._ask(
            f"set the link {name} {'up' if up else 'down'}",
            rtnl.RTM_NEWLINK,
            rtnl.CHANGE,
            fields,
        )

    # --- addresses --------------------------------------------------------------------------------

    def add_address(
        self,
        dev: str,
        address: str,
        *,
        peer: str | None = None,
        metric: int = 0,
        prefix_route: bool = True,
    ) -> None:
        """Add an address to an interface.

        Args:
            dev: the interface that gets the address.
            address: the address, like ``10.1.0.4/24``. For an IPv6 address, the interface must be
                up. When this method returns, the address is usable.
            peer: the peer address of a point-to-point link. The prefix length then applies to the
                peer.
            metric: the metric of the connected route.
            prefix_route: whether the kernel adds the connected route.

        Raises:
            RouteError: the kernel rejected the request, for example with EEXIST if the interface
                already has the address. Also if an IPv6 address isn't usable within 10 s.
        """
        interface = ip_interface(address)
        family = Family.of(interface)
        length = interface.network.prefixlen
        flags = rtnl.IFA_F_NODAD if family is Family.IPV6 else 0
        self._ask(
            f"add the address {address} to {dev}",
            rtnl.RTM_NEWADDR,
            rtnl.ADD,
            {"family": family.af, "prefixlen": length, "index": self._index(dev)},
            ("IFA_LOCAL", str(interface.ip)),
            ("IFA_ADDRESS", peer or str(interface.ip)),
            ("IFA_FLAGS", flags | (0 if prefix_route else rtnl.IFA_F_NOPREFIXROUTE)),
            *((("IFA_RT_PRIORITY", metric),) if metric else ()),
        )
        if isinstance(interface.ip, IPv6Address):
            self._wait_for_local(interface.ip)

    def _wait_for_local(self, address: IPv6Address) -> None:
        """Wait until a work queue has added an address to table local (addrconf_dad_work)."""
        ipv6 = NetlinkBackend6()
        scope = CancelScope(timeout=_WORK_SECONDS)
        try:
            with ipv6.changes() as changes:
                while not any(
                    entry.destination.network_address == address
                    for entry in read_routes(ipv6, Table.LOCAL)
                ):
                    changes.wait(scope)
        except TimedOut as error:
            why = f"no entry in table local after {_WORK_SECONDS:g} s"
            raise RouteError(f"can't use the address {address}: {why}") from error

    def del_address(self, dev: str, address: str) -> None:
        """Remove an address from an interface.

        Args:
            dev: the interface that has the address.
            address: the address and prefix length, as added.

        Raises:
            RouteError: the kernel rejected the request, for example with EADDRNOTAVAIL if the
                interface lacks the address.
        """
        interface = IPv4Interface(address)
        length = interface.network.prefixlen
        # Send the peer (IFA_ADDRESS), because without it the kernel doesn't compare the prefix
        # length.
        key = (dev, interface.ip, length)
        there = (
            each for each in self._addresses() if (each.dev, each.local, each.prefix_length) == key
        )
        far_end = next((each.peer or each.local for each in there), interface.ip)
        self._ask(
            f"delete the address {address} of {dev}",
            rtnl.RTM_DELADDR,
            rtnl.DELETE,
            {"family": 2, "prefixlen": length, "index": self._index(dev)},
            ("IFA_LOCAL", str(interface.ip)),
            ("IFA_ADDRESS", str(far_end)),
        )

    # --- rules ------------------------------------------------------------------------------------

    def add_rule(self, rule: Rule) -> None:
        """Add a policy rule.

        A ``Rule`` doesn't name ports. So if ``rule.has_ports`` is set, the kernel's rule gets an
        arbitrary destination port.

        Raises:
            RouteError: the kernel rejected the request. For example, EEXIST: an identical rule
                exists.
        """
        body = rule_messages.encode_rule(rule, self.family)
        if rule.has_ports:
            body += rule_messages.destination_port(443)
        self._change(f"add the rule {rule.preference}", rtnl.RTM_NEWRULE, rtnl.ADD, body)

    def del_rule(self, rule: Rule) -> None:
        """Delete the first policy rule that has all selectors of the given one, apart from ports.

        Raises:
            RouteError: the kernel rejected the request. For example, ENOENT: no rule has these
                selectors.
        """
        body = rule_messages.encode_rule(rule, self.family)
        self._change(f"delete the rule {rule.preference}", rtnl.RTM_DELRULE, rtnl.DELETE, body)

    # --- the other end of the cables --------------------------------------------------------------

    def in_fabric(self, function: Callable[[], T]) -> T:
        """Run a function in a thread inside the fabric, and return its result.

        In that thread, this object's methods act on the other ends of the links. Sockets that the
        function opens stay in the fabric.

        Args:
            function: a function without arguments.

        Returns:
            The function's result. Exceptions propagate to the caller.
        """
        return self._fabric.run(function)

    @cached_property
    def _fabric(self) -> Namespace:
        namespace = Path("/proc/thread-self/ns/net").stat().st_ino
        if namespace not in _FABRICS:
            _FABRICS[namespace] = Namespace()
        return _FABRICS[namespace]

    # --- access to the kernel ---------------------------------------------------------------------

    def _connect(self) -> Conversation:
        self._refuse_elsewhere()
        return super()._connect()

    def _refuse_elsewhere(self) -> None:
        if not is_made_here():
            raise NamespaceError(
                "refused to change a network namespace that this process didn't create",
                hint="call enter_namespace() first",
            )

    def _index(self, name: str) -> int:
        self._refuse_elsewhere()
        with rtnl.as_route_errors(f"find the link {name}"):
            return rtnl.index_of(name)

    def _ask(
        self,
        attempt: str,
        kind: int,
        flags: int,
        fields: dict[str, int],
        *attributes: tuple[str, object],
    ) -> None:
        """Request a change whose attributes have the kernel's names (IFA_*, IFLA_*).

        pyroute2 only encodes the body: its sockets are thirty times slower than ``Conversation``.
        Fields and attributes are set directly, because pyroute2 silently drops unknown keyword
        arguments.

        Args:
            attempt: a description for error messages.
            kind: the message type, RTM_*.
            flags: the request's flags, NLM_F_*.
            fields: values for fields of the body. Other fields are zero.
            attributes: (name, value) pairs. Nested attributes have the form ``{"attrs": [...]}``.
        """
        body = _message_class(kind)()
        body.update({name: 0 for name, _ in body.fields} | fields, attrs=list(attributes))
        body.encode()
        self._change(attempt, kind, flags, bytes(body.data)[rtnl.HEADER_BYTES :])

    def _change(
        self,
        attempt: str,
        kind: int,
        flags: int,
        body: bytes,
    ) -> None:
        with rtnl.as_route_errors(attempt), self._connect() as talk:
            for _, refusal in talk.change(
                [body],
                lambda body, sequence: rtnl.message(kind, flags, sequence, body),
            ):
                raise refusal


def _message_class(kind: int) -> Any:
    # The import takes 130 ms and loads asyncio.
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    # Message types come in groups of four: RTM_NEW*, RTM_DEL*, RTM_GET* and RTM_SET*.
    group = kind - kind % 4
    return {rtnl.RTM_NEWLINK: ifinfmsg, rtnl.RTM_NEWADDR: ifaddrmsg}[group]
