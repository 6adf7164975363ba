"""Tests that a verified node stays on its uplink, whatever default routes come later: with the
tasks and the functions that change nothing. tests/kernel/test_verified_script.py has the scripts.
"""

from __future__ import annotations

import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import attrs
import pytest
from node import add_nics, default_route
from wanted import config, ours

import phases
from hostrouting import (
    Config,
    Configure,
    ConfigureReport,
    FileError,
    Host,
    Layout,
    OverlapMode,
    OverlapReport,
    RemoveHostRouting,
    RouteError,
    RouteOverlapError,
    Snapshot,
    check,
    examine,
    explain,
    judge,
    plan,
    snapshot,
)
from hostrouting.backend import (
    Facts,
    ForwardingBackend,
    NextHop,
    Route,
    RouteBackend,
    Write,
    read_default_routes,
)
from hostrouting.cli import main
from hostrouting.cli.checking import _unfixed
from hostrouting.doctor.check_types import Severity
from hostrouting.model.verified_uplinks import VerifiedUplink
from hostrouting.overlap.check import check_families
from hostrouting.overlap.findings import NoteKind, UnknownReason, Verdict
from hostrouting.overlap.proposals import Fix
from hostrouting.overlap.summary import reasons
from hostrouting.routes.plan import plan_or_raise
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeKernel, FakeSystemd
from hostrouting.watch._repair import plan_repair
from phases.testing import FakeClock

TIME = 1790000000
SINCE = "2026-09-21T14:13:20Z"
MAC = "00:0d:3a:00:00:01"
OTHER_MAC = "00:0d:3a:00:00:02"
HALVES = ("172.16.0.0/17", "172.16.128.0/17")
STRICT = config(*HALVES, cidrs=["172.16.0.0/16"])
CLUSTER = "172.16.1.53"

ETH1 = default_route(NextHop("eth1", IPv4Address("10.9.0.1")), metric=50)
WG0 = default_route(NextHop("wg0"), metric=0, scope=253)


@attrs.frozen
class Node:
    """A host that was verified with eth0 as its uplink."""

    kernel: FakeKernel
    layout: Layout

    @property
    def host(self) -> Host:
        return Host(self.kernel, FakeSystemd(self.layout), self.layout)

    def apply(self, wanted: Config = STRICT, **more: Any) -> ConfigureReport:
        return phases.run(Configure(wanted, host=self.host), **more)

    def add_default(self, *routes: Route) -> None:
        for dev in {dev for route in routes for dev in route.devs} - self.devs:
            self.kernel.add_link(dev, mac=OTHER_MAC if dev == "eth1" else None)
            self.kernel.add_address(dev, "10.9.0.5/24" if dev == "eth1" else "10.200.0.2/24")
        assert not self.kernel.write(Write.ADD, routes)

    @property
    def devs(self) -> set[str]:
        return {link.name for link in self.kernel.facts().links}

    def drop_default(self) -> None:
        assert not self.kernel.write(Write.DELETE, [default_route()])

    def rename(self, name: str, mac: str | None = MAC) -> None:
        """Replace eth0 by another link with its address and default route."""
        self.kernel.del_link("eth0")
        self.kernel.add_link(name, mac=mac)
        self.kernel.add_address(name, "10.1.0.4/24")
        assert not self.kernel.write(
            Write.ADD, [default_route(NextHop(name, IPv4Address("10.1.0.1")))]
        )

    @property
    def record(self) -> str | None:
        path = self.layout.verified
        return path.read_text() if path.exists() else None

    def devs_of_ours(self) -> set[str]:
        return {dev for route in ours(self.kernel) for dev in route.devs}


def build(root: Path) -> Node:
    kernel = FakeKernel()
    kernel.add_link("eth0", mac=MAC)
    kernel.add_address("eth0", "10.1.0.4/24")
    add_nics(kernel, ib0="172.16.0.10/16")
    assert not kernel.write(Write.ADD, [default_route()])
    return Node(kernel, Layout(root))


class _FailsAfterTheCheck(ForwardingBackend):
    """A backend on which the second read of the facts after the check fails once."""

    def __init__(self, inner: RouteBackend, marker: Path) -> None:
        super().__init__(inner)
        self._marker = marker
        self._reads = 0

    def facts(self) -> Facts:
        if self._marker.exists():
            self._reads += 1
            if self._reads == 2:
                raise RouteError("connection lost")
        return super().facts()


def test_a_record_that_cannot_be_proven_fails_the_run(tmp_path: Path) -> None:
    built = build(tmp_path)
    backend = _FailsAfterTheCheck(built.kernel, built.layout.marker_ok)
    failing = Host(backend, FakeSystemd(built.layout), built.layout)
    with pytest.raises(RouteError) as caught:
        phases.run(Configure(STRICT, host=failing))
    assert "connection lost" in caught.value.message
    assert (built.record, caught.value.hint) == (None, "try again")
    built.apply()
    assert built.record == f"eth0 {MAC}\n"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    built = build(tmp_path)
    built.apply()
    assert built.record == f"eth0 {MAC}\n"
    return built


# --- another default route ------------------------------------------------------------------------


def vpn_beside(node: Node) -> None:
    node.add_default(WG0)


def dhcp_beside(node: Node) -> None:
    node.add_default(ETH1)


def vpn_instead(node: Node) -> None:
    node.add_default(WG0)
    node.drop_default()


def dhcp_instead(node: Node) -> None:
    node.add_default(ETH1)
    node.drop_default()


BESIDE = [vpn_beside, dhcp_beside]
INSTEAD = [vpn_instead, dhcp_instead]


@pytest.mark.parametrize("move", [*BESIDE, *INSTEAD])
def test_another_default_route_moves_no_route_and_is_not_expected(node: Node, move: Any) -> None:
    move(node)
    report = check(STRICT, host=node.host)
    assert (report.verdict, report.default_devs) == (Verdict.OK, ("eth0",))
    (note,) = (note for note in report.notes if note.kind is NoteKind.MOVED)
    (dev,) = note.devs
    moved = f"the default route has moved from eth0, with which the check passed, to {dev}"
    assert note.message.startswith(moved)
    assert f'"uplinks": ["{dev}"]' in note.message
    assert explain(CLUSTER, STRICT, host=node.host).is_as_expected
    assert not explain("8.8.8.8", STRICT, host=node.host).is_as_expected
    found = examine(STRICT, host=node.host).findings
    assert "moved" in {finding.kind for finding in found}
    if move in BESIDE:
        assert not plan(STRICT, host=node.host).changes
        assert not node.apply().changes
    assert node.devs_of_ours() == {"eth0"}
    assert node.record == f"eth0 {MAC}\n"


@pytest.mark.parametrize("move", INSTEAD)
def test_without_a_default_route_on_the_uplink_no_route_moves(node: Node, move: Any) -> None:
    move(node)
    os.utime(node.layout.verified, (0, TIME))
    planned = plan(STRICT, host=node.host)
    assert planned.missing is not None
    assert planned.missing.startswith("the default route on eth0 ")
    assert not planned.next_start.is_admitted
    with pytest.raises(RouteError, match="waiting for the default route on eth0") as caught:
        node.apply()
    assert caught.value.hint.endswith(
        f"\neth0 is the uplink since {SINCE}; if another one is wanted now:"
        ' set hostRouting\'s "uplinks": ["NAME"], then: hostrouting apply'
    )
    assert node.devs_of_ours() == {"eth0"}


@pytest.mark.parametrize("move", [*BESIDE, *INSTEAD])
def test_what_the_other_default_route_takes_is_an_overlap(node: Node, move: Any) -> None:
    wider = config(*HALVES, cidrs=["172.16.0.0/16", "10.96.0.0/12"])
    node.apply(wider)
    move(node)
    report = check(wider, host=node.host)
    (finding,) = report.findings
    assert (str(finding.cidr), finding.expected_devs) == ("10.96.0.0/12", ("eth0",))


def test_named_uplinks_are_what_the_operator_wants_next(node: Node) -> None:
    vpn_beside(node)
    named = attrs.evolve(STRICT, uplinks=("wg0",))
    report = node.apply(named)
    assert report.overlap.default_devs == ("wg0",)
    assert node.devs_of_ours() == {"wg0"}
    assert node.record == "wg0\n"


def test_without_the_record_the_default_route_counts_again(node: Node) -> None:
    dhcp_beside(node)
    node.layout.verified.unlink()
    node.apply()
    assert node.record == f"eth1 {OTHER_MAC}\n"
    assert node.devs_of_ours() == {"eth1"}


def test_a_line_of_the_record_that_no_reader_takes_is_no_change(node: Node) -> None:
    dhcp_beside(node)
    edited = f"{node.record}\n# edited\n"
    node.layout.verified.write_text(edited)
    assert not plan(STRICT, host=node.host).changes
    assert not node.apply().changes
    assert node.record == edited


# --- the uplink changes ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mac"), [("ens3", MAC), ("eth0", OTHER_MAC), ("ens3", OTHER_MAC)])
def test_a_renamed_redeployed_or_replaced_uplink_holds_nothing(
    node: Node, name: str, mac: str
) -> None:
    node.rename(name, mac)
    assert check(attrs.evolve(STRICT, wait_seconds=0), host=node.host).default_devs == (name,)
    node.apply()
    assert node.devs_of_ours() == {name}
    assert node.record == f"{name} {mac}\n"


def test_a_renamed_uplink_wins_over_a_better_default_route(node: Node) -> None:
    dhcp_beside(node)
    node.rename("ens3")
    node.apply()
    assert node.devs_of_ours() == {"ens3"}


def swap_names(node: Node) -> None:
    """Swap the names of two NICs. The other one's default route wins."""
    node.kernel.del_link("eth0")
    node.kernel.add_link("eth0", mac=OTHER_MAC)
    node.kernel.add_address("eth0", "10.9.0.5/24")
    node.kernel.add_link("eth1", mac=MAC)
    node.kernel.add_address("eth1", "10.1.0.4/24")
    wrong = default_route(NextHop("eth0", IPv4Address("10.9.0.1")), metric=50)
    right = default_route(NextHop("eth1", IPv4Address("10.1.0.1")), metric=100)
    assert not node.kernel.write(Write.ADD, [wrong, right])


def test_swapped_names_move_nothing(node: Node) -> None:
    swap_names(node)
    node.apply()
    assert node.devs_of_ours() == {"eth1"}
    assert node.record == f"eth1 {MAC}\n"


@pytest.mark.parametrize("master", [None, "br0"])
def test_the_check_doesnt_wait_for_a_name_that_is_anothers_by_now(
    node: Node, master: str | None
) -> None:
    """Without a default route on it. ``apply`` doesn't wait, either."""
    swap_names(node)
    if master is not None:
        node.kernel.del_link("eth1")
        node.kernel.add_link("br0", kind="bridge", mac=MAC)
    node.kernel.del_link("eth0")
    node.kernel.add_link("eth0", mac=OTHER_MAC if master is None else MAC, master=master)
    named = attrs.evolve(STRICT, uplinks=("eth0",), wait_seconds=60)
    clock = FakeClock()
    scope = phases.CancelScope(clock=clock)
    report = check(named, host=node.host, scope=scope)
    kind = UnknownReason.SWAPPED if master is None else UnknownReason.NO_UPLINK
    assert (report.reason_kind, clock.monotonic()) == (kind, 0)


def test_a_swapped_name_in_the_config_is_no_verdict(node: Node) -> None:
    named = attrs.evolve(STRICT, uplinks=("eth0",))
    node.apply(named)
    swap_names(node)
    why = (
        f"the interface with which the check passed as eth0 ({MAC}) is eth1 by now,"
        " and eth0 is another interface now"
    )
    to_do = (
        "in hostRouting.uplinks name eth1, or give the interface its name back;"
        " then: hostrouting apply"
    )
    report = check(named, host=node.host)
    assert report.reason_kind is UnknownReason.SWAPPED
    assert report.reason == f"swapped: {why}: {to_do}"
    warn = config(*HALVES, cidrs=["172.16.0.0/16"], mode="WARN", uplinks=["eth0"])
    assert check(warn, host=node.host).reason == report.reason
    # No route is led to the other NIC meanwhile.
    before = ours(node.kernel)
    install = InstallRoutes(named, host=node.host)
    for attempt in (
        partial(node.apply, named),
        partial(node.apply, warn),
        partial(phases.run, install),
    ):
        with pytest.raises(RouteError) as caught:
            attempt()
        assert caught.value.message == f"can't install the static routes: {why}"
        assert caught.value.hint == to_do
    planned = plan(named, host=node.host)
    assert (planned.would_fail, planned.next_start.is_admitted) == (True, False)
    assert planned.next_start.reason.endswith(f"{why}; {to_do}")
    repair, problems = plan_repair(node.host.with_verified(named), node.kernel)
    assert not repair.changes
    assert problems == [f"can't install the static routes: {why}; {to_do}"]
    assert ours(node.kernel) == before
    assert node.record == f"eth0 {MAC}\n"
    listed = config(
        *HALVES,
        {"destination": "10.50.0.0/16", "gateway": "10.1.0.1", "dev": "eth0"},
        cidrs=["172.16.0.0/16", {"cidr": "10.96.0.0/16", "devs": ["eth0"]}],
        uplinks=["eth0"],
    )
    reason = check(listed, host=node.host).reason or ""
    assert "in devs of 10.96.0.0/16 name eth1" in reason
    assert "in dev of the static route to 10.50.0.0/16 name eth1" in reason
    node.apply(attrs.evolve(STRICT, uplinks=("eth1",)))
    assert node.devs_of_ours() == {"eth1"}
    node.apply(attrs.evolve(STRICT, uplinks=("eth*",)))
    warn = config(*HALVES, cidrs=["172.16.0.0/16"], mode="WARN", uplinks=["eth0"])
    assert check(warn, host=node.host).verdict is Verdict.OK


NAMING_ROUTES: dict[str, dict[str, Any]] = {
    "dev": {
        "routes": [*HALVES, {"destination": "10.50.0.0/16", "gateway": "onlink", "dev": "eth1"}]
    },
    "dev and gateway": {
        "routes": [*HALVES, {"destination": "10.50.0.0/16", "gateway": "10.9.0.1", "dev": "eth1"}]
    },
    "keep": {"routes": [*HALVES], "keep": ["eth1"]},
}


@pytest.mark.parametrize("name", NAMING_ROUTES)
def test_a_swapped_name_in_routes_is_why_nothing_is_proposed(node: Node, name: str) -> None:
    static = {**NAMING_ROUTES[name]}
    wider = config(*static.pop("routes"), cidrs=["172.16.0.0/16", "10.96.0.0/12"], **static)
    node.kernel.add_link("eth1", mac=OTHER_MAC)
    node.kernel.add_address("eth1", "10.9.0.5/24")
    node.apply(wider)
    node.kernel.del_link("eth1")
    swap_names(node)
    reports = [check(wider, host=node.host)]
    with pytest.raises(RouteOverlapError, match="can't install the static routes: ") as caught:
        _unfixed(wider, node.host, has_config=True)
    reports.append(caught.value.report)
    assert reports[0].fix.would_fail
    for report in reports:
        assert report.findings
        (told,) = report.fix.unfixable
        assert told.reason.startswith("swapped: the interface with which the check passed as eth0")
        assert told.reason.endswith("; then: hostrouting apply")
        assert attrs.evolve(report.fix, would_fail=False) == Fix(unfixable=(told,))
        assert not told.answers
        assert reasons(report)[0].startswith("no route is proposed for ")
    found = [each for each in examine(host=node.host).findings if each.kind == "shadowed"]
    assert found
    assert all(told.reason in each.hint for each in found)


def test_kept_names_are_told_beside_many_routes(node: Node) -> None:
    """After an edit of uplinks, the names in CONFIG aren't doubted any more."""
    routes = [
        {"destination": f"10.{number}.0.0/16", "gateway": "onlink", "dev": "eth0"}
        for number in range(50, 56)
    ]
    cidrs = [{"cidr": f"10.{number}.0.0/16", "devs": ["eth0"]} for number in range(60, 66)]
    overlap = {"expectedCidrs": cidrs, "mode": "STRICT", "settleSeconds": 0}
    given = config(*routes, uplinks=["eth0"], keep=["eth1*"], routeOverlap=overlap)
    node.kernel.add_link("eth1", mac=OTHER_MAC)
    node.apply(given)
    node.kernel.del_link("eth1")
    swap_names(node)
    reason = check(given, host=node.host).reason or ""
    assert "in hostRouting.uplinks name eth1; in devs of 10.60.0.0/16 name eth1; " in reason
    assert "in dev of the static route to 10.50.0.0/16 name eth1; " in reason
    assert "in keep, for eth1*, name eth0, or give " in reason
    with pytest.raises(RouteError) as caught:
        node.apply(given)
    assert "in keep, for eth1*, name eth0, or give " in (caught.value.hint or "")


def test_the_doctor_says_what_to_do_after_the_edit(node: Node) -> None:
    node.apply(attrs.evolve(STRICT, uplinks=("eth0",)))
    swap_names(node)
    (found,) = (each for each in examine(host=node.host).findings if each.kind == "unjudged")
    assert "in hostRouting.uplinks name eth1" in found.message
    assert found.hint.startswith("fix that, then: hostrouting apply")


def test_the_doctor_tells_of_infiniband_as_the_only_uplink(tmp_path: Path) -> None:
    node = build(tmp_path)
    node.apply(config(cidrs=["172.16.0.0/16"], uplinks=["ib*"]))
    (found,) = (each for each in examine(host=node.host).findings if each.kind == "contested")
    assert 'set "uplinks": ["eth0"], then: hostrouting apply' in found.message


def test_a_note_names_a_swapped_uplink_as_it_was_when_the_check_passed(node: Node) -> None:
    swap_names(node)
    (note,) = (n for n in check(STRICT, host=node.host).notes if n.kind is NoteKind.MOVED)
    assert note.message.startswith(
        "the default route has moved from eth1 (eth0 when the check passed) to eth0 ("
    )
    # `uplinks: ["eth0"]` would be `swapped`.
    out = "rm /etc/hostrouting/uplink && hostrouting apply"
    assert f" is to be an uplink, {out}; if it isn't, " in note.message
    node.layout.verified.unlink()
    node.apply()
    assert node.devs_of_ours() == {"eth0"}


def test_an_uplinks_new_name_is_told_until_apply_records_it(node: Node) -> None:
    """Otherwise, its former namesake would count as the uplink once its MAC address is gone."""
    node.rename("eth1")
    node.kernel.add_link("eth0", mac=OTHER_MAC)
    node.kernel.add_address("eth0", "10.9.0.5/24")
    report = check(STRICT, host=node.host)
    assert (report.verdict, report.default_devs) == (Verdict.OVERLAP, ("eth1",))  # routes are gone
    (note,) = (n for n in report.notes if n.kind is NoteKind.MOVED)
    assert note.devs == ("eth1",)
    assert note.message == (
        f"eth1 ({MAC}) stays the uplink, but its name was eth0 when the check passed,"
        " and another NIC is eth0 now; run hostrouting apply to record eth1"
    )
    node.apply()
    assert node.record == f"eth1 {MAC}\n"
    assert NoteKind.MOVED not in {n.kind for n in check(STRICT, host=node.host).notes}
    node.kernel.del_link("eth1")
    assert check(STRICT, host=node.host).default_devs == ()


def test_a_name_of_the_config_that_is_a_port_by_now(node: Node) -> None:
    node.kernel.del_link("eth0")
    node.kernel.add_link("br0", kind="bridge", mac=MAC)
    node.kernel.add_link("eth0", master="br0", mac=MAC)
    node.kernel.add_address("br0", "10.1.0.4/24")
    gateway = NextHop("br0", IPv4Address("10.1.0.1"))
    assert not node.kernel.write(Write.ADD, [default_route(gateway)])
    named = attrs.evolve(STRICT, uplinks=("eth0",))
    assert check(named, host=node.host).reason == (
        "no-uplink: eth0 is a port of br0 by now: name br0 in hostRouting.uplinks;"
        " then: hostrouting apply"
    )
    with pytest.raises(RouteError, match="eth0 is a port of br0 by now"):
        node.apply(named)
    # If nothing is recorded, the packets are judged, and the advice is the same.
    node.layout.verified.unlink()
    services = config(cidrs=["10.96.0.0/12"], uplinks=["eth0"])
    with pytest.raises(RouteOverlapError) as failed:
        node.apply(services)
    (told,) = failed.value.report.fix.unfixable
    assert told.reason == (
        "eth0 is a port of br0 by now: name br0 in hostRouting.uplinks; then: hostrouting apply"
    )
    assert not told.answers
    assert not failed.value.report.notes
    (found,) = (f for f in examine(host=node.host).findings if f.kind == "shadowed")
    assert told.reason in found.hint
    with pytest.raises(RouteError) as waited:
        node.apply(named)
    assert waited.value.hint == told.reason


IF_RIGHT = (
    "if that is right, run hostrouting apply, or else name the right one in hostRouting.uplinks"
)


SAME_NAME = (
    f"eth0 ({OTHER_MAC}) counts as the uplink now,"
    f" because eth0 ({MAC}), with which the check passed, is gone"
)


OTHER_NAME = (
    "the default route's interface, ens3, counts as the uplink now,"
    " because eth0, with which the check passed, is gone"
)


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("ens3", {}, OTHER_NAME),
        ("eth0", {}, SAME_NAME),
        ("eth0", {"uplinks": ["eth*"]}, SAME_NAME),
    ],
)
def test_a_replaced_uplink_is_told(node: Node, name: str, more: dict[str, Any], says: str) -> None:
    node.rename(name, OTHER_MAC)
    wanted = config(*HALVES, cidrs=["172.16.0.0/16"], **more)
    virtual = config(cidrs=["10.96.0.0/12"], **more)
    path = node.layout.root / "config.json"
    path.write_text(json.dumps(virtual.to_mapping()))
    shown = said(node, "check", str(path))
    assert f"MOVED: {says}\n  {IF_RIGHT}\n" in shown
    assert f"expected interface: {name}\n" in shown  # the check hasn't passed with this NIC
    line = said(node, "check", str(path), "--output", "nagios")
    moved = f"HOSTROUTING WARNING - MOVED: {says}; 1 expected CIDR leaves through {name} | "
    assert line.startswith(moved)
    says += f"; {IF_RIGHT}"
    report = check(virtual, host=node.host)
    assert (report.verdict, report.verified_since) == (Verdict.OK, None)
    assert [n.message for n in report.notes if n.kind is NoteKind.MOVED] == [says]
    assert says in [each.message for each in examine(wanted, host=node.host).findings]
    with ThreadPoolExecutor() as executor:
        (group,) = judge([snapshot(host=node.host)], virtual, executor).groups
    assert [each.message for each in group.decisions] == [says]
    assert f"MOVED: {says}" in plan(wanted, host=node.host).warnings
    node.apply(wanted)
    assert NoteKind.MOVED not in {n.kind for n in check(wanted, host=node.host).notes}


NOT_REPLACED: dict[str, dict[str, Any]] = {
    "another is named": {"uplinks": ["ens*"]},
    "a bond": {},
    "no MAC address": {},
}


@pytest.mark.parametrize("case", NOT_REPLACED)
def test_a_new_mac_address_may_mean_nothing(node: Node, case: str) -> None:
    node.rename("eth0", None if case == "no MAC address" else OTHER_MAC)
    if case == "a bond":
        node.kernel.del_link("eth0")
        node.kernel.add_link("eth0", kind="bond", mac=OTHER_MAC)
        node.kernel.add_link("eth1", master="eth0", mac=OTHER_MAC)
        node.kernel.add_address("eth0", "10.1.0.4/24")
        assert not node.kernel.write(Write.ADD, [default_route()])
    if case == "another is named":
        node.kernel.add_link("ens3")
        node.kernel.add_address("ens3", "10.3.0.4/24")
        gateway = NextHop("ens3", IPv4Address("10.3.0.1"))
        assert not node.kernel.write(Write.ADD, [default_route(gateway, metric=1)])
    report = check(config(cidrs=["10.96.0.0/12"], **NOT_REPLACED[case]), host=node.host)
    assert report.verdict is Verdict.OK
    assert NoteKind.MOVED not in {note.kind for note in report.notes}


def test_without_a_default_route_the_verified_uplink_is_to_come_back(node: Node) -> None:
    node.kernel.del_link("eth0")
    reason = check(STRICT, host=node.host).reason
    assert reason is not None
    assert "; bring eth0, with which the check passed, and its default route back, or" in reason
    assert reason.endswith('set "uplinks": ["NAME"], then: hostrouting apply')


def test_a_vpn_alone_doesnt_take_the_place_of_a_nic(node: Node) -> None:
    node.kernel.del_link("eth0")
    node.add_default(WG0)
    report = check(STRICT, host=node.host)
    assert report.reason == (
        "contested-default: eth0, with which the check passed, is gone,"
        f" and only a VPN, by the name of wg0, has a default route: {WG0};"
        " bring eth0 back, or, if that VPN is wanted, name the node's uplinks:"
        ' set hostRouting\'s "uplinks": ["wg0"], then: hostrouting apply'
    )
    missing = "an uplink other than the VPN wg0, since eth0, with which the check passed, is gone"
    planned = plan(STRICT, host=node.host)
    assert (planned.missing, bool(planned.routes.changes)) == (missing, False)
    with pytest.raises(RouteError) as caught:
        node.apply()
    assert missing in caught.value.message
    naming = (
        'name the node\'s uplinks: set hostRouting\'s "uplinks": ["{}"], then: hostrouting apply'
    )
    assert caught.value.hint == naming.format("NAME")
    (found,) = (f for f in examine(host=node.host).findings if f.kind == "route-waits")
    assert found.hint == naming.format("NAME")
    node.add_default(ETH1)
    contested = check(STRICT, host=node.host).reason
    assert contested is not None
    assert contested.endswith(naming.format("eth1"))
    with pytest.raises(RouteError) as caught:
        plan_or_raise(node.host.with_verified(STRICT), "fill in the routes", node.kernel)
    assert caught.value.hint == naming.format("eth1")
    repair, problems = plan_repair(node.host.with_verified(STRICT), node.kernel)
    assert (bool(repair.changes), problems) == (
        False,
        [f"can't keep all static routes without {missing}"],
    )
    assert node.devs_of_ours() <= {"eth0"}
    named = attrs.evolve(STRICT, uplinks=("wg0",))
    node.apply(named)
    assert node.devs_of_ours() == {"wg0"}


def test_a_bridge_takes_the_uplinks_place(node: Node) -> None:
    node.kernel.del_link("eth0")
    node.kernel.add_link("br0", kind="bridge", mac="0a:00:00:00:00:01")
    node.kernel.add_link("eth0", master="br0", mac=MAC)
    node.kernel.add_address("br0", "10.1.0.4/24")
    gateway = NextHop("br0", IPv4Address("10.1.0.1"))
    assert not node.kernel.write(Write.ADD, [default_route(gateway)])
    node.apply(attrs.evolve(STRICT, wait_seconds=30), scope=phases.CancelScope(clock=FakeClock()))
    assert node.devs_of_ours() == {"br0"}


def test_a_bridge_without_a_lease_is_waited_for(node: Node) -> None:
    """Another default route doesn't count meanwhile. The bridge has an address of its own."""
    clock = FakeClock()
    node.kernel.del_link("eth0")
    node.kernel.add_link("br0", kind="bridge", mac="0a:00:00:00:00:01")
    node.kernel.add_link("eth0", master="br0", mac=MAC)
    node.add_default(ETH1)
    waiting = attrs.evolve(STRICT, wait_seconds=30)
    assert check(STRICT, host=node.host).default_devs == ("br0",)
    with pytest.raises(RouteError, match="waiting for the default route on br0"):
        node.apply(waiting, scope=phases.CancelScope(clock=clock))
    assert clock.monotonic() < 31
    lease = default_route(NextHop("br0", IPv4Address("10.1.0.1")))
    clock.call_at(45.0, lambda: node.kernel.add_address("br0", "10.1.0.4/24"))
    clock.call_at(45.0, lambda: node.kernel.write(Write.ADD, [lease]))
    node.apply(waiting, scope=phases.CancelScope(clock=clock))
    assert node.devs_of_ours() == {"br0"}
    assert node.record == "br0 0a:00:00:00:00:01\n"


def test_a_default_route_that_is_still_on_the_port_belongs_on_the_bridge(node: Node) -> None:
    node.kernel.del_link("eth0")
    node.kernel.add_link("br0", kind="bridge", mac=MAC)
    node.kernel.add_link("eth0", master="br0", mac=MAC)
    node.kernel.add_address("eth0", "10.1.0.4/24")
    assert not node.kernel.write(Write.ADD, [default_route()])
    report = check(STRICT, host=node.host)
    (note,) = (note for note in report.notes if note.kind is NoteKind.MOVED)
    assert note.message.startswith("eth0 has become a port of br0 (")
    assert note.message.endswith("; move eth0's address and routes to br0")
    assert report.verdict is Verdict.OVERLAP


@pytest.mark.parametrize("mac", [MAC, "0a:00:00:00:00:01"])
def test_open_vswitch_takes_the_uplink_and_gives_it_back(node: Node, mac: str) -> None:
    """Its ports are those of ovs-system, and its own interface has the address."""
    node.kernel.del_link("eth0")
    node.kernel.add_link("ovs-system", kind="openvswitch", mac=OTHER_MAC)
    node.kernel.add_link("breth0", kind="openvswitch", mac=mac)
    node.kernel.add_link("eth0", master="ovs-system", mac=MAC)
    node.kernel.add_address("breth0", "10.1.0.4/24")
    lease = default_route(NextHop("breth0", IPv4Address("10.1.0.1")))
    assert not node.kernel.write(Write.ADD, [lease])
    waiting = attrs.evolve(STRICT, wait_seconds=30)
    clock = FakeClock()
    node.apply(waiting, scope=phases.CancelScope(clock=clock))
    assert (node.devs_of_ours(), clock.monotonic()) == ({"breth0"}, 0)
    for dev in ("breth0", "ovs-system"):
        node.kernel.del_link(dev)
    node.rename("eth0")
    node.apply(waiting, scope=phases.CancelScope(clock=clock))
    assert node.devs_of_ours() == {"eth0"}
    assert clock.monotonic() <= 31


def test_a_vlan_on_the_uplink_doesnt_take_its_place(node: Node) -> None:
    """The cluster's network has moved, so the operator decides."""
    node.kernel.add_link("eth0.100", kind="vlan", mac=MAC)
    node.kernel.add_address("eth0.100", "10.1.4.4/24")
    by_vlan = NextHop("eth0.100", IPv4Address("10.1.4.1"))
    assert not node.kernel.write(Write.ADD, [default_route(by_vlan, metric=50)])
    node.drop_default()
    assert check(STRICT, host=node.host).default_devs == ("eth0",)
    with pytest.raises(RouteError, match="waiting for the default route on eth0"):
        node.apply()
    node.apply(attrs.evolve(STRICT, uplinks=("eth0.100",)))
    assert node.devs_of_ours() == {"eth0.100"}
    assert node.record == f"eth0.100 {MAC}\n"
    # Its name tells it from the interface beneath it.
    node.apply()
    assert node.devs_of_ours() == {"eth0.100"}


def test_if_it_is_gone_several_others_are_contested(node: Node) -> None:
    node.kernel.del_link("eth0")
    node.add_default(ETH1, WG0)
    report = check(STRICT, host=node.host)
    assert report.reason_kind is UnknownReason.CONTESTED_DEFAULT
    assert "eth0, with which the check passed, is gone" in str(report.reason)


def test_a_late_uplink_is_waited_for(node: Node) -> None:
    clock = FakeClock()
    node.kernel.del_link("eth0")
    node.add_default(ETH1)
    clock.call_at(20.0, lambda: node.kernel.add_link("eth0", mac=MAC))
    clock.call_at(20.0, lambda: node.kernel.add_address("eth0", "10.1.0.4/24"))
    clock.call_at(21.0, lambda: node.kernel.write(Write.ADD, [default_route()]))
    waiting = attrs.evolve(STRICT, wait_seconds=30)
    node.apply(waiting, scope=phases.CancelScope(clock=clock))
    assert node.devs_of_ours() == {"eth0"}


def test_the_lease_of_a_verified_uplink_may_come_last(node: Node) -> None:
    clock = FakeClock()
    node.drop_default()
    node.add_default(ETH1)
    clock.call_at(20.0, lambda: node.kernel.write(Write.ADD, [default_route()]))
    waiting = attrs.evolve(STRICT, wait_seconds=30)
    node.apply(waiting, scope=phases.CancelScope(clock=clock))
    assert node.devs_of_ours() == {"eth0"}


def test_a_run_waits_once_for_an_uplink_and_its_default_route(node: Node) -> None:
    clock = FakeClock()
    node.kernel.del_link("eth0")
    waiting = attrs.evolve(STRICT, wait_seconds=30)
    with pytest.raises(RouteError, match="timed out after 30 s waiting for the default route"):
        node.apply(waiting, scope=phases.CancelScope(clock=clock))
    assert 30 <= clock.monotonic() < 31


def test_after_the_wait_the_default_route_counts(node: Node) -> None:
    clock = FakeClock()
    node.kernel.del_link("eth0")
    node.add_default(ETH1)
    waiting = attrs.evolve(STRICT, wait_seconds=30)
    node.apply(waiting, scope=phases.CancelScope(clock=clock))
    assert clock.monotonic() >= 30
    assert node.record == f"eth1 {OTHER_MAC}\n"


# --- when there is a record -----------------------------------------------------------------------


def test_a_failing_check_records_nothing(tmp_path: Path) -> None:
    node = build(tmp_path)
    with pytest.raises(RouteOverlapError):
        node.apply(config(HALVES[0], cidrs=["172.16.0.0/16"]))
    assert node.record is None
    kinds = {finding.kind for finding in examine(host=node.host).findings}
    assert "no-record" in kinds


def test_cidrs_with_devs_of_their_own_verify_no_uplink(node: Node) -> None:
    node.layout.verified.unlink()
    node.add_default(WG0)
    expected = {"cidr": "172.16.0.0/16", "devs": ["eth0"]}
    halves = [{"destination": half, "gateway": "10.1.0.1", "dev": "eth0"} for half in HALVES]
    report = node.apply(config(*halves, cidrs=[expected]))
    assert report.overlap.verdict is Verdict.OK
    assert node.record is None


WARN = config(*HALVES, cidrs=["172.16.0.0/16"], mode="WARN")


def test_warn_mode_begins_no_record(tmp_path: Path) -> None:
    node = build(tmp_path)
    node.apply(WARN)
    assert node.record is None
    dhcp_beside(node)
    node.apply(WARN)
    assert node.devs_of_ours() == {"eth1"}


@pytest.mark.parametrize("move", [*BESIDE, *INSTEAD])
def test_the_way_back_to_warn_mode_keeps_the_uplink(node: Node, move: Any) -> None:
    move(node)
    with suppress(RouteError):  # without a default route on eth0, nothing can be installed anew
        node.apply(WARN)
    assert node.devs_of_ours() == {"eth0"}
    assert node.record == f"eth0 {MAC}\n"
    assert check(WARN, host=node.host).default_devs == ("eth0",)


def test_warn_mode_keeps_a_record_up_to_date(node: Node) -> None:
    """Otherwise, the note MOVED would never end."""
    node.rename("eth0", OTHER_MAC)
    node.apply(WARN)
    assert node.record == f"eth0 {OTHER_MAC}\n"
    assert NoteKind.MOVED not in {n.kind for n in check(WARN, host=node.host).notes}


def test_it_goes_with_the_check_and_with_everything(node: Node) -> None:
    node.apply(config(*HALVES, cidrs=[]))
    assert not node.layout.verified.exists()
    node.apply()
    report = phases.run(RemoveHostRouting(host=node.host))
    assert not node.layout.verified.exists()
    assert "/etc/hostrouting/uplink" in {change.what for change in report.changes.files}


def test_an_image_has_none(tmp_path: Path) -> None:
    """An image may have been captured from a host on which the check has passed."""
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    image = Host.image(tmp_path)
    image.layout.verified.parent.mkdir(parents=True)
    image.layout.verified.write_text("eth0 02:00:00:00:00:00\n")
    report = phases.run(Configure(STRICT, host=image))
    assert not image.layout.verified.exists()
    assert "/etc/hostrouting/uplink" in {change.what for change in report.changes.files}


def test_apply_says_that_it_has_written_it(tmp_path: Path) -> None:
    changes = build(tmp_path).apply().changes
    assert "/etc/hostrouting/uplink" in {change.what for change in changes.files}


def test_a_run_that_died_before_it_wrote_it_is_made_up_for(node: Node) -> None:
    node.layout.verified.unlink()
    assert [change.what for change in node.apply().changes.files] == ["/etc/hostrouting/uplink"]
    assert node.record == f"eth0 {MAC}\n"


def test_a_rename_right_after_the_check_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another interface's MAC address would be recorded, and that one expected from then on."""
    node = build(tmp_path)

    def check_before_a_rename(*given: Any, **more: Any) -> OverlapReport:
        report = check_families(*given, **more)
        if "ens3" not in node.devs:
            node.rename("ens3")
            node.kernel.add_link("eth0", mac=OTHER_MAC)
        return report

    monkeypatch.setattr("hostrouting.tasks.configure.check_families", check_before_a_rename)
    node.apply()
    assert node.record is None
    node.apply()
    assert node.record == f"ens3 {MAC}\n"


def test_one_of_two_recorded_uplinks_may_be_missing(tmp_path: Path) -> None:
    node = build(tmp_path)
    node.add_default(ETH1)
    both = attrs.evolve(STRICT, uplinks=("eth0", "eth1"))
    node.apply(both)
    assert node.record == f"eth0 {MAC}\neth1 {OTHER_MAC}\n"
    node.kernel.del_link("eth1")
    node.apply()
    assert node.record == f"eth0 {MAC}\neth1 {OTHER_MAC}\n"


def test_a_record_may_name_a_missing_uplink_twice(node: Node) -> None:
    text = f"eth0 {MAC}\neth1\neth1 {OTHER_MAC}\n"
    node.layout.verified.write_text(text)
    assert not node.apply().changes
    assert node.record == text


def test_a_record_with_lines_of_windows_counts(node: Node) -> None:
    node.layout.verified.write_bytes(f"eth0 {MAC}\r\n".encode())
    dhcp_beside(node)
    node.apply()
    assert node.devs_of_ours() == {"eth0"}
    assert node.record == f"eth0 {MAC}\n"


# --- snapshots ------------------------------------------------------------------------------------


def test_a_snapshot_agrees_with_the_host(node: Node) -> None:
    vpn_beside(node)
    os.utime(node.layout.verified, (0, TIME))
    taken = snapshot(host=node.host)
    assert taken.verified == (VerifiedUplink("eth0", MAC, SINCE),)
    assert taken.to_document()["uplink"] == [{"name": "eth0", "mac": MAC, "since": SINCE}]
    again = Snapshot.from_document(taken.to_document())
    assert again == taken
    there = check(STRICT, host=Host.recorded(again))
    live = check(STRICT, host=node.host)
    assert (there.verdict, there.default_devs) == (live.verdict, live.default_devs)
    assert there.verified_since == live.verified_since == SINCE
    assert there.notes == live.notes
    with ThreadPoolExecutor() as executor:
        (group,) = judge([again], STRICT, executor).groups
    assert group.verdict is Verdict.OK
    assert not plan(STRICT, host=Host.recorded(again)).changes
    assert read_default_routes(node.kernel)


@pytest.mark.parametrize("installed", ["WARN", "STRICT"])
@pytest.mark.parametrize("asked", ["WARN", "STRICT", None])
@pytest.mark.usefixtures("judged_here")
def test_a_snapshot_agrees_in_each_mode(
    node: Node, elsewhere: Any, installed: str, asked: str | None
) -> None:
    """The config's mode decides. Without a config, each command is like the installed check."""
    node.apply(config(*HALVES, cidrs=["172.16.0.0/16"], mode=installed))
    dhcp_beside(node)
    taken = Snapshot.from_document(snapshot(host=node.host).to_document())
    assert taken.expects_verified
    assert taken.verified
    path = node.layout.root / "snapshot.json"
    taken.save(path)
    given = ["--cidr", "172.16.0.0/16"]
    if asked is not None:
        file = node.layout.root / "config.json"
        wanted = config(*HALVES, cidrs=["172.16.0.0/16"], mode=asked)
        file.write_text(json.dumps(wanted.to_mapping()))
        given = [str(file)]
    words = ("check", *given, "--output", "json")
    live = json.loads(said(node, *words))
    there = json.loads(said(node, *words, "--snapshot", str(path)))
    expected = ["eth0"]
    assert live["defaultDevs"] == there["defaultDevs"] == expected
    assert live["verifiedSince"] == there["verifiedSince"]
    assert (live["verifiedSince"] is not None) == (expected == ["eth0"])

    def there_says(command: str, *words: str) -> Any:
        return json.loads(elsewhere(command, *words, "--output", "json")[1])

    of_file = ("--snapshot", str(path))
    assert there_says("check", *given, *of_file)["defaultDevs"] == expected
    assert there_says("fix", *given, *of_file)["overlap"]["defaultDevs"] == expected
    (group,) = there_says("judge", *given, str(path))["groups"]
    assert group["report"]["defaultDevs"] == expected
    named = [] if asked is None else given
    assert there_says("explain", CLUSTER, *named, *of_file)["defaultDevs"] == expected
    if asked is not None:
        unchanged = there_says("plan", *given, *of_file)["unchanged"]
        assert bool(unchanged) == (expected == ["eth0"])


# --- since when -----------------------------------------------------------------------------------


def test_each_answer_says_since_when(node: Node) -> None:
    dhcp_beside(node)
    os.utime(node.layout.verified, (0, TIME))
    report = check(STRICT, host=node.host)
    assert report.verified_since == report.to_json()["verifiedSince"] == SINCE
    (message,) = (note.message for note in report.notes if note.kind is NoteKind.MOVED)
    assert f": eth0 stays the uplink (since {SINCE}), and our routes stay on it;" in message
    moved = [each for each in examine(STRICT, host=node.host).findings if each.kind == "moved"]
    assert [each.message for each in moved] == [message]
    assert explain(CLUSTER, STRICT, host=node.host).to_json()["verifiedSince"] == SINCE
    file = node.layout.root / "config.json"
    file.write_text(json.dumps(STRICT.to_mapping()))
    words = said(node, "check", str(file))
    assert f"expected interface: eth0, the verified uplink since {SINCE}\n" in words
    words = said(node, "explain", CLUSTER, str(file))
    assert f"expected is eth0, the verified uplink since {SINCE}\n" in words
    assert f"uplink: eth0 since {SINCE}, kept until" in said(node, "apply", str(file))


def test_what_the_default_route_or_the_config_tells_has_no_time(tmp_path: Path) -> None:
    node = build(tmp_path)
    assert verdict_of(node).to_json()["verifiedSince"] is None
    node.apply()
    named = attrs.evolve(STRICT, uplinks=("eth0",))
    assert check(named, host=node.host).verified_since is None


def test_a_hop_of_the_default_route_on_another_interface(node: Node) -> None:
    node.add_default(ETH1)
    both = (NextHop("eth0", IPv4Address("10.1.0.1")), NextHop("eth1", IPv4Address("10.9.0.1")))
    assert not node.kernel.write(Write.ADD, [default_route(*both, metric=10)])
    report = check(STRICT, host=node.host)
    (note,) = (note for note in report.notes if note.kind is NoteKind.MOVED)
    assert note.devs == ("eth1",)
    assert note.message.startswith(
        "the default route has a hop on eth1, too, but the check passed with eth0 (default "
    )
    assert note.message.endswith(
        ' if eth1 is to be an uplink, set hostRouting\'s "uplinks": ["eth0", "eth1"],'
        " then hostrouting apply;"
        " if it isn't, remove that hop"
    )


# --- a record that can't be read ------------------------------------------------------------------


def a_folder(path: Path) -> None:
    path.mkdir()


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_comment(path: Path) -> None:
    path.write_text("# eth0\n")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(24))


def latin_1(path: Path) -> None:
    path.write_bytes(b"\xfcplink0\n")


def much(path: Path) -> None:
    path.write_text("#\n" * 70_000 + f"eth0 {MAC}\n")


def a_dangling_link(path: Path) -> None:
    path.symlink_to("elsewhere")


UNREADABLE = [a_folder, a_fifo, a_comment, zeros, latin_1, much, a_dangling_link]


def how_to_record_anew(host: Host) -> str:
    verified = host.layout.verified
    return f"to record the default route's interface: rm -r {verified} && hostrouting apply"


@pytest.fixture(params=UNREADABLE)
def unreadable(node: Node, request: pytest.FixtureRequest) -> Node:
    """A node that another default route would divert if its record counted as missing."""
    node.layout.verified.unlink()
    request.param(node.layout.verified)
    dhcp_instead(node)
    return node


def test_an_unreadable_record_is_no_verdict(unreadable: Node) -> None:
    host = unreadable.host
    report = check(STRICT, host=host)
    assert report.reason_kind is UnknownReason.CHECK_FAILED
    assert report.reason_detail.startswith(f"can't read {host.layout.verified}: ")
    assert report.reason_detail.endswith(how_to_record_anew(host))
    findings = [each for each in examine(host=host).findings if each.kind == "unjudged"]
    assert [finding.severity for finding in findings] == [Severity.BROKEN]
    assert how_to_record_anew(host) in findings[0].message


@pytest.mark.parametrize("mode", OverlapMode)
def test_an_unreadable_record_moves_nothing(unreadable: Node, mode: OverlapMode) -> None:
    wanted = config(*HALVES, cidrs=["172.16.0.0/16"], mode=mode)
    for ask in (partial(plan, wanted), partial(explain, CLUSTER, wanted), snapshot):
        with pytest.raises(FileError, match="can't read"):
            ask(host=unreadable.host)
    with pytest.raises(FileError) as caught:
        unreadable.apply(wanted)
    assert caught.value.hint == how_to_record_anew(unreadable.host)
    assert unreadable.devs_of_ours() == {"eth0"}


def test_an_unreadable_record_goes_with_everything(unreadable: Node) -> None:
    phases.run(RemoveHostRouting(host=unreadable.host))
    assert not unreadable.layout.verified.exists()


def test_a_folder_with_files_in_its_place_stays(node: Node) -> None:
    node.layout.verified.unlink()
    (node.layout.verified / "other").mkdir(parents=True)
    with pytest.raises(FileError, match="can't remove .*/uplink: Directory not empty"):
        phases.run(RemoveHostRouting(host=node.host))
    assert (node.layout.verified / "other").exists()
    (node.layout.verified / "other").rmdir()
    phases.run(RemoveHostRouting(host=node.host))
    assert not node.layout.verified.parent.exists()


def test_a_record_with_a_byte_order_mark_or_another_case_counts(node: Node) -> None:
    node.layout.verified.write_text(f"\ufeffeth7 {MAC.upper()}\n")
    dhcp_beside(node)
    assert check(STRICT, host=node.host).default_devs == ("eth0",)


# --- the plan -------------------------------------------------------------------------------------


def test_the_plan_says_that_apply_records_the_uplink(tmp_path: Path) -> None:
    node = build(tmp_path)
    planned = plan(STRICT, host=node.host).changes.files
    done = node.apply().changes.files
    assert {each.what: each.after for each in planned} == {each.what: each.after for each in done}
    assert not plan(STRICT, host=node.host)
    node.layout.verified.unlink()
    dhcp_beside(node)
    (record,) = plan(STRICT, host=node.host).changes.files
    assert (record.what, record.action) == ("/etc/hostrouting/uplink", "added")
    assert record.after == f"eth1 {OTHER_MAC}\n"
    node.layout.gate_off.touch()
    assert [each.what for each in plan(STRICT, host=node.host).changes.files] == [record.what]
    node.apply()
    assert node.record == record.after
    node.layout.verified.write_text(f"eth0 {OTHER_MAC}\n")
    (record,) = plan(STRICT, host=node.host).changes.files
    assert record.action == "replaced"


def test_the_plan_names_the_uplink_that_stays(tmp_path: Path) -> None:
    """And it says whether another default route may be the right one."""
    node = build(tmp_path)
    path = tmp_path / "strict.json"
    path.write_text(json.dumps(STRICT.to_mapping()))
    assert "+ /etc/hostrouting/uplink (eth0)" in said(node, "plan", str(path)).splitlines()
    assert not any("CONTESTED" in each for each in plan(STRICT, host=node.host).warnings)
    dhcp_beside(node)
    assert "+ /etc/hostrouting/uplink (eth1)" in said(node, "plan", str(path)).splitlines()
    warning, *_ = plan(STRICT, host=node.host).warnings
    assert warning.startswith("CONTESTED: several interfaces have a default route, and the one")
    assert 'set hostRouting\'s "uplinks"' in warning
    named = attrs.evolve(STRICT, uplinks=("eth0",))
    assert not any("CONTESTED" in each for each in plan(named, host=node.host).warnings)
    node.layout.verified.parent.mkdir(parents=True)
    node.layout.verified.write_text("eth0\n")
    warning, *_ = plan(STRICT, host=node.host).warnings
    assert warning.startswith("MOVED: the default route has moved from eth0")


@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
def test_the_plan_records_nothing_that_apply_doesnt(tmp_path: Path, mode: str) -> None:
    """In WARN mode, or if the check fails."""
    node = build(tmp_path)
    wanted = config(*HALVES[: 1 if mode == "STRICT" else 2], cidrs=["172.16.0.0/16"], mode=mode)
    planned = plan(wanted, host=node.host)
    assert planned.next_start.is_admitted == (mode == "WARN")
    assert "/etc/hostrouting/uplink" not in {each.what for each in planned.changes.files}


def said(node: Node, *words: str) -> str:
    """Run a command on the node, and return its output."""
    with redirect_stdout(io.StringIO()) as output:
        main(words, host=node.host)
    return output.getvalue()


# --- a VPN's default route ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
@pytest.mark.parametrize("dev", ["wg0", "tun3", "tap1", "tailscale0", "ztabc", "nebula1"])
def test_a_vpn_that_wins_beside_another_default_route_is_contested(
    tmp_path: Path, dev: str, mode: str
) -> None:
    node = build(tmp_path)
    node.add_default(default_route(NextHop(dev), metric=0, scope=253))
    report = check(config(cidrs=["10.96.0.0/12"], mode=mode), host=node.host)
    assert report.reason_kind is UnknownReason.CONTESTED_DEFAULT
    assert f"wins is a VPN's, by the name of {dev}" in str(report.reason)
    by = [{"cidr": "10.96.0.0/12", "devs": [dev]}]
    assert check(config(cidrs=by, mode=mode), host=node.host).verdict is Verdict.OK
    named = config(cidrs=["10.96.0.0/12"], mode=mode, uplinks=[dev])
    assert check(named, host=node.host).verdict is Verdict.OK


def test_a_vpn_that_is_alone_or_loses_is_not_contested(tmp_path: Path) -> None:
    node = build(tmp_path)
    node.add_default(default_route(NextHop("wg0"), metric=200, scope=253))
    assert verdict_of(node).default_devs == ("eth0",)
    node.drop_default()
    assert verdict_of(node).default_devs == ("wg0",)


def verdict_of(node: Node) -> OverlapReport:
    return check(config(cidrs=["10.96.0.0/12"]), host=node.host)
