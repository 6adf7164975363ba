"""Test what ``./run kernels`` rejects and records, and that a missing kernel is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from wanted import config

from hostrouting.testing import FakeKernel
from kernels import __main__ as command
from kernels import guest, packages, results
from kernels.hosts import VARIABLE, differences, keep


def test_an_unknown_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["potato"]) == 64
    assert "potato isn't one of bullseye, bookworm, trixie, sid" in capsys.readouterr().err


def test_a_kernel_that_cannot_be_prepared_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(["sid", "--", "tests/kernel/test_wire.py"]) == 1
    assert "mmdebstrap, gcc, busybox, modprobe isn't installed" in capsys.readouterr().err


@pytest.mark.kernel
def test_a_kernel_that_does_not_start_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = kernel_of("echo no leave to trace >&2; exit 1", tmp_path)
    monkeypatch.setattr(command, "find_or_fetch", lambda _: kernel)
    assert command.main(["bullseye"]) == 1
    assert "Linux 7.2.7 ended before the command: no leave to trace" in capsys.readouterr().err


def kernel_of(script: str, folder: Path) -> packages.UserModeLinux:
    program = folder / "linux"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return packages.UserModeLinux(program, folder, folder / "7.2.7", folder / "xstate.so")


_RUN = (
    "import sys; from pathlib import Path; "
    "from kernels.test_command import kernel_of; from kernels.guest import run_on"
)


@pytest.mark.kernel
def test_a_killed_command_leaves_no_traced_process(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    run = (
        f"{_RUN}; folder = Path(sys.argv[1]); "
        "run_on(kernel_of('sleep 600 >alive & wait', folder), ['true'], folder, {})"
    )
    search = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", run, str(tmp_path)], env=os.environ | search)
    with (tmp_path / "alive").open("rb") as alive:
        process.kill()
        assert alive.read() == b""
    process.wait()


@pytest.mark.kernel
def test_a_kernel_that_hangs_while_it_stops_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(guest, "_STOP_SECONDS", 0.1)
    assert (
        guest.run_on(
            kernel_of(f"echo 3 >{tmp_path}/code; sleep 600", tmp_path), ["true"], tmp_path, {}
        )
        == 3
    )


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="one" time="1.4"/>
<testcase classname="tests.test_a.TestTwo" name="runTest" time="1.4">
<skipped type="pytest.skip" message="no nft"/></testcase>
<testcase classname="test_b" name="three" time="0"><error/></testcase>
</testsuite></testsuites>"""


def test_runs_of_files_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    monkeypatch.setattr(results, "RECORD", tmp_path / "record.json")
    found = results.results_of(tmp_path / "junit.xml", {"tests/test_a.py": 7})
    assert results.total(found) == "1 passed, 1 failed, 1 skipped"
    results.record("sid", "7.2.7", {"tests/old.py": found["test_b.py"]}, is_whole=False)
    results.record("sid", "7.2.7", found, is_whole=False)
    files = json.loads(results.RECORD.read_text())["sid"]["files"]
    assert {*files} == {"tests/old.py", "tests/test_a.py", "test_b.py"}
    del files["tests/test_a.py"]["date"]
    assert files["tests/test_a.py"] == {
        "passed": 1,
        "failed": 0,
        "skipped": {"no nft": 1},
        "seconds": 3,
        "snapshots": 7,
    }
    results.record("sid", "7.2.7", found, is_whole=True)
    assert {*json.loads(results.RECORD.read_text())["sid"]["files"]} == {
        "tests/test_a.py",
        "test_b.py",
    }
    results.record("sid", "7.2.8", {"tests/test_a.py": found["tests/test_a.py"]}, is_whole=False)
    assert {*json.loads(results.RECORD.read_text())["sid"]["files"]} == {"tests/test_a.py"}


def test_machines_are_recorded_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(results, "MACHINES", tmp_path / "machines.json")
    results.record_machine("bullseye", {"systemd": "247"}, {"boot": 8})
    results.record_machine("trixie", {"systemd": "257"}, {"boot": 9})
    results.record_machine("bullseye", {"systemd": "247"}, {"boot": 10})
    known = json.loads(results.MACHINES.read_text())
    assert {suite: row["cuts"] for suite, row in known.items()} == {
        "bullseye": {"boot": 10},
        "trixie": {"boot": 9},
    }


def test_a_snapshot_judged_differently_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    kernel = FakeKernel("Linux 5.10.46")
    kernel.add_link("eth0")
    kernel.add_address("eth0", "10.5.0.4/24")
    keep(config(cidrs=["10.5.0.0/24"], uplinks=["eth0"], waitSeconds=0), kernel)
    (path,) = tmp_path.iterdir()
    assert differences(tmp_path) == (Counter({"tests/kernels/test_command.py": 1}), ())
    document = json.loads(path.read_text())
    document["snapshot"]["routes"] = []
    path.write_text(json.dumps(document))
    _, (text,) = differences(tmp_path)
    assert "test_a_snapshot_judged_differently_is_reported" in text
