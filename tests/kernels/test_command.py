"""Test what ``./run kernels`` rejects, and that a missing kernel is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import __main__ as command
from kernels import packages


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
    "import sys; from pathlib import Path; from kernels.test_command import kernel_of; from kernels.guest import run_on"
)


@pytest.mark.kernel
def test_a_killed_command_leaves_no_traced_process(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    run = f"{_RUN}; folder = Path(sys.argv[1]); run_on(kernel_of('sleep 600 >alive & wait', folder), ['true'], folder, {{}})"
    search = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", run, str(tmp_path)], env=os.environ | search)
    with (tmp_path / "alive").open("rb") as alive:
        process.kill()
        assert alive.read() == b""
    process.wait()
