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
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import phases
from hostrouting import CheckRouteOverlap, Config, Host, Layout, RouteOverlapError
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.testing import FakeKernel, FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parent.parent / "examples"
PLUGIN = EXAMPLES / "node_problem_detector/check_route_overlap.sh"
PLUGIN_CONFIG = EXAMPLES / "node_problem_detector/route-overlap.json"
NHC = EXAMPLES / "node_health_check/hostrouting_routes.nhc"

# No program can be found: what these do, a shell does by itself, so there is nothing that could hang.
NOTHING_ON_THE_PATH = {"PATH": "/nonexistent"}


def leave_markers(root: Path, *cidrs: str, default: bool = True) -> str:
    """Have the library leave its own markers; the folder."""
    kernel = FakeKernel()
    for dev, address in (("eth0", "10.1.0.4/24"), ("ib0", "172.16.0.10/16"), ("ib1", "172.17.0.10/16")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    if default:
        hop = NextHop("eth0", IPv4Address("10.1.0.1"))
        assert not kernel.add([Route(DEFAULT_DESTINATION, (hop,), protocol=Protocol.DHCP)])
    layout = Layout(root)
    overlap = {"expectedCidrs": cidrs, "mode": "STRICT"}
    config = Config.from_mapping({"hostRouting": {"waitSeconds": 0, "routeOverlap": overlap}})
    with contextlib.suppress(RouteOverlapError):
        phases.run(CheckRouteOverlap(config, host=Host(routes=kernel, units=FakeSystemd(), layout=layout)))
    return str(layout.run_dir)


def ok(root: Path) -> str:
    return leave_markers(root, "10.96.0.0/12")


def overlap(root: Path) -> str:
    return leave_markers(root, "172.16.0.0/16")


def several(root: Path) -> str:
    return leave_markers(root, "172.16.0.0/16", "172.17.0.0/16", "172.16.5.0/24")


def no_default_route(root: Path) -> str:
    return leave_markers(root, "10.96.0.0/12", default=False)


def marked(text: str) -> Callable[[Path], str]:
    def leave(root: Path) -> str:
        (root / "route-overlap.detected").write_text(text)
        return str(root)

    return leave


# --- node-problem-detector -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
@pytest.mark.parametrize(
    ("leave", "code", "line"),
    [
        (ok, 0, "every expected CIDR leaves by the default route's interface"),
        (overlap, 1, "OVERLAP: 172.16.0.0/16 routes via ib0, expected eth0"),
        (several, 1, "OVERLAP: 172.16.0.0/16 routes via ib0, expected eth0 (+2)"),
        (no_default_route, 2, "not judged: no-default-route"),
        (
            marked("NO-ROUTE: expected CIDR 10.0.0.0/8 (probe 10.0.0.1) has no IPv4 route; expected via eth0\n"),
            1,
            "NO-ROUTE: 10.0.0.0/8 has no IPv4 route",
        ),
        (
            marked(
                "BLACKHOLE: expected CIDR 10.0.0.0/8 (probe 10.0.0.1) is discarded by unreachable; expected via eth0\n"
            ),
            1,
            "BLACKHOLE: 10.0.0.0/8 is discarded by unreachable",
        ),
        (
            marked("gate-off: the file /etc/x is there; unchecked\n"),
            2,
            "not judged: gate-off: the file /etc/x is there; unchecked",
        ),
        (marked(""), 2, "not judged: the marker is empty"),
        (marked("check-failed: " + "x" * 200), 2, None),
        (marked("OVERLAP: expected CIDR 10.0.0.0/8 (probe 10.0.0.1) routes via " + "ib0,é%s\\n" * 20), 1, None),
        (str, 2, None),
    ],
    ids=["ok", "overlap", "several", "no default", "no route", "blackhole", "gate off", "empty", "long", "odd", "none"],
)
def test_the_plugin_answers_with_0_1_or_2_and_one_line_of_at_most_80_bytes(
    tmp_path: Path, shell: str, leave: Any, code: int, line: str | None
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} on this machine")
    folder = leave(tmp_path)
    argv = [program, *(["sh"] if shell == "busybox" else []), str(PLUGIN), folder]
    done = subprocess.run(argv, env=NOTHING_ON_THE_PATH, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (code, b"")
    assert done.stdout.endswith(b"\n")
    said = done.stdout[:-1]
    assert b"\n" not in said
    assert 0 < len(said) <= 80
    if line is not None:
        assert said.decode() == line


def test_the_plugins_config_is_one_that_the_detector_accepts() -> None:
    document = json.loads(PLUGIN_CONFIG.read_text())
    config, rules = document["pluginConfig"], document["rules"]
    assert document["plugin"] == "custom"
    assert document["source"]
    assert set(config) <= {
        *("invoke_interval", "timeout", "max_output_length", "concurrency", "skip_initial_status"),
        "enable_message_change_based_condition_update",
    }
    assert config["max_output_length"] == 80
    conditions = {condition["type"]: condition for condition in document["conditions"]}
    assert all(set(condition) == {"type", "reason", "message"} for condition in conditions.values())
    for rule in rules:
        assert set(rule) <= {"type", "condition", "reason", "path", "args", "timeout", "invoke_interval"}
        assert rule["type"] in ("permanent", "temporary")
        assert rule["condition"] in conditions
        assert int(rule["timeout"].removesuffix("s")) <= int(config["timeout"].removesuffix("s")) <= 3
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


def test_the_health_check_passes_in_silence(tmp_path: Path) -> None:
    assert run_nhc(ok(tmp_path)) == ["returned 0"]


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (overlap, "OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) routes via ib0, expected eth0"),
        (several, "(and 2 more)"),
        (no_default_route, "Routes could not be judged:  no-default-route"),
        (marked(""), "the marker is empty"),
        (str, "no marker in"),
    ],
)
def test_the_health_check_dies_with_1_and_says_why(tmp_path: Path, leave: Any, said: str) -> None:
    died, returned = run_nhc(leave(tmp_path))
    assert died.startswith("die 1 check_routes_overlap:  ")
    assert said in died
    assert returned == "returned 1"


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
