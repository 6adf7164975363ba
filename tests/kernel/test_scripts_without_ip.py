"""Test that the error is clear and STRICT lets nothing pass on a host where ip can't run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from node import build_node
from scripts import Sandbox

from hostrouting.boot.render import render_check_route_overlap_script, render_static_routes_script

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel

WITHOUT_IP = 'mount --bind /dev/null "$(readlink -f "$(command -v ip)")"'


def test_the_routes_script_fails_and_names_ip(kernel: NamespaceKernel, tmp_path: Path) -> None:
    build_node(kernel)
    script = render_static_routes_script([{"destination": "172.16.1.0/24"}], wait_seconds=0)
    done = Sandbox(tmp_path).run(script, prepare=WITHOUT_IP)
    assert done.returncode == 1
    assert "can't list the routes" in done.stderr
    assert "ermission denied" in done.stderr


@pytest.mark.parametrize(("mode", "code"), [("STRICT", 1), ("WARN", 0)])
def test_the_check_is_unknown_and_names_ip(kernel: NamespaceKernel, tmp_path: Path, mode: str, code: int) -> None:
    build_node(kernel)
    script = render_check_route_overlap_script(["10.96.0.0/12"], mode, wait_seconds=0)
    done = Sandbox(tmp_path).run(script, prepare=WITHOUT_IP)
    assert done.returncode == code
    marker = (tmp_path / "run/aks-flex-node/route-overlap.detected").read_text()
    assert marker.startswith("check-failed: can't listen for changes")
    assert "ermission denied" in marker
