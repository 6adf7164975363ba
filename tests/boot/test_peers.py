"""Test the comparison with other programs on one of them: hostrouting itself, and what is observed
of it.
"""

from __future__ import annotations

import pytest

from benchmarks.peers import cases
from benchmarks.peers.command import compare
from benchmarks.peers.page import page
from benchmarks.peers.programs import PEERS
from benchmarks.peers.work import booted

pytestmark = pytest.mark.usefixtures("_bootable")


def test_the_work_is_measured_and_verified() -> None:
    record = compare(["apply"], (20,), is_quick=True)
    (measured,) = record["peers"]["apply"]["rounds"]
    assert record["peers"]["apply"]["error"] == ""
    assert [(facts["writes"], facts["there"], facts["other"]) for facts in measured.values()] == [
        (20, 20, 0), (0, 20, 0), (20, 20, 0), (20, 0, 0),
    ]  # fmt: skip
    assert all(facts["cpu"] > 0 for facts in measured.values())
    assert f"| {PEERS['apply'].name} | 1 |" in page(record)


def test_a_case_is_what_the_kernel_and_the_journal_say() -> None:
    with booted(PEERS["networkd"]) as node:
        assert node.version().startswith("257.")
        assert cases.foreign(node) == {
            "kept": False,
            "added": True,
            "after": False,
            "exit": 0,
            "said": "",
        }
        assert cases.carrier(node)["during"] == 0
