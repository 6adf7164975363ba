"""Compare the check of random hosts with brute force for every address, with real sockets, and with ip."""

from __future__ import annotations

import re
import subprocess
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

import asking
import attrs
import connecting
import pytest
from brute_force import Judge, disagreements, disagreements_at, judged, sort_all
from connecting import built, seen_leaving
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from leaving import Leaving
from nightly import by_day
from node import on_linux
from worlds import sources
from worlds.cut import SELDOM, SPACE, Question, questions
from worlds.sources import A_SOURCE_A_HOP, CHOSEN_BY_AN_EXPECTED_ROUTE, TCP_ONLY_CHOOSES, hosts_with_scopes

import phases
from hostrouting import Config, RouteOverlap
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.nexthops import Sources
from hostrouting.kernel.snapshot_backend import SnapshotBackend, take_snapshot
from hostrouting.model.routes import RouteType
from hostrouting.overlap.explanation import explain
from hostrouting.overlap.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting import OverlapReport
    from hostrouting.kernel.port import Kernel
    from hostrouting.overlap.explanation import ExplainedLookup, Explanation

_SETTINGS = settings(
    max_examples=by_day(4, by_night=5000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_FEWER = settings(_SETTINGS, max_examples=_SETTINGS.max_examples // 2)


def checked(kernel: Kernel, question: Question) -> tuple[Config, OverlapReport]:
    return asking.checked(kernel, question.cidrs, question.allowed, question.foreseen)


def compare(kernel: Kernel, question: Question) -> None:
    """Compare the check of a host with brute force."""
    question.world.build(kernel)
    config, report = checked(kernel, question)
    judge = Judge(kernel, config.route_overlap, had_rules=question.world.has_rules)
    if judge.default is None:
        assert report.verdict == "unknown"
        return
    sorts = {cidr: sort_all(kernel, judge, judged(cidr)) for cidr in question.cidrs}
    _see(disagreements(report, judge, sorts), kernel)


def _see(wrong: list[str], kernel: Kernel) -> None:
    if wrong:
        entries = "\n  ".join(map(str, (*kernel.routes(), *kernel.rules())))
        raise AssertionError("\n".join(wrong[:20]) + f"\n\n  {entries}")


@settings(_SETTINGS)
@given(question=questions())
def test_in_memory_the_check_agrees_with_brute_force(question: Question) -> None:
    compare(FakeKernel(), question)


@pytest.mark.parametrize("question", SELDOM)
def test_in_memory_rare_hosts_agree_with_brute_force(question: Question) -> None:
    compare(FakeKernel(), question)


@pytest.mark.kernel
@settings(_SETTINGS)
@given(question=questions(has_objects=True))
def test_on_linux_the_check_agrees_with_brute_force(question: Question) -> None:
    compare(on_linux(), question)


# --- CIDRs too wide for brute force: the whole part that is cut, and a few addresses elsewhere ---------------------

_ELSEWHERE = (
    "1.0.0.0",
    "7.255.255.255",
    "8.0.0.0",
    "10.0.16.0",
    "10.1.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "192.0.2.4",
)
_WIDE = ("0.0.0.0/0", "8.0.0.0/5", "10.0.0.0/16", "10.0.0.0/19", "128.0.0.0/1")


def compare_wide(kernel: Kernel, question: Question, wide: list[str]) -> None:
    question = attrs.evolve(question, cidrs=tuple(map(IPv4Network, wide)))
    question.world.build(kernel)
    config, report = checked(kernel, question)
    judge = Judge(kernel, config.route_overlap, had_rules=question.world.has_rules)
    if judge.default is None:
        return
    sorts = sort_all(kernel, judge, [*SPACE, *map(IPv4Address, _ELSEWHERE)])
    for cidr in question.cidrs:
        _see(disagreements_at(report, cidr, {a: sort for a, sort in sorts.items() if a in cidr}), kernel)
    ranges = [part for item in (*report.findings, *report.notes) for part in item.ranges]  # type: ignore[attr-defined]
    reserved = map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3"))
    assert not [part for block in reserved for part in ranges if part.overlaps(block)]


@settings(_FEWER)
@given(question=questions(), wide=st.lists(st.sampled_from(_WIDE), min_size=1, max_size=2, unique=True))
def test_in_memory_wide_cidrs_agree_with_brute_force(question: Question, wide: list[str]) -> None:
    compare_wide(FakeKernel(), question, wide)


@pytest.mark.kernel
@settings(_FEWER)
@given(
    question=questions(has_objects=True),
    wide=st.lists(st.sampled_from(_WIDE), min_size=1, max_size=2, unique=True),
)
def test_on_linux_wide_cidrs_agree_with_brute_force(question: Question, wide: list[str]) -> None:
    compare_wide(on_linux(), question, wide)


# --- real sockets ------------------------------------------------------------------------------------------------

_GOT = re.compile(r"(?:\w+ )?(?P<address>[\d.]+) (?:from [\d.]+ )?(?:via (?:inet6 )?\S+ )?dev (?P<dev>\S+) ")


def _dev_told_by_ip(way: ExplainedLookup) -> str | None:
    """Return the interface that ``ip route get`` names, or None if it fails."""
    words = ["ip", "-4", "-oneline", "route", "get", str(way.classification.probe.lookup.address)]
    words += ["from", str(way.classification.probe.source)] if way.classification.probe.source else []
    words += ["ipproto", "tcp"] if way.classification.probe.is_tcp else []
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if ran.returncode:
        return None
    found = _GOT.match(ran.stdout)
    assert found is not None, ran.stdout
    return found["dev"]


def _ends(way: ExplainedLookup) -> set[str | None]:
    """Return the interfaces that ip may name for a lookup, which is lo for local addresses."""
    route = way.classification.route
    if route is None or route.type.is_discard or not route.hops:
        return {None}
    if route.type is RouteType.BROADCAST:
        return {*route.devs, None}  # a socket needs SO_BROADCAST to send there
    return {"lo"} if route.type is RouteType.LOCAL else {*route.devs}


def _of(found: Explanation, *, is_tcp: bool, connects: bool) -> set[str | None]:
    """Return the interfaces through which a socket's packets may leave according to an explanation."""
    of_protocol = [way for way in found.lookups if way.classification.probe.is_tcp is is_tcp] or found.lookups
    chosen = [way for way in of_protocol if way.classification.probe.source is not None]
    return set().union(*map(_ends, chosen if chosen and connects else of_protocol[:1]))


def _told_by_ip() -> str:
    shown = [f"-4 {words}" for words in ("address", "rule", "route show table all")]
    return "\n".join(
        subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=True).stdout for words in shown
    )


@pytest.mark.kernel
@settings(max_examples=by_day(4, by_night=1000), suppress_health_check=[HealthCheck.too_slow])
@given(question=sources.questions())
@example(question=CHOSEN_BY_AN_EXPECTED_ROUTE)
@example(question=TCP_ONLY_CHOOSES)
@example(question=A_SOURCE_A_HOP)
def test_a_finding_is_just_what_a_socket_does(question: sources.Question) -> None:
    """``explain`` names the same interfaces."""
    kernel = built(question)
    backends = kernel, SnapshotBackend(take_snapshot(kernel))
    live, recorded = (asking.checked(backend, question.expected, question.allowed)[1] for backend in backends)
    assert live.verdict is not Verdict.UNKNOWN
    seen = seen_leaving(question)
    wrong = connecting.disagreements(live, question, seen)
    wrong += [f"recorded: {line}" for line in connecting.disagreements(recorded, question, seen)]
    if wrong:
        raise AssertionError("\n".join((*wrong, _told_by_ip())))
    config = Config(route_overlap=RouteOverlap(question.expected, allowed_devs=question.allowed))
    with Leaving(*question.world.devs) as leaving:
        for address in question.addresses[:: by_day(8, by_night=2)]:
            found, again = (explain(address, config, backend, phases.CancelScope()) for backend in backends)
            assert found == again
            for way in found.lookups:
                _see_where_it_ends(way)
            assert leaving.by_datagram(address, 9) in _of(found, is_tcp=False, connects=False)
            assert leaving.by_connected_datagram(address, 9) in _of(found, is_tcp=False, connects=True)
            assert leaving.by_tcp(address, 9) in _of(found, is_tcp=True, connects=True)


def _see_where_it_ends(way: ExplainedLookup) -> None:
    assert way.is_modelled
    decides = [step for step in way.steps if step.passed is None]
    # An unreachable rule decides too, although the kernel reports no route for it.
    is_decided = (
        way.classification.route or way.classification.probe.lookup.discarded_by or way.steps[-1].passed is None
    )
    assert decides == ([way.steps[-1]] if is_decided else [])
    assert _dev_told_by_ip(way) in _ends(way)


ASKED = [IPv4Address(f"192.0.2.{16 * place + 1}") for place in range(9)]


def _batch(lines: Sequence[str]) -> str:
    command = ["ip", "-4", "-o", "-force", "-batch", "-"]
    return subprocess.run(command, input="\n".join(lines), text=True, capture_output=True, check=False).stdout


def chosen_by_the_kernel(addresses: Sequence[IPv4Address]) -> dict[IPv4Address, IPv4Address | None]:
    """Return the source that a simple lookup of each address shows, or None if it shows none."""
    chosen: dict[IPv4Address, IPv4Address | None] = {}
    for line in _batch([f"route get {address}" for address in addresses]).splitlines():
        source = re.search(r" src (\S+)", line)
        chosen[IPv4Address(line.split()[0])] = IPv4Address(source[1]) if source else None
    return chosen


@settings(max_examples=by_day(4, by_night=1000), suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.kernel
@given(commands=hosts_with_scopes())
def test_the_computed_source_is_the_kernels_choice(commands: list[str]) -> None:
    kernel = on_linux()
    for dev in sources.DEVICES:
        kernel.add_link(dev)
    _batch(commands)
    addresses, chosen = kernel.addresses(), chosen_by_the_kernel(ASKED)
    for answer in kernel.lookup(ASKED):
        if answer.route is None or answer.route.type is not RouteType.UNICAST:
            continue
        computed, source = Sources(addresses).of(answer.route), chosen[answer.address]
        if sum(not hop.is_dead for hop in answer.route.hops) == 1:
            assert computed == (() if source is None else (source,)), str(answer.route)
        else:  # a simple lookup shows only one of the hops
            assert source in (computed or (None,)), str(answer.route)
