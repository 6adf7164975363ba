"""Compare the fake kernel with a simple oracle that only reads the dump, without tries, rules or events."""

from __future__ import annotations

from contextlib import contextmanager
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, ClassVar

from hypothesis import settings
from hypothesis.stateful import invariant
from nightly import by_day

from hostrouting.kernel.memory import FakeKernel
from hostrouting.model.routes import RouteType, Scope, Table
from hostrouting.testing.conformance import ConformanceMachine
from hostrouting.testing.strategies import DESTINATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostrouting.model.routes import Lookup, Route
    from hostrouting.model.rules import Rule

# For these addresses, the kernel shows an entry with another type, or no entry.
_ODD = {IPv4Address(0), IPv4Address("224.0.0.1"), IPv4Address("255.255.255.255")}


@contextmanager
def _fake() -> Iterator[FakeKernel]:
    yield FakeKernel()


class Machine(ConformanceMachine):
    """A machine that makes the same calls on two fakes, and checks invariants."""

    make_kernel = staticmethod(_fake)
    make_reference: ClassVar[Callable[[], FakeKernel]] = FakeKernel

    @invariant()
    def a_look_up_is_the_longest_match_of_the_dump(self) -> None:
        rules = self.reference.rules()
        # The oracle only knows the initial rules, and only if they never changed.
        if not _are_initial(rules) or getattr(self, "_were_touched", False):
            self._were_touched = True
            return
        entries = self.reference.routes()
        for answer in self.reference.lookup([address for address in DESTINATIONS if address not in _ODD]):
            _check(answer, entries)

    @invariant()
    def entries_are_in_order_and_their_keys_differ(self) -> None:
        entries = self.reference.routes()
        order = [
            (e.table & 0xFF, e.table, int(e.destination.network_address), -e.destination.prefixlen, -e.tos, e.metric)
            for e in entries
            if e.table != 356
        ]
        assert order == sorted(order)
        keys = [entry.key for entry in entries if entry.protocol != 2]
        assert len(keys) == len(set(keys))

    @invariant()
    def no_entry_outlives_what_it_needs(self) -> None:
        links = {link.name: link for link in self.reference.links()}
        for entry in self.reference.routes():
            assert all(hop.dev in links for hop in entry.hops)
            assert not entry.hops or not all(hop.is_dead for hop in entry.hops)
            if entry.scope < Scope.HOST and entry.hops:
                assert any(links[str(dev)].is_up for dev in entry.devs)

    @invariant()
    def what_is_refused_as_taken_is_there(self) -> None:
        for route in self.reference.routes():
            if route.type is RouteType.UNICAST and not any(hop.is_dead for hop in route.hops):
                (failure,) = self.reference.add([route])
                assert failure.errno in (17, 22, 100, 101, 111, 113, 13)


def _are_initial(rules: tuple[Rule, ...]) -> bool:
    return [(rule.preference, rule.table) for rule in rules] == [
        (0, Table.LOCAL),
        (32766, Table.MAIN),
        (32767, Table.DEFAULT),
    ]


def _naive(address: IPv4Address, entries: tuple[Route, ...], tables: tuple[int, ...]) -> Route | None:
    """Return the entry with the longest prefix. If there are several, the first table and the lowest metric win."""
    fitting = [
        entry
        for entry in entries
        if entry.table in tables and address in entry.destination and not entry.tos
        if not entry.hops or any(not hop.is_dead for hop in entry.hops)
    ]
    return min(fitting, key=lambda e: (-e.destination.prefixlen, -e.table, e.metric), default=None)


def _check(answer: Lookup, entries: tuple[Route, ...]) -> None:
    best = _naive(answer.address, entries, (Table.LOCAL, Table.MAIN))
    if best is None or best.type is RouteType.THROW:
        best = _naive(answer.address, entries, (Table.DEFAULT,))
    if best is None or best.type is RouteType.THROW:
        assert answer.errno == 101, answer
    elif best.type.is_discard:
        assert answer.discarded_by is best.type, answer
    elif answer.errno is not None:
        # Packets with a source in 127/8 can't leave the host.
        assert answer.errno == 22, answer
        assert best.source in (None, IPv4Address("127.0.0.1")), answer
    else:
        assert answer.route is not None
        # Tables local and main share a trie, so an entry of local may be found in main.
        assert (answer.route.key[1:], answer.route.hops) == (best.key[1:], best.hops), answer


TestFakeKernel = Machine.TestCase
TestFakeKernel.settings = settings(max_examples=by_day(6, by_night=5000), deadline=None, stateful_step_count=25)
