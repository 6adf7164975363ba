"""The check against brute force: on random hosts failures and notes are right for every address of every CIDR."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

import asking
import attrs
import pytest
from brute_force import Judge, disagreements, disagreements_at, judged, sort_all
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import by_day
from worlds import SELDOM, SPACE, Question, questions

from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace

if TYPE_CHECKING:
    from hostrouting import Config, OverlapReport
    from hostrouting.kernel.port import Kernel

_SETTINGS = settings(
    max_examples=by_day(4, by_night=5000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_FEWER = settings(_SETTINGS, max_examples=_SETTINGS.max_examples // 2)


def checked(kernel: Kernel, question: Question) -> tuple[Config, OverlapReport]:
    return asking.checked(kernel, question.cidrs, question.allowed, question.foreseen)


def compare(kernel: Kernel, question: Question) -> None:
    """Hold the check of a host to brute force."""
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
def test_in_memory_each_address_is_judged_as_brute_force_does(question: Question) -> None:
    compare(FakeKernel(), question)


@pytest.mark.parametrize("question", SELDOM)
def test_in_memory_hosts_that_chance_seldom_makes_are_judged_as_brute_force_does(question: Question) -> None:
    compare(FakeKernel(), question)


@pytest.mark.kernel
@settings(_SETTINGS)
@given(question=questions(has_objects=True))
def test_on_linux_each_address_is_judged_as_brute_force_does(question: Question) -> None:
    enter_namespace()
    compare(NamespaceKernel(), question)


# --- CIDRs that are too wide for brute force: all of the part that is cut, and a few addresses elsewhere -----------

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
def test_in_memory_wide_cidrs_are_judged_as_brute_force_does(question: Question, wide: list[str]) -> None:
    compare_wide(FakeKernel(), question, wide)


@pytest.mark.kernel
@settings(_FEWER)
@given(
    question=questions(has_objects=True),
    wide=st.lists(st.sampled_from(_WIDE), min_size=1, max_size=2, unique=True),
)
def test_on_linux_wide_cidrs_are_judged_as_brute_force_does(question: Question, wide: list[str]) -> None:
    enter_namespace()
    compare_wide(NamespaceKernel(), question, wide)
