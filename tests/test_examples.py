"""Tests that every example runs and prints the expected output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

# Each example's arguments, one line of its output, and the prefix of each line on its standard error.
RUNS = {
    "azure_node.py": ([], "probes are rewritten on eth0", None),
    "agent.py": (["--try"], "1 routes added; verdict: ok; started kube1", "INFO "),
}
# These files aren't programs; the backends are tested in tests/kernel/test_example_backend.py.
RUN_ELSEWHERE = {"test_agent.py", "ip_command_backend.py", "pyroute2_backend.py"}


@cache
def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*") if path.is_file()} == RUN_ELSEWHERE | set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(name: str) -> None:
    arguments, line, log = RUNS[name]
    done = run(name, *arguments)
    assert done.returncode == 0, done.stderr
    assert [each for each in done.stderr.splitlines() if log is None or not each.startswith(log)] == []
    assert line in done.stdout.splitlines()


def test_the_agents_own_tests_pass_outside_this_project(tmp_path: Path) -> None:
    for name in ("agent.py", "test_agent.py"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_agent.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_agent_names_the_path_of_each_problem(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    routes = [{"destination": "172.16.1.7/24"}, {"destination": "10.9.0.0/16", "gatway": "10.1.0.1"}]
    overlap = {"mode": "LOOSE"}
    document = {"hostRouting": {"staticRoutes": {"enabled": True, "routes": routes}, "routeOverlap": overlap}}
    config.write_text(json.dumps(document))
    done = run("agent.py", str(config))
    assert done.returncode == 78
    assert done.stdout == ""
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [
        "hostRouting.staticRoutes.routes[0].destination",
        "hostRouting.staticRoutes.routes[1].gatway",
        "hostRouting.routeOverlap.mode",
    ]
