"""Tests for reports: their JSON Schema, wrong addresses in the config, and one for each group of
many hosts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from html import unescape
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import attrs
import pytest
from backends import Altered
from hypothesis import given
from hypothesis import strategies as st
from node import build_links, shadowed_kernel
from report_schema import OPEN, VALIDATOR, problems
from scenario import play

import phases
from benchmarks.rows import OUTPUTS
from benchmarks.snapshots import CONFIG, KINDS, node, shadowed, write_snapshots
from hostrouting import (
    Config,
    Host,
    HostRoutingError,
    OverlapMode,
    OverlapReport,
    RouteError,
    RouteOverlap,
    Snapshot,
    StaticRoute,
    check,
    judge,
    plan,
)
from hostrouting.boot.bundle import rendered_files
from hostrouting.cli.fleet import fleet_page, fleet_text
from hostrouting.config.routing import Keep, StaticRule
from hostrouting.model.jsonable import in_json
from hostrouting.model.links import Hardware
from hostrouting.model.routes import NextHop, Protocol, Route, Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import FindingKind, NoteKind, Verdict
from hostrouting.overlap.node_ip import notes_on
from hostrouting.overlap.summary import error_text
from hostrouting.report import FleetReport, GroupFailure, UnknownReason
from hostrouting.testing import FakeKernel
from phases.testing import RecordingObserver

EVERYTHING: list[str | dict[str, Any]] = [
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "203.0.113.0/24"),
    {"cidr": "198.18.9.0/24", "devs": ["eth2"]},
]


def host_with_everything() -> FakeKernel:
    """Return a host with each kind of finding and note, except a separate namespace."""
    kernel = FakeKernel()
    kernel.add_link("ib1", hardware=Hardware.INFINIBAND)
    kernel.add_link("br0", kind="bridge")
    kernel.add_link("eth2", master="br0")
    build_links(kernel)
    scenario = """
        link add cali1
        route add default via 10.1.0.1 dev eth0 proto dhcp
        route add default via 10.2.0.1 dev eth1 proto dhcp metric 500
        route add blackhole 10.244.1.0/26 proto bird
        route add 10.244.1.7 dev cali1 proto boot
        route add unreachable 192.168.4.0/24 proto static
        route add throw 192.168.5.0/24 proto static
        route add 192.168.6.0/24 via 10.1.0.9 dev eth0 proto static
        addr add 10.1.0.9/32 dev cali1
        route add 192.168.7.0/24 via 10.1.0.1 dev eth0 src 172.16.0.10 proto static
        route add 192.168.8.0/24 via 10.1.0.1 dev eth0 mtu 9000 proto static
        route add 10.1.0.128/25 via 10.1.0.1 dev eth0 proto static
        link set eth0 carrier off
        addr add 198.18.9.4/24 dev eth2
        route add 203.0.113.0/24 via 172.16.0.1 dev ib0 proto static
        rule add pref 99 fwmark 5 lookup 100
    """
    play(kernel, scenario)
    return kernel


@pytest.fixture(scope="module")
def report_of_all() -> OverlapReport:
    return checked(*EVERYTHING)


def checked(*cidrs: str | dict[str, Any]) -> OverlapReport:
    overlap = {"expectedCidrs": cidrs, "allowedDevs": ["eth1"], "foreseen": ["100.64.0.0/16"]}
    config, kernel = Config(route_overlap=overlap, wait_seconds=0), host_with_everything()
    found = check_overlap(config, kernel, phases.CancelScope())
    notes = notes_on({"node": {"kubelet": {"nodeIP": "10.2.0.4"}}}, found, kernel)
    return attrs.evolve(found, notes=(*found.notes, *notes))


# --- valid reports --------------------------------------------------------------------------------


def test_a_report_with_everything_is_valid(report_of_all: OverlapReport) -> None:
    add = "add the cause to host_with_everything, or to the CIDRs in EVERYTHING"
    assert {finding.kind for finding in report_of_all.findings} == {*FindingKind}, add
    assert {note.kind for note in report_of_all.notes} == {*NoteKind} - {
        NoteKind.NETNS,
        NoteKind.MOVED,  # excludes CONTESTED
        NoteKind.START,  # only if nothing fails
    }, add
    assert any(finding.fix for finding in report_of_all.findings)
    outdated = "if a kind is missing in the schema, run: ./run python docs/make_schema.py"
    assert problems(report_of_all.to_json()) == [], outdated
    for mode in OverlapMode:
        assert problems(attrs.evolve(report_of_all, mode=mode).to_json()) == []


def test_each_kind_of_failure_has_its_own_text(report_of_all: OverlapReport) -> None:
    texts = (
        (FindingKind.OVERLAP, "routes via"),
        (FindingKind.NO_ROUTE, "has no IPv4 route"),
        (FindingKind.BLACKHOLE, "is discarded by"),
        (FindingKind.GATEWAY, "leaves for"),
        (FindingKind.PORT, "leaves through"),
    )
    told = {
        (finding.kind, text)
        for finding in report_of_all.findings
        for _, text in texts
        if f") {text} " in finding.failure.replace(";", " ")
    }
    assert told == {*texts}, "Finding.failure needs a text for the kind"


# --- invalid reports ------------------------------------------------------------------------------


def test_a_missing_key_and_an_extra_one_are_noticed(report_of_all: OverlapReport) -> None:
    document = report_of_all.to_json()
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
        *(
            ("schema", 2),
            ("verdict", "OVERLAP"),
            ("verdict", "ok"),
            ("verdict", "unknown"),
            ("mode", "strict"),
        ),
        *(
            ("defaultDevs", "eth0"),
            ("defaultDevs", []),
            ("defaultDevs", ["eth0", "eth0"]),
            ("reason", "because"),
        ),
        *(("findings", []), ("findings", None), ("notes", [None]), ("reason", "")),
        *(
            ("time", "noon"),
            ("time", "2026-11-20T09:00:00+01:00"),
            ("time", "2026-11-20 09:00:00Z"),
        ),
        # These are keys of a finding.
        *(
            ("kind", "LOCAL"),
            ("cidr", None),
            ("cidr", "10.0.0.0"),
            ("cidr", "10.0.0.256/8"),
            ("cidr", "010.0.0.0/8"),
        ),
        *(
            ("cidr", "10.0.0.0/33"),
            ("cidr", "::/129"),
            ("probe", "10.0.0"),
            ("probe", "10.0.0.0/32"),
            ("devs", None),
        ),
        *(
            ("devs", [""]),
            ("expectedDevs", []),
            ("ranges", []),
            ("ranges", ["10.0.0.1"]),
            ("route", 1),
            ("fix", [{}]),
        ),
        ("fix", [{"destination": "10.0.0.0/9", "gateway": None}]),
        ("fix", [{"destination": "10.0.0.0/9", "metric": -1}]),
        ("message", "said"),
    ],
)
def test_a_contradictory_report_is_invalid(
    report_of_all: OverlapReport, key: str, value: object
) -> None:
    document = report_of_all.to_json()
    (document if key in document else document["findings"][0])[key] = value
    assert problems(document)


def test_a_later_release_may_add_keys_and_kinds(report_of_all: OverlapReport) -> None:
    document = report_of_all.to_json()
    fixed = next(finding for finding in document["findings"] if finding["fix"])
    for place in (document, fixed, document["notes"][0], fixed["fix"][0]):
        place["more"] = 1
    fixed["kind"] = document["notes"][0]["kind"] = "NEW"
    assert OPEN.is_valid(document)
    assert problems(document)
    document["verdict"] = "new"
    assert not OPEN.is_valid(document)


# --- addresses of the node and of DNS -------------------------------------------------------------


SECTION = {"routeOverlap": {"expectedCidrs": ["10.96.0.0/12"], "mode": "STRICT"}, "waitSeconds": 0}


def config_with(node_ip: object = None, dns: object = None, **more: Any) -> dict[str, Any]:
    beside = {"node": {"kubelet": {"nodeIP": node_ip}}, "networking": {"dnsServiceIP": dns}}
    return {"hostRouting": SECTION | more} | beside


FITS: dict[str, tuple[dict[str, Any], list[tuple[str, tuple[str, ...]]]]] = {
    "all fits": (config_with("10.1.0.4", "10.96.0.10"), []),
    "nothing is given": ({"hostRouting": SECTION}, []),
    "on no interface": (config_with("10.1.0.5"), [("node.kubelet.nodeIP", ())]),
    "on another interface than the uplink": (
        config_with("172.16.0.10"),
        [("node.kubelet.nodeIP", ("ib0",))],
    ),
    "on a named uplink": (config_with("172.16.0.10", uplinks=["eth0", "ib0"]), []),
    "DNS isn't expected": (config_with(dns="172.20.0.10"), [("networking.dnsServiceIP", ())]),
    "neither fits": (
        config_with("10.1.0.5", "10.1.0.5"),
        [("node.kubelet.nodeIP", ()), ("networking.dnsServiceIP", ())],
    ),
}


@pytest.mark.parametrize(("given", "told"), FITS.values(), ids=FITS)
def test_a_wrong_node_address_is_a_note(
    given: dict[str, Any], told: list[tuple[str, tuple[str, ...]]], host: Host
) -> None:
    config = Config.from_mapping(given)
    report = check(config, host=host, document=given)
    notes = [note for note in report.notes if note.kind is NoteKind.NODE_IP]
    assert [(note.message.partition(":")[0], note.devs) for note in notes] == told
    assert report.verdict is Verdict.OK
    assert all(
        note.message.endswith("; set it to 10.1.0.4, which eth0 has") for note in notes if note.devs
    )


def test_an_unknown_verdict_on_ipv6_hides_no_note(host: Host) -> None:
    document = config_with(
        "10.1.0.5", routeOverlap={"expectedCidrs": ["10.96.0.0/12", "fd00:10::/48"]}
    )
    report = check(Config.from_mapping(document), host=host, document=document)
    assert (report.verdict, [note.kind for note in report.notes]) == (
        Verdict.UNKNOWN,
        [NoteKind.NODE_IP],
    )


def test_an_address_that_cannot_be_compared_is_a_note(host: Host) -> None:
    def fail() -> None:
        raise RouteError("can't list the addresses: interrupted")

    report = check(Config.from_mapping(config_with()), host=host)
    (note,) = notes_on(config_with("10.1.0.5"), report, Altered(host.routes, facts=fail))
    assert (note.kind, "interrupted" in note.message) == (NoteKind.NODE_IP, True)


# --- other shapes of the document, and where the addresses are used -------------------------------

words = st.text("01.:/afé\n", max_size=4) | st.sampled_from(
    ["10.1.0.4", "10.1.0.4/24", "fd00::1", "0.0.0.0", "10.1.0.4,fd00::1"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["node", "kubelet", "nodeIP", "networking", "dnsServiceIP"]),
            inner,
            max_size=3,
        )
    ),
)


@given(values)
def test_an_unknown_shape_is_ignored(value: object) -> None:
    kernel = shadowed_kernel()
    found = check_overlap(
        Config(route_overlap=RouteOverlap(["10.1.0.0/16"])), kernel, phases.CancelScope()
    )
    assert [*notes_on(value, found, kernel)] == []
    assert [*notes_on({"node": {"kubelet": {"nodeIP": value}}}, found, kernel)] == []


def test_the_other_keys_are_used_for_nothing_else(host: Host) -> None:
    """Tokens are stored next to the addresses, so config, mapping, plan and files must not depend
    on those keys.
    """
    secret = config_with("10.1.0.5", "172.20.0.10") | {"azure": {"bootstrapToken": "s3cr3t"}}
    with_them, without = Config.from_mapping(secret), Config.from_mapping({"hostRouting": SECTION})
    assert with_them == without
    assert with_them.to_mapping() == without.to_mapping()
    assert repr(with_them) == repr(without)
    assert rendered_files(with_them, host.layout) == rendered_files(without, host.layout)
    assert plan(with_them, host=host).to_json() == plan(without, host=host).to_json()
    assert "s3cr3t" not in json.dumps(check(with_them, host=host, document=secret).to_json())


def test_the_command_line_reads_them(run: Any, host: Host, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_with("10.1.0.5")))
    code, out, _ = run("check", path)
    assert (code, "note: NODE-IP: node.kubelet.nodeIP: 10.1.0.5" in out) == (0, True)
    notes = json.loads(run("check", path, "--output", "json")[1])["notes"]
    assert [note["kind"] for note in notes] == ["NODE-IP"]
    snapshot = tmp_path / "node.json"
    snapshot.write_text(run("snapshot")[1])
    assert "NODE-IP" not in run("check", path, "--snapshot", snapshot)[1]
    path.write_text(json.dumps({"hostRouting": SECTION, "node": "10.1.0.5", "networking": [3]}))
    code, out, err = run("check", path)
    assert (code, "NODE-IP" in out, err) == (0, False, "")


# --- many hosts -----------------------------------------------------------------------------------


CONFIG_ = Config.from_mapping(CONFIG)
COUNT = 6 * len(KINDS)
SHADOWED = GroupFailure(
    FindingKind.OVERLAP, IPv4Network("172.16.0.0/16"), tuple(f"ib{number}" for number in range(8))
)


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_snapshots(tmp_path_factory.mktemp("snapshots"), COUNT)


@pytest.fixture(scope="module")
def report(snapshots: list[Path]) -> FleetReport:
    with ThreadPoolExecutor(1) as one:
        return judge(snapshots, CONFIG_, one)


def document(kind: str, number: int = 0) -> dict[str, Any]:
    return KINDS[kind](node(number)).to_document()


def without_pods(number: int) -> Snapshot:
    """Return a healthy node with few interfaces, to save time."""
    fine = node(number)
    routes = tuple(
        each for each in fine.routes if each.destination.prefixlen < 32 or each.table == Table.LOCAL
    )
    return attrs.evolve(fine, routes=routes, links=fine.links[:10])


def without_times(report: FleetReport) -> list[Any]:
    return [
        attrs.evolve(group, report=attrs.evolve(group.report, time="")) for group in report.groups
    ]


def test_each_kind_is_a_group_with_its_hosts(report: FleetReport, snapshots: list[Path]) -> None:
    assert report.counts == {Verdict.OK: 6, Verdict.OVERLAP: 18, Verdict.UNKNOWN: 12}
    groups = {group.hosts[0]: group for group in report.groups}
    assert len(groups) == len(KINDS)
    for number, _ in enumerate(KINDS):
        of = range(number, COUNT, len(KINDS))
        names = tuple(snapshots[each].stem for each in of)
        assert groups[names[0]].hosts == names
        # A truncated file has no host name.
        own = {snapshots[each].stem: f"aks-h200-{each:05}" for each in of if number < 5}
        assert groups[names[0]].own_names == own


def test_a_group_has_its_failures_and_their_fix(report: FleetReport) -> None:
    found = {group.failures: group for group in report.groups}
    halves = (StaticRoute("172.16.0.0/17"), StaticRoute("172.16.128.0/17"))
    assert found[SHADOWED,].fix == halves
    assert found[SHADOWED,].report.host == "aks-h200-00001"
    discarded = GroupFailure(FindingKind.BLACKHOLE, IPv4Network("10.96.0.0/12"), ())
    more = (StaticRoute("10.96.0.0/13"), StaticRoute("10.104.0.0/13"))
    assert found[discarded,].fix == more
    past_main = found[GroupFailure(FindingKind.OVERLAP, IPv4Network("10.96.0.0/12"), ("ib7",)),]
    assert (past_main.fix, past_main.keep) == ((), ())
    assert past_main.rules == (StaticRule("10.100.0.0/16", 99),)
    assert found[SHADOWED,].keep == (Keep("ib*"),)
    assert {failure.expected_devs for each in found for failure in each} == {("eth0",)}


def test_a_fix_contains_what_apply_removes() -> None:
    """CONFIG lists no routes, so ``apply`` would remove ours."""
    removed = (StaticRoute("172.16.0.0/17"), StaticRoute("172.16.128.0/17"))
    hosts = [KINDS[kind](node(0, Protocol.HOSTROUTING)) for kind in ("discarded", "past-main")]
    discarded, past_main = judge(hosts, CONFIG_, Counting()).groups
    assert discarded.fix == (StaticRoute("10.96.0.0/13"), StaticRoute("10.104.0.0/13"), *removed)
    assert (past_main.fix, past_main.keep) == (removed, (Keep("ib*"),))
    assert past_main.rules == (StaticRule("10.100.0.0/16", 99),)


def test_a_group_names_its_hosts_by_the_expected_interface_if_these_differ() -> None:
    """The kernel numbers another node's uplink otherwise; the failure and its fix are the same."""
    shadowed = document("shadowed")
    other = json.loads(json.dumps(shadowed).replace('"eth0"', '"ens3"'))
    (group,) = judge([shadowed, other, shadowed], CONFIG_, Counting()).groups
    assert len(group.hosts) == 3
    assert group.failures == (SHADOWED,)
    assert group.failures[0].expected_devs == ()
    first, other, third = group.hosts
    assert group.failures[0].expecting == {("eth0",): (first, third), ("ens3",): (other,)}


def test_healthy_groups_come_first_then_failures_by_size() -> None:
    """Snapshots without a host name are numbered."""
    kinds = ["cut-off", "discarded", "no-default-route", "shadowed", "shadowed", "fixed"]
    unnamed = [
        document(kind) | {"host": None} | ({"links": {}} if kind == "cut-off" else {})
        for kind in kinds
    ]
    groups = judge(unnamed, CONFIG_, Counting()).groups
    assert [(group.verdict, *group.hosts) for group in groups] == [
        (Verdict.OK, "snapshot 6"),
        (Verdict.OVERLAP, "snapshot 4", "snapshot 5"),
        (Verdict.OVERLAP, "snapshot 2"),
        (Verdict.UNKNOWN, "snapshot 1"),
        (Verdict.UNKNOWN, "snapshot 3"),
    ]


def test_all_cores_give_the_same_report(report: FleetReport, snapshots: list[Path]) -> None:
    assert without_times(judge(map(str, snapshots), CONFIG_)) == without_times(report)


@pytest.mark.ci
def test_a_dask_cluster_gives_the_same_report(report: FleetReport, snapshots: list[Path]) -> None:
    distributed = pytest.importorskip("distributed", reason="distributed isn't installed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = judge(snapshots, CONFIG_, client.get_executor())
    assert without_times(found) == without_times(report)


# --- broken snapshots -----------------------------------------------------------------------------


def test_a_broken_file_is_only_a_row(
    tmp_path: Path, snapshots: list[Path], report: FleetReport
) -> None:
    """Broken and hostile files affect no other verdict."""
    texts = {
        "empty": "",
        "list": "[1]",
        "odd": json.dumps(document("fixed") | {"routes": [{"dst": "10.0.0.0/99"}]}),
        "large": "[" + "{}," * (1 << 19) + "{}]",
        "deep": "[" * 500_000,
        "deep-inside": '{"links": ' + '{"a":' * 300_000,
        "numbers": '{"links": [' + "9" * 500_000 + "]}",
        "lists": '{"links": ' + "[],".join("[" * 1000) + "]" * 1000 + "}",
        "binary": "\x00\xff" * 100_000,
        "names": json.dumps(document("fixed") | {"host": "a\nb"}),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.json").write_text(text, encoding="latin-1")
    os.mkfifo(tmp_path / "pipe.json")
    paths = [tmp_path / f"{name}.json" for name in ("missing", "pipe", *texts)]
    found = judge([*paths, tmp_path, *snapshots], CONFIG_, max_mib=1)
    broken = {*(path.stem for path in paths), tmp_path.name}
    told = {
        (group.verdict, group.report.reason_kind, group.failures): group for group in found.groups
    }
    for group in report.groups:
        hosts = told[group.verdict, group.report.reason_kind, group.failures].hosts
        assert tuple(name for name in hosts if name not in broken) == group.hosts
    unread = told[Verdict.UNKNOWN, UnknownReason.NO_SNAPSHOT, ()]
    assert broken <= {*unread.hosts}
    assert unread.report.reason == "no-snapshot: there is no such file"


def broken_document(**values: object) -> str:
    return json.dumps(document("fixed") | values)


HALF = {"destination": "172.16.128.0/17"}

# Files with one reason each; some are what a failed ssh, another tool or another command writes.
BROKEN = {
    "empty": ("", "is empty"),
    "blank": (" \n", "is empty"),
    "text": ("ssh: connect to host node port 22: Connection refused", "is not JSON: Expecting"),
    "cut": ('{"links": [', "is not JSON: Expecting value: line 1 column 12"),
    "nan": ('{"links": NaN}', "is not JSON: NaN"),
    "bom": ("\ufeff{}", "byte order mark"),
    "compressed": ("BZh91AY&SY", "is compressed with bzip2"),
    "deep": ("[" * 200_000, "nested too deeply"),
    "digits": ("9" * 5000, "thousands of digits"),
    "large": (" " * (1 << 20) + "{}", "larger than 1 MiB"),
    "list": ("[1]", "expected an object"),
    "nothing": ("{}", "links: is missing"),
    "schema": ('{"schema": 2}', "is not a schema"),
    "odd-route": (broken_document(routes=[{"dst": "10.0.0.0/99"}]), "routes[0].dst"),
    "odd-rule": (broken_document(rules=[{"priority": -1}]), "rules[0].priority"),
    "odd-link": (broken_document(links=[{"ifindex": "one"}]), "links[0].ifindex"),
    "odd-address": (broken_document(addresses=[{"ifname": 1}]), "addresses[0].ifname"),
    "odd-host": (broken_document(host="a\nb"), "host: "),
}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Return a folder with files that are broken, each in another way."""
    for name, (text, _) in BROKEN.items():
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    return tmp_path


def test_each_broken_file_has_its_own_reason(broken: Path) -> None:
    (group,) = judge(sorted(broken.iterdir()), CONFIG_, Counting(), max_mib=1).groups
    told = {host: each.reason for each in group.reasons for host in each.hosts}
    assert told.keys() == {*group.hosts} == BROKEN.keys()
    for name, (_, why) in BROKEN.items():
        assert told[name].startswith("no-snapshot: ")
        assert why in told[name], name
        assert str(broken) not in told[name]
    shared = {each.hosts for each in group.reasons if len(each.hosts) > 1}
    assert shared == {("blank", "empty")}
    assert [in_json(each) for each in group.reasons] == group.to_json()["reasons"]


def test_a_page_has_the_reason_of_each_broken_file(broken: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 isn't installed")
    report = judge(sorted(broken.iterdir()), CONFIG_, Counting(), max_mib=1)
    page = unescape(fleet_page(report))
    text = fleet_text(report, None)
    for each in report.groups[0].reasons:
        assert each.reason in page
        assert f"{', '.join(each.hosts)}: {each.reason.partition(': ')[2]}" in text


def test_a_page_says_apply_where_the_config_lists_the_fix() -> None:
    pytest.importorskip("jinja2", reason="jinja2 isn't installed")
    routes = {"enabled": True, "routes": [{"destination": "172.16.0.0/17"}, HALF]}
    listed = {"hostRouting": CONFIG["hostRouting"] | {"staticRoutes": routes}}
    report = judge([document("shadowed")], Config.from_mapping(listed), Counting())
    for text in (unescape(fleet_page(report)), fleet_text(report, None)):
        assert "CONFIG already lists what fixes this (2 routes), and the kernel lacks it" in text


def test_a_reason_names_a_few_of_many_problems(tmp_path: Path) -> None:
    odd = document("fixed") | {"routes": [{"dst": "10.0.0.0/99"}] * 300}
    (group,) = judge([odd], CONFIG_, Counting()).groups
    assert "; routes[3].dst: " in (group.report.reason or "")
    assert (group.report.reason or "").endswith(" and 296 more")


@attrs.frozen
class Hostile(dict[str, Any]):
    """A snapshot that harms the process that reads it."""

    harm: Callable[[], object]

    def items(self) -> Any:
        self.harm()
        return document("fixed").items()

    def __reduce__(self) -> tuple[Any, ...]:
        return Hostile, (self.harm,)


def spin() -> None:
    while True:
        pass


def take_two_gib() -> None:
    bytearray(2 << 30)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


HARMS = {
    "snapshot 4": (spin, "more than 0.6 s of processor time"),
    "snapshot 5": (take_two_gib, "MemoryError"),
    "snapshot 12": (die, "process that judged it died"),
}


def test_a_snapshot_that_harms_a_worker_is_a_row(snapshots: list[Path]) -> None:
    """Other snapshots still get their verdicts, and hosts keep their order."""
    fine = snapshots[:: len(KINDS)]
    first, second, last = (Hostile(harm) for harm, _ in HARMS.values())
    ours, broken = judge([*fine[:3], first, second, *fine[3:] * 2, last], CONFIG_, max_mib=1).groups
    assert ours.hosts == tuple(
        f"node-{number:05}" for number in (*range(0, 18, 6), *[*range(18, 36, 6)] * 2)
    )
    assert broken.report.reason_kind is UnknownReason.CHECK_FAILED
    told = {host: each.reason for each in broken.reasons for host in each.hosts}
    assert told.keys() == HARMS.keys()
    assert all(why in told[host] for host, (_, why) in HARMS.items())


# --- any number of snapshots ----------------------------------------------------------------------


class Counting(Executor):
    """An executor that runs a job only when its result is awaited, and counts waiting jobs."""

    def __init__(self) -> None:
        self.waiting: list[Future[Any]] = []
        self.most = self.done = 0

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def result(timeout: float | None = None) -> Any:
            del timeout
            self.waiting.remove(future)
            self.done += 1
            return function(*args, **kwargs)

        future.result = result  # type: ignore[method-assign]
        self.waiting.append(future)
        self.most = max(self.most, len(self.waiting))
        return future


def test_only_as_much_is_submitted_as_workers_need(snapshots: list[Path]) -> None:
    executor = Counting()

    def many() -> Iterator[Path]:
        for number in range(1100):
            assert number <= 16 * (executor.done + 64)
            yield snapshots[5]  # this snapshot is broken, so it takes little time

    (group,) = judge(many(), CONFIG_, executor).groups
    assert len(group.hosts) == 1100
    assert executor.most == 64


def test_it_ends_with_its_scope_and_cancels_pending_jobs(snapshots: list[Path]) -> None:
    executor, scope = Counting(), phases.CancelScope()

    def some() -> Iterator[Path]:
        for number in range(16 * 70):
            if number == 16 * 66:
                scope.cancel("enough")
            yield snapshots[5]

    with pytest.raises(phases.Cancelled, match="enough"):
        judge(some(), CONFIG_, executor, scope=scope)
    assert executor.waiting
    assert all(future.cancelled() for future in executor.waiting)


class Endless:
    """A snapshot that keeps a worker busy for ten minutes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (600,)


def test_its_scope_ends_workers_in_the_middle_of_a_snapshot() -> None:
    start = time.monotonic()
    with pytest.raises(phases.TimedOut):
        judge([Endless()], CONFIG_, scope=phases.CancelScope(timeout=1))  # type: ignore[list-item]
    assert time.monotonic() - start < 60


def test_no_worker_outlives_a_killed_process(snapshots: list[Path]) -> None:
    """A worker can't print the report on its next snapshot, and ends."""
    script = (
        "import sys; from hostrouting import Config, judge; judge(sys.argv[1:] * 1000, Config())"
    )
    with subprocess.Popen([sys.executable, "-c", script, snapshots[0]]) as process:
        children = Path(f"/proc/{process.pid}/task")
        while not (
            workers := [
                pid for each in children.glob("*/children") for pid in each.read_text().split()
            ]
        ):
            time.sleep(0.02)
        process.kill()
    end = time.monotonic() + 60
    while any(Path("/proc", pid).exists() for pid in workers):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_worker_that_dies_is_an_error_of_ours(snapshots: list[Path]) -> None:
    with (
        ProcessPoolExecutor(1, initializer=os._exit, initargs=(1,)) as dying,
        pytest.raises(HostRoutingError, match="can't judge the snapshots"),
    ):
        judge(snapshots, CONFIG_, dying)


def test_it_reports_progress(snapshots: list[Path]) -> None:
    broken, observer = snapshots[5:6] * 40, RecordingObserver()
    task = phases.task("judge")(lambda scope: judge(broken, CONFIG_, Counting(), scope=scope))
    phases.run(task, observers=[observer])
    assert [event[3] for event in observer.events if event[0] == "progress"] == [
        pytest.approx(done / 40) for done in range(1, 41)
    ]


def test_only_the_first_groups_have_pictures() -> None:
    def shadowed(number: int) -> dict[str, Any]:
        route = Route(
            IPv4Network("10.96.0.0/16"), (NextHop(f"eth{number + 1}"),), protocol=Protocol.STATIC
        )
        return attrs.evolve(fine, routes=(*fine.routes, route)).to_document()

    fine = without_pods(0)
    pytest.importorskip("jinja2", reason="jinja2 isn't installed")
    found = judge(map(shadowed, range(52)), CONFIG_, Counting())
    groups = found.groups
    assert len(groups) == 52
    assert fleet_page(found).count("<img ") == 50
    assert all(
        group.failures[0].devs == (f"eth{number + 1}",) for number, group in enumerate(groups)
    )


def calls_of(run: Callable[[], object]) -> int:
    """Return how many functions and generators a function calls."""
    count = 0

    def counted(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_an_error_names_the_first_of_many_failures() -> None:
    recorded, overlap = shadowed(100)
    report = check(Config(route_overlap=overlap), host=Host.recorded(recorded))
    lines = error_text(report).splitlines()
    assert lines[:17] == [*(each.message for each in report.findings[:16]), "and 84 more"]
    assert len(lines) < 24


@pytest.mark.parametrize("output", OUTPUTS)
def test_the_cost_grows_with_the_number_of_failing_cidrs(output: str) -> None:
    def cost(count: int) -> int:
        recorded, overlap = shadowed(count)
        host, config = Host.recorded(recorded), Config(route_overlap=overlap)
        return calls_of(lambda: OUTPUTS[output](check(config, host=host)))

    cost(1)  # imports what only a failing check needs
    assert cost(200) < 4.5 * cost(50)


def test_it_is_json(report: FleetReport) -> None:
    told = json.loads(json.dumps(report.to_json()))
    assert told["counts"] == {"ok": 6, "overlap": 18, "unknown": 12}
    assert [problems(each["report"]) for each in told["groups"]] == [[]] * len(KINDS)
    group = told["groups"][1]
    keys = (
        "verdict failures fix rules keep hosts report causes reasons uncompared ownNames decisions "
        "cautions renamed wouldFail unfixable hints unapplied unlisted"
    )
    assert list(group) == keys.split()
    assert group["failures"] == [
        {
            "kind": "OVERLAP",
            "cidr": "172.16.0.0/16",
            "devs": list(SHADOWED.devs),
            "expectedDevs": ["eth0"],
            "expecting": [],
        }
    ]
    assert group["fix"] == [{"destination": "172.16.0.0/17"}, {"destination": "172.16.128.0/17"}]
    assert (group["hosts"][0], group["report"]["host"]) == ("node-00001", "aks-h200-00001")
    assert group["ownNames"]["node-00001"] == "aks-h200-00001"
    assert group["reasons"] == []
    cut_off = next(each for each in told["groups"] if "node-00005" in each["hosts"])
    assert "node-00005" in cut_off["reasons"][0]["hosts"]
