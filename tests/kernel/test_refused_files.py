"""Test that a failing system call makes a command print a clear error and leaves nothing half done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import on_a_host
from nightly import IS_NIGHTLY, by_day

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(by_day(300, by_night=7200))]

PARTS = by_day(1, by_night=8)
UNSEEN = r"""
mkdir "$SCRATCH/bin"
printf %s "$SYSTEMCTL" >"$SCRATCH/bin/systemctl"
chmod +x "$SCRATCH/bin/systemctl"
PATH=$SCRATCH/bin:$PATH
hostrouting apply "$CONFIG" >"$SCRATCH/said" 2>&1
ours() { find /etc/aks-flex-node /etc/hostrouting /etc/systemd/system -name '*hostrouting.conf' -o -name '*route*' -o -name 'gate*' -o -name installed.json; ip route show proto 217; }
blind() {
  status=0
  strace --quiet=all -o /dev/null -e trace=newfstatat -e "inject=newfstatat:error=$2" -P "$1" "$PYTHON" -m hostrouting remove >"$SCRATCH/said" || status=$?
}
before=$(ours)
blind /etc/systemd/system/systemd-nspawn@.service.d/00-hostrouting.conf EIO
[ "$before" = "$(ours)" ] && echo "all is there: $status"
blind /etc/aks-flex-node/check-route-overlap.sh ENAMETOOLONG
echo "left: $status" $(ours)
hostrouting remove >"$SCRATCH/said"
echo "left: $?" $(ours 2>"$SCRATCH/said")
"""
PROGRAM = Path(__file__).parents[1] / "support/refusing.py"
# A stub systemctl, because systemd isn't running there. It enables units and knows only ours.
SYSTEMCTL = """#!/bin/sh
links=/etc/systemd/system/multi-user.target.wants
for unit; do :; done
case $1:$unit in
  restart:hostrouting-trial.service) exec bash -p /run/aks-flex-node/trial.sh ;;
  show:hostrouting-trial.service) echo LoadState=loaded ;;
esac
case $1 in
  is-enabled) test -L "$links/$unit" && echo enabled || exit 1 ;;
  enable) mkdir -p "$links" && ln -s "../$unit" "$links/$unit" ;;
  disable) rm "$links/$unit" ;;
  is-active) exit 3 ;;
  show) echo LoadState=not-found ;;
esac
"""
# Hide the host's own units before running the program.
RUN = r"""
for folder in /usr/lib/systemd/system /etc/systemd/system; do
  mount -t tmpfs none "$folder"
  mkdir "$folder/multi-user.target.wants"
done
mkdir "$SCRATCH/bin"
printf %s "$SYSTEMCTL" >"$SCRATCH/bin/systemctl"
printf '#!/bin/sh\n' >"$SCRATCH/bin/systemd-run"
chmod +x "$SCRATCH/bin/systemctl" "$SCRATCH/bin/systemd-run"
PATH=$SCRATCH/bin:$PATH exec "$PYTHON" "$@"
"""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("command", ["apply", "remove", "start", *(["try", "confirm", "watch"] if IS_NIGHTLY else [])])
def test_a_refused_call_is_a_clear_error(tmp_path: Path, command: str, part: int) -> None:
    """Check that each failing call leaves either all or none of the changes, and that the next run repairs the rest.

    The test fails every call after a command's first access to the host, with each errno that the call can return.
    Earlier calls and later imports are Python's own reads, which are the same for each command. Only ``start`` covers
    them, with one call for each combination of call, errno and kind of path, before the config is read, before the
    first change, and after it. Each distinct leftover state is repaired only once.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace isn't installed")
    words = (PROGRAM, tmp_path / "config.json", command, by_day(1, by_night=0), part, PARTS)
    # Sets must have the same iteration order in all parts.
    done = on_a_host(tmp_path, RUN, *map(str, words), SYSTEMCTL=SYSTEMCTL, PYTHONHASHSEED="0")
    assert done.returncode == 0, done.stderr
    count, *lines = done.stdout.splitlines()
    reports = [json.loads(line) for line in lines]
    assert int(count) > 100
    assert len([report for report in reports if report["line"]]) >= len(reports) * 2 / 3 > 0
    for report in reports:
        assert report["wrong"] == [], report


def test_an_unreadable_file_prevents_no_other_removal(tmp_path: Path) -> None:
    """An unreadable gate drop-in is an exception: it keeps everything, as it would hold every start without gate.sh."""
    if shutil.which("strace") is None:
        pytest.skip("strace isn't installed")
    done = on_a_host(tmp_path, UNSEEN, SYSTEMCTL=SYSTEMCTL)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("hostrouting: can't look at ") == 2, done.stderr
    assert done.stdout.splitlines() == [
        "all is there: 1",
        "left: 1 /etc/aks-flex-node/check-route-overlap.sh /etc/hostrouting/installed.json",
        "left: 0",
    ]
