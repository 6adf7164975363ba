"""Tests for ``explain`` and for ``judge``, whose HTML page is tested in test_fleet_page.py."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from file_trees import write_file
from hypothesis import given
from hypothesis import strategies as st
from node import GATEWAY, NICS, OWN, SECOND_GATEWAY, add_nics

import hostrouting
from benchmarks.snapshots import CONFIG, node, write_snapshots
from hostrouting import Config, Host, RouteOverlap, check
from hostrouting.backend import NextHop, Route, Rule, Write, read_default_routes
from hostrouting.kernel.rules import NO_SOURCE, TCP, UDP, Flow, matches, why_unmet
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.routes import DEFAULT_DESTINATION, Protocol, RouteType
from hostrouting.model.rules import RuleAction
from hostrouting.testing import FakeKernel
from hostrouting.testing.strategies import policy_rules

pytestmark = pytest.mark.usefixtures("judged_here")

ADDRESS = "172.16.3.4"
_ADDRESSES = st.integers(0, 2**32 - 1).map(IPv4Address)


@pytest.fixture
def kernel() -> FakeKernel:
    """Return a node where packets with the first interface's address leave through the second
    interface.
    """
    made = FakeKernel()
    add_nics(made, eth0=NICS["eth0"], eth1=NICS["eth1"])
    by_eth1 = Route(DEFAULT_DESTINATION, (NextHop("eth1", SECOND_GATEWAY),), table=100)
    assert not made.write(
        Write.ADD, [Route(DEFAULT_DESTINATION, (NextHop("eth0", GATEWAY),)), by_eth1]
    )
    made.add_rule(Rule(100, table=100, source=IPv4Network(OWN)))
    return made


@pytest.fixture
def told(run: Any) -> Callable[..., Any]:
    """Return a function that explains an address and returns the document."""

    def call(*words: object) -> Any:
        code, out, _ = run("explain", *words, "--output", "json")
        document = json.loads(out)
        assert code == {True: 0, False: 1, None: 2}[document["isAsExpected"]]
        return document

    return call


PAGE = """\
172.16.3.4, in no expected CIDR; expected is eth0
the kernel evaluates the rules from the top: after ↓ it continues; at → an entry decides
1. no source is chosen yet (UDP)
↓ 0:      from all lookup local: table local has no entry for it
↓ 100:    from 10.1.0.4 lookup 100: it applies to packets from 10.1.0.4 and no source is chosen yet
→ 32766:  from all lookup main
          default via 10.1.0.1 dev eth0 proto hostrouting
✓         by eth0, from 10.1.0.4: as expected
2. a connection now has the source 10.1.0.4, and the kernel looks it up again (UDP)
↓ 0:      from all lookup local: table local has no entry for it
→ 100:    from 10.1.0.4 lookup 100
          default via 10.2.0.1 dev eth1 table 100 proto hostrouting
✗         by eth1: not as expected
"""


def test_the_page(run: Any) -> None:
    assert run("explain", ADDRESS) == (1, PAGE, "")


def test_a_failure_has_the_words_of_the_check(told: Any, run: Any, tmp_path: Path) -> None:
    section = {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]}}
    path = write_file(tmp_path / "c.json", json.dumps({"hostRouting": section}))
    failure = (
        "OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.3.4) routes via eth1, expected eth0"
        " for connections from 10.1.0.4"
    )
    assert run("explain", ADDRESS, path)[1].splitlines()[-1] == failure
    (finding,) = told(ADDRESS, path)["findings"]
    assert finding["message"].startswith(failure)


@pytest.mark.parametrize(
    ("address", "note"),
    [("172.16.3.4", "SOURCE"), ("10.2.0.4", "LOCAL"), ("172.16.3.9", "CONTAINER")],
)
def test_what_the_check_notes_is_not_called_fine(
    run: Any, kernel: FakeKernel, tmp_path: Path, address: str, note: str
) -> None:
    """Connections to a pod leave through the uplink, this host has an address, or a pod has it."""
    kernel.del_rule(Rule(100, table=100, source=IPv4Network(OWN)))
    if note == "SOURCE":
        kernel.add_rule(Rule(100, table=101, source=IPv4Network(OWN)))
    kernel.add_link("cali1")
    to_uplink = Route(DEFAULT_DESTINATION, (NextHop("eth0", GATEWAY),), table=101)
    to_pods = Route(IPv4Network("172.16.3.0/28"), (NextHop("cali1"),))
    assert not kernel.write(Write.ADD, [to_uplink, to_pods])
    section = {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16", "10.2.0.0/16"]}}
    path = write_file(tmp_path / "c.json", json.dumps({"hostRouting": section}))
    code, out, _ = run("explain", address, path)
    rows = out.splitlines()
    assert (code, rows[-1].split()[:2]) == (0, ["note:", f"{note}:"])
    assert not [row for row in rows if row.startswith("✓")]
    assert [row for row in rows if row.startswith("•")]


@pytest.mark.parametrize(
    ("cidrs", "expected"),
    [
        ([{"cidr": "172.16.0.0/16", "devs": ["eth1", "ib*"]}], "eth1,ib*"),
        (["172.16.0.0/12", {"cidr": "172.16.0.0/16", "devs": ["eth1"]}], "eth0 and eth1"),
    ],
)
def test_the_header_names_the_devs_of_a_cidr(
    run: Any, tmp_path: Path, cidrs: list[Any], expected: str
) -> None:
    section = {"routeOverlap": {"expectedCidrs": cidrs}}
    path = write_file(tmp_path / "c.json", json.dumps({"hostRouting": section}))
    assert run("explain", ADDRESS, path)[1].splitlines()[0].endswith(f"; expected is {expected}")


def test_without_a_default_route_lookups_are_still_shown(
    told: Any, run: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    kernel.write(Write.DELETE, read_default_routes(kernel))
    kernel.write(
        Write.ADD,
        [Route(IPv4Network("172.16.0.0/16"), (NextHop("eth0", IPv4Address("10.1.0.1")),))],
    )
    live = told(ADDRESS)
    first, second = live["lookups"]
    assert (live["isAsExpected"], live["defaultDevs"]) == (None, [])
    assert (first["devs"], first["sources"], first["kind"]) == (["eth0"], ["10.1.0.4"], None)
    assert (second["source"], second["devs"], second["kind"]) == ("10.1.0.4", ["eth1"], None)
    snapshot = write_file(tmp_path / "node.json", take_snapshot(kernel).to_text())
    assert told(ADDRESS, "--snapshot", snapshot) == live
    assert [way["kind"] for way in told("203.0.113.1")["lookups"]] == ["NO-ROUTE"]
    code, out, _ = run("explain", ADDRESS)
    assert code == 2
    assert [line.split()[1:3] for line in out.splitlines() if line.startswith("?")] == [
        ["by", "eth0,"],
        ["by", "eth1"],
    ]


def test_a_lookup_for_the_source_is_not_a_failure(
    told: Any, host: Host, kernel: FakeKernel
) -> None:
    """Table 7 only determines TCP's source address.

    The second lookup uses that address and leads to eth0.
    """
    kernel.add_rule(Rule(10, source=IPv4Network("10.1.0.4/32")))
    kernel.add_rule(Rule(20, table=7, ip_protocol=TCP))
    hop, source = NextHop("eth1", IPv4Address("10.2.0.1")), IPv4Address("10.1.0.4")
    assert not kernel.write(Write.ADD, [Route(DEFAULT_DESTINATION, (hop,), source=source, table=7)])
    found = told(ADDRESS)
    assert [
        (each["devs"], each["sends"]) for each in found["lookups"] if each["protocol"] == "tcp"
    ] == [
        (["eth1"], False),
        (["eth0"], True),
    ]
    assert found["isAsExpected"]
    assert check(Config(route_overlap=RouteOverlap([f"{ADDRESS}/32"])), host=host).verdict == "ok"


def test_the_configs_expectation_counts(told: Any, write: Any) -> None:
    cidrs = ["172.16.0.0/16", {"cidr": "172.16.3.0/24", "devs": ["eth[01]"]}, "10.96.0.0/12"]
    overlap = {"expectedCidrs": cidrs, "allowedDevs": ["eth1"]}
    found = told(ADDRESS, write({"hostRouting": {"routeOverlap": overlap}}))
    assert found["expected"] == ["172.16.0.0/16", "172.16.3.0/24 by eth[01]"]
    assert [way["kind"] for way in found["lookups"]] == [None, "ALLOWED"]


@pytest.mark.parametrize(
    ("rule", "passed"),
    [
        (Rule(7, RuleAction.NOP), "it does nothing"),
        (Rule(7, RuleAction.GOTO, goto=100), "it jumps to preference 100"),
        (Rule(7, table=9), "table 9 has no entry for it"),
        (
            Rule(7, table=8),
            (
                "throw 172.16.0.0/16 table 8 proto hostrouting "
                "makes the kernel continue with the next rule"
            ),
        ),
        (Rule(7, suppress_prefix_length=0), None),
        (Rule(7, mark=1), "it applies to packets with a mark"),
        (Rule(7, is_inverted=True), "it applies to all packets except these"),
        (Rule(7, RuleAction.PROHIBIT), None),
    ],
)
def test_the_reason_for_passing_a_rule(
    told: Any, kernel: FakeKernel, rule: Rule, passed: str | None
) -> None:
    kernel.write(Write.ADD, [Route(IPv4Network("172.16.0.0/16"), type=RouteType.THROW, table=8)])
    kernel.add_rule(rule)
    (step,) = (step for step in told(ADDRESS)["lookups"][0]["steps"] if step["preference"] == 7)
    if rule.suppress_prefix_length is None:
        assert step["passed"] == passed
    else:
        assert step["route"] == "default via 10.1.0.1 dev eth0 proto hostrouting"
        assert step["passed"].startswith(step["route"])


@given(policy_rules(), _ADDRESSES, st.one_of(st.just(NO_SOURCE), _ADDRESSES), st.booleans())
def test_an_unmet_rule_has_a_reason(
    rule: Rule, address: IPv4Address, source: IPv4Address, is_tcp: bool
) -> None:
    flow = Flow(address, source, TCP if is_tcp else UDP)
    if not matches(rule, flow):
        assert why_unmet(rule, flow)
    assert str(rule)


# --- judge ----------------------------------------------------------------------------------------


ORDER = ["fixed", "shadowed", "discarded", "past-main", "no-default-route", "cut-off"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    write_snapshots(folder, 12)
    return folder


@pytest.fixture
def judge(
    folder: Path, run: Callable[..., tuple[int, str, str]]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs judge on snapshots of some kinds and returns the exit code,
    stdout and stderr.
    """

    def call(kinds: list[str], *words: object) -> tuple[int, str, str]:
        paths = [
            folder / f"node-{ORDER.index(kind) + 6 * each:05}.json"
            for kind in kinds
            for each in (0, 1)
        ]
        return run("judge", folder / "config.json", *paths, *words)

    return call


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["fixed"], 0),
        (["fixed", "shadowed"], 1),
        (["fixed", "no-default-route"], 2),
        (["cut-off"], 2),
        (["cut-off", "shadowed"], 1),
    ],
)
def test_it_exits_with_0_1_or_2(judge: Any, kinds: list[str], code: int) -> None:
    found, _, err = judge(kinds)
    assert (found, err) == (code, "")


def test_the_page_has_a_row_for_each_group(judge: Any) -> None:
    page = """\
6 snapshots: 2 ok, 2 overlap, 2 unknown
✓ 2  ok
     node-00000, node-00006
     own names: node-00000 is aks-h200-00000, node-00006 is aks-h200-00006
✗ 2  OVERLAP 172.16.0.0/16 by ib0,ib1,ib2,ib3,ib4,ib5,ib6,ib7, expected eth0
     fix: add to hostRouting.staticRoutes.routes: {"destination": "172.16.0.0/17"}, {"destination": "172.16.128.0/17"}
     fix: add to hostRouting.staticRoutes.keep: "ib*"
     caution: the node then sends to neighbours of ib0-ib7 in 172.16.0.0/16 through eth0, except from these interfaces' own addresses
     node-00001, node-00007
     own names: node-00001 is aks-h200-00001, node-00007 is aks-h200-00007
? 2  unknown: no-snapshot
     node-00005, node-00011
     node-00005: is not JSON: …
     node-00011: is not JSON: …
"""  # noqa: E501
    _, out, _ = judge(["fixed", "shadowed", "cut-off"])
    assert re.sub("is not JSON: .+", "is not JSON: …", out) == page


def test_a_config_without_the_installed_routes_comes_with_a_caution() -> None:
    (group,) = hostrouting.judge(
        [node(0, Protocol.HOSTROUTING)], Config.from_mapping(CONFIG)
    ).groups
    failure, effect, removal = group.cautions
    assert group.would_fail
    assert removal.startswith("hostrouting apply CONFIG removes installed routes that CONFIG ")
    assert failure.startswith("in STRICT mode, hostrouting apply would fail, and the next start ")
    assert effect == (
        "after hostrouting apply, packets no longer go to 172.16.0.0/16 through eth0,"
        " but through ib0"
    )


def test_one_snapshot_is_one_host(judge: Any, folder: Path) -> None:
    assert judge([], folder / "node-00000.json")[1].startswith("1 snapshot: 1 ok, ")


def test_a_missing_library_is_named_before_the_work(
    judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, out, err = judge(["fixed"], "--output", "html")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "hostrouting: --output html needs jinja2, which isn't installed"


def test_json_output_is_one_document(judge: Any) -> None:
    code, out, _ = judge(ORDER, "--output", "json")
    assert (code, json.loads(out)["counts"]) == (1, {"ok": 2, "overlap": 6, "unknown": 4})
