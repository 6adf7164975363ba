"""Tests that hostrouting/overlap/route-overlap.schema.json describes every key in a report."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from jsonschema import Draft202012Validator
from node import build_links

import phases
from hostrouting import Config, Host, Layout, OverlapMode, OverlapReport, StaticRoute
from hostrouting.model.jsonable import json_key
from hostrouting.model.links import Hardware
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import FindingKind, NoteKind, Verdict
from hostrouting.overlap.node_ip import NodeAddresses
from hostrouting.testing import FakeKernel, FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = json.loads((Path(__file__).parents[3] / "hostrouting/overlap/route-overlap.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)

GATEWAY, SECOND_GATEWAY = IPv4Address("10.1.0.1"), IPv4Address("10.2.0.1")
EVERYTHING = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "203.0.113.0/24"]


def host_with_everything() -> FakeKernel:
    """Return a host with every kind of finding and note, except for a separate network namespace."""
    kernel = FakeKernel()
    kernel.add_link("ib1", hardware=Hardware.INFINIBAND)
    build_links(kernel)
    kernel.add_link("cali1")
    routes = [
        Route(DEFAULT_DESTINATION, (NextHop("eth0", GATEWAY),), protocol=Protocol.DHCP),
        Route(DEFAULT_DESTINATION, (NextHop("eth1", SECOND_GATEWAY),), protocol=Protocol.DHCP, metric=500),
        Route(IPv4Network("10.244.1.0/26"), type=RouteType.BLACKHOLE, protocol=Protocol.BIRD),
        Route(IPv4Network("10.244.1.7/32"), (NextHop("cali1"),), protocol=Protocol.BOOT),
        Route(IPv4Network("192.168.4.0/24"), type=RouteType.UNREACHABLE, protocol=Protocol.STATIC),
        Route(IPv4Network("192.168.5.0/24"), type=RouteType.THROW, protocol=Protocol.STATIC),
        Route(IPv4Network("203.0.113.0/24"), (NextHop("ib0", IPv4Address("172.16.0.1")),), protocol=Protocol.STATIC),
    ]
    assert kernel.add(routes) == ()
    kernel.add_rule(Rule(99, mark=5, table=100))
    return kernel


@pytest.fixture
def kernel() -> FakeKernel:
    return host_with_everything()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> OverlapReport:
    return checked(host_with_everything(), tmp_path_factory.mktemp("host"), EVERYTHING)


def checked(kernel: FakeKernel, root: Path, cidrs: list[str], **more: Any) -> OverlapReport:
    overlap = {"expectedCidrs": cidrs, "allowedDevs": ["eth1"], "foreseen": ["100.64.0.0/16"], **more}
    config = Config.from_mapping({"hostRouting": {"routeOverlap": overlap, "waitSeconds": 0}})
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))
    return check_overlap(config, host.routes, phases.CancelScope(), given=NodeAddresses(IPv4Address("10.2.0.4")))


def problems(document: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


def objects(value: object) -> Iterator[dict[str, Any]]:
    """Yield all objects in a document."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(inner)


# --- the schema itself -------------------------------------------------------------------------------------------


def test_it_describes_every_key_and_allows_no_others() -> None:
    described = [each for each in objects(SCHEMA) if each.get("type") == "object"]
    assert len(described) == 8
    for each in described:
        assert each["additionalProperties"] is False
        for key, value in each["properties"].items():
            assert value["description"].endswith("."), key


def test_it_requires_every_key_that_a_config_may_not_omit() -> None:
    for each in (SCHEMA, SCHEMA["$defs"]["finding"], SCHEMA["$defs"]["note"]):
        assert each["required"] == [key for key in each["properties"] if key != "families"]
    route = SCHEMA["$defs"]["staticRoute"]
    assert route["required"] == ["destination"]
    assert list(route["properties"]) == [json_key(field.name) for field in attrs.fields(StaticRoute)]


def test_it_has_a_reports_keys_in_the_same_order(report: OverlapReport) -> None:
    document = report.to_json()
    assert list(document) == SCHEMA["required"]
    assert list(document["findings"][0]) == SCHEMA["$defs"]["finding"]["required"]
    assert list(document["notes"][0]) == SCHEMA["$defs"]["note"]["required"]


# --- valid reports -----------------------------------------------------------------------------------------------


def test_a_report_with_everything_is_valid(report: OverlapReport) -> None:
    assert {finding.kind for finding in report.findings} == {*FindingKind}
    assert {note.kind for note in report.notes} == {*NoteKind} - {NoteKind.NETNS}
    assert any(finding.fix for finding in report.findings)
    assert problems(report.to_json()) == []
    for mode in OverlapMode:
        assert problems(attrs.evolve(report, mode=mode).to_json()) == []


def test_a_report_of_a_healthy_node_is_valid(kernel: FakeKernel, tmp_path: Path) -> None:
    for cidrs, verdict in (([], Verdict.UNKNOWN), (["192.0.2.0/24"], Verdict.OK)):
        report = checked(kernel, tmp_path, cidrs)
        assert report.verdict is verdict
        assert problems(report.to_json()) == []


# --- invalid reports ---------------------------------------------------------------------------------------------


def test_a_missing_key_and_an_extra_one_are_noticed(report: OverlapReport) -> None:
    document = report.to_json()
    fixed = next(finding for finding in document["findings"] if finding["fix"])
    for place in (document, fixed, document["notes"][0], fixed["fix"][0]):
        for key in (*place, "more"):
            before = dict(place)
            place.pop(key, None)
            if key == "more":
                place[key] = 1
            assert not VALIDATOR.is_valid(document) or key == "gateway", key
            place.clear()
            place.update(before)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("schema", 2), ("verdict", "OVERLAP"), ("verdict", "ok"), ("verdict", "unknown"), ("mode", "strict")),
        *(("defaultDevs", "eth0"), ("defaultDevs", []), ("defaultDevs", ["eth0", "eth0"]), ("reason", "because")),
        *(("findings", []), ("findings", None), ("notes", [None]), ("reason", "")),
        *(("time", None), ("time", "2026-11-20T09:00:00+01:00"), ("time", "2026-11-20 09:00:00Z")),
    ],
)
def test_a_contradictory_report_is_invalid(report: OverlapReport, key: str, value: object) -> None:
    assert problems(report.to_json() | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("kind", "LOCAL"), ("cidr", None), ("cidr", "10.0.0.0"), ("cidr", "10.0.0.256/8"), ("cidr", "010.0.0.0/8")),
        *(("cidr", "10.0.0.0/33"), ("cidr", "::/129"), ("probe", "10.0.0"), ("probe", "10.0.0.0/32"), ("devs", None)),
        *(("devs", [""]), ("expectedDevs", []), ("ranges", []), ("ranges", ["10.0.0.1"]), ("route", 1), ("fix", [{}])),
        ("fix", [{"destination": "10.0.0.0/9", "gateway": None}]),
        ("fix", [{"destination": "10.0.0.0/9", "metric": -1}]),
        ("message", "said"),
    ],
)
def test_a_finding_with_unknown_words_is_invalid(report: OverlapReport, key: str, value: object) -> None:
    document = report.to_json()
    document["findings"][0][key] = value
    assert problems(document)
