"""Tests that the files in deploy/kubernetes fulfil the documented contracts of the tools that use
them.

node-problem-detector's contract is in docs/custom_plugin_monitor.md in its repository. Exit code 0
means OK, 1 means a problem, and anything else means unknown. The output is truncated to
``max_output_length`` bytes. A rule's timeout must not exceed the global one, its path must exist,
and a permanent rule's condition must be listed.

Node Health Check's contract is in its README. A check either returns 0, or calls ``die`` and
returns 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from node import shadowed_kernel
from wanted import config, lose_default_route

import phases
from hostrouting import CheckRouteOverlap, Host, Layout, RouteOverlapError
from hostrouting.testing import FakeSystemd

FOLDER = Path(__file__).parent.parent / "deploy/kubernetes"
PLUGIN = FOLDER / "check_route_overlap.sh"
PLUGIN_CONFIG = FOLDER / "route-overlap.json"

# This PATH contains no programs. The plugin needs only its shell, so no program can hang.
NOTHING_ON_THE_PATH = {"PATH": "/nonexistent"}


def checked(*cidrs: str, default: bool = True) -> Callable[[Path], str]:
    """Return a function that makes the library write its markers and returns their directory."""

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
    "ok": (ok, 0, "every expected CIDR leaves through the node's uplinks"),
    "overlap": (overlap, 1, "OVERLAP: 172.16.0.0/16 routes via ib0, expected eth0"),
    "several": (several, 1, "OVERLAP: 172.16.0.0/16 routes via ib0, expected eth0 (+2)"),
    "no default": (no_default_route, 2, "not judged: no-default-route"),
    "no route": (
        marked(f"NO-ROUTE: {FAILS} has no IPv4 route; expected via eth0\n"),
        1,
        "NO-ROUTE: 10.0.0.0/8 has no IPv4 route",
    ),
    "blackhole": (
        marked(f"BLACKHOLE: {FAILS} is discarded by unreachable; expected via eth0\n"),
        1,
        "BLACKHOLE: 10.0.0.0/8 is discarded by unreachable",
    ),
    "gate off": (
        marked("gate-off: the file /etc/x is there; unchecked\n"),
        2,
        "not judged: gate-off: the file /etc/x is there; unchecked",
    ),
    "empty": (marked(""), 2, "not judged: the marker is empty"),
    "long": (marked("check-failed: " + "x" * 200), 2, None),
    "odd": (marked(f"OVERLAP: {FAILS} routes via " + "ib0,é%s\\n" * 20), 1, None),
    "none": (str, 2, None),
}


@pytest.fixture(params=["dash", "bash", "busybox"])
def plugin(request: pytest.FixtureRequest) -> Callable[[str], subprocess.CompletedProcess[bytes]]:
    """Return a function that runs the plugin by a shell on a directory of markers."""
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"no {request.param} on this machine")
    argv = [program, *(["sh"] if request.param == "busybox" else []), str(PLUGIN)]
    return lambda folder: subprocess.run(
        [*argv, folder], env=NOTHING_ON_THE_PATH, capture_output=True, check=False, timeout=60
    )


@pytest.mark.parametrize(("leave", "code", "line"), PLUGIN_ROWS.values(), ids=PLUGIN_ROWS)
def test_the_plugin_prints_one_short_line(
    tmp_path: Path, plugin: Any, leave: Any, code: int, line: str | None
) -> None:
    done = plugin(leave(tmp_path))
    assert (done.returncode, done.stderr) == (code, b"")
    said, end = done.stdout[:-1], done.stdout[-1:]
    assert end == b"\n"
    assert b"\n" not in said
    assert 0 < len(said) <= 80
    assert line is None or said.decode() == line


@pytest.mark.parametrize("leave", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_a_marker_that_is_not_a_file_gets_no_verdict(
    tmp_path: Path, plugin: Any, leave: Callable[[Path], None]
) -> None:
    folder = ok(tmp_path)
    leave(Path(folder) / "route-overlap.detected")
    done = plugin(folder)
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        b"not judged: the marker isn't a file\n",
        b"",
    )


def test_under_another_name_it_prints_the_same(tmp_path: Path) -> None:
    """Even under another name, the plugin must not report the node as healthy."""
    copy = shutil.copy(PLUGIN, tmp_path / "plugin")
    done = subprocess.run([copy, overlap(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (
        1,
        "OVERLAP: 172.16.0.0/16 routes via ib0, expected eth0\n",
    )


def seconds(span: str) -> int:
    return int(span.removesuffix("s"))


class Detector:
    """A model of node-problem-detector's custom plugin monitor that records the reported
    conditions.

    Args:
        config: the detector's config.
        folder: the directory that replaces the rule's first argument.
    """

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        settings, (self.rule,), (self.default,) = (
            config["pluginConfig"],
            config["rules"],
            config["conditions"],
        )
        assert (config["plugin"], bool(config["source"])) == ("custom", True)
        assert self.rule["type"] == "permanent"
        assert self.rule["condition"] == self.default["type"]
        assert seconds(self.rule["timeout"]) <= seconds(settings["timeout"])
        self.settings, self.folder = settings, folder
        self.reported: list[tuple[str, str, str]] = []
        self.now = ("False", self.default["reason"], self.default["message"])
        if not settings.get("skip_initial_status", False):
            self.reported.append(self.now)
        self.look()

    def look(self) -> None:
        """Do what the detector does at startup and after each ``invoke_interval``."""
        argv = ["sh", str(PLUGIN), str(self.folder)]
        done = subprocess.run(
            argv,
            env=NOTHING_ON_THE_PATH,
            capture_output=True,
            text=True,
            check=False,
            executable="/bin/sh",
        )
        said = done.stdout.strip()[: self.settings["max_output_length"]]
        status = {0: "False", 1: "True"}.get(done.returncode, "Unknown")
        before, reason, message = self.now
        is_other = self.settings["enable_message_change_based_condition_update"] and said != message
        if status == "True" and (before != "True" or reason != self.rule["reason"] or is_other):
            self.now = (status, self.rule["reason"], said)
        elif status != before:
            self.now = (
                status,
                self.default["reason"],
                self.default["message"] if status == "False" else said,
            )
        self.reported.append(self.now)


CONFIG = json.loads(PLUGIN_CONFIG.read_text())


def test_the_detector_sees_a_change_within_a_minute(tmp_path: Path) -> None:
    folder = Path(ok(tmp_path))
    detector = Detector(CONFIG, folder)
    overlap(tmp_path)
    detector.look()
    several(tmp_path)
    detector.look()
    ok(tmp_path)
    detector.look()
    assert [status for status, _, _ in detector.reported] == ["False", "True", "True", "False"]
    assert [reason for _, reason, _ in detector.reported] == [
        *("ExpectedRoutes", "ShadowedCIDR", "ShadowedCIDR", "ExpectedRoutes")
    ]
    assert detector.reported[2][2] == "OVERLAP: 172.16.0.0/16 routes via ib0, expected eth0 (+2)"
    assert (
        seconds(CONFIG["pluginConfig"]["invoke_interval"])
        + seconds(CONFIG["pluginConfig"]["timeout"])
        <= 60
    )


@pytest.mark.parametrize(
    ("leave", "status"), [(overlap, "True"), (no_default_route, "Unknown"), (str, "Unknown")]
)
def test_a_restarted_detector_never_reports_a_sick_node_as_healthy(
    tmp_path: Path, leave: Any, status: str
) -> None:
    """Otherwise a controller watching the condition would immediately remove a taint or close an
    incident.
    """
    folder = Path(leave(tmp_path))
    assert [told for told, _, _ in Detector(CONFIG, folder).reported] == [status]
    without = CONFIG | {"pluginConfig": CONFIG["pluginConfig"] | {"skip_initial_status": False}}
    assert [told for told, _, _ in Detector(without, folder).reported] == ["False", status]


# --- in a cluster ---------------------------------------------------------------------------------


def documents(name: str) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((FOLDER / name).read_text())]


def test_the_detectors_pod_sees_plugin_config_and_markers() -> None:
    (kustomization,) = documents("kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    assert all(
        (FOLDER / name).is_file() for name in (*kustomization["resources"], *generated["files"])
    )
    *_, daemon_set = documents("node-problem-detector.yaml")
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    (rule,) = CONFIG["rules"]
    path, (markers,) = Path(rule["path"]), rule["args"]
    assert mounts[str(path.parent)]["configMap"] == {
        "name": generated["name"],
        "defaultMode": 0o755,
    }
    assert {path.name, PLUGIN_CONFIG.name} == {*generated["files"]}
    assert (
        f"--config.custom-plugin-monitor={path.parent}/{PLUGIN_CONFIG.name}" in container["command"]
    )
    assert mounts[markers]["hostPath"] == {"path": str(Layout().run_dir), "type": "Directory"}
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


def test_the_rule_taints_a_node_until_its_condition_is_false() -> None:
    """According to the CRD, a missing condition counts as good only if the rule has a
    ``defaultStatus``.
    """
    (rule,) = documents("node-readiness-rule.yaml")
    spec = rule["spec"]
    assert spec.keys() == {"nodeSelector", "conditions", "taint", "enforcementMode"}
    assert spec["conditions"] == [
        {"type": CONFIG["conditions"][0]["type"], "requiredStatus": "False"}
    ]
    *_, daemon_set = documents("node-problem-detector.yaml")
    assert spec["nodeSelector"] == {
        "matchLabels": daemon_set["spec"]["template"]["spec"]["nodeSelector"]
    }


# --- Node Health Check ----------------------------------------------------------------------------

# This script stands in for NHC: it sources the file and runs the line from nhc.conf. Here, `die`
# prints its message.
DRIVER = """
function die() { local CODE="$1"; shift; printf 'die %s %s\\n' "$CODE" "$*"; }
source "$1" || exit 70
check_routes_overlap
printf 'returned %s\\n' "$?"
"""


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (overlap, "OVERLAP: 172.16.0.0/16 routes via ib0, expected eth0"),
        (str, "not judged: no marker in"),
        (ok, None),
    ],
)
def test_the_health_check_dies_or_is_silent(tmp_path: Path, leave: Any, said: str | None) -> None:
    argv = ["/bin/bash", "--norc", "-c", DRIVER, "nhc", str(PLUGIN)]
    environment = NOTHING_ON_THE_PATH | {"HOSTROUTING_RUN_DIR": leave(tmp_path)}
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    *died, returned = done.stdout.splitlines()
    assert returned == f"returned {0 if said is None else 1}"
    assert len(died) == (said is not None)
    assert all(
        line.startswith("die 1 check_routes_overlap:  ") and (said or "") in line for line in died
    )


def test_the_health_check_defines_only_its_own_names() -> None:
    """NHC sources all files in its directory into the same shell."""
    names = "compgen -v; compgen -A function"
    script = f"{names}; echo ==; source {PLUGIN}; source {PLUGIN}; {names}"
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", script],
        env=NOTHING_ON_THE_PATH,
        capture_output=True,
        text=True,
        check=True,
    )
    before, _, after = done.stdout.partition("==\n")
    made = set(after.split()) - set(before.split())
    assert made - {"_", "PIPESTATUS"} == {"read_route_overlap", "check_routes_overlap"}


def test_azures_health_check_reads_the_markers_in_its_container(tmp_path: Path) -> None:
    """NHC runs the part of each line after ``||``."""
    lines = [
        line
        for line in (FOLDER / "azurehpc-health-checks.conf").read_text().splitlines()
        if line[:1] != "#"
    ]
    commands = [line.strip().removeprefix("* || ") for line in lines]
    assert commands == ["export HOSTROUTING_RUN_DIR=/mnt/run/aks-flex-node", "check_routes_overlap"]
