"""Ctrl-C, which goes to all processes of a terminal, ends a command that has some without a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shadowed import shadowed_kernel

from hostrouting.kernel.recording import take_snapshot

pytestmark = pytest.mark.kernel

PATIENCE_SECONDS = 30.0
# A shell has SIGINT ignored by what it runs in the background.
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
def test_the_demo_is_interrupted_without_a_trace(tmp_path: Path, moment: str) -> None:
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


def test_judge_is_interrupted_without_a_trace(tmp_path: Path) -> None:
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
