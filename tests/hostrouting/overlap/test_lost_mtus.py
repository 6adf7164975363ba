"""Test that packets that lose their route's mtu are named, though their interface stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from wanted import section

from hostrouting.testing import FakeKernel

Run = Callable[..., tuple[int, str, str]]

LISTED = ["172.16.0.0/17", "172.16.128.0/17"]
WIDER = "route add 172.16.0.0/16 via 10.1.0.1 dev eth0 proto static mtu 1400"
DEFAULT = ["route del default via 10.1.0.1", "route add default via 10.1.0.1 dev eth0 mtu 1400"]
LOST: dict[str, tuple[list[str], list[str]]] = {
    "another's wider route": ([WIDER], LISTED),
    "ours": ([f"route add {LISTED[0]} via 10.1.0.1 dev eth0 proto 217 mtu 1400"], LISTED[:1]),
    "smaller than the default route's": ([*DEFAULT, WIDER.replace("1400", "1300")], LISTED),
}
KEPT = {
    "no mtu": [WIDER.removesuffix(" mtu 1400")],
    "the interface's own": [WIDER.replace("1400", "1500")],
    "the same from the default route": [*DEFAULT, WIDER],
    "a longer prefix": ["route add 172.16.3.0/24 via 10.1.0.1 dev eth0 proto static mtu 1400"],
}


@pytest.mark.parametrize("name", [*LOST, *KEPT])
def test_a_lost_mtu_is_named(run: Run, write: Any, kernel: FakeKernel, name: str) -> None:
    lines, lost = LOST[name] if name in LOST else (KEPT[name], [])
    kernel.ip("address del 172.16.0.10/16 dev ib0")
    for line in lines:
        kernel.ip(line)
    path = write({"hostRouting": section(*LISTED, cidrs=["172.16.0.0/16"])})
    planned = json.loads(run("plan", path, "--output", "json")[1])["warnings"]
    said = [run("check", path)[1], "\n".join(planned), run("apply", "--routes-only", path)[2]]
    mtu = "1300" if "default" in name else "1400"
    told = f"packets to {' '.join(lost)} through eth0 lose their route's mtu of {mtu}"
    assert [told in each for each in said] == [bool(lost)] * 3
    assert [" mtu of " in each for each in said] == [bool(lost)] * 3
    assert " mtu of " not in "".join(run("apply", "--routes-only", path)[1:])
