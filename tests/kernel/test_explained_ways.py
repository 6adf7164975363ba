"""The way that is told of an address ends where the kernel's own tool and real sockets say."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from connecting import A_SOURCE_A_HOP, TCP_ONLY_CHOOSES, built, questions
from hypothesis import HealthCheck, example, given, settings
from leaving import Leaving
from nightly import by_day

import phases
from hostrouting import Config, RouteOverlap
from hostrouting.kernel.recording import SnapshotBackend, take_snapshot
from hostrouting.model.routes import RouteType
from hostrouting.overlap.explanation import explain

if TYPE_CHECKING:
    from connecting import Question

    from hostrouting.overlap.explanation import Explanation, LookupWay

pytestmark = pytest.mark.kernel

_GOT = re.compile(r"(?:\w+ )?(?P<address>[\d.]+) (?:from [\d.]+ )?(?:via (?:inet6 )?\S+ )?dev (?P<dev>\S+) ")


def _told_by_ip(way: LookupWay) -> str | None:
    """The interface that ``ip route get`` names; None: an error."""
    words = ["ip", "-4", "-oneline", "route", "get", str(way.outcome.answer.lookup.address)]
    words += ["from", str(way.outcome.answer.source)] if way.outcome.answer.source else []
    words += ["ipproto", "tcp"] if way.outcome.answer.is_tcp else []
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if ran.returncode:
        return None
    found = _GOT.match(ran.stdout)
    assert found is not None, ran.stdout
    return found["dev"]


def _ends(way: LookupWay) -> set[str | None]:
    """Where a look-up may end, as ip says it: what is local leaves by lo."""
    route = way.outcome.route
    if route is None or route.type.is_discard or not route.hops:
        return {None}
    if route.type is RouteType.BROADCAST:
        return {*route.devs, None}  # a socket has to ask for leave to send there (SO_BROADCAST)
    return {"lo"} if route.type is RouteType.LOCAL else {*route.devs}


def _of(found: Explanation, *, is_tcp: bool, connects: bool) -> set[str | None]:
    """Where a socket's packets may leave by what is told."""
    of_protocol = [way for way in found.lookups if way.outcome.answer.is_tcp is is_tcp] or found.lookups
    chosen = [way for way in of_protocol if way.outcome.answer.source is not None]
    return set().union(*map(_ends, chosen if chosen and connects else of_protocol[:1]))


@settings(max_examples=by_day(4, by_night=200), suppress_health_check=[HealthCheck.too_slow])
@given(question=questions())
@example(question=TCP_ONLY_CHOOSES)
@example(question=A_SOURCE_A_HOP)
def test_a_way_ends_where_ip_and_sockets_say(question: Question) -> None:
    kernel = built(question)
    recording = SnapshotBackend(take_snapshot(kernel))
    config = Config(route_overlap=RouteOverlap(question.expected, allowed_devs=question.allowed))
    with Leaving(*question.world.devs) as leaving:
        for address in question.addresses[:: by_day(5, by_night=2)]:
            found = explain(address, config, kernel, phases.CancelScope())
            assert found == explain(address, config, recording, phases.CancelScope())
            for way in found.lookups:
                assert way.is_modelled
                decides = [step for step in way.steps if step.passed is None]
                # A rule that says unreachable decides too, and to the kernel that is no route.
                is_decided = way.outcome.route or way.outcome.answer.lookup.discarded_by or way.steps[-1].passed is None
                assert decides == ([way.steps[-1]] if is_decided else [])
                assert _told_by_ip(way) in _ends(way)
            assert leaving.by_datagram(address, 9) in _of(found, is_tcp=False, connects=False)
            assert leaving.by_connected_datagram(address, 9) in _of(found, is_tcp=False, connects=True)
            assert leaving.by_tcp(address, 9) in _of(found, is_tcp=True, connects=True)
