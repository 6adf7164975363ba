"""The check against real sockets: what it lets pass leaves by the expected interfaces, what it names doesn't."""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

import pytest
from asking import checked
from connecting import (
    A_SOURCE_A_HOP,
    CHOSEN_BY_AN_EXPECTED_ROUTE,
    TCP_ONLY_CHOOSES,
    Question,
    built,
    disagreements,
    questions,
    seen_leaving,
)
from hypothesis import HealthCheck, example, given, settings
from leaving import Leaving
from nightly import by_day

import phases
from hostrouting import Config, Host, Layout
from hostrouting.cli import main
from hostrouting.kernel.recording import SnapshotBackend, take_snapshot
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import FindingKind, Verdict
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel

_SETTINGS = settings(max_examples=by_day(6, by_night=1000), suppress_health_check=[HealthCheck.too_slow])


def _told_by_ip() -> str:
    shown = [f"-4 {words}" for words in ("address", "rule", "route show table all")]
    return "\n".join(
        subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=True).stdout for words in shown
    )


@_SETTINGS
@given(question=questions())
@example(question=CHOSEN_BY_AN_EXPECTED_ROUTE)
@example(question=TCP_ONLY_CHOOSES)
@example(question=A_SOURCE_A_HOP)
def test_a_finding_is_what_a_socket_does_and_what_no_socket_does_is_none(question: Question) -> None:
    kernel = built(question)
    live, recorded = (
        checked(backend, question.expected, question.allowed)[1]
        for backend in (kernel, SnapshotBackend(take_snapshot(kernel)))
    )
    assert live.verdict is not Verdict.UNKNOWN
    seen = seen_leaving(question)
    wrong = disagreements(live, question, seen)
    wrong += [f"recorded: {line}" for line in disagreements(recorded, question, seen)]
    if wrong:
        raise AssertionError("\n".join((*wrong, _told_by_ip())))


# --- a rule for what has the address that connections get ----------------------------------------------------------

ANSWERS_ELSEWHERE = """
ip link add eth0 type veth peer name p0
ip link add eth1 type veth peer name p1
for link in eth0 eth1 p0 p1; do ip link set "$link" up; done
ip address add 10.1.0.4/24 dev eth0
ip address add 10.2.0.4/24 dev eth1
ip route add default via 10.1.0.1
ip route add default via 10.2.0.1 table 100
ip rule add from 10.1.0.4 lookup 100
"""
CIDR = IPv4Network("172.16.0.0/16")
TOLD = "OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) routes via eth1, expected eth0 for connections from 10.1.0.4"


@pytest.fixture
def answering_elsewhere(kernel: NamespaceKernel) -> NamespaceKernel:
    """What has the address of eth0 leaves by eth1, and what has none yet by eth0."""
    subprocess.run(["bash", "-euc", ANSWERS_ELSEWHERE], check=True)
    return kernel


def test_a_rule_from_the_own_address_leads_connections_away_and_not_datagrams(
    answering_elsewhere: NamespaceKernel,
) -> None:
    with Leaving("eth0", "eth1") as leaving:
        address = CIDR[300]
        ways = leaving.by_tcp, leaving.by_connected_datagram, leaving.by_datagram
        assert [way(address, 443) for way in ways] == ["eth1", "eth1", "eth0"]


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_rule_from_the_own_address_is_found(answering_elsewhere: NamespaceKernel, is_recorded: bool) -> None:
    backend = SnapshotBackend(take_snapshot(answering_elsewhere)) if is_recorded else answering_elsewhere
    config = Config.from_mapping({"hostRouting": {"routeOverlap": {"expectedCidrs": [str(CIDR)]}, "waitSeconds": 0}})
    (finding,) = check_overlap(config, backend, phases.CancelScope()).findings
    assert (finding.kind, finding.cidr, finding.devs) == (FindingKind.OVERLAP, CIDR, ("eth1",))
    assert finding.source == IPv4Address("10.1.0.4")
    assert finding.ranges == (CIDR,)
    assert finding.message.startswith(TOLD)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_rule_from_the_own_address_ends_the_command_with_1(
    answering_elsewhere: NamespaceKernel, is_recorded: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "node.json"
    recording.write_text(take_snapshot(answering_elsewhere).to_text())
    host = Host(routes=answering_elsewhere, units=FakeSystemd(), layout=Layout(tmp_path))
    more = ["--snapshot", str(recording)] if is_recorded else []
    assert main(["check", "--cidr", str(CIDR), *more], host=host) == 1
    assert "from 10.1.0.4" in capsys.readouterr().out
