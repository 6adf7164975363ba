"""Test that a plan on a live host knows the sources by entries that it doesn't change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_trees import write_file
from node import run_ip
from wanted import section

from hostrouting import Host, Layout
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

HALVES = ("172.16.0.0/17", "172.16.128.0/17")

# A pod's interface has no address, so the kernel takes the source from the first interface that
# has one, which no dump tells. Cilium moves the rule for table local.
CILIUM = """
link add lxc1 type veth peer name pod
link set lxc1 up
link set pod up
route add 172.16.5.9 dev lxc1 scope link
rule add fwmark 0x200/0xf00 pref 9 lookup 2004
rule add pref 100 lookup local
rule del pref 0
"""


@pytest.fixture
def host(node: NamespaceKernel, tmp_path: Path) -> Host:
    run_ip(CILIUM)
    layout = Layout(tmp_path)
    return Host(node, FakeSystemd(layout), layout)


def test_keep_is_planned_beside_cilium(run: Callable[..., Any], tmp_path: Path) -> None:
    """The config's rules select by source, and the kernel has none such yet."""
    listed = section(*HALVES, cidrs=["172.16.0.0/16"], keep=["ib0"])
    path = write_file(tmp_path / "config.json", json.dumps({"hostRouting": listed}))
    code, out, err = run("fix", path)
    assert (code, "already lists what fixes this" in err, "snapshot" in err) == (1, True, False)
    assert json.loads(out) == json.loads(path.read_text())
    assert json.loads(run("plan", path, "--output", "json")[1])["nextStart"]["admitted"] is True
    assert run("apply", "--routes-only", path)[0] == 0
    assert run("check", path)[0] == 0
