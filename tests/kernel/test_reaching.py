"""Test that the kernel's lookups tell how packets go, as sockets and frames show."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from crowding import Built
from nightly import by_day
from reaching import Packet, Way, seen
from worlds.crowded import crowded

from hostrouting.model.family import Family

pytestmark = pytest.mark.kernel

_PACKETS = 40


def is_alike(packet: Packet, told: Way, found: Way, *, forwards: bool) -> bool:
    if packet.to.version == 6 and packet.source is None and told.error:
        return True  # a socket tries again with a source
    if packet.arrives_on and not forwards:
        return (told.dev == "lo") == (found.dev == "lo")
    return told.dev == found.dev


@pytest.mark.parametrize("family", Family)
def test_lookups_tell_how_packets_go(family: Family, tmp_path: Path) -> None:
    for seed in range(by_day(4, by_night=400)):
        built = Built(crowded(seed, family), tmp_path)
        asked = built.packets([])
        asked = random.Random(seed).sample(asked, min(len(asked), _PACKETS))
        ways = built.ways(asked)
        found = seen(asked, built.kernel.facts().links)
        wrong = [
            f"{packet} goes {ways[packet]}, but {found[packet]} is seen"
            for packet in asked
            if not is_alike(packet, ways[packet], found[packet], forwards=built.crowded.forwards)
        ]
        assert not wrong, f"{built.crowded}\n" + "\n".join(wrong)
