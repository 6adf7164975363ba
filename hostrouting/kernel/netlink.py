"""Implement the routes port for the real kernel, using our own netlink sockets.

The modules of ``rtnetlink``, from the bottom up:

- messages.py packs and splits messages. route_messages.py, rule_messages.py and link_messages.py
  encode and decode the bodies.
- conversation.py has the sockets. Each call of the port opens and closes a ``Conversation``, for
  requests. A ``Listener`` receives notifications on a separate socket, because a notification could
  be mistaken for a reply.
- entries.py decodes the entries of a FIB. If hundreds differ only in their destinations, it decodes
  them at once.

This module adds guarantees that the kernel doesn't give:

- *A dump isn't atomic.* For links, addresses and rules, the kernel marks an interrupted dump, and
  ``read`` of conversation.py repeats it. The kernel doesn't mark an interrupted dump of IPv4
  routes. So ``entries`` listens for changes during the dump, and repeats the dump after a change.
- *The kernel drops an error reply if the socket's buffer is full.* So requests are sent in batches
  that are small enough for the buffer to hold an error for each request.
- *A deletion matches loosely.* In a request, metric 0 matches any metric, and a missing gateway
  matches any gateway. So ``_delete`` first reads the entries. A route that isn't among the entries
  isn't deleted (``refusals.Deletable``).
- *A lookup has no ports.* A rule such as ``dport 1-65534`` matches every packet, but no lookup
  without ports. So on a host with a rule for all ports, ``lookup`` sends a port that no other rule
  selects.
- *A table may be huge.* The decoder gets the ``Selection``, and skips unwanted entries.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TypeVar

from hostrouting.kernel.arguments import check_addresses, check_routes, check_rules
from hostrouting.kernel.nexthops import devs_with_shares, in_order
from hostrouting.kernel.port import (
    ChangeListener,
    Facts,
    RouteBackend,
    Sent,
    Write,
    refuse_replacing,
)
from hostrouting.kernel.refusals import (
    Deletable,
    DeletableRules,
    NetlinkError,
    refuse_unwritable,
    rule_failure,
)
from hostrouting.kernel.rtnetlink import link_messages, rule_messages
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import route_messages as rtm
from hostrouting.kernel.rtnetlink.conversation import (
    LISTENING,
    Conversation,
    Listener,
    everywhere,
    read,
)
from hostrouting.kernel.rtnetlink.entries import Attributes, RouteReader
from hostrouting.kernel.selection import (
    DEFAULT_ROUTES,
    EVERYTHING,
    Entries,
    Group,
    Selection,
    inside_only,
)
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.links import Address, Link
from hostrouting.model.lookups import Lookup, RouteFailure, RuleFailure
from hostrouting.model.routes import NextHop, NexthopObject, Route
from hostrouting.model.rules import Rule

T = TypeVar("T")

# Maximum number of attempts to read a table that other daemons keep changing.
_READ_ATTEMPTS = 4

# The first port for queries of sources. Rules usually select the lower ports of services.
_FIRST_PORT = 50_000

# An address, a destination port or None for any, and an interface index or None.
Request = tuple[IpAddress, int | None, int | None]

# Errors from fib_lookup if there is no route. Any other error means that the lookup itself failed.
NO_ROUTE_ERRNOS = (errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL)


class NetlinkBackend(RouteBackend):
    """The IPv4 FIB in the calling thread's network namespace.

    Reading requires no privileges. Writing requires CAP_NET_ADMIN; without it, each route fails
    with EPERM. Instances are thread-safe, because every call uses its own socket.
    """

    family: Family = Family.IPV4

    def __init__(self) -> None:
        self._arrange: Callable[[Iterable[NextHop]], tuple[NextHop, ...]] = in_order

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    # --- reading ----------------------------------------------------------------------------------

    def facts(self) -> Facts:
        return Facts(self._links(), self._addresses(), self._rules())

    def _links(self) -> tuple[Link, ...]:
        return tuple(sorted(self._list(link_messages.LINKS), key=lambda link: link.index))

    def _addresses(self) -> tuple[Address, ...]:
        # With ipv6.disable=1, the kernel answers with the addresses of the other families
        # (rtnl_dump_all).
        found = self._list(link_messages.ADDRESSES[self.family])
        return tuple(address for address in found if address.local.version == self.family.value)

    def _rules(self) -> tuple[Rule, ...]:
        return self._list(rule_messages.RULES[self.family])

    def nexthops(self) -> tuple[NexthopObject, ...]:
        """Return all nexthop objects, sorted by ID.

        The port doesn't have this method, because ``entries`` replaces nexthop objects by their
        hops.
        """
        return self._list(link_messages.NEXTHOPS)

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        """Return the wanted entries of the FIB, in the kernel's order.

        If a table changes during a read, the read is repeated, but only a few times. After that,
        the result may contain entries that never existed at the same time. Nexthop objects are
        replaced by their hops.

        Unwanted entries are never decoded, so memory use depends on the size of the result, not on
        the size of the tables.
        """
        if wanted == DEFAULT_ROUTES:
            return self._read("look for the default route", self._ask_for_default_routes)

        def ask(talk: Conversation) -> list[Group]:
            reader = self._reader(wanted)
            found: list[Group] = []
            for stretch in self._dump(talk, wanted):
                found += reader.groups(stretch)
            return found

        for _ in range(_READ_ATTEMPTS):
            with self.changes([(0, 0)]) as listener:
                groups = self._read("list the routes", ask)
                if not listener.happened():
                    break
        if wanted.protocol is not None:  # to the kernel, 0 means no filter
            groups = [group for group in groups if group[0].protocol == wanted.protocol]
        return Entries(groups)

    def _ask_for_default_routes(self, talk: Conversation) -> Entries:
        """Read the default routes without decoding other entries.

        An IPv4 dump begins with the default routes, so only its beginning is read. An IPv6 dump
        ends with the default routes, so all of it is read.
        """
        reader = self._reader(DEFAULT_ROUTES)
        found: list[Group] = []
        for stretch in self._dump(talk, DEFAULT_ROUTES):
            found += reader.groups(stretch)
            if self.family is Family.IPV4 and reader.first_of_last_destination(stretch):
                # The kernel dumps a table in address order (leaf_walk_rcu), so all default routes
                # are read. Closing the socket ends the dump.
                break
        return Entries(found)

    def _dump(self, talk: Conversation, wanted: Selection) -> Iterator[rtnl.Stretch]:
        """Yield the messages about entries in a selection's table and with its protocol."""
        table = wanted.table
        if table is not None and not 0 < table <= rtnl.TABLE_MAX:
            return
        body = rtm.dump_routes(self.family, table, wanted.protocol or 0)
        try:
            for stretch in talk.dump(rtnl.RTM_GETROUTE, body):
                # With ipv6.disable=1, the kernel answers with the routes of the other families
                # (rtnl_dump_all).
                if stretch.messages[rtnl.HEADER_BYTES] == self.family.af:
                    yield stretch
        except NetlinkError as refusal:
            if table is None or refusal.errno != errnos.ENOENT:
                raise

    # --- lookups ----------------------------------------------------------------------------------

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        """Return the best route to each address, for packets from this host.

        Requests never contain an output interface, because the kernel would then report nearly
        every destination as reachable.

        Tables local and main share one trie until the first policy rule is added. Until then, the
        kernel reports table main (254) for entries of both (fib_trie_unmerge).

        A rule for all ports (``sport 1-65534``) matches every packet, but no lookup without ports.

        Raises:
            RouteError: the kernel can't be queried, or the result depends on a rule for all source
                ports. TCP's first lookup has no source port, but its second one does
                (tcp_v4_connect).
        """
        check_addresses(addresses, self.family)
        found = self._look_up(addresses, source, is_tcp=is_tcp)
        lookups: list[Lookup] = []
        for address, answer in zip(addresses, found, strict=True):
            if isinstance(answer, int):
                lookups.append(Lookup(address, None, answer))
            else:
                common, prefix = answer
                lookups.append(Lookup.of_template(address, common.entry, prefix, common.copy))
        return tuple(lookups)

    def _look_up(
        self,
        addresses: Sequence[IpAddress],
        source: IpAddress | None = None,
        *,
        is_tcp: bool = False,
    ) -> list[tuple[Attributes, Prefix] | int]:
        """Return the attributes and the prefix of the entry for each address, or an errno."""
        if not addresses:
            return []

        def ask(talk: Conversation) -> list[tuple[Attributes, Prefix] | int]:
            rules = self._list_rules(talk)
            reader = self._reader(EVERYTHING, is_for_lookups=True)
            port = rule_messages.port_of_any(rules)

            def answers(source_port: int | None) -> list[tuple[Attributes, Prefix] | int]:
                pack = rtm.look_up(self.family, source, is_tcp, (source_port, port))
                asked = talk.ask(addresses, pack, NO_ROUTE_ERRNOS)
                return [
                    each.errno if isinstance(each, NetlinkError) else reader.single(each)
                    for _, each in asked
                ]

            found = answers(port)
            if rule_messages.selects_any_source_port(rules):
                for address, answer, other in zip(addresses, found, answers(None), strict=True):
                    if answer != other:
                        reason = (
                            "a policy rule matches source ports, and TCP's first lookup has none"
                        )
                        raise RouteError(
                            f"can't determine how TCP to {address} is routed: {reason}"
                        )
            return found

        return self._read("look up routes", ask)

    def sources(
        self,
        sent: Sequence[Sent],
        *,
        is_tcp: bool = False,
    ) -> tuple[tuple[IpAddress, ...], ...]:
        requests = [
            (number, request)
            for number, (entry, addresses) in enumerate(sent)
            if entry is not None
            for request in self._requests(entry, addresses)
        ]
        if not requests:
            return ((),) * len(sent)

        def ask(talk: Conversation) -> tuple[tuple[IpAddress, ...], ...]:
            any_port = rule_messages.port_of_any(self._list_rules(talk))
            look_up = partial(rtm.look_up, self.family, None, is_tcp, is_for_source=True)

            def pack(item: tuple[int, Request], sequence: int) -> bytes:
                _, (address, port, oif) = item
                ports = (any_port, any_port if port is None else port)
                return look_up(ports, oif=oif)(address, sequence)

            found: list[set[IpAddress]] = [set() for _ in sent]
            for (number, _), answer in talk.ask(requests, pack, NO_ROUTE_ERRNOS):
                if isinstance(answer, bytes) and (source := rtm.chosen_source(answer)) is not None:
                    found[number].add(source)
            return tuple(tuple(sorted(sources)) for sources in found)

        return self._read("ask for sources", ask)

    def _requests(self, entry: Route, addresses: Sequence[IpAddress]) -> Iterator[Request]:
        """Yield the lookups that exercise all hops of an entry.

        The kernel selects a hop by hashing the address or, depending on a sysctl, the address and
        port. A few addresses may all select the same hop, so there is also a lookup for each
        interface.
        """
        several = len(addresses) > 1
        for port, address in enumerate(addresses, _FIRST_PORT):
            yield address, port if several else None, None
        if several:
            yield from ((addresses[0], None, oif) for oif in map(rtnl.index_of, entry.devs))

    # --- writing ----------------------------------------------------------------------------------

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        check_routes(change, routes, self.family)
        if change is Write.DELETE:
            return self._delete(routes)
        return self._replace(routes) if change is Write.REPLACE else self._add(routes)

    def _add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        return self._new(rtnl.ADD, routes)

    def _replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes. Each replaces the first existing route with its ``key``, if there is one.

        The kernel compares only the key, so a connected route or another daemon's route may be
        replaced.
        """
        return self._new(rtnl.REPLACE, routes)

    def _new(self, flags: int, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        return self._send(routes, partial(rtm.RoutePacker(self.family).new, flags))

    def _delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete exactly these routes.

        A route that doesn't exist fails with ESRCH.
        """
        deletable = self._deletable(routes)
        packer = rtm.RoutePacker(self.family)

        def pack(route: Route, sequence: int) -> bytes:
            message = packer.delete(route, sequence)
            deletable.take(route)
            return message

        return self._send(routes, pack)

    def _send(
        self,
        routes: Sequence[Route],
        pack: Callable[[Route, int], bytes],
    ) -> tuple[RouteFailure, ...]:
        if not routes:
            return ()
        with rtnl.as_route_errors("change routes"), self._connect() as talk:
            refusals = talk.change(routes, pack)
        return tuple(
            RouteFailure(route, refusal.errno, refusal.message) for route, refusal in refusals
        )

    def _deletable(self, routes: Sequence[Route]) -> Deletable:
        inside = [numbers(route.destination) for route in routes]
        tables_and_protocols = {
            (route.table, route.protocol)
            for route in routes
            if 0 <= route.protocol <= rtnl.PROTOCOL_MAX
        }
        selections = [inside_only(inside, *pair) for pair in sorted(tables_and_protocols)]
        return Deletable(entry for wanted in selections for entry in self.entries(wanted))

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        check_rules(change, rules)
        refuse_replacing(change)
        if not rules:
            return ()
        if change is Write.ADD:
            return self._send_rules(rtnl.RTM_NEWRULE, rtnl.ADD, rules, refuse_unwritable)
        deletable = DeletableRules(self._rules())
        return self._send_rules(rtnl.RTM_DELRULE, rtnl.DELETE, rules, deletable.take)

    def _send_rules(
        self,
        kind: int,
        flags: int,
        rules: Sequence[Rule],
        examine: Callable[[Rule], None],
    ) -> tuple[RuleFailure, ...]:
        """Request a change for each rule that ``examine`` doesn't refuse."""

        def pack(rule: Rule, sequence: int) -> bytes:
            examine(rule)
            return rtnl.message(kind, flags, sequence, rule_messages.encode_rule(rule, self.family))

        with rtnl.as_route_errors("change rules"), self._connect() as talk:
            refusals = talk.change(rules, pack)
        return tuple(rule_failure(rule, refusal) for rule, refusal in refusals)

    # --- changes ----------------------------------------------------------------------------------

    @contextmanager
    def changes(self, inside: Sequence[Prefix] | None = None) -> Iterator[ChangeListener]:
        """Listen for relevant changes during a ``with`` block.

        A socket buffer overrun counts as a change.

        Raises:
            RouteError: the notification socket failed.
        """
        with rtnl.as_route_errors(LISTENING):
            if inside is None:
                # Changes of IPv4 matter in both families; see ``RouteBackend.changes``.
                listener = Listener(everywhere(self.family), Family.IPV4)
            else:
                listener = Listener(PrefixSet(inside, self.family.bits))
        with listener:
            yield listener

    # --- access to the kernel ---------------------------------------------------------------------

    def _list_rules(self, talk: Conversation) -> list[bytes]:
        _, kind, body, _ = rule_messages.RULES[self.family]
        return list(talk.messages(kind, body))

    def _connect(self) -> Conversation:
        return Conversation()

    def _reader(self, selection: Selection, *, is_for_lookups: bool = False) -> RouteReader:
        # If the sysctl nexthop_compat_mode is 0, the kernel omits the hops of nexthop objects from
        # routes.
        nexthops = cache(lambda: {nexthop.id: nexthop for nexthop in self.nexthops()})
        with_shares = cache(lambda: devs_with_shares(self.family, self._links(), self._addresses()))
        return RouteReader(
            self.family,
            nexthops,
            with_shares,
            self._arrange,
            selection,
            is_for_lookups,
        )

    def _list(self, listing: rtnl.Listing[T]) -> tuple[T, ...]:
        attempt, kind, body, decode = listing

        def ask(talk: Conversation) -> tuple[T, ...]:
            names = cache(rtnl.name_of)
            return tuple(decode(message, names) for message in talk.messages(kind, body))

        return self._read(attempt, ask)

    def _read(self, attempt: str, ask: Callable[[Conversation], T]) -> T:
        return read(attempt, ask, self._connect)
