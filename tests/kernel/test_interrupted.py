"""Test that a signal stops a command and its child processes, and that Ctrl-C doesn't print a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import on_a_host
from node import shadowed_kernel

from hostrouting.kernel.snapshot_backend import take_snapshot

pytestmark = pytest.mark.kernel

PATIENCE_SECONDS = 30.0
HANGING = r"""
mkdir "$SCRATCH/bin"
printf '#!/bin/sh\n%s\n' "$SYSTEMCTL" >"$SCRATCH/bin/systemctl"
chmod +x "$SCRATCH/bin/systemctl"
PATH=$SCRATCH/bin:$PATH
"$PYTHON" -m hostrouting "$@" "$CONFIG" &
until [ -e "$SCRATCH/asked" ]; do sleep 0.05; done
kill -TERM "$!"
wait "$!" || echo "$?"
find /etc -path '*hostrouting*' -o -name 'static-routes*' -o -name 'check-route-overlap*'
ip route show proto 217
"""
# This fake systemctl answers queries but hangs on daemon-reload, when there are already changes to roll back.
NEVER = ': >"$SCRATCH/asked"; exec sleep 1000'
NO_ORDER = f"case $1 in show) echo LoadState=not-found ;; is-*) exit 3 ;; daemon-reload) {NEVER} ;; esac"
# Shells start background processes with SIGINT ignored.
COMMAND = ("env", "--default-signal=INT", sys.executable, "-m", "hostrouting")


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip


def await_child(process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("moment", ["as it starts", "as it tells"])
def test_an_interrupted_demo_leaves_no_traceback(tmp_path: Path, moment: str) -> None:
    with start(tmp_path, "demo") as process:
        if moment == "as it starts":
            await_child(process)
        else:
            assert process.stdout is not None
            process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        complaint = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert (process.returncode, complaint) == (-signal.SIGINT, "")
    assert [*tmp_path.iterdir()] == []


def test_an_interrupted_judge_leaves_no_traceback(tmp_path: Path) -> None:
    recorded, config = tmp_path / "node.json", tmp_path / "config.json"
    recorded.write_text(take_snapshot(shadowed_kernel()).to_text())
    config.write_text(json.dumps({"hostRouting": {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]}}}))
    with start(tmp_path, "judge", str(config), *[str(recorded)] * 5000) as process:
        assert process.stderr is not None
        process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        complaints = process.communicate(timeout=PATIENCE_SECONDS)[1].splitlines()
    assert process.returncode == 2
    assert [line.partition(";")[0] for line in complaints] == ["hostrouting: stopped: SIGINT"]


@pytest.mark.parametrize(("command", "systemctl"), [("plan", NEVER), ("apply", NO_ORDER)], ids=["query", "order"])
def test_a_signal_ends_the_wait_for_systemd(tmp_path: Path, command: str, systemctl: str) -> None:
    """The command doesn't wait for the 60 s systemd timeout."""
    done = on_a_host(tmp_path, HANGING, command, SYSTEMCTL=systemctl)
    assert "stopped: SIGTERM" in done.stderr, done.stderr
    assert done.stdout == "1\n"
