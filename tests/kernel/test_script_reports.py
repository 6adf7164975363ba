"""What the boot script leaves in route-overlap.json is a report by docs/route-overlap.schema.json too."""

from __future__ import annotations

import json
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from node import build_links, build_node
from scripts import AWKS, Sandbox, awk_or_skip

from hostrouting.boot.render import render_check_route_overlap_script
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType
from hostrouting.model.rules import Rule

if TYPE_CHECKING:
    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/route-overlap.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)


@pytest.fixture(params=AWKS)
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path, awk_or_skip(request.param))


def left(sandbox: Sandbox, cidrs: list[str], *arguments: str, **more: Any) -> dict[str, Any]:
    """The report that a run of the script leaves, once it has been found to be one."""
    words = {key: more.pop(key) for key in ("coverage", "allowed_devs", "foreseen") if key in more}
    sandbox.run(render_check_route_overlap_script(cidrs, "STRICT", wait_seconds=0, **words), *arguments, **more)
    report = json.loads((sandbox.root / "run/aks-flex-node/route-overlap.json").read_text())
    assert [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(report)] == []
    assert isinstance(report, dict)
    return report


def kinds(report: dict[str, Any]) -> set[str]:
    return {item["kind"] for item in (*report["findings"], *report["notes"])}


@pytest.mark.parametrize("coverage", ["EXACT", "PROBE"])
def test_a_report_of_every_failure_and_note_is_one(kernel: NamespaceKernel, sandbox: Sandbox, coverage: str) -> None:
    build_node(kernel)
    kernel.add_link("cali1")
    discards = {
        "10.244.1.0/26": (RouteType.BLACKHOLE, Protocol.BIRD),
        "192.168.4.0/24": (RouteType.UNREACHABLE, Protocol.STATIC),
        "192.168.5.0/24": (RouteType.THROW, Protocol.STATIC),
    }
    routes = [Route(IPv4Network(to), type=kind, protocol=protocol) for to, (kind, protocol) in discards.items()]
    pod = Route(IPv4Network("10.244.2.0/24"), (NextHop("cali1"),), protocol=Protocol.BOOT)
    assert kernel.add([*routes, pod]) == ()
    kernel.add_rule(Rule(99, mark=5, table=100))
    networks = ["172.16.0.0/12", "100.64.0.0/10", *discards, "10.244.2.0/24", "10.2.0.0/24", "172.16.255.255/32"]
    cidrs = [*networks, "10.1.0.4/32"]
    report = left(sandbox, cidrs, coverage=coverage, allowed_devs=["eth1"], foreseen=["100.64.0.0/16"])
    told = {"OVERLAP", "BLACKHOLE", "NO-ROUTE", "LOCAL", "BROADCAST", "CONTAINER", "ALLOWED", "CNI-DISCARD", "RULE"}
    assert told <= kinds(report) <= told | {"FORESEEN"}
    assert (report["verdict"], report["coverage"]) == ("overlap", coverage)
    assert any(finding["fix"] for finding in report["findings"]) is (coverage == "EXACT")


def test_a_report_of_a_node_as_it_should_be_is_one(kernel: NamespaceKernel, sandbox: Sandbox) -> None:
    build_node(kernel)
    assert left(sandbox, ["10.96.0.0/12"])["verdict"] == "ok"


def test_a_report_of_what_could_not_be_judged_is_one(kernel: NamespaceKernel, sandbox: Sandbox) -> None:
    build_links(kernel)
    assert left(sandbox, ["10.96.0.0/12"])["verdict"] == "unknown"


def test_a_report_from_a_network_namespace_of_the_consumers_own_is_one(
    kernel: NamespaceKernel, sandbox: Sandbox
) -> None:
    build_node(kernel)
    inside = ("bash", "-c", 'unshare --net "$@"; exit "$?"', "bash")
    assert kinds(left(sandbox, ["10.96.0.0/12"], "gate", is_host=True, before=inside)) == {"NETNS"}
