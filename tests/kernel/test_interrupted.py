"""Test that a signal stops a command, its child processes and its wait, and that Ctrl-C doesn't print a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import attrs
import pytest
from command_line import CONFIG, SETUP, on_a_host
from nightly import IS_NIGHTLY
from node import shadowed_kernel, until
from terminals import PATIENCE_SECONDS, Terminal, await_looks, opened

from hostrouting.kernel.snapshot_backend import take_snapshot

pytestmark = pytest.mark.kernel

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
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: bool(children.read_text()))


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


# --- a full or stopped terminal --------------------------------------------------------------------------------------

RUN = r"""
eval "$PREPARE" >&2
"$PYTHON" -m hostrouting "$@" <"$TERMINAL" >"$TERMINAL" 2>"$TERMINAL" 9>&- &
echo $!
wait $!
echo $?
exec 9>&-
if [ ! -e /run/aks-flex-node/run.lock ] || flock -n /run/aks-flex-node/run.lock true; then echo free; fi
jobs -p | xargs -r kill
"""
NO_DEFAULT_ROUTE = "ip route del default"
HELD = "mkdir -p /run/aks-flex-node; exec 9>/run/aks-flex-node/run.lock; flock 9"
# This makes the watcher print something.
CONTESTED = "while sleep 0.2; do ip route flush proto 217; done &"
PROBE = {"hostNetworking": {"loadBalancerProbe": {"enabled": True, "devices": ["eth0"], "ipv6Detection": "ALWAYS"}}}


@attrs.frozen
class Waiting:
    """A waiting command and the output that precedes its wait."""

    words: tuple[str, ...]
    shows: bytes
    prepare: str = NO_DEFAULT_ROUTE
    code: int = 1


COMMANDS = {
    "apply": Waiting(("apply",), b"waiting up to 600 s"),
    "apply -v": Waiting(("apply", "--routes-only", "-v"), b"waiting up to 600 s"),
    "check": Waiting(("check",), b"waiting up to 600 s", code=2),
    "watch": Waiting(("watch",), b"static routes to keep", prepare=CONTESTED, code=0),
    "lb-probe": Waiting(("lb-probe", "apply"), b"waiting for another run", prepare=HELD),
    "remove": Waiting(("remove",), b"waiting for another run", prepare=HELD),
}


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with opened() as made:
        yield made


TRIED = [*product(COMMANDS, ("Ctrl-S", "full"), (signal.SIGTERM, signal.SIGHUP))]


# By day: apply, watch and remove, with both ways to stall and both signals.
@pytest.mark.parametrize(("command", "how", "number"), TRIED if IS_NIGHTLY else TRIED[3::9])
def test_a_signal_ends_a_waiting_command(
    tmp_path: Path, terminal: Terminal, command: str, how: str, number: signal.Signals
) -> None:
    waiting = COMMANDS[command]
    document = json.loads(json.dumps(CONFIG | PROBE).replace('"waitSeconds": 0', '"waitSeconds": 600'))
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "scratch").mkdir()
    words = [*waiting.words, *([] if command == "remove" else [str(tmp_path / "config.json")])]
    with subprocess.Popen(
        ["unshare", "--net", "--mount", "--", "bash", "-c", SETUP.replace("-eu", "-u") + RUN, "bash", *words],
        env=os.environ
        | {"SCRATCH": str(tmp_path / "scratch"), "PYTHON": sys.executable, "TERMINAL": terminal.path}
        | {"PREPARE": waiting.prepare, "TERM": "xterm"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as shell:  # fmt: skip
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        try:
            terminal.read_until(waiting.shows)
            terminal.stall(how)
            await_looks(pid)
            os.kill(pid, number)
            said = shell.communicate(timeout=PATIENCE_SECONDS)[0]
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
    assert said.splitlines() == [str(waiting.code), "free"]
