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
from worlds.crowded import crowded

from hostrouting.model.family import Family

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("seed", range(by_day(16, by_night=2500)))
@pytest.mark.parametrize("family", Family)
def test_nothing_printed_harms(family: Family, seed: int, tmp_path: Path) -> None:
    host = crowded(seed, family)
    found = harms(host, tmp_path)
    assert not found, f"{host}\n" + "\n".join(found)


def test_what_is_lost_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this host, a VPN's own address loses its way, and only the text excuses that."""
    host = crowded(27, Family.IPV4)
    monkeypatch.setattr(Loss, "is_named", lambda *_: False)
    assert [found.partition(":")[0] for found in harms(host, tmp_path)] == ["proposal"]
