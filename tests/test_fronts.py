"""The fronts in examples/ keep the contracts of the tools that they are for, as those document them.

node-problem-detector: docs/custom_plugin_monitor.md of its repository (0 OK, 1 a problem, anything else unknown; output
is cut at ``max_output_length`` bytes; a rule's time-out is at most the global one, and its path must exist; a permanent
rule's condition must be listed). Node Health Check: its README (a check returns 0, or calls ``die`` and returns 1).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shadowed import shadowed_kernel
from wanted import config, lose_default_route

import phases
from hostrouting import CheckRouteOverlap, Host, Layout, RouteOverlapError
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parent.parent / "examples"
PLUGIN = EXAMPLES / "node_problem_detector/check_route_overlap.sh"
PLUGIN_CONFIG = EXAMPLES / "node_problem_detector/route-overlap.json"
NHC = EXAMPLES / "node_health_check/hostrouting_routes.nhc"

# No program can be found: what these do, a shell does by itself, so there is nothing that could hang.
NOTHING_ON_THE_PATH = {"PATH": "/nonexistent"}


def checked(*cidrs: str, default: bool = True) -> Callable[[Path], str]:
    """Have the library leave its own markers; the folder."""

    def leave(root: Path) -> str:
        kernel = shadowed_kernel()
        kernel.add_link("ib1")
        kernel.add_address("ib1", "172.17.0.10/16")
        if not default:
            lose_default_route(kernel)
        layout = Layout(root)
        task = CheckRouteOverlap(config(cidrs=cidrs), host=Host(kernel, FakeSystemd(), layout))
        with contextlib.suppress(RouteOverlapError):
            phases.run(task)
        return str(layout.run_dir)

    return leave


ok, overlap = checked("10.96.0.0/12"), checked("172.16.0.0/16")
several = checked("172.16.0.0/16", "172.17.0.0/16", "172.16.5.0/24")
no_default_route = checked("10.96.0.0/12", default=False)


def marked(text: str) -> Callable[[Path], str]:
    def leave(root: Path) -> str:
        (root / "route-overlap.detected").write_text(text)
        return str(root)

    return leave


FAILS = "expected CIDR 10.0.0.0/8 (probe 10.0.0.1)"
PLUGIN_ROWS = {
    "ok": (ok, 0, "every expected CIDR leaves by the default route's interface"),
    "overlap": (overlap, 1, "OVERLAP: 172.16.0.0/16 routes via ib0, expected eth0"),
    "several": (several, 1, "OVERLAP: 172.16.0.0/16 routes via ib0, expected eth0 (+2)"),
    "no default": (no_default_route, 2, "not judged: no-default-route"),
    "no route": (marked(f"NO-ROUTE: {FAILS} has no IPv4 route; expected via eth0\n"), 1, "NO-ROUTE: 10.0.0.0/8 has no IPv4 route"),
    "blackhole": (
        marked(f"BLACKHOLE: {FAILS} is discarded by unreachable; expected via eth0\n"), 1, "BLACKHOLE: 10.0.0.0/8 is discarded by unreachable"
    ),
    "gate off": (marked("gate-off: the file /etc/x is there; unchecked\n"), 2, "not judged: gate-off: the file /etc/x is there; unchecked"),
    "empty": (marked(""), 2, "not judged: the marker is empty"),
    "long": (marked("check-failed: " + "x" * 200), 2, None),
    "odd": (marked(f"OVERLAP: {FAILS} routes via " + "ib0,é%s\\n" * 20), 1, None),
    "none": (str, 2, None),
}  # fmt: skip


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
@pytest.mark.parametrize(("leave", "code", "line"), PLUGIN_ROWS.values(), ids=PLUGIN_ROWS)
def test_the_plugin_says_one_short_line(tmp_path: Path, shell: str, leave: Any, code: int, line: str | None) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} on this machine")
    argv = [program, *(["sh"] if shell == "busybox" else []), str(PLUGIN), leave(tmp_path)]
    done = subprocess.run(argv, env=NOTHING_ON_THE_PATH, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (code, b"")
    said, end = done.stdout[:-1], done.stdout[-1:]
    assert end == b"\n"
    assert b"\n" not in said
    assert 0 < len(said) <= 80
    assert line is None or said.decode() == line


def test_the_plugins_config_is_one_that_the_detector_accepts() -> None:
    document = json.loads(PLUGIN_CONFIG.read_text())
    plugin, rules = document["pluginConfig"], document["rules"]
    assert document["plugin"] == "custom"
    assert document["source"]
    assert set(plugin) <= {
        *("invoke_interval", "timeout", "max_output_length", "concurrency", "skip_initial_status"),
        "enable_message_change_based_condition_update",
    }
    assert plugin["max_output_length"] == 80
    conditions = {condition["type"]: condition for condition in document["conditions"]}
    assert all(set(condition) == {"type", "reason", "message"} for condition in conditions.values())
    for rule in rules:
        assert set(rule) <= {"type", "condition", "reason", "path", "args", "timeout", "invoke_interval"}
        assert rule["type"] in ("permanent", "temporary")
        assert rule["condition"] in conditions
        assert int(rule["timeout"].removesuffix("s")) <= int(plugin["timeout"].removesuffix("s")) <= 3
        assert Path(rule["path"]).name == PLUGIN.name
        assert rule["reason"] != conditions[rule["condition"]]["reason"]
    assert PLUGIN.stat().st_mode & 0o111


# --- Node Health Check ---------------------------------------------------------------------------------------------

# What NHC is to a check: it reads the file, runs the line of nhc.conf, and `die` notes the message and goes on.
DRIVER = """
function die() { local CODE="$1"; shift; printf 'die %s %s\\n' "$CODE" "$*"; }
source "$1" || exit 70
check_routes_overlap
printf 'returned %s\\n' "$?"
"""


def run_nhc(folder: str) -> list[str]:
    bash = shutil.which("bash")
    assert bash is not None
    argv = [bash, "--norc", "-c", DRIVER, "nhc", str(NHC)]
    environment = NOTHING_ON_THE_PATH | {"HOSTROUTING_RUN_DIR": folder}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (ok, None),
        (overlap, "OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) routes via ib0, expected eth0"),
        (several, "(and 2 more)"),
        (no_default_route, "Routes could not be judged:  no-default-route"),
        (marked(""), "the marker is empty"),
        (str, "no marker in"),
    ],
)
def test_the_health_check_dies_or_is_silent(tmp_path: Path, leave: Any, said: str | None) -> None:
    *died, returned = run_nhc(leave(tmp_path))
    assert returned == f"returned {0 if said is None else 1}"
    assert len(died) == (said is not None)
    assert all(line.startswith("die 1 check_routes_overlap:  ") and (said or "") in line for line in died)


def test_the_health_check_can_be_read_twice_and_leaves_no_more_than_its_names() -> None:
    """NHC reads every file of its folder into one shell."""
    bash = shutil.which("bash")
    assert bash is not None
    names = "compgen -v; compgen -A function"
    script = f"{names}; echo ==; source {NHC}; source {NHC}; {names}"
    done = subprocess.run(
        [bash, "--norc", "-c", script], env=NOTHING_ON_THE_PATH, capture_output=True, text=True, check=True
    )
    before, _, after = done.stdout.partition("==\n")
    made = set(after.split()) - set(before.split())
    assert made - {"_", "PIPESTATUS"} == {"HOSTROUTING_RUN_DIR", "check_routes_overlap"}


@pytest.mark.parametrize(("script", "dialect"), [(PLUGIN, "sh"), (NHC, "bash")])
def test_shellcheck_finds_nothing(script: Path, dialect: str) -> None:
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("no shellcheck on this machine")
    done = subprocess.run(
        [program, f"--shell={dialect}", "--exclude=SC2128", str(script)], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
