"""Tests that ``check --report`` explains the boot check's verdict and never a different one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from node import build_node
from planning import manifest_of

from hostrouting import Config, Host, Layout
from hostrouting.cli import main
from hostrouting.testing import FakeKernel, FakeSystemd

if TYPE_CHECKING:
    from pathlib import Path

SHADOWED = ("172.16.1.0/24",)


def host_with(tmp_path: Path, *cidrs: str, marker: str, text: str) -> Host:
    """Return a shadowed node on which a check of these CIDRs has been installed and has written a marker."""
    kernel, layout = FakeKernel(), Layout(tmp_path)
    build_node(kernel)
    config = Config(route_overlap={"expectedCidrs": cidrs})
    for path, content in (
        (layout.manifest, manifest_of(config, layout).to_text()),
        (layout.run_dir / f"route-overlap.{marker}", text),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return Host(routes=kernel, units=FakeSystemd(), layout=layout)


@pytest.mark.parametrize(
    ("cidrs", "marker", "text"),
    [
        (SHADOWED, "ok", ""),
        (SHADOWED, "detected", "no-default-route\n"),
        (("10.96.0.0/12",), "detected", "OVERLAP: expected CIDR"),
    ],
)
def test_another_verdict_is_not_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cidrs: tuple[str, ...], marker: str, text: str
) -> None:
    host = host_with(tmp_path, *cidrs, marker=marker, text=text)
    assert main(["check", "--report"], host=host) == 1
    assert "fix:" not in capsys.readouterr().err
    assert not host.layout.report.exists()
