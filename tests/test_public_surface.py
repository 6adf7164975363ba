"""What users may import is written down here; a change of it is a change of the contract."""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hostrouting
import hostrouting.azure
import hostrouting.backend
import hostrouting.report
import hostrouting.testing
import phases
import phases.testing

if TYPE_CHECKING:
    from types import ModuleType

PHASES = {
    "CancelScope", "Cancelled", "Clock", "Observer", "Parallel", "PathNote", "Serial", "Status", "SystemClock", "Task",
    "TimedOut", "Timeout", "Undo", "all_or_nothing", "path_of", "run", "run_async", "run_child", "task",
}  # fmt: skip
HOSTROUTING = {
    "Config", "StaticRoutes", "StaticRoute", "RouteOverlap", "ExpectedCidr", "OverlapMode",
    "ConfigureStaticRoutes", "CheckRouteOverlap", "ConfigureWatch", "Configure", "RemoveHostRouting",
    "check", "plan", "explain", "snapshot", "judge", "examine",
    "Host", "Layout", "Snapshot",
    "ConfigureReport", "RoutesReport", "OverlapReport", "Verdict",
    "HostRoutingError", "ConfigError", "FileError", "RouteError", "UnitError", "RouteOverlapError",
}  # fmt: skip
BACKEND = {
    "RouteBackend", "WholeTables", "NetlinkBackend", "UnitManager", "Systemctl",
    "Link", "Address", "Hardware", "Rule", "RuleAction", "Route", "NextHop", "RouteType",
    "Scope", "Table", "Protocol", "Lookup", "RouteFailure", "DEFAULT_DESTINATION",
}  # fmt: skip
REPORT = {
    "ConfigureReport", "WatchReport", "StoppedRun", "OverdueRun", "RoutesReport", "RoutePlan", "Replacement", "Change", "Changes",
    "OverlapReport", "Verdict", "Finding", "FindingKind", "Note", "NoteKind", "Remedy", "Obstacle", "Unmendable",
    "UnknownReason", "Plan", "NextStart", "Explanation", "LookupWay", "Step", "FleetReport", "HostGroup", "GroupFailure",
    "DoctorReport", "CHECKS", "Examination", "ExaminedHost", "Fault", "Severity",
}  # fmt: skip
AZURE = {
    "HostNetworking", "Ipv6Detection", "LoadBalancerProbe", "StaleAzureVnet",
    "ConfigureLoadBalancerProbe", "RemoveLoadBalancerProbe", "ProbeReport", "LoadBalancerProbeError",
    "RemoveStaleAzureVnet", "AzureVnetReport", "AzureVnetError", "CHECKS",
    "ProbeNode",
    "BridgeNode", "NodeState", "Interface", "Neighbour",
}  # fmt: skip
TESTING = {"FakeKernel", "FakeSystemd", "Kernel"}

OFFERED = [
    (phases, PHASES),
    (hostrouting, HOSTROUTING),
    (hostrouting.backend, BACKEND),
    (hostrouting.report, REPORT),
    (hostrouting.azure, AZURE),
    (hostrouting.testing, TESTING),
]


@pytest.mark.parametrize(("module", "names"), OFFERED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_package_offers_exactly_this(module: ModuleType, names: set[str]) -> None:
    assert sorted(module.__all__) == sorted(names)
    assert names <= set(dir(module))
    assert all(getattr(module, name) is not None for name in names)


def test_type_checkers_are_told_of_the_same_names_at_the_same_homes() -> None:
    module: ModuleType = hostrouting
    tree = ast.parse(inspect.getsource(module))
    told = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "phases"
        for alias in node.names
        if alias.asname is not None
    }
    assert set(told) == set(module.__all__)
    for name, home in told.items():
        assert getattr(module, name) is pydoc.locate(home)


def test_the_docstring_lists_every_name_by_use() -> None:
    lines = (hostrouting.__doc__ or "").splitlines()
    assert {word for line in lines for word in re.findall(r"\w+", line)} >= HOSTROUTING
    assert len(lines) <= 60
    assert len(HOSTROUTING) <= 30


def test_the_api_page_begins_with_every_name_at_the_top() -> None:
    page = (Path(__file__).parent.parent / "docs/reference/api.md").read_text()
    listed = re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(HOSTROUTING)
    modules = re.findall(r"^\.\. automodule:: ([\w.]+)$", page, re.MULTILINE)
    assert {module.__name__ for module, _ in OFFERED} - {"hostrouting"} <= set(modules)
    assert {"phases.testing", "hostrouting.testing.conformance"} <= set(modules)
    assert page.rindex(":: RouteOverlapError") < page.index("automodule")


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    assert not hasattr(hostrouting, "FakeKernel")
    with pytest.raises(AttributeError, match="has no attribute 'Remedies'"):
        hostrouting.Remedies  # type: ignore[attr-defined]  # noqa: B018


def imported_beside(folder: Path) -> str:
    """How an import ends with some modules before ours."""
    done = subprocess.run(
        [sys.executable, "-c", "from hostrouting import Config"],
        env=os.environ | {"PYTHONPATH": f"{folder}:{Path(__file__).parent.parent}"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.stderr.splitlines()[-1]


def test_another_distributions_phases_is_told_of_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "phases.py").write_text("def phase(): ...\n")
    said = imported_beside(tmp_path)
    assert said.startswith("ImportError: the package phases is not hostrouting's")
    assert "pip uninstall phases" in said


def test_a_library_that_is_missing_is_not_taken_for_another_phases(tmp_path: Path) -> None:
    (tmp_path / "attrs.py").write_text("raise ModuleNotFoundError('no attrs', name='attrs')\n")
    assert imported_beside(tmp_path) == "ModuleNotFoundError: no attrs"


@pytest.mark.parametrize(
    "value",
    [
        hostrouting.Config(static_routes={"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]}),
        hostrouting.Layout("/srv"),
        hostrouting.Snapshot((), (), (), ()),
        hostrouting.RoutesReport(),
        hostrouting.ConfigError([("a", "b")]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_goes_to_another_process(value: object) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert repr(again) == repr(value)
    assert again == value or isinstance(value, Exception)
