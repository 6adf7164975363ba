"""Conformance tests: a state machine compares a kernel with ``FakeKernel``.

Write a context manager that yields the kernel under test (``hostrouting.testing.Kernel``), reset
for each example::

    from contextlib import contextmanager

    from hostrouting.testing.conformance import conformance_test

    @contextmanager
    def my_kernel():
        with throw_away_machine() as machine:
            yield MyKernel(machine)

    TestMyKernel = conformance_test(my_kernel, max_examples=100, steps=30)

The result is a ``unittest.TestCase``, which pytest collects. A backend that only implements routes
needs a second kernel to change links, addresses and rules. Use ``pair`` to combine the two::

    from hostrouting.testing.conformance import NamespaceKernel, conformance_test
    from hostrouting.testing.conformance import enter_namespace, pair

    @contextmanager
    def my_backend():
        enter_namespace()
        yield pair(MyBackend(), world=NamespaceKernel())

    TestMyBackend = conformance_test(my_backend, max_examples=100, steps=30)

Of 29 backends with one mistake each, 20 examples of 20 steps (15 s) find those whose mistake most
routes show, such as an ignored table or a hidden refusal. 100 examples of 30 steps (1.5 minutes)
nearly always find the others, too, such as an ignored weight, MTU, mask of a mark or TCP rule.

With ``shrink=True``, Hypothesis looks for the shortest example of a disagreement, which may take
five minutes without any output.

For each call, the test compares the errnos of refused routes. After each step, it compares the
links (except their indexes), addresses, rules and lookups, and the sources that the entries found
by these lookups select. It also compares dumps of all tables, of single tables, of a missing table,
and of other selections, in order and with all flags. It has no hops with an encapsulation and no
point-to-point links, because ``FakeKernel`` has no encapsulation, and ``Kernel`` makes no tunnels.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from difflib import unified_diff
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from operator import methodcaller
from types import SimpleNamespace
from typing import ClassVar, cast
from unittest import TestCase

import attrs
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hostrouting.kernel.arguments import check_backend
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceError, NamespaceKernel, enter_namespace
from hostrouting.kernel.port import Kernel, RouteBackend, Write, read_routes
from hostrouting.kernel.selection import DEFAULT_ROUTES, Selection, except_plain
from hostrouting.kernel.translating import checked
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import numbers
from hostrouting.model.links import Link
from hostrouting.model.lookups import Lookup, RouteFailure, RuleFailure
from hostrouting.model.routes import Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.model.values import frozen
from hostrouting.testing import strategies
from phases import CancelScope, TimedOut

__all__ = [
    "DisagreementError",
    "NamespaceError",
    "NamespaceKernel",
    "conformance_test",
    "enter_namespace",
    "pair",
]

_links = st.sampled_from(strategies.DEVICES)
_devices = st.sampled_from((*strategies.DEVICES, *strategies.DEVICES, "lo"))
# Table 4242 never exists.
_SELECTIONS = (
    Selection(),
    *map(Selection, (Table.MAIN, 100, strategies.SIDE_TABLE, 4242)),
    Selection(Table.MAIN, Protocol.BOOT),
    Selection(protocol=Protocol.HOSTROUTING),
    DEFAULT_ROUTES,
    except_plain(()),
    except_plain(strategies.DEVICES[:1]),
    except_plain(strategies.DEVICES, inside=((10 << 24, 24), (0, 1))),
)
# Source addresses that never belong to this host.
_NOT_LOCAL = (IPv4Address(0), *map(IPv4Address, ("0.0.0.5", "198.51.100.7", "224.0.0.1")))
_FIRST_MULTICAST = int(IPv4Address("224.0.0.0"))
# As in ``table=<Table.MAIN: 254>``.
_MEMBER = re.compile(r"<\w+\.\w+: ([^<>]*)>")
_HEARD_SECONDS = 10.0
_QUIET_SECONDS = 0.05
# A request to delete the second rule also matches the first one.
_SHADOWING = tuple(
    Rule(
        2170,
        table=100,
        source=IPv4Network("10.0.7.0/24"),
        suppress_prefix_length=length,
        protocol=Protocol.HOSTROUTING,
    )
    for length in (0, None)
)
_FROM_A_TUNNEL = (Rule(2170, table=100, tun_id=7, protocol=Protocol.HOSTROUTING),)
_UNREACHABLE = Route(
    IPv4Network("10.77.0.0/16"), (), type=RouteType.UNREACHABLE, protocol=Protocol.HOSTROUTING
)
_few_routes = st.lists(strategies.routes(), min_size=1, max_size=3)
_few_rules = st.lists(strategies.our_rules(), min_size=1, max_size=3)


class DisagreementError(Exception):
    """The error for two kernels that behave differently. The message shows the difference."""


class _Pair(SimpleNamespace):
    def __init__(self, shown: str, methods: dict[str, object]) -> None:
        super().__init__(**methods)
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


def pair(backend: RouteBackend, *, world: Kernel) -> Kernel:
    """Return a ``Kernel`` that takes its route methods from a backend, and the rest from a kernel.

    Both must be for IPv4, as ``FakeKernel`` is, and in the same network namespace.

    Args:
        backend: the backend, used for all methods of ``RouteBackend``.
        world: the kernel used to change links, addresses and rules.

    Raises:
        TypeError: the backend or the kernel lacks a method, or is for IPv6.
    """
    names = [name for name in dir(Kernel) if not name.startswith("_")]
    check_backend(backend, RouteBackend, Family.IPV4, "pair()")
    check_backend(world, Kernel, Family.IPV4, "pair(world=…)")
    routes = checked(backend)  # an error names the class of the backend
    methods = {
        name: getattr(routes if hasattr(RouteBackend, name) else world, name) for name in names
    }
    return cast("Kernel", _Pair(f"pair({backend!r}, world={world!r})", methods))


def conformance_test(
    make_kernel: Callable[[], AbstractContextManager[Kernel]],
    *,
    max_examples: int | None = None,
    steps: int | None = None,
    shrink: bool = False,
) -> type[TestCase]:
    """Return a test case that compares a kernel with ``FakeKernel``.

    Args:
        make_kernel: a function that returns a context manager. The context manager yields a kernel
            in its initial state: ``lo`` is up and nothing else exists.
        max_examples: the number of examples; by default, the active Hypothesis profile's number.
        steps: the number of calls in an example; by default, the profile's number.
        shrink: whether to look for the shortest example of a disagreement, for up to five minutes.

    Returns:
        The test case, to be assigned to a name in a test module.
    """
    kernel_maker = make_kernel
    usual = hypothesis_settings()
    if max_examples is None:
        max_examples = usual.max_examples
    if steps is None:
        steps = usual.stateful_step_count
    phases = [phase for phase in usual.phases if phase is not Phase.shrink]

    class Machine(ConformanceMachine):
        make_kernel = staticmethod(kernel_maker)

    test_case: type[TestCase] = Machine.TestCase
    test_case.settings = hypothesis_settings(  # type: ignore[attr-defined]
        usual,
        max_examples=max_examples,
        stateful_step_count=steps,
        phases=[*phases, Phase.shrink] if shrink else phases,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    return test_case


class ConformanceMachine(RuleBasedStateMachine):
    """The state machine used by ``conformance_test``. Subclass it to add rules."""

    make_kernel: ClassVar[Callable[[], AbstractContextManager[Kernel]]]

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        candidate = self._stack.enter_context(type(self).make_kernel())
        check_backend(candidate, Kernel, Family.IPV4, "conformance_test()")
        self.candidate: Kernel = checked(candidate)
        self.reference: Kernel = FakeKernel(os.uname().release)

    def teardown(self) -> None:
        """Exit the kernel's context manager."""
        self._stack.close()

    # --- the steps --------------------------------------------------------------------------------

    @initialize(is_furnished=st.sampled_from((True, True, True, False)))
    def furnish(self, is_furnished: bool) -> None:
        """Start with three interfaces, of which two have a subnet, or with none."""
        self._try_rare_cases()
        if is_furnished:
            for dev in strategies.DEVICES:
                self._both(methodcaller("add_link", dev, mac=strategies.mac_of(dev)))
            for dev, address in zip(
                strategies.DEVICES,
                ("10.0.0.1/24", "10.0.1.1/24"),
                strict=False,
            ):
                self._both(methodcaller("add_address", dev, address))

    @rule(routes=_few_routes)
    def add(self, routes: list[Route]) -> None:
        """Add routes."""
        self._both(lambda kernel: _refusals(kernel.write(Write.ADD, routes)))

    @rule(routes=_few_routes)
    def replace(self, routes: list[Route]) -> None:
        """Replace routes."""
        self._both(lambda kernel: _refusals(kernel.write(Write.REPLACE, routes)))

    @rule(
        data=st.data(),
        change=st.sampled_from((*Write, Write.DELETE)),
        is_same=st.booleans(),
    )
    def write_present(self, data: st.DataObject, change: Write, is_same: bool) -> None:
        """Add, replace or delete an existing route, or a variant of it."""
        there = read_routes(self.reference)
        if there:
            present = st.sampled_from(there)
            route = data.draw(present if is_same else strategies.variants(present))
            self._both(lambda kernel: _refusals(kernel.write(change, [route])))

    @precondition(lambda self: len(self.reference.facts().links) <= len(strategies.DEVICES))
    @rule(name=_links, up=st.sampled_from((True, True, False)))
    def add_link(self, name: str, up: bool) -> None:
        """Add an interface."""
        mac = strategies.mac_of(name)
        self._both(lambda kernel: kernel.add_link(name, up=up, mac=mac))

    @rule(name=_devices, up=st.sampled_from((True, True, False)))
    def set_up(self, name: str, up: bool) -> None:
        """Set an interface up or down."""
        self._both(lambda kernel: kernel.set_link(name, up=up))

    @rule(name=_links, carrier=st.booleans())
    def set_carrier(self, name: str, carrier: bool) -> None:
        """Plug in or unplug a cable."""
        self._both(lambda kernel: kernel.set_link(name, carrier=carrier))

    @rule(name=_devices, group=st.sampled_from((0, 7)))
    def set_group(self, name: str, group: int) -> None:
        """Move an interface to a group, which a policy rule may ignore."""
        self._both(lambda kernel: kernel.set_link(name, group=group))

    @rule(name=_links)
    def del_link(self, name: str) -> None:
        """Delete an interface."""
        self._both(lambda kernel: kernel.del_link(name))

    @rule(dev=_devices, new=strategies.new_addresses())
    def add_address(self, dev: str, new: strategies.NewAddress) -> None:
        """Give an interface an address."""
        self._both(lambda kernel: kernel.add_address(dev, **attrs.asdict(new)))

    @rule(data=st.data())
    def del_address(self, data: st.DataObject) -> None:
        """Remove an existing address."""
        there = self.reference.facts().addresses
        if there:
            address = data.draw(st.sampled_from(there))
            self._both(
                lambda kernel: kernel.del_address(
                    address.dev,
                    f"{address.local}/{address.prefix_length}",
                )
            )

    @rule(policy=strategies.policy_rules())
    def add_rule(self, policy: Rule) -> None:
        """Add a policy rule."""
        self._both(lambda kernel: kernel.add_rule(policy))

    @rule(data=st.data(), is_same=st.booleans())
    def del_rule(self, data: st.DataObject, is_same: bool) -> None:
        """Delete the first policy rule that matches an existing rule, or a variant of one."""
        if (policy := self._draw_rule(data, is_same=is_same)) is not None:
            self._both(lambda kernel: kernel.del_rule(policy))

    @rule(policies=_few_rules, change=st.sampled_from((Write.ADD, Write.ADD, Write.DELETE)))
    def write_rules(self, policies: list[Rule], change: Write) -> None:
        """Add or delete policy rules in bulk."""
        self._both(lambda kernel: _refusals(kernel.write_rules(change, policies)))

    @rule(
        data=st.data(),
        change=st.sampled_from((Write.ADD, Write.DELETE, Write.DELETE)),
        is_same=st.booleans(),
    )
    def write_present_rule(self, data: st.DataObject, change: Write, is_same: bool) -> None:
        """Add or delete an existing policy rule or a variant of it, by ``write_rules``."""
        if (policy := self._draw_rule(data, is_same=is_same)) is not None:
            self._both(lambda kernel: _refusals(kernel.write_rules(change, [policy])))

    def _draw_rule(self, data: st.DataObject, *, is_same: bool) -> Rule | None:
        """Draw an existing policy rule or a variant of one. Without rules, return None."""
        there = self.reference.facts().rules
        if not there:
            return None
        present = st.sampled_from(there)
        drawn: Rule = data.draw(present if is_same else strategies.rule_variants(present))
        return drawn

    @rule(route=strategies.routes())
    def notice(self, route: Route) -> None:
        """Add a route. If the kernel accepts it, check that listeners hear of it."""
        prefix = numbers(route.destination)
        for kernel in (self.reference, self.candidate):
            with kernel.changes([prefix]) as narrow, kernel.changes() as wide:
                if kernel.write(Write.ADD, [route]):
                    continue
                if not (narrow.happened() and narrow.happened()):
                    raise DisagreementError(f"{kernel!r} didn't notice that {route} was added")
                try:
                    wide.wait(CancelScope(timeout=_HEARD_SECONDS))
                except TimedOut:
                    raise DisagreementError(
                        f"{kernel!r} didn't report that {route} was added"
                    ) from None

    # --- the comparison ---------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        """Compare the entire observable state of both kernels."""
        self._compare("links", _links_without_index)
        self._compare("addresses", lambda kernel: kernel.facts().addresses)
        self._compare("rules", lambda kernel: kernel.facts().rules)
        for wanted in _SELECTIONS:
            self._compare(f"entries of {wanted}", partial(_selected, wanted))
        local = list(dict.fromkeys(address.local for address in self.reference.facts().addresses))
        by_tcp = [(source, True) for source in (None, *local[-1:])]
        for source, is_tcp in (
            *((source, False) for source in (None, *local, *_NOT_LOCAL)),
            *by_tcp,
        ):
            ask = methodcaller("lookup", strategies.DESTINATIONS, source=source, is_tcp=is_tcp)
            self._compare(f"lookups from {source}, by TCP: {is_tcp}", ask)
        self._compare("sources", _chosen_sources)

    def _try_rare_cases(self) -> None:
        """Check what random steps seldom reach, and undo it."""
        for change, policies in (
            (Write.ADD, _SHADOWING),
            (Write.DELETE, _SHADOWING[1:]),  # the kernel would delete the first one
            (Write.DELETE, _SHADOWING),
            (Write.ADD, _FROM_A_TUNNEL),
            (Write.DELETE, _FROM_A_TUNNEL),
        ):
            self._both(lambda kernel: _refusals(kernel.write_rules(change, policies)))  # noqa: B023
            self._compare("rules", lambda kernel: kernel.facts().rules)
        _check_that_rules_are_not_replaced(self.candidate)
        for group in (7, 0):
            self._both(methodcaller("set_link", "lo", group=group))
            self._compare("links", _links_without_index)
        with self.candidate.changes() as listener:
            self._both(lambda kernel: _refusals(kernel.write(Write.ADD, [_UNREACHABLE])))
            if not listener.happened():
                what = f"{self.candidate!r} didn't notice that {_UNREACHABLE} was added"
                raise DisagreementError(what)
        self._both(lambda kernel: _refusals(kernel.write(Write.DELETE, [_UNREACHABLE])))
        _wait_until_quiet(self.candidate)

    def _both(self, act: Callable[[Kernel], Sequence[object] | None]) -> None:
        self._compare("refusals", act)

    def _compare(self, what: str, ask: Callable[[Kernel], Sequence[object] | None]) -> None:
        expected = _outcome(ask, self.reference)
        actual = _outcome(ask, self.candidate)
        if expected != actual:
            raise DisagreementError(_difference(what, expected, actual))


def _check_that_rules_are_not_replaced(kernel: Kernel) -> None:
    try:
        returned = kernel.write_rules(Write.REPLACE, _SHADOWING)
    except ValueError:
        return
    what = f"{kernel!r}.write_rules returned {returned!r} for Write.REPLACE"
    raise DisagreementError(f"{what}; expected a ValueError")


def _wait_until_quiet(kernel: Kernel) -> None:
    """Wait until a listener hears nothing, because nothing changes.

    A kernel may report changes of links and addresses some time after they were made.
    """
    until = time.monotonic() + _HEARD_SECONDS
    while time.monotonic() < until:
        with kernel.changes() as listener:
            if not listener.happened():
                return
        time.sleep(_QUIET_SECONDS)
    raise DisagreementError(f"{kernel!r} keeps reporting changes, although nothing changes")


def _links_without_index(kernel: Kernel) -> list[Link]:
    return [attrs.evolve(link, index=0) for link in kernel.facts().links]


def _selected(wanted: Selection, kernel: Kernel) -> list[Route]:
    return [*kernel.entries(wanted)]


def _chosen_sources(kernel: Kernel) -> list[object]:
    """Return the selected sources for each entry that a lookup finds.

    For an entry with one hop, query the sources with one address, and again with all addresses.
    """
    addresses = _addresses_by_route(kernel)
    has_oif = any(rule.oif is not None for rule in kernel.facts().rules)
    sent: list[tuple[Route, list[IpAddress]]] = []
    for route, those in addresses.items():
        if len(route.hops) == 1:
            sent += [(route, those[-1:]), (route, those)]
        elif not has_oif and _has_predictable_sources(route):
            # The source depends only on the device, so two addresses, even equal ones, are enough.
            sent += [(route, [each, each]) for each in those if int(each) < _FIRST_MULTICAST][:1]
    chosen = kernel.sources(sent)
    return [*zip((route for route, _ in sent), chosen, strict=True)]


def _addresses_by_route(kernel: Kernel) -> dict[Route, list[IpAddress]]:
    """Return the addresses for which a lookup finds each route, without routes to this host."""
    addresses: dict[Route, list[IpAddress]] = {}
    for found in kernel.lookup(strategies.DESTINATIONS):
        if found.route is not None and found.route.type is not RouteType.LOCAL:
            addresses.setdefault(found.route, []).append(found.address)
    return addresses


def _has_predictable_sources(route: Route) -> bool:
    """Return whether a route has several hops, each through another device.

    If two hops have the same device, the kernel selects one of them by chance.
    """
    devs = [hop.dev for hop in route.hops if not hop.is_dead]
    return route.type is RouteType.UNICAST and len({*devs}) == len(devs) > 1


def _outcome(ask: Callable[[Kernel], Sequence[object] | None], kernel: Kernel) -> list[object]:
    try:
        return list(ask(kernel) or ())
    except RouteError as error:
        if error.errno is None:
            raise
        return [f"errno {error.errno}"]


@frozen
class _Refusal:
    """A refused route or rule. Only its errno is compared, because messages depend on the release.

    Args:
        refused: the route or rule.
        errno: the errno of the refusal.
        message: the message of the backend.
    """

    refused: Route | Rule
    errno: int
    message: str = attrs.field(eq=False)

    def __str__(self) -> str:
        return f"{_words(self.refused)}: errno {self.errno} ({self.message})"


def _refusals(failures: Iterable[RouteFailure | RuleFailure]) -> list[_Refusal]:
    return [_Refusal(failure[0], failure.errno, failure.message) for failure in failures]


def _difference(what: str, expected: Sequence[object], actual: Sequence[object]) -> str:
    """Return the lines that differ, in ip's words. If these are equal, return reprs."""
    # Equal values may have different words, such as two messages for an errno. So show each actual
    # value in the words of the expected value that equals it.
    actual = [next((each for each in expected if each == value), value) for value in actual]
    sides = [*map(_words, expected)], [*map(_words, actual)]
    if sides[0] == sides[1]:
        sides = [*map(_plain_repr, expected)], [*map(_plain_repr, actual)]
    names = "reference: FakeKernel", "candidate: yours"
    return "\n".join((f"{what} differ:", *unified_diff(*sides, *names, lineterm="", n=0)))


def _words(value: object) -> str:
    if isinstance(value, Rule):
        return f"{value.preference}: {value} proto {int(value.protocol)}"
    if isinstance(value, Lookup):
        found = f"errno {value.errno}" if value.route is None else value.route
        return f"{value.address}: {found}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_words, value))})"
    if isinstance(value, Route | IPv4Address | str | _Refusal):
        return str(value)
    return _plain_repr(value)


def _plain_repr(value: object) -> str:
    """Return a value's repr, with numbers instead of members of enumerations."""
    return _MEMBER.sub(r"\1", repr(value))
