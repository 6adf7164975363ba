"""Test that the kernel's lookups tell how packets go, as sockets and frames show."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from crowding import Built
from nightly import by_day
from worlds.crowded import crowded

from hostrouting.model.family import Family

pytestmark = pytest.mark.kernel

_PACKETS = 40


@pytest.mark.parametrize("seed", range(by_day(4, by_night=400)))
@pytest.mark.parametrize("family", Family)
def test_lookups_tell_how_packets_go(family: Family, seed: int, tmp_path: Path) -> None:
    built = Built(crowded(seed, family), tmp_path)
    asked = built.packets([])
    asked = random.Random(seed).sample(asked, min(len(asked), _PACKETS))
    wrong = built.differences(asked, built.ways(asked))
    assert not wrong, f"{built.crowded}\n" + "\n".join(wrong)
