"""Test what ``./run kernels`` rejects, and that a missing kernel is an error."""

from __future__ import annotations

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


def test_a_kernel_that_does_not_start_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "linux"
    broken.write_text("#!/bin/sh\necho no leave to trace >&2\nexit 1\n")
    broken.chmod(0o755)
    kernel = packages.UserModeLinux(broken, tmp_path, tmp_path / "7.2.7", tmp_path / "xstate.so")
    monkeypatch.setattr(command, "find_or_fetch", lambda _: kernel)
    assert command.main(["bullseye"]) == 1
    assert "Linux 7.2.7 ended before the command: no leave to trace" in capsys.readouterr().err
