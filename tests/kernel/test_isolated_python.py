"""Test that no unit or script runs a hostrouting found only via PYTHONPATH, even though root can run apply with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from command_line import CONFIG, SETUP
from test_refused_files import RUN, SYSTEMCTL

from hostrouting.boot.layout import Layout
from hostrouting.boot.python import python_of

pytestmark = pytest.mark.kernel


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Create a Python without packages."""
    venv.create(tmp_path / "bare", symlinks=True)
    return tmp_path / "bare/bin/python"


def run(tmp_path: Path, python: Path, words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    (tmp_path / "scratch").mkdir()
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"hostRouting": CONFIG["hostRouting"] | more}))
    environment = {"SCRATCH": str(tmp_path / "scratch"), "PYTHON": str(python), "SYSTEMCTL": SYSTEMCTL}
    script = f"{SETUP}set +e\n({RUN})\nstatus=$?\ncat /etc/aks-flex-node/check-route-overlap.sh\nexit $status"
    command = ("bash", "-c", script, "bash", "-m", "hostrouting", *words.split(), str(config))
    return subprocess.run(
        ["unshare", "--net", "--mount", "--", *command],
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_package_by_pythonpath_is_never_rendered(tmp_path: Path, bare: Path) -> None:
    done = run(tmp_path, bare, "apply")
    assert done.returncode == 0, done.stderr
    assert f"{bare} -I finds no hostrouting" in done.stderr
    assert "readonly PYTHON=''\n" in done.stdout


def test_a_package_of_every_environment_is_rendered(tmp_path: Path) -> None:
    done = run(tmp_path, Path(sys.executable), "apply")
    assert done.returncode == 0, done.stderr
    assert "finds no hostrouting" not in done.stderr
    assert f"readonly PYTHON={sys.executable}\n" in done.stdout


def test_a_watcher_by_pythonpath_is_not_installed(tmp_path: Path, bare: Path) -> None:
    done = run(tmp_path, bare, "apply --output json", watch={"enabled": True})
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert "-I finds no hostrouting" in document["error"]
    assert "watch.enabled" in document["hint"]
    assert not document["changed"]


def test_a_missing_python_is_never_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert python_of(Layout()) == ""
