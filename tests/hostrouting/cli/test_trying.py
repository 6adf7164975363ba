"""Tests for the output and exit codes of ``apply --try`` and ``confirm``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from nightly import IS_NIGHTLY
from terminals import PATIENCE_SECONDS, Terminal, await_file, await_looks, opened
from wanted import LED_AWAY, LINE, SHADOWED, TrialSystemd, ours, section

from hostrouting import Host, Layout
from hostrouting.boot.trial_timer import trial_deadline
from hostrouting.testing import FakeKernel

CONFIG = {"hostRouting": section(SHADOWED)}


@pytest.fixture
def host(kernel: FakeKernel, tmp_path: Path) -> Host:
    layout = Layout(tmp_path)
    return Host(kernel, TrialSystemd(layout, kernel), layout)


@pytest.fixture
def config(write: Any) -> Path:
    path: Path = write(CONFIG)
    return path


def test_without_a_terminal_it_prints_how_to_confirm(run: Any, host: Host, config: Path) -> None:
    code, out, err = run("apply", "--try", "60", config)
    assert (code, err) == (0, f"hostrouting: {LED_AWAY}\n")
    assert "\nadded     172.16.1.0/24 via 10.1.0.1 dev eth0 proto hostrouting\n" in out
    ending = out.splitlines()[-1]
    assert all(
        said in ending
        for said in (trial_deadline(host.layout.trial), "hostrouting confirm", "hostrouting revert")
    )
    code, out, _ = run("confirm")
    assert code == 0
    assert out.splitlines()[-1] == "confirmed: the routes are installed for every boot"
    code, out, err = run("confirm")
    assert (code, out) == (1, "")
    assert "nothing to confirm" in err


def test_revert_ends_the_trial(run: Any, host: Host, kernel: FakeKernel, config: Path) -> None:
    run("apply", "--try", "60", config)
    code, out, err = run("revert")
    assert (code, out.splitlines()[0], err) == (0, f"removed   {LINE}", "")
    assert (ours(kernel), trial_deadline(host.layout.trial)) == ((), None)
    code, out, err = run("revert")
    assert (code, out) == (1, "")
    assert "nothing to end" in err
    run("apply", "--try", "60", config)
    code, out, _ = run("revert", "--output", "json")
    assert (code, [each["change"] for each in json.loads(out)["routes"]]) == (0, ["removed"])


@pytest.mark.parametrize("command", ["confirm", "revert", "apply"])
def test_no_hint_about_a_trial_names_remove(run: Any, config: Path, command: str) -> None:
    words = ["apply", "--try", "60", config] if command == "apply" else [command]
    run("apply", "--try", "60", config)
    if command != "apply":
        run(*words)
    code, _, err = run(*words)
    assert (code, "hostrouting remove" in err) == (1, False)


def test_confirm_warns_as_apply_does(run: Any, write: Any) -> None:
    run(
        "apply", "--try", "60", write({"hostRouting": section(SHADOWED, consumer="kubelt.service")})
    )
    code, _, err = run("confirm")
    assert (code, err) == (
        0,
        "hostrouting: there is no unit kubelt.service: until there is, nothing is held back\n",
    )


def test_json_output_has_the_same_facts(run: Any, host: Host, config: Path) -> None:
    code, out, _ = run("apply", "--try", "60", "--output", "json", config)
    said = json.loads(out)
    assert code == 0
    assert (said["changed"], said["until"], said["host"]) == (
        True,
        trial_deadline(host.layout.trial),
        os.uname().nodename,
    )
    assert said["overlap"]["verdict"] == "ok"
    assert [each["change"] for each in said["routes"]] == ["added"]
    code, out, _ = run("confirm", "--output", "json")
    assert (code, json.loads(out)["overlap"]["verdict"]) == (0, "ok")


def test_a_failed_strict_check_rolls_back_at_once(
    run: Any, host: Host, kernel: FakeKernel, write: Any
) -> None:
    run("apply", write({"hostRouting": section("172.16.9.0/24", mode="WARN")}))
    before = ours(kernel)
    code, _, err = run("apply", "--try", "60", write({"hostRouting": section("172.16.2.0/24")}))
    assert code == 1
    assert "the installed routes are back" in err
    assert "OVERLAP: expected CIDR 172.16.1.0/24" in err
    assert (ours(kernel), trial_deadline(host.layout.trial)) == (before, None)
    assert not host.units.is_active("hostrouting-trial.timer")


# --- a separate process on a terminal, which no program reads after the prompt --------------------

# SIGUSR1 makes the timer go off. If the second argument is "hanging", systemd never ends the trial.
PROGRAM = """
import signal, sys, time
from pathlib import Path
from node import shadowed_kernel
from wanted import TrialSystemd, ours
from hostrouting import Host, Layout, cli
from hostrouting.boot.trial_timer import trial_deadline

root, spoiled = sys.argv[1:]
kernel, layout = shadowed_kernel(), Layout(root)
units = TrialSystemd(layout, kernel)
if spoiled == "hanging":
    def restart(unit):
        Path(root, "hangs").touch()
        time.sleep(3600)
    units.restart = restart
signal.signal(signal.SIGUSR1, lambda *_: units.restart("hostrouting-trial.service"))
code = cli.main(["apply", "--try", "60", f"{root}/given.json"], host=Host(kernel, units, layout))
Path(root, "end").write_text(f"{trial_deadline(layout.trial)} {len(ours(kernel))}")
sys.exit(code)
"""


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with opened() as made:
        yield made


@contextmanager
def trying(
    terminal: Terminal, config: Path, spoiled: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``apply --try`` on a terminal."""
    with open(terminal.path, "r+b", buffering=0) as end:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, config.parent, spoiled],
            stdin=end, stdout=end, stderr=end, start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


ASKS = b"Enter keeps the routes"


@pytest.mark.parametrize(
    ("acts", "code", "is_kept"),
    [
        pytest.param([b"\n"], 0, True, id="Enter"),
        pytest.param([b"\xff\n"], 0, True, id="Enter after what is no text"),
        pytest.param([b"\x04"], 1, False, id="the end of the input"),
        pytest.param([signal.SIGINT], 1, False, id="Ctrl-C"),
        pytest.param([signal.SIGHUP], 1, False, id="a lost session"),
        pytest.param([signal.SIGTERM] * 2, 1, False, id="timeout(1), which sends a signal twice"),
        pytest.param([signal.SIGUSR1], 1, False, id="the time is over"),
    ],
)
def test_on_a_terminal_enter_decides(
    terminal: Terminal,
    config: Path,
    acts: list[bytes | signal.Signals],
    code: int,
    *,
    is_kept: bool,
) -> None:
    with trying(terminal, config) as process:
        terminal.read_until(ASKS)
        for act in acts:
            if isinstance(act, bytes):
                os.write(terminal.controller, act)
            else:
                process.send_signal(act)
        assert process.wait(PATIENCE_SECONDS) == code
    assert config.with_name("end").read_text() == f"None {int(is_kept)}"
    assert Layout(config.parent).manifest.exists() == is_kept


STALLS = [
    (*each, number)
    for each in product((b"", ASKS), ("Ctrl-S", "full"))
    for number in (signal.SIGTERM, signal.SIGHUP)
]


@pytest.mark.parametrize(("shows", "how", "number"), STALLS if IS_NIGHTLY else [STALLS[-1]])
def test_a_signal_rolls_the_trial_back(
    terminal: Terminal, config: Path, shows: bytes, how: str, number: signal.Signals
) -> None:
    if not shows:
        terminal.stall(how)
    with trying(terminal, config) as process:
        terminal.read_until(shows)
        if shows:
            terminal.stall(how)
        await_file(config.with_name("run") / "aks-flex-node/trial.json", process)
        await_looks(process.pid)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 1
    assert config.with_name("end").read_text() == "None 0"


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT] if IS_NIGHTLY else [signal.SIGINT]
)
def test_a_second_signal_ends_a_hanging_rollback_at_once(
    terminal: Terminal, config: Path, number: signal.Signals
) -> None:
    with trying(terminal, config, "hanging") as process:
        terminal.read_until(ASKS)
        process.send_signal(signal.SIGTERM)
        await_file(config.with_name("hangs"), process)
        for _ in range(100):  # a second signal within half a second doesn't count
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                assert process.wait(0.2) == -number
                return
        raise AssertionError("it goes on")
