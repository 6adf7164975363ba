"""Test the Debian package's scripts without systemd, in a container or in an image under construction."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

DEBIAN = Path(__file__).parents[2] / "deploy/debian"
LINK = "/etc/systemd/system/multi-user.target.wants/hostrouting-watch.service"
IMAGE = f"""
mount -t tmpfs none /etc
mount -t tmpfs none /run
mkdir -p /etc/hostrouting {Path(LINK).parent}
echo '{{}}' >/etc/hostrouting/installed.json
touch /etc/systemd/system/hostrouting-watch.service
ln -s ../hostrouting-watch.service {LINK}
"""


def test_it_is_removed_without_systemd(tmp_path: Path) -> None:
    script = DEBIAN.joinpath("prerm").read_text().replace("/usr/lib/hostrouting", str(tmp_path))
    words = f'{IMAGE}\nsh -c "$1" prerm remove\n[ ! -L {LINK} ]'
    done = subprocess.run(["unshare", "-m", "sh", "-euc", words, "sh", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "apt purge hostrouting" in done.stderr
