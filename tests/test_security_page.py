"""Tests that file modes and the watcher's privileges are as described in docs/explanation/security.md."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from node import shadowed_kernel

from hostrouting import Host, Layout, cli
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/explanation/security.md").read_text()
MODES = re.findall(r"^\| `(/\S+)` \| (0\d{3}) \|", PAGE, re.MULTILINE)
TOKEN = "0123456789abcdef-token"
DOCUMENT = {
    "azure": {"bootstrapToken": TOKEN},
    "hostRouting": {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]},
        "routeOverlap": {"expectedCidrs": ["172.16.1.0/24"]},
        "watch": {"enabled": True},
    },
}


@pytest.fixture
def installed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Layout]:
    """Return the layout after running ``apply`` with the test's umask."""
    layout = Layout(tmp_path)
    layout.config.parent.mkdir(parents=True)
    layout.config.write_text(json.dumps(DOCUMENT))
    before = os.umask(getattr(request, "param", 0o022))
    try:
        assert cli.main(["apply"], host=Host(shadowed_kernel(), FakeSystemd(layout), layout)) == 0
        yield layout
    finally:
        os.umask(before)


@pytest.mark.parametrize("installed", [0, 0o077], indirect=True)
def test_files_have_the_modes_of_the_page_under_any_umask(installed: Layout) -> None:
    assert len(MODES) > 10
    found = {name: f"{stat.S_IMODE(installed.of(name).stat().st_mode):04o}" for name, _ in MODES}
    assert found == dict(MODES)


def test_no_key_of_another_component_leaves_the_config(installed: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [path.read_text() for path in installed.root.rglob("*") if path.is_file() and path != installed.config]
    assert len(texts) > 10
    assert [text for text in (*texts, *capsys.readouterr()) if TOKEN in text or "bootstrapToken" in text] == []


def test_the_watcher_has_the_rights_of_the_page(installed: Layout) -> None:
    (row,) = [line for line in PAGE.splitlines() if "`hostrouting-watch.service`" in line]
    unit = (installed.units / "hostrouting-watch.service").read_text()
    assert "CapabilityBoundingSet=CAP_NET_ADMIN\n" in unit
    assert "root with CAP_NET_ADMIN alone" in row
    for setting in re.findall(r"`(\w+=\w*)`", row):
        assert f"\n{setting}" in unit
