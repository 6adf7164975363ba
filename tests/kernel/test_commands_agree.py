"""Test on random hosts that the commands agree, and that their predictions come true."""

from __future__ import annotations

from pathlib import Path

import pytest
from agreeing import contradictions
from nightly import by_day
from worlds.crowded import crowded

from hostrouting.model.family import Family

pytestmark = pytest.mark.kernel

# Hosts on which the nightly search has found something.
FOUND = (35, 79, 617)
SEEDS = sorted({*range(by_day(1, by_night=500)), *FOUND})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", Family)
def test_commands_agree(family: Family, seed: int, tmp_path: Path) -> None:
    host = crowded(seed, family)
    found = [*contradictions(host, tmp_path)]
    assert not found, f"{host}\n" + "\n".join(found)
