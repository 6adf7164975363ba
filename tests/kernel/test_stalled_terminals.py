"""Test that a signal stops any waiting command and releases its lock even if the terminal is full or stopped."""

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
from command_line import CONFIG, SETUP
from nightly import IS_NIGHTLY
from terminals import PATIENCE_SECONDS, Terminal, await_looks, opened

pytestmark = pytest.mark.kernel

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
