"""``apply`` with one file after the other refused by the kernel for want of descriptors: exit code 1, and no half."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CONFIG, SETUP
from nightly import by_day

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(by_day(300, by_night=3600))]

PROGRAM = Path(__file__).parents[1] / "support/refusing.py"
# Instead of systemd, which doesn't run there: it enables, and knows of no unit but ours.
SYSTEMCTL = """#!/bin/sh
links=/etc/systemd/system/multi-user.target.wants
for unit; do :; done
case $1 in
  is-enabled) test -L "$links/$unit" && echo enabled || exit 1 ;;
  enable) mkdir -p "$links" && ln -s "../$unit" "$links/$unit" ;;
  disable) rm "$links/$unit" ;;
  is-active) exit 3 ;;
  show) echo LoadState=not-found ;;
esac
"""
RUN = r"""
mkdir "$SCRATCH/bin"
printf %s "$SYSTEMCTL" >"$SCRATCH/bin/systemctl"
chmod +x "$SCRATCH/bin/systemctl"
PATH=$SCRATCH/bin:$PATH exec "$PYTHON" "$@"
"""


def test_a_refused_file_is_a_named_failure(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace isn't installed")
    (tmp_path / "scratch").mkdir()
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--", "bash", "-c", SETUP + RUN, "bash"]
        + [str(word) for word in (PROGRAM, config, by_day(3, by_night=0), by_day(9, by_night=1))],
        env=os.environ | {"SCRATCH": str(tmp_path / "scratch"), "PYTHON": sys.executable, "SYSTEMCTL": SYSTEMCTL},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) > by_day(5, by_night=50)
    for report in reports:
        assert report["code"] == 1, report
        assert report["whole"], report
        assert "can't" in report["said"], report
        assert "Too many open files" in report["said"], report
