"""Tests for checks of IPv6 CIDRs, and for reports that cover both families."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network
from typing import Any

import attrs
import pytest
from dual_stack import DEFAULT, RIVAL, entry, host

from hostrouting import (
    Config,
    ExpectedCidr,
    Host,
    Layout,
    OverlapReport,
    RouteOverlap,
    check,
    explain,
)
from hostrouting.cli.pages import explanation_page
from hostrouting.cli.report import page_text
from hostrouting.config.routing import StaticRule
from hostrouting.kernel.fib6 import LABELS
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.family import Family
from hostrouting.model.links import AddressLabel
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap.findings import NoteKind, UnknownReason, Verdict
from hostrouting.overlap.proposals import Fix
from hostrouting.testing import FakeKernel, FakeSystemd
from hostrouting.watch.metrics import check_metrics, exposition

CIDR, OTHER = "fd00:10::/48", "fd00:96::/108"


def judged(snapshot: Snapshot, *cidrs: str | ExpectedCidr, **more: Any) -> OverlapReport:
    config = Config(route_overlap=RouteOverlap(cidrs or (CIDR,)), wait_seconds=0, **more)
    return check(config, host=Host.recorded(snapshot))


def told(report: OverlapReport) -> list[tuple[str, tuple[str, ...], str]]:
    return [
        (str(each.kind), each.devs, " ".join(map(str, each.shadowed))) for each in report.findings
    ]


def proposed(report: OverlapReport) -> list[str]:
    return [str(route) for route in report.fix.routes]


def kinds(report: OverlapReport) -> set[NoteKind]:
    return {note.kind for note in report.notes}


# --- the uplink -----------------------------------------------------------------------------------


def test_a_host_whose_cidrs_leave_through_the_uplink_is_ok() -> None:
    report = judged(host(DEFAULT, addresses=["2001:db8::4/128 dev eth0"]), CIDR, "2001:db8::/64")
    assert (report.verdict, report.default_devs, report.notes[1:]) == (Verdict.OK, ("eth0",), ())
    assert report.notes[0].kind is NoteKind.LOCAL


def test_the_subnet_of_another_interface_shadows_a_part() -> None:
    report = judged(host(DEFAULT, addresses=["fd00:10:0:7::4/64 dev rail0"]))
    assert told(report) == [("OVERLAP", ("rail0",), "fd00:10:0:7::/64")]
    assert proposed(report) == ["fd00:10:0:7::/65 dev eth0", "fd00:10:0:7:8000::/65 dev eth0"]
    assert "in fd00:10:0:7::/64 through eth0" in report.fix.consequences[0]
    assert report.fix.consequences[0].endswith(", also from this interface's own addresses")


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("2001:db8::/65 via 2001:db8::9 dev eth0 metric 512", True),
        ("2001:db8:0:0:8000::/65 via 2001:db8::9 dev eth0", False),
        ("2001:db8::/65 dev eth0", False),
    ],
)
def test_no_entry_inherits_a_gateway_behind_a_gateway(line: str, is_refused: bool) -> None:
    """The default route was added first; the kernel would refuse a new route via its gateway now
    (ip6_route_check_nh).
    """
    default, addresses = (
        "default via 2001:db8::1 dev eth0",
        ["2001:db8::4/64 dev eth0", "fd00:10:0:7::4/64 dev rail0"],
    )
    report = judged(host(default, line, addresses=addresses))
    assert told(report) == [("OVERLAP", ("rail0",), "fd00:10:0:7::/64")]
    assert (proposed(report) == []) is is_refused
    assert [("2001:db8::1 on eth0" in each.reason) for each in report.fix.unfixable] == [
        True
    ] * is_refused


@pytest.mark.parametrize(
    "defaults",
    [
        pytest.param((RIVAL, DEFAULT), id="the first of two equal ones wins"),
        pytest.param((DEFAULT, f"{RIVAL} pref high"), id="a higher preference wins"),
        pytest.param((DEFAULT, RIVAL.replace("1024", "512")), id="a lower metric wins"),
    ],
)
def test_a_default_route_through_another_interface_is_not_an_uplink(
    defaults: tuple[str, ...],
) -> None:
    """Without the IPv4 default route, the check would wrongly accept rail0."""
    report = judged(host(*defaults))
    assert told(report) == [("OVERLAP", ("rail0",), CIDR)]
    assert report.findings[0].expected_devs == ("eth0",)
    assert proposed(report) == [f"{CIDR} dev eth0"]
    assert (NoteKind.CONTESTED in kinds(report)) is ("metric 512" not in defaults[1])


def test_hops_that_networkd_has_joined_are_not_uplinks() -> None:
    both = "default proto ra metric 1024 nexthop via fe80::1 dev eth0 nexthop via fe80::2 dev rail0"
    report = judged(host(both))
    assert told(report) == [("OVERLAP", ("eth0", "rail0"), CIDR)]
    assert proposed(report) == [f"{CIDR} dev eth0"]


def test_a_competing_default_that_may_win_is_a_note() -> None:
    report = judged(host(DEFAULT, RIVAL))
    (note,) = report.notes
    assert (report.verdict, note.kind, note.devs) == (
        Verdict.OK,
        NoteKind.CONTESTED,
        ("eth0", "rail0"),
    )
    assert str(entry(RIVAL)) in note.message
    assert "accept_ra" not in note.message


def test_without_any_default_route_there_is_no_verdict() -> None:
    report = judged(host(f"{DEFAULT} table 100"))
    assert "no unicast ::/0" in report.reason_detail
    assert "another table has one: default via fe80::1 dev eth0 table 100" in report.reason_detail


@pytest.mark.parametrize(
    ("defaults", "devs"),
    [
        ((RIVAL,), ("rail0",)),
        ((DEFAULT, RIVAL.replace("1024", "2048")), ("eth0",)),
        (
            ("default proto static nexthop via fe80::1 dev eth0 nexthop via fe80::2 dev rail0",),
            ("eth0", "rail0"),
        ),
        ((DEFAULT, RIVAL), None),
        (("default proto ra nexthop via fe80::1 dev eth0 nexthop via fe80::2 dev rail0",), None),
    ],
)
def test_without_ipv4_the_own_default_route_decides(
    defaults: tuple[str, ...], devs: tuple[str, ...] | None
) -> None:
    report = judged(host(*defaults, ipv4_default=None))
    if devs is None:
        assert report.reason_kind is UnknownReason.CONTESTED_DEFAULT
        named = 'name the node\'s uplinks: set hostRouting\'s "uplinks": ["eth0"], then:'
        assert named in (report.reason or "")
    else:
        assert (report.verdict, report.default_devs) == (Verdict.OK, devs)


def test_named_uplinks_count_even_if_ipv4_leaves_elsewhere() -> None:
    snapshot = host(DEFAULT, RIVAL, ipv4_default="eth0")
    assert told(judged(snapshot, uplinks=["rail*"])) == [("OVERLAP", ("eth0",), CIDR)]
    assert judged(snapshot, uplinks=["wlan0"]).reason_kind is UnknownReason.NO_UPLINK
    without = judged(host(RIVAL), uplinks=["eth0"])
    assert told(without) == [("OVERLAP", ("rail0",), CIDR)]
    assert (
        "missing is the default route on eth0 (table main has no unicast ::/0"
        in without.fix.unfixable[0].reason
    )


@pytest.mark.parametrize(
    ("lines", "led"),
    [
        (["2001:db8:0:0:8000::/65 via fe80::1 dev eth0"], ["2001:db8:0:0:8000::/65"]),
        (["2001:db8:0:0:8000::/65 via fe80::7 dev eth0"], []),
    ],
)
def test_neighbours_that_are_sent_to_by_the_router_are_noted(
    lines: list[str], led: list[str]
) -> None:
    report = judged(host(DEFAULT, *lines, addresses=["2001:db8::4/64 dev eth0"]), "2001:db8::/32")
    notes = [note for note in report.notes if note.kind is NoteKind.ON_LINK]
    assert [" ".join(map(str, note.ranges)) for note in notes] == led
    assert report.verdict is Verdict.OK


def test_a_tunnel_needs_no_gateway_that_the_kernel_would_refuse() -> None:
    """Only the table that no rule looks up has a default route through the tunnel."""
    snapshot = host(DEFAULT, "default via fd00:2::1 dev rail1 onlink table 100")
    links = tuple(
        attrs.evolve(link, is_point_to_point=link.name == "rail1") for link in snapshot.links
    )
    report = judged(attrs.evolve(snapshot, links=links), ExpectedCidr(CIDR, ("rail1",)))
    assert proposed(report) == [f"{CIDR} onlink dev rail1"]
    (left,) = judged(snapshot, ExpectedCidr(CIDR, ("rail1",))).fix.unfixable
    assert "missing is gateway fd00:2::1" in left.reason


def test_a_bridges_network_is_not_led_to_the_router() -> None:
    """A manager of networks delegates a part of the discarded prefix to the bridge."""
    snapshot = host(DEFAULT, f"unreachable {CIDR}", addresses=["fd00:10:0:7::1/64 dev rail1"])
    assert snapshot.ipv6 is not None
    connected = entry("fd00:10:0:7::/64 dev rail1 proto kernel metric 256")
    routes = tuple(each for each in snapshot.ipv6.routes if each != connected)
    links = tuple(
        attrs.evolve(link, kind="bridge" if link.name == "rail1" else link.kind)
        for link in snapshot.links
    )
    ipv6 = attrs.evolve(snapshot.ipv6, routes=routes)
    report = judged(attrs.evolve(snapshot, links=links, ipv6=ipv6))
    (left,) = report.fix.unfixable
    network = IPv6Network("fd00:10:0:7::/64")
    assert left.parts == (str(network),)
    assert "it lies in the network of rail1, a bridge of this host" in left.reason
    assert report.fix.routes
    assert not any(each.destination.overlaps(network) for each in report.fix.routes)


@pytest.mark.parametrize(
    ("gateway", "findings"),
    [("2001:db8::1", [("GATEWAY", ("eth0",), "2001:db8::1/128")]), ("fe80::1", [])],
)
def test_a_routers_address_on_another_interface_fails_in_the_lan_too(
    gateway: str, findings: list[Any]
) -> None:
    default = f"default via {gateway} dev eth0 proto static metric 1024"
    report = judged(
        host(default, addresses=["2001:db8::4/64 dev eth0", f"{gateway}/128 dev rail1"]),
        "2001:db8::/64",
    )
    assert told(report) == findings


@pytest.mark.parametrize("ipv4_default", [None, "eth0"])
def test_the_own_subnet_without_its_route_needs_no_default_route(ipv4_default: str | None) -> None:
    """The IPv4 default route makes eth0 the uplink of IPv6, too."""
    snapshot = host(addresses=["2001:db8::4/64 dev eth0"], ipv4_default=ipv4_default)
    assert snapshot.ipv6 is not None
    local = tuple(each for each in snapshot.ipv6.routes if each.table == Table.LOCAL)
    snapshot = attrs.evolve(snapshot, ipv6=attrs.evolve(snapshot.ipv6, routes=local))
    report = judged(snapshot, ExpectedCidr("2001:db8::/64", ("eth0",)))
    assert [str(each.kind) for each in report.findings] == ["NO-ROUTE"]
    assert proposed(report) == ["2001:db8::/64 onlink dev eth0"]


def test_a_cidr_may_name_its_interfaces() -> None:
    snapshot = host(DEFAULT, f"{OTHER} via fe80::2 dev rail0")
    assert judged(snapshot, ExpectedCidr(OTHER, ("rail*",))).verdict is Verdict.OK
    assert told(judged(snapshot, ExpectedCidr(CIDR, ("rail*",)))) == [("OVERLAP", ("eth0",), CIDR)]


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "finding", "note"),
    [
        ("unreachable fd00:10:0:8::/64", "BLACKHOLE", None),
        ("prohibit fd00:10:0:8::/64 metric 4294967295", "BLACKHOLE", None),
        ("blackhole fd00:10:0:8::/64 proto bird", "BLACKHOLE", None),
        ("fd00:10:0:8::/64 dev cali0", None, NoteKind.CONTAINER),
        ("fd00:10:0:8::/64 via fe80::2 dev rail0 expires 0sec", None, None),
        ("fd00:10:0:8::/64 from fd00:99::/48 via fe80::2 dev rail0", None, None),
        ("anycast fd00:10:0:8:: dev eth0 table local proto kernel metric 0", None, NoteKind.LOCAL),
        ("local fd00:10:0:8::/64 dev lo table local metric 0", "OVERLAP", None),
        ("throw fd00:10:0:8::/64", "NO-ROUTE", None),
    ],
)
def test_entries_are_distinguished(line: str, finding: str | None, note: NoteKind | None) -> None:
    report = judged(host(DEFAULT, line))
    assert [str(each.kind) for each in report.findings] == ([finding] if finding else [])
    assert kinds(report) == ({note} if note else set())
    if finding == "NO-ROUTE":
        assert "has no IPv6 route; expected via eth0" in report.findings[0].message


def test_special_blocks_are_not_checked() -> None:
    blocks = ("fe80::/10", "ff00::/8", "::ffff:0:0/96", "::/127")
    report = judged(
        host(
            DEFAULT, "ff00::/8 dev rail0 table local", *(f"{block} dev rail0" for block in blocks)
        ),
        "::/0",
    )
    assert report.verdict is Verdict.OK
    report = judged(host(DEFAULT, "::/80 dev rail0"), "::/0")
    (finding,) = report.findings
    assert finding.probe == IPv6Address("::2")
    assert sum(part.num_addresses for part in finding.ranges) == 2**48 - 2**32 - 2


def test_a_rule_that_leads_past_main_gets_one_before_it() -> None:
    rule = Rule(100, table=100, destination=IPv6Network("fd00:10:0:9::/64"))
    report = judged(host(DEFAULT, "default via fe80::2 dev rail0 table 100", rules=[rule]))
    assert told(report) == [("OVERLAP", ("rail0",), "fd00:10:0:9::/64")]
    assert report.fix == Fix(rules=(StaticRule("fd00:10:0:9::/64", 99),))


OWN, FROM_OWN = (
    ["2001:db8::4/128 dev eth0"],
    Rule(900, table=100, source=IPv6Network("2001:db8::4/128")),
)
BY_RAIL0 = "default via fe80::2 dev rail0 table 100"


def test_a_failing_lookup_is_repeated_with_a_source() -> None:
    """A socket can send, although ``ip -6 route get`` reports that the network is unreachable."""
    rules = [FROM_OWN, Rule(1000, RuleAction.UNREACHABLE, table=0, destination=IPv6Network(CIDR))]
    for line, verdict in ((f"{DEFAULT} table 100", Verdict.OK), (BY_RAIL0, Verdict.OVERLAP)):
        assert judged(host(DEFAULT, line, addresses=OWN, rules=rules)).verdict is verdict
    assert [str(each.kind) for each in judged(host(DEFAULT, rules=rules)).findings] == ["NO-ROUTE"]


def test_a_source_that_only_tcp_gets_is_unknown() -> None:
    """Datagrams get a source from the default route, but a rule makes TCP's first lookup fail."""
    rules = [FROM_OWN, Rule(1000, RuleAction.UNREACHABLE, table=0, ip_protocol=6)]
    for lines, verdict in (((DEFAULT,), Verdict.UNKNOWN), ((), Verdict.OK)):
        report = judged(
            host(*lines, f"{DEFAULT} table 100", addresses=OWN, rules=rules), uplinks=["eth0"]
        )
        assert report.verdict is verdict
        assert ("how TCP to fd00:10:: is routed" in report.reason_detail) is (
            verdict is Verdict.UNKNOWN
        )


def test_sources_differ_within_a_cidr() -> None:
    """The kernel selects the source with the longest common prefix; only one has a rule."""
    rule = Rule(100, table=100, source=IPv6Network("fd00:10:0:7::4/128"))
    addresses = [*OWN, "fd00:10:0:7::4/128 dev eth0", "fd00:10:0:8000::4/128 dev eth0"]
    report = judged(host(DEFAULT, BY_RAIL0, addresses=addresses, rules=[rule]))
    connecting, replying = report.findings
    assert (connecting.is_reply, replying.is_reply) == (False, True)
    for finding, network in (
        (connecting, IPv6Network("fd00:10::/49")),
        (replying, IPv6Network("fd00:10:0:8000::/49")),
    ):
        assert finding.source == IPv6Address("fd00:10:0:7::4")
        assert all(is_inside(part, network) for part in finding.ranges)
        assert sum(part.num_addresses for part in finding.ranges) == network.num_addresses - 1


def _two_defaults(**more: Any) -> Snapshot:
    """Return a host with a default route for the sources of each NIC, and CIDR nearer to none of
    them.
    """
    lines = (
        "default from fd00:1::/64 via fe80::1 dev eth0",
        "default from fd00:2::/64 via fe80::2 dev rail0",
    )
    found = host(*lines, addresses=["fd00:1::4/64 dev eth0", "fd00:2::4/64 dev rail0"])
    assert found.ipv6 is not None
    return attrs.evolve(found, ipv6=attrs.evolve(found.ipv6, **more))


def test_labels_of_a_part_of_a_cidr_choose_its_source() -> None:
    part = AddressLabel(IPv6Network("fd00:10:0:7::/64"), 99)
    own = AddressLabel(IPv6Network("fd00:2::/64"), 99)
    report = judged(_two_defaults(labels=(part, own, *LABELS)), uplinks=["eth0"])
    assert told(report)[0] == ("OVERLAP", ("rail0",), "fd00:10:0:7::/64")
    assert judged(_two_defaults(), uplinks=["eth0"]).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [({"labels": None}, "ip addrlabel"), ({"is_ordered": False}, "in which order")],
)
def test_equal_sources_are_unknown_if_a_snapshot_lacks_what_decides(
    lacks: dict[str, Any], reason: str
) -> None:
    report = judged(_two_defaults(**lacks), uplinks=["eth0"])
    assert report.verdict is Verdict.UNKNOWN
    assert reason in report.reason_detail


@pytest.mark.parametrize(
    ("prefix", "verdict"), [("::/1", Verdict.OVERLAP), ("8000::/1", Verdict.OK)]
)
def test_a_packet_without_a_source_matches_a_prefix_that_holds_none(
    prefix: str, verdict: Verdict
) -> None:
    report = judged(host(DEFAULT, f"{CIDR} from {prefix} via fe80::2 dev rail0"))
    assert report.verdict is verdict


@pytest.mark.parametrize("kind", ["multicast", "broadcast"])
def test_a_route_for_many_is_like_a_unicast_one(kind: str) -> None:
    assert judged(host(DEFAULT, f"{kind} {CIDR} dev eth0")).verdict is Verdict.OK
    assert told(judged(host(DEFAULT, f"{kind} {CIDR} dev rail0"))) == [
        ("OVERLAP", ("rail0",), CIDR)
    ]


def test_an_address_that_no_socket_can_send_from_leaves_no_verdict() -> None:
    report = judged(host(DEFAULT, addresses=["::ffff:10.1.0.4/96 dev eth0"]))
    assert report.verdict is Verdict.UNKNOWN
    assert "::ffff:10.1.0.4, an address of eth0" in report.reason_detail


def test_a_silent_router_is_named() -> None:
    lines = (RIVAL, DEFAULT, f"{CIDR} via fe80::2 dev rail0")
    report = judged(host(*lines, silent=[("eth0", "fe80::1")]), uplinks=["eth0"])
    assert told(report) == [("OVERLAP", ("rail0",), CIDR)]
    assert (proposed(report), len(report.fix.unfixable)) == ([], 1)
    assert "fe80::1 on eth0 doesn't answer" in report.fix.unfixable[0].reason


# --- both families --------------------------------------------------------------------------------


def test_the_worst_verdict_counts() -> None:
    mixed = judged(host(RIVAL), CIDR, "10.96.0.0/12", "10.2.0.0/16")
    assert (mixed.verdict, mixed.default_devs) == (Verdict.UNKNOWN, ("eth0",))
    assert [(each.family, each.verdict) for each in mixed.families] == [
        (Family.IPV4, Verdict.OVERLAP),
        (Family.IPV6, Verdict.UNKNOWN),
    ]
    assert [str(each.cidr) for each in mixed.findings] == ["10.2.0.0/16"]
    assert [mixed.verdict_on(cidr) for cidr in mixed.cidrs] == [
        Verdict.UNKNOWN,
        Verdict.OK,
        Verdict.OVERLAP,
    ]
    document = mixed.to_json()
    nothing: dict[str, Any] = {
        "verdict": "unknown",
        "defaultDevs": [],
        "reason": mixed.reason,
        "defaultExpires": None,
    }
    assert document["families"]["ipv6"] == nothing


def test_an_answer_keeps_the_uplinks_of_the_other_family() -> None:
    on, cidrs = host(DEFAULT, f"{CIDR} via fe80::9 dev rail1"), (CIDR, "10.96.0.0/12")
    (asked,) = judged(on, *cidrs).fix.unfixable
    wanted = asked.answers[1]["uplinks"]
    assert wanted == ["eth0", "rail1"]
    assert judged(on, *cidrs, uplinks=wanted).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("defaults", "expires"),
    [
        ((DEFAULT,), None),
        ((f"{DEFAULT} expires 600sec",), 600),
        (
            (
                f"{DEFAULT} expires 600sec",
                "default via fe80::3 dev eth0 proto ra metric 2048 expires 900sec",
            ),
            900,
        ),
        (
            (f"{DEFAULT} expires 600sec", "default via fe80::3 dev eth0 proto static metric 2048"),
            None,
        ),
        (
            (
                f"{DEFAULT} expires 600sec",
                "default via fe80::2 dev rail0 proto ra metric 2048 expires 9000sec",
            ),
            600,
        ),
        (
            (
                f"{DEFAULT} expires 600sec",
                "default via fe80::3 dev eth0 proto ra metric 512 expires 0sec",
            ),
            600,
        ),
    ],
)
def test_a_report_says_how_long_the_default_route_lasts(
    defaults: tuple[str, ...], expires: int | None
) -> None:
    report = judged(host(*defaults))
    assert report.verdict is Verdict.OK
    assert report.to_json()["families"]["ipv6"]["defaultExpires"] == expires
    text = exposition(*check_metrics(report, 1_000))
    sample = 'hostrouting_default_route_expiry_timestamp_seconds{family="ipv6"} '
    found = [
        float(line.removeprefix(sample)) for line in text.splitlines() if line.startswith(sample)
    ]
    assert found == ([] if expires is None else [1_000 + expires])
    explained = explain("fd00:10::1", host=Host.recorded(host(*defaults)))
    lasts = None if defaults == (DEFAULT,) else 600
    assert explained.to_json()["lookups"][0]["expires"] == lasts
    assert ("expires 600sec" in page_text(explanation_page(explained), None)) == (lasts is not None)


def test_a_shorter_lifetime_is_no_other_report() -> None:
    sooner, later = (judged(host(f"{DEFAULT} expires {seconds}sec")) for seconds in (5, 9000))
    assert attrs.evolve(sooner, time=later.time) == later


def test_a_config_without_ipv6_asks_nothing_of_it(layout: Layout, unasked: Any) -> None:
    unasked.family = Family.IPV6
    on = Host(routes=FakeKernel(), units=FakeSystemd(), layout=layout, routes6=unasked)
    report = check(Config(route_overlap=RouteOverlap(["10.0.0.0/8"]), wait_seconds=0), host=on)
    assert (report.families, "families" in report.to_json()) == ((), False)


def test_without_a_backend_or_in_an_old_snapshot_ipv6_is_unknown(layout: Layout) -> None:
    config = Config(route_overlap=RouteOverlap([CIDR]), wait_seconds=0)
    without = check(config, host=Host(routes=FakeKernel(), units=FakeSystemd(), layout=layout))
    old = check(config, host=Host.recorded(attrs.evolve(host(DEFAULT), ipv6=None)))
    assert [report.verdict for report in (without, old)] == [Verdict.UNKNOWN] * 2
    assert "FakeKernel is IPv4-only" in (without.reason or "")
    assert "take the snapshot" in (old.reason or "")
