"""Test that whatever a check prints takes away nothing but what the text with it names.

On random hosts, each printed thing is applied alone: the proposal, each interface that is offered
to keep, each answer to a question with the fix that follows, each ip command, and each route or
address to remove. What it is printed for works then.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harms import harms
from losing import Loss
from nightly import by_day
from worlds.crowded import Crowded, crowded

from hostrouting.model.family import Family

pytestmark = pytest.mark.kernel


HOSTS = [(family, seed) for family in Family for seed in range(by_day(4, by_night=2500))]
# On the nightly search's host IPv4-1386, keep once precedes a plain route that the check hadn't
# read. On IPv4-7062, it precedes a VPN's routes for half of the address space, and on IPv4-7194,
# one for a whole network.
HOSTS = list(dict.fromkeys([*HOSTS, *((Family.IPV4, seed) for seed in (1386, 7062, 7194))]))


@pytest.mark.parametrize(("family", "seed"), HOSTS)
def test_nothing_printed_harms(family: Family, seed: int, tmp_path: Path) -> None:
    host = crowded(seed, family)
    found = harms(host, tmp_path)
    assert not found, f"{host}\n" + "\n".join(found)


def test_what_is_lost_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this host, a VPN's own address loses its way, and only the text excuses that."""
    host = crowded(27, Family.IPV4)
    monkeypatch.setattr(Loss, "is_named", lambda *_: False)
    assert [found.partition(":")[0] for found in harms(host, tmp_path)] == ["proposal"]


def test_a_kept_interfaces_way_through_an_uplink_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InfiniBand's addresses answer eth0's neighbours, and with keep no longer."""
    steps = (
        "link set lo up",
        "addr add 172.16.9.4/24 dev eth0",
        "route add default via 172.16.9.1 dev eth0",
        "addr add 172.16.0.10/16 dev ib0",
        "addr add 172.16.0.11/16 dev ib1",
    )
    overlap = {"mode": "STRICT", "expectedCidrs": ["172.16.0.0/16"], "settleSeconds": 0}
    section = {"waitSeconds": 0, "uplinks": ["eth0"], "routeOverlap": overlap}
    host = Crowded(0, Family.IPV4, steps, section, forwards=False)
    assert harms(host, tmp_path) == []
    monkeypatch.setattr(Loss, "is_named", lambda *_: False)
    found = harms(host, tmp_path)
    assert [line for line in found if " from 172.16.0.11: eth0 -> ib1" in line]


def test_only_routes_inside_a_kept_interfaces_network_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A VPN leads half of the address space elsewhere, and a NIC a part of InfiniBand's network."""
    steps = (
        "link set lo up",
        "addr add 10.1.0.4/24 dev eth0",
        "route add default via 10.1.0.1 dev eth0",
        "addr add 10.96.3.1/16 dev ib0",
        "addr add 10.9.0.2/24 dev wg0",
        "addr add 10.8.0.2/24 dev eth1",
        "route add 0.0.0.0/1 dev wg0 table 52",
        "route add 10.96.77.0/24 dev eth1 table 52",
        "rule add pref 5270 lookup 52",
    )
    overlap = {"mode": "STRICT", "expectedCidrs": ["10.96.0.0/12"], "settleSeconds": 0}
    section = {"waitSeconds": 0, "uplinks": ["eth0"], "routeOverlap": overlap}
    host = Crowded(0, Family.IPV4, steps, section, forwards=False)
    assert harms(host, tmp_path) == []
    monkeypatch.setattr(Loss, "is_named", lambda *_: False)
    found = [line for line in harms(host, tmp_path) if " from 10.96.3.1: " in line]
    assert found == ["proposal: loses 10.96.77.1 from 10.96.3.1: eth1 -> ib0"]
