"""Tests that a fix which CONFIG lists, and the kernel lacks, is to be applied, not added."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Any

import attrs
import pytest
from file_trees import write_file
from node import SECOND_GATEWAY, add_nics, default_route
from wanted import SHADOWED, lose_default_route, ours, section

from hostrouting import Config, Host, Verdict, check, judge
from hostrouting.boot.layout import ROUTES as ROUTES_PART
from hostrouting.kernel.port import Write, read_default_routes, read_routes
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.routes import NextHop, Protocol, Route, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap.proposals import Fix
from hostrouting.testing import FakeKernel
from hostrouting.watch._events import of_failures

pytestmark = pytest.mark.usefixtures("judged_here")

Run = Callable[..., tuple[int, str, str]]

EXPECTED = "172.16.0.0/16"
HALVES = ("172.16.0.0/17", "172.16.128.0/17")
LISTED = {"hostRouting": section(*HALVES, cidrs=[EXPECTED], keep=["ib0"])}
HALF = {"hostRouting": section(HALVES[0], cidrs=[EXPECTED], keep=["ib0"])}

RANGE = IPv4Network("10.96.0.0/16")
BY_VPN = Rule(5270, table=52)
VPN = Route(IPv4Network("10.9.0.0/16"), (NextHop("ib0"),), table=52, protocol=Protocol.STATIC)
TO_VPN = {"to": "10.9.0.0/16", "priority": 5269}
RULED = {"hostRouting": section(cidrs=["10.9.0.0/16"], rules=[TO_VPN])}

UNEXPECTED = (
    "the static routes 10.100.0.128/25, 10.96.0.0/12 lead to no expected CIDR, "
    "and stay until removed from CONFIG"
)
WHOLE = "already lists what fixes this (2 routes, keep), and the kernel lacks it"


@pytest.fixture
def vpn(kernel: FakeKernel) -> None:
    assert kernel.write(Write.ADD, [VPN]) == ()
    kernel.add_rule(BY_VPN)


def applied_by(text: str, run: Run) -> int:
    """Run the command that a text prints, and return its exit code."""
    (command,) = re.findall(r"kernel lacks it: hostrouting (apply.*)", text)
    return run(*shlex.split(command), "--routes-only")[0]


@pytest.mark.parametrize("word", ["check", "fix"])
def test_what_is_listed_is_to_be_applied(run: Run, write: Any, word: str) -> None:
    path = write(LISTED)
    code, out, err = run(word, path)
    text = err if word == "fix" else out
    assert (code, WHOLE in text, "add to" in text) == (1, True, False)
    assert "nothing to fix" not in text
    assert applied_by(text, run) == 0
    assert run(word, path)[0] == 0
    assert "kernel lacks it" not in "".join(run(word, path)[1:])


def test_the_printed_fix_is_the_config_itself(run: Run, write: Any) -> None:
    assert json.loads(run("fix", write(LISTED))[1]) == LISTED


def test_a_file_that_has_the_fix_is_not_written_and_apply_follows(run: Run, write: Any) -> None:
    """So ``fix --in-place CONFIG && apply CONFIG`` puts lost routes back."""
    path = write(LISTED)
    code, out, err = run("fix", "--in-place", path)
    assert (code, out, WHOLE in err) == (0, "nothing to change\n", True)
    assert applied_by(err, run) == 0
    assert run("check", path)[0] == 0


def test_the_rest_of_a_fix_comes_beside_what_is_listed(run: Run, write: Any) -> None:
    path = write(HALF)
    code, out, _ = run("check", path)
    assert (code, "what fixes a part of this (1 route, keep)" in out) == (1, True)
    assert json.dumps({"destination": HALVES[1]}) in out
    assert json.dumps({"destination": HALVES[0]}) not in out
    code, out, err = run("fix", path)
    assert (code, "a part of this" in err) == (0, True)
    assert json.loads(out)["hostRouting"]["staticRoutes"] == LISTED["hostRouting"]["staticRoutes"]


def test_what_is_listed_and_fixes_nothing_is_not_mentioned(run: Run, write: Any) -> None:
    code, out, _ = run("check", write({"hostRouting": section("10.7.0.0/16", cidrs=[EXPECTED])}))
    assert (code, "already lists" in out) == (1, False)
    assert json.dumps({"destination": HALVES[0]}) in out


LED_AWAY = (
    f"packets from the addresses of ib0 no longer go to {' '.join(HALVES)} through ib0, "
    "but through eth0"
)


@pytest.mark.parametrize("keep", [[], ["nvl*"]], ids=["none", "mistyped"])
def test_what_the_listed_routes_take_away_is_told(
    run: Run, write: Any, host: Host, keep: list[str]
) -> None:
    """Without keep, InfiniBand's answers would leave through eth0."""
    document = {"hostRouting": section(*HALVES, cidrs=[EXPECTED], keep=keep)}
    path = write(document)
    found = check(Config.from_mapping(document), host=host)
    assert [entry.dev for entry in found.fix.keep] == ["ib0"]
    for word in ("check", "fix"):
        code, out, err = run(word, path)
        assert code == (0 if word == "fix" else 1)
        assert "the kernel lacks it: add keep first, then hostrouting apply" in out + err
        assert f"caution: {LED_AWAY}" in out + err
    fixed = json.loads(run("fix", path)[1])
    assert fixed["hostRouting"]["staticRoutes"]["keep"] == [*keep, "ib0"]
    for words in (["plan"], ["apply", "--try", "60"]):
        (warning,) = json.loads(run(*words, path, "--output", "json")[1])["warnings"]
        assert warning.startswith(f"{LED_AWAY}; to keep them on ib0, add to ")
    for words in (["apply", "--routes-only"], ["apply"]):
        run("remove")
        assert LED_AWAY in run(*words, path)[2]
    assert LED_AWAY not in run("apply", path)[2], "the routes aren't new"
    for word in ("plan", "apply"):
        assert LED_AWAY not in run(word, write(fixed))[2]


def cautions(run: Run, path: Path) -> list[str]:
    lines = run("check", path)[1].splitlines()
    return [line for line in lines if line.startswith("caution: ")]


def test_cautions_are_about_the_host_with_listed_rules_and_the_fix(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """CONFIG's rule alone would lead the VPN's packets to ib0, and the fix leads them on."""
    kernel.ip("""\
link add wg0
address add 10.8.0.2/24 dev wg0
route add default dev wg0 table 77
rule add pref 5270 lookup 77""")
    rules = [{"to": EXPECTED, "priority": 5000}]
    path = write({"hostRouting": section(cidrs=[EXPECTED], rules=rules, uplinks=["eth0"])})
    assert cautions(run, path) == [
        (
            f"caution: the node then sends to neighbours of ib0 in {EXPECTED} through eth0, "
            "except from this interface's own addresses"
        ),
        (
            f"caution: packets from the addresses of wg0 no longer go to {EXPECTED} through wg0, "
            "but through eth0"
        ),
    ]


def test_own_addresses_that_a_listed_rule_takes_are_not_excepted(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    kernel.ip("route add 172.16.0.0/16 dev ib0 table 100")
    kernel.ip("rule add pref 400 from 172.16.0.10 lookup 100")
    rules = [{"to": HALVES[0], "priority": 300}]
    path = write({"hostRouting": section(cidrs=[EXPECTED], rules=rules, uplinks=["eth0"])})
    assert cautions(run, path)[:2] == [
        f"caution: the node then sends to neighbours of ib0 in {EXPECTED} through eth0",
        (
            f"caution: packets from the addresses of ib0 no longer go to {HALVES[0]} through ib0, "
            "but through eth0"
        ),
    ]


@pytest.mark.parametrize("routes", [HALVES[:1], []], ids=["half", "none"])
@pytest.mark.parametrize("keep", [["ib0"], []], ids=["kept", "unkept"])
def test_a_fix_that_only_lists_what_is_installed_takes_nothing_away(
    run: Run, write: Any, routes: list[str], keep: list[str]
) -> None:
    path = write(LISTED)
    assert run("apply", path)[0] == 0
    path = write({"hostRouting": section(*routes, cidrs=[EXPECTED], keep=keep)})
    code, _, err = run("fix", "--in-place", path)
    assert (code, "caution" in err) == (0, False)
    code, out, _ = run("plan", path)
    assert (code, "already installed" in out) == (0, True)


def test_a_fix_beside_what_is_installed_names_what_changes(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """Only the route that is neither installed nor a part of the fix takes anything away."""
    assert run("apply", write(LISTED))[0] == 0
    add_nics(kernel, eth1="10.100.0.5/24")
    path = write({"hostRouting": section(HALVES[0], "10.100.0.128/25", cidrs=[EXPECTED])})
    code, _, err = run("fix", "--in-place", path)
    told = re.findall("^caution: (.*)", err, re.MULTILINE)
    lost = "packets from the addresses of eth1 no longer go to 10.100.0.128/25 through eth1"
    assert (code, told) == (
        0,
        [
            "the node then sends to neighbours of eth1 in 10.100.0.128/25 through eth0",
            f"{lost}, but through eth0",
        ],
    )
    warned = run("plan", path)[2]
    assert [line for line in told if line not in warned] == []


def test_routes_left_from_wider_cidrs_are_told_by_what_they_take_away(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """Such routes stay in CONFIG after its owner has expected less. No check asks about them."""
    add_nics(kernel, eth1="10.100.0.5/24")
    kernel.ip("route add 10.64.0.0/10 via 10.100.0.1 dev eth1")
    left = ["10.100.0.128/25", "10.96.0.0/12"]
    path = write({"hostRouting": section(*left, *HALVES, cidrs=[EXPECTED], keep=["ib0", "eth1"])})
    unasked = [
        "packets no longer go to addresses in 10.96.0.0/12 through eth1, but through eth0",
        "the node then sends to neighbours of eth1 in 10.100.0.128/25 through eth0",
    ]
    for word, warning in (("check", "caution: "), ("fix", "caution: "), ("plan", "hostrouting: ")):
        told = "".join(run(word, path)[1:])
        assert [line for line in unasked if f"{warning}{line}\n" not in told] == []
        assert told.count(f"note: {UNEXPECTED}\n") == 1
    for words in (["--try", "60"], [], ["--routes-only"]):
        run("remove")
        told = run("apply", *words, path, "--output", "json")[1]
        assert [line for line in unasked if line not in json.loads(told)["warnings"]] == []
        assert not any(line in run("apply", "--routes-only", path)[2] for line in unasked)
    run("remove")
    unkept = write({"hostRouting": section(*left, "10.0.0.0/9", cidrs=[EXPECTED])})
    said = (
        "packets from the addresses of eth1 no longer go to 10.100.0.128/25 through eth1, "
        "but through eth0; to keep them on"
    )
    assert said in run("plan", unkept)[2], "keep holds no more than the connected network"
    assert not any(line in run("plan", write(LISTED))[2] for line in unasked)
    for word in ("check", "fix", "plan", "doctor"):
        assert "leads to no expected" not in "".join(run(word, write(LISTED))[1:])
    assert "neighbours" not in run("plan", write(LISTED))[2], "its CIDR asks for that"


@pytest.mark.parametrize("destination", ["10.100.0.0/25", "fd00:9::/64"])
def test_a_route_to_no_expected_cidr_is_a_note_of_the_doctor(
    run: Run, write: Any, destination: str
) -> None:
    """Its owner may want it, so it is no finding."""
    wanted = {"destination": destination, "dev": "eth0"}
    path = write({"hostRouting": section(wanted, cidrs=[EXPECTED])})
    told = (
        f"note: the static route {destination} leads to no expected CIDR, and stays until removed"
    )
    assert told in run("doctor", path)[1]
    unasked = write({"hostRouting": section(wanted, cidrs=[])})
    assert "expected CIDR" not in run("doctor", unasked)[1], "nothing is expected"


def test_routes_that_lead_neighbours_to_a_router_are_told(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    """One config for a fleet may suit nodes behind a router, and not one in the expected CIDR."""
    kernel.del_link("ib0")
    kernel.del_address("eth0", "10.1.0.4/24")
    kernel.add_address("eth0", "172.16.30.9/16")
    kernel.ip("route add default via 172.16.30.254 dev eth0")
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED], keep=["ib*"])})
    assert run("check", path)[0] == 0
    neighbours = f"the node then sends to neighbours of eth0 in {EXPECTED}"
    snapshot = tmp_path / "node.json"
    snapshot.write_text(run("snapshot")[1])
    told = f"caution: after hostrouting apply, {neighbours} through eth0 via 172.16.30.254"
    code, out, _ = run("judge", path, str(snapshot))
    assert (code, told in out, "• " in out) == (0, True, True)
    assert told in run("check", path, "--snapshot", str(snapshot))[1]
    for words in (["plan"], ["apply", "--routes-only"]):
        assert f"{neighbours} through eth0 via 172.16.30.254" in run(*words, path)[2]
    assert "caution" not in run("check", path)[1], "all is installed"


@pytest.mark.parametrize("left", [HALVES[:1], []], ids=["one route", "no route"])
@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_a_check_tells_that_the_host_fails_once_routes_of_ours_are_removed(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path, mode: str, left: list[str]
) -> None:
    """A later config of a fleet lists fewer routes, and apply fails by its own check."""
    listed = {"uplinks": ["eth0"], "routeOverlap": {"expectedCidrs": [EXPECTED], "mode": mode}}
    both = {"enabled": True, "routes": [{"destination": each} for each in HALVES]}
    static = both | {"routes": [{"destination": each} for each in left]} if left else {}
    path = write({"hostRouting": listed | {"staticRoutes": both}})
    assert run("apply", path)[0] == 0
    snapshot = write_file(tmp_path / "node.json", run("snapshot")[1])
    assert json.loads(run("judge", path, snapshot, "--output", "json")[1])["wouldFail"] == 0
    path = write({"hostRouting": listed | ({"staticRoutes": static} if static else {})})
    is_strict = mode == "STRICT"
    code, out, _ = run("judge", path, snapshot, "--output", "json")
    report = json.loads(out)
    (group,) = report["groups"]
    assert (code, report["wouldFail"], group["verdict"]) == (int(is_strict), int(is_strict), "ok")
    failure = f"OVERLAP: expected CIDR {EXPECTED} "
    told = "in STRICT mode, hostrouting apply would fail, and the next start be held: "
    told = told if is_strict else "after hostrouting apply, the check would fail: "
    assert group["cautions"][0].startswith(told + failure)
    assert ("✗ 1" in run("judge", path, snapshot)[1]) is is_strict
    assert run("check", path)[1].count(failure) == 1
    code, line, _ = run("check", path, "--output", "nagios")
    assert (code, failure in line) == (int(is_strict), is_strict)
    assert run("apply", path)[0] == (1 if is_strict else 0)
    assert json.loads(run("check", path, "--output", "json")[1])["verdict"] == "overlap"


def test_a_check_tells_that_an_added_route_makes_the_host_fail(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    assert run("apply", write(LISTED))[0] == 0
    wrong = {"destination": "172.16.200.0/24", "dev": "ib0", "gateway": "172.16.0.9"}
    path = write({"hostRouting": section(*HALVES, wrong, cidrs=[EXPECTED], keep=["ib0"])})
    code, line, _ = run("check", path, "--output", "nagios")
    assert (code, "held: OVERLAP: expected CIDR" in line) == (1, True)
    assert run("apply", path)[0] == 1


def test_a_groups_json_has_what_apply_installs_and_removes(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    snapshot = write_file(tmp_path / "node.json", run("snapshot")[1])
    given = ("judge", write(LISTED), snapshot, "--output", "json")
    (group,) = json.loads(run(*given)[1])["groups"]
    names = ("unapplied", "unlisted")
    assert {name: group[name] for name in names} == {name: group["report"][name] for name in names}
    assert group["unapplied"]["routes"]


def test_a_check_tells_of_rules_that_hold_the_next_start(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    """A VPN that comes up later adds rules before ours. The expected CIDR still leaves right."""
    path = write(LISTED)
    assert run("apply", path)[0] == 0
    for word in ("check", "fix"):
        assert "held" not in "".join(run(word, path)[1:])
    kernel.ip("route add default dev ib0 table 51820")
    kernel.ip("rule add not fwmark 51820 table 51820")
    kernel.ip("rule add table main suppress_prefixlength 0")
    told = "note: the next start that the gate checks is held: can't keep 172.16.0.10 on ib0"
    code, out, _ = run("check", path)
    assert (code, told in out) == (0, True)
    notes = json.loads(run("check", path, "--output", "json")[1])["notes"]
    (message,) = [note["message"] for note in notes if note["kind"] == "START"]
    assert f"note: {message}" in out
    snapshot = write_file(tmp_path / "node.json", run("snapshot")[1])
    assert f"note: {message}" in run("check", path, "--snapshot", snapshot)[1]
    code, out_of_judge, _ = run("judge", path, snapshot)
    assert (code, "apply would fail on 1" in out_of_judge) == (1, True)
    assert "caution: hostrouting apply would fail: can't keep 172.16.0.10 on ib0" in out_of_judge
    code, line, _ = run("check", path, "--output", "nagios")
    assert (code, line.startswith(told.replace("note:", "HOSTROUTING WARNING -"))) == (1, True)
    (commands,) = re.findall(r"higher preference: (.*?);", out)
    for command in commands.split(" && "):
        kernel.ip(command.removeprefix("ip -4 "))
    assert "held" not in run("check", path)[1]


def test_a_snapshot_that_may_hide_selectors_predicts_no_start(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    path = write(LISTED)
    assert run("apply", path)[0] == 0
    kernel.ip("route add default dev ib0 table 51820")
    kernel.ip("rule add preference 1209 from 172.16.0.10 table 51820")
    document = json.loads(run("snapshot")[1])
    old = {"schema": None, "kernel": "Linux 6.16.1", "ip": "ip utility, iproute2-6.1.0"}
    snapshot = write_file(tmp_path / "node.json", json.dumps(document | old))
    told = "note: whether the next start is held isn't known: the snapshot doesn't show whether"
    code, out, _ = run("check", path, "--snapshot", snapshot)
    assert (code, told in out) == (0, True)
    planned = json.loads(run("plan", path, "--snapshot", snapshot, "--output", "json")[1])
    assert (planned["wouldFail"], planned["nextStart"]["admitted"]) == (None, None)
    report = json.loads(run("judge", path, snapshot, "--output", "json")[1])
    assert (report["wouldFail"], report["mayFail"]) == (0, 1)


def test_a_snapshot_that_may_hide_selectors_leaves_open_what_is_kept(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    """Cilium moves the rule for table local to 100."""
    kernel.ip("rule add preference 100 lookup local")
    kernel.ip("rule delete preference 0")
    document = json.loads(run("snapshot")[1])
    old = {"schema": None, "kernel": "Linux 6.18.1", "ip": "ip utility, iproute2-6.1.0"}
    snapshot = write_file(tmp_path / "node.json", json.dumps(document | old))
    notes = json.loads(run("plan", write(LISTED), "--snapshot", snapshot, "--output", "json")[1])[
        "notes"
    ]
    local = "100: from all (and perhaps more selectors) lookup local"
    told = f"the snapshot doesn't show whether the rule {local} matches all packets; this snapshot"
    assert [note.startswith(f"whether ib0 is kept isn't known: {told}") for note in notes] == [True]


def test_interfaces_that_are_not_kept_are_told(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    """No expected CIDR fails, though packets from ib0's address leave through eth0."""
    path = write(LISTED)
    run("apply", path)
    unkept = "the kernel lacks the rules or routes that keep ib0: hostrouting apply"
    for name in ("kept", "lacking"):
        snapshot = tmp_path / f"{name}.json"
        snapshot.write_text(run("snapshot")[1])
        for words in ((path,), (path, "--snapshot", snapshot)):
            code, out, _ = run("check", *words)
            assert (code, out.count(f"note: {unkept} {path}\n")) == (0, int(name == "lacking"))
            notes = json.loads(run("check", *words, "--output", "json")[1])["notes"]
            assert ("START" in [each["kind"] for each in notes]) == (name == "lacking")
            assert run("check", *words, "--output", "nagios")[0] == int(name == "lacking")
        if name == "kept":
            kernel.ip("rule del from 172.16.0.10 table 2170000")
    judging = ("judge", path, tmp_path / "kept.json", tmp_path / "lacking.json")
    groups = json.loads(run(*judging, "--output", "json")[1])["groups"]
    assert [each["cautions"] for each in groups] == [[], [unkept]]
    assert f"caution: {unkept}\n" in run(*judging)[1]


def test_rules_that_the_kernel_lacks_are_told(run: Run, write: Any) -> None:
    """The VPN is down, so nothing fails. When it comes back, its rule precedes table main."""
    path = write(RULED)
    lacking = f"note: the kernel lacks CONFIG's rules for 10.9.0.0/16: hostrouting apply {path}\n"
    for word in ("check", "fix"):
        assert lacking in "".join(run(word, path)[1:])
    assert run("apply", "--routes-only", path)[0] == 0
    assert "lacks" not in run("check", path)[1]


def test_a_gateway_that_moved_is_the_cause_not_the_effects_of_apply(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    """The default route's gateway is another one by now, and the static routes inherit it."""
    add_nics(kernel, eth1="10.100.0.5/24", cni0="10.244.0.1/24")
    kernel.ip("route add 10.64.0.0/10 via 10.100.0.1 dev eth1")
    kernel.ip("route add 172.16.9.0/24 via 10.1.0.7 dev eth0")
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED], keep=["ib0"])})
    assert run("apply", path)[0] == 0
    snapshot = tmp_path / "node.json"
    snapshot.write_text(run("snapshot")[1])
    assert "gateway on" not in run("check", path, "--snapshot", str(snapshot))[1]
    lose_default_route(kernel)
    kernel.ip("route add default via 10.1.0.254 dev eth0")
    snapshot.write_text(run("snapshot")[1])
    cause = (
        "the default route's gateway on eth0 is now 10.1.0.254, "
        "but 2 static routes still use 10.1.0.1: hostrouting apply"
    )
    for words in ((path,), (path, "--snapshot", snapshot)):
        code, out, _ = run("check", "-v", *words)
        assert (code, out.count(f"note: {cause} {path}\n"), "caution" in out) == (0, 1, False)
        notes = json.loads(run("check", *words, "--output", "json")[1])["notes"]
        assert f"{cause} {path}" in [each["message"] for each in notes if each["kind"] == "START"]
        code, line, _ = run("check", *words, "--output", "nagios")
        assert (code, line.startswith(f"HOSTROUTING WARNING - {cause} {path}; ")) == (1, True)
        assert f"note: {cause} {path}\n" in run("fix", *words)[2]
        code, out, err = run("plan", *words)
        assert ("~ 172.16.0.0/17 via 10.1.0.254 dev eth0" in out, err) == (True, "")
    (group,) = json.loads(run("judge", path, snapshot, "--output", "json")[1])["groups"]
    assert group["cautions"] == [cause]
    assert f"caution: {cause}\n" in run("judge", path, snapshot)[1]
    more = ("10.96.0.0/12", "172.16.9.0/25", *HALVES)
    path = write({"hostRouting": section(*more, cidrs=[EXPECTED], keep=["ib0"])})
    effects = (
        "after hostrouting apply, packets no longer go to addresses in 10.96.0.0/12 through eth1",
        "after hostrouting apply, packets no longer go to 172.16.9.0/25 through eth0 via 10.1.0.7",
    )
    (group,) = json.loads(run("judge", path, snapshot, "--output", "json")[1])["groups"]
    first, *others = group["cautions"]
    assert first == cause
    assert [any(line.startswith(each) for line in others) for each in effects] == [True, True]
    assert not [line for line in others if "via 10.1.0.1," in line]
    assert "via 10.1.0.1," not in run("apply", "--routes-only", path)[2]
    assert "gateway on" not in run("check", path)[1]


def test_a_gateway_that_moved_is_told_beside_a_failure(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    assert run("apply", write(LISTED))[0] == 0
    add_nics(kernel, eth1="10.100.0.5/24")
    kernel.ip("route add 10.64.0.0/10 via 10.100.0.1 dev eth1")
    lose_default_route(kernel)
    kernel.ip("route add default via 10.1.0.254 dev eth0")
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED, "10.96.0.0/16"], keep=["ib0"])})
    code, out, _ = run("check", path)
    cause = "but 2 static routes still use 10.1.0.1: hostrouting apply"
    assert (code, out.count(cause), "no longer go to 172.16" in out) == (1, 1, False)


def test_a_kept_interface_follows_its_gateway(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    add_nics(kernel, eth1="10.100.0.5/24")
    kernel.ip("route add default via 10.100.0.1 dev eth1 metric 500")
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED], keep=["ib0", "eth1"])})
    assert run("apply", path)[0] == 0
    kernel.ip("route del default via 10.100.0.1 dev eth1 metric 500")
    kernel.ip("route add default via 10.100.0.254 dev eth1 metric 500")
    snapshot = write_file(tmp_path / "node.json", run("snapshot")[1])
    (group,) = json.loads(run("judge", path, snapshot, "--output", "json")[1])["groups"]
    lacking = "the kernel lacks the rules or routes that keep eth1: hostrouting apply"
    assert group["cautions"] == [lacking]
    code, out, _ = run("check", path)
    assert (code, f"note: {lacking}" in out, "caution" in out) == (0, True, False)


def test_a_route_whose_gateway_is_configured_follows_none(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """Another gateway in CONFIG is a change of its owner, and has effects."""
    named = [{"destination": each, "gateway": "10.1.0.1"} for each in HALVES]
    assert run("apply", write({"hostRouting": section(*named, cidrs=[EXPECTED])}))[0] == 0
    others = [each | {"gateway": "10.1.0.254"} for each in named]
    out = run("check", write({"hostRouting": section(*others, cidrs=[EXPECTED])}))[1]
    assert "gateway on" not in out
    assert "through eth0 via 10.1.0.1, but through eth0 via 10.1.0.254" in out


def test_routes_without_a_connected_network_take_nothing_away(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    kernel.del_address("ib0", "172.16.0.10/16")
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED])})
    assert run("plan", path)[2] == ""
    assert run("apply", path)[2] == ""


def test_what_cannot_be_kept_is_told_too(run: Run, write: Any, kernel: FakeKernel) -> None:
    """Both interfaces have the same address, so no rule tells their packets apart."""
    add_nics(kernel, eth1="172.16.0.10/16")
    assert kernel.write(Write.DELETE, read_default_routes(kernel)) == ()
    assert kernel.write(Write.ADD, [default_route()]) == ()
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED])})
    both = LED_AWAY.replace("of ib0", "of ib0, eth1")
    near = f"the node then sends to neighbours of eth1 in {EXPECTED} through eth0"
    assert run("plan", path)[2] == f"hostrouting: {near}\nhostrouting: {both}\n"


NETWORKS = {
    "a part": ("172.16.5.1/24", ["172.16.5.0/25", "172.16.5.128/25"], "172.16.5.0/24"),
    "all": ("172.16.0.99/16", [], EXPECTED),
}


@pytest.mark.parametrize(("address", "more", "network"), NETWORKS.values(), ids=NETWORKS)
def test_neighbours_of_a_kept_interface_other_than_infiniband_are_told(
    run: Run, write: Any, kernel: FakeKernel, address: str, more: list[str], network: str
) -> None:
    """Storage was called without a source. Nothing is called so through InfiniBand."""
    add_nics(kernel, eth1=address)
    path = write({"hostRouting": section(*HALVES, *more, cidrs=[EXPECTED], keep=["ib0", "eth1"])})
    told = (
        f"the node then sends to neighbours of eth1 in {network} through eth0, "
        "except from this interface's own addresses"
    )
    for words in (["check"], ["fix"], ["plan"], ["apply", "--routes-only"]):
        code, out, err = run(*words, path)
        assert f": {told}\n" in out + err
        assert (out + err).count("neighbours of") == 1
    assert code == 0


@pytest.mark.parametrize("keep", ["ib*", "ib0"])
def test_own_addresses_that_keep_covers_are_excepted_where_no_cidr_asks(
    run: Run, write: Any, kernel: FakeKernel, keep: str
) -> None:
    """A fleet's config leads all of InfiniBand's network away, for a part of it."""
    add_nics(kernel, ib8="172.19.0.8/16")
    routes = (*HALVES, "172.19.0.0/17", "172.19.128.0/17")
    path = write({"hostRouting": section(*routes, cidrs=["172.16.1.0/24"], keep=[keep])})
    kept = ", except from this interface's own addresses"
    of_ib8 = "the node then sends to neighbours of ib8 in 172.19.0.0/16 through eth0"
    lost = "packets from the addresses of ib8 no longer go to 172.19.0.0/17"
    for words in (["check"], ["fix"], ["plan"], ["apply", "--routes-only"]):
        said = "".join(run(*words, path)[1:])
        assert f"neighbours of ib0 in {EXPECTED} through eth0{kept}\n" in said, words
        assert (f"{of_ib8}{kept}\n" in said) == (keep == "ib*"), words
        assert f"{of_ib8}" in said, words
        assert (lost in said) == (keep == "ib0"), words


def test_neighbours_of_an_uplink_with_infinibands_network_are_told(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """The uplink's own connected route wins, so nothing fails before the config is applied."""
    kernel.ip("address del 172.16.0.10/16 dev ib0")
    for address in ("172.16.9.4/16 dev eth0", "172.16.0.10/16 dev ib0"):
        kernel.ip(f"address add {address}")
    add_nics(kernel, ib1="172.16.0.11/16")
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED], keep=["ib*"])})
    near = "the node then sends to neighbours of eth0 in 172.16.0.0/16 through eth0 via 10.1.0.1"
    fabric = f"packets from the addresses of ib0, ib1 no longer go to {' '.join(HALVES)}"
    told = [
        f"{near}, also from this interface's own addresses",
        f"{fabric} through eth0, but through their interfaces",
    ]
    for words, start in (
        (["check"], "caution: after hostrouting apply, "),
        (["plan"], "hostrouting: "),
        (["apply", "--routes-only"], "hostrouting: "),
    ):
        _, out, err = run(*words, path)
        lines = (out + err).splitlines()
        assert [line for line in told if f"{start}{line}" not in lines] == []


@pytest.mark.usefixtures("vpn")
@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_a_plan_warns_that_a_listed_route_would_not_win(run: Run, write: Any, mode: str) -> None:
    """A VPN's table decides first. Only apply would say so, after a rehearsal without a word."""
    path = write({"hostRouting": section("10.9.0.0/17", cidrs=["10.9.0.0/16"], mode=mode)})
    code, _, err = run("plan", path)
    assert (code, err.startswith("hostrouting: apply would fail: the static routes can't ")) == (
        2,
        True,
    )
    assert run("apply", "--routes-only", path)[0] == 1


@pytest.mark.usefixtures("vpn")
def test_a_listed_rule_is_to_be_applied(run: Run, write: Any) -> None:
    path = write(RULED)
    code, out, _ = run("check", path)
    assert (code, "what fixes this (1 rule)" in out, "add to" in out) == (1, True, False)
    assert run("fix", path)[0] == 1
    assert applied_by(out, run) == 0
    assert run("check", path)[0] == 0


def test_a_listed_keep_is_to_be_applied(run: Run, write: Any, kernel: FakeKernel) -> None:
    """A later rule leads away what eth1's own address sends to its neighbours."""
    add_nics(kernel, eth1="10.2.0.4/24")
    kernel.add_rule(Rule(3000, table=60, source=IPv4Network("10.2.0.4/32")))
    away = Route(IPv4Network("10.2.0.0/24"), (NextHop("ib0"),), table=60, protocol=Protocol.STATIC)
    assert kernel.write(Write.ADD, [away]) == ()
    expected = [{"cidr": "10.2.0.0/24", "devs": ["eth1"]}]
    path = write({"hostRouting": section(cidrs=expected, keep=["eth1"])})
    code, out, _ = run("check", path)
    assert (code, "what fixes this (keep)" in out) == (1, True)
    assert applied_by(out, run) == 0
    assert run("check", path)[0] == 0


@pytest.mark.parametrize("word", ["check", "fix"])
def test_a_route_isnt_moved_to_another_uplink_unasked(
    run: Run, write: Any, kernel: FakeKernel, word: str
) -> None:
    """A second NIC's default route wins since the routes were installed in WARN mode."""
    listed = section(*HALVES, cidrs=[EXPECTED, "10.96.0.0/12"], mode="WARN")
    path = write({"hostRouting": listed})
    assert run("apply", "--routes-only", path)[0] == 0
    (by_eth0,) = read_default_routes(kernel)
    assert kernel.write(Write.DELETE, [by_eth0]) == ()
    add_nics(kernel, eth1="10.2.0.4/24")
    by_eth1 = default_route(NextHop("eth1", SECOND_GATEWAY), metric=50)
    assert kernel.write(Write.ADD, [attrs.evolve(by_eth0, metric=100), by_eth1]) == ()
    code, out, err = run(word, path)
    text = err if word == "fix" else out
    assert (code, "hostrouting apply" in text) == (1, False)
    assert "through eth0, but the uplink is now eth1" in text
    assert '"uplinks": ["eth1"], and apply moves them there' in text
    document = json.loads(run("fix", path, "--output", "json")[1])
    assert [each["answers"] for each in document["fix"]["unfixable"]] == [
        [{"uplinks": ["eth0"]}, {"uplinks": ["eth1"]}]
    ]
    for dev, is_applied in (("eth0", False), ("eth1", True)):
        assert f'"uplinks": ["{dev}"]' in text
        answered = run("check", path, "--uplink", dev)[1]
        told = f'hostrouting apply CONFIG, after setting "uplinks": ["{dev}"] in it'
        assert (told in answered) == is_applied
        assert run("fix", path, "--uplink", dev)[0] == 0
    assert run("fix", "--in-place", path, "--uplink", "eth1")[0] == 0
    assert applied_by(run("check", path)[1], run) == 0
    assert run("check", path)[0] == 0


@pytest.mark.parametrize(
    "path", ["proto static dev ib0", "proto static nexthop dev ib0 nexthop dev ib1"]
)
def test_a_listed_route_that_is_refused_is_named_with_what_to_do(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path, path: str
) -> None:
    """Another program's route has its key. No other route is installed beside it."""
    add_nics(kernel, ib1="172.16.0.11/16")
    kernel.ip(f"route add {HALVES[0]} {path}")
    config = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED])})
    snapshot = tmp_path / "snapshots" / "node.json"
    write_file(snapshot, take_snapshot(kernel).to_text())
    told = (
        f"remove {HALVES[0]} from hostRouting.staticRoutes.routes and name its halves instead, "
        "172.16.0.0/18 and 172.16.64.0/18, which win as the longer prefixes"
    )
    for words in (("check", config), ("fix", config), ("judge", config, snapshot.parent)):
        code, out, err = run(*words)
        text = out + err
        assert (code, told in text) == (1, True)
        assert (text.count("hint:"), "hostrouting apply" in text, "add to" in text) == (
            1,
            False,
            False,
        )
    static = section("172.16.0.0/18", "172.16.64.0/18", HALVES[1], cidrs=[EXPECTED], keep=["ib*"])
    assert run("apply", "--routes-only", write({"hostRouting": static}))[0] == 0
    assert run("check", "--cidr", EXPECTED)[0] == 0


def test_a_listed_route_that_is_refused_though_nothing_fails(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    """A firewall's routes lead through the uplink already."""
    for half in HALVES:
        kernel.ip(f"route add {half} via 10.1.0.9 dev eth0 proto static")
    document = {"hostRouting": section(*HALVES, cidrs=[EXPECTED])}
    config = write(document)
    snapshots = tmp_path / "snapshots"
    for name in ("gpu-1", "gpu-2"):
        snapshot = attrs.evolve(take_snapshot(kernel), host=name)
        write_file(snapshots / f"{name}.json", snapshot.to_text())
    told = (
        "caution: hostrouting apply would fail: can't install ",
        f"remove {HALVES[0]} from hostRouting.staticRoutes.routes, or have the other",
    )
    commands = {
        ("check", config): 0,
        ("fix", config): 1,
        ("fix", "--in-place", config): 1,
        ("judge", config, snapshots): 1,
    }
    for words, expected in commands.items():
        code, out, err = run(*words)
        text = out + err
        assert (code, [line in text for line in told]) == (expected, [True, True])
        assert ("nothing to fix" in text, "isn't known" in text) == (False, False)
        assert text.count("hostrouting apply would fail") == 1
    assert json.loads(config.read_text()) == document
    first, group, *_ = run("judge", config, snapshots)[1].splitlines()
    assert first == "2 snapshots: 2 ok, 0 overlap, 0 unknown; apply would fail on 2"
    assert group.startswith("✗ 2  ok; apply would fail")
    assert run("check", write({"hostRouting": section(cidrs=[EXPECTED])}))[0] == 0


ON_ETH9 = {"destination": "10.50.0.0/24", "dev": "eth9", "gateway": "10.9.9.1"}
LOSES = "rule add from all to 172.16.1.0/24 table 77 pref 100"
COUNTED: dict[str, tuple[list[str], list[Any], int, bool]] = {
    "passes, and apply does": (["address del 172.16.0.10/16 dev ib0"], [*HALVES], 0, False),
    "passes without a dev": (["address del 172.16.0.10/16 dev ib0"], [ON_ETH9], 0, True),
    "fails, and apply fixes it": ([], [*HALVES], 1, False),
    "fails without a dev": ([], [*HALVES, ON_ETH9], 1, True),
    "fails beside another's route": ([f"route add {HALVES[0]} dev ib0"], [*HALVES], 1, True),
    "fails, and a rule decides": (
        [LOSES, "route add default dev ib0 table 77"],
        ["172.16.1.0/24", *HALVES],
        1,
        True,
    ),
}


@pytest.mark.parametrize(("lines", "listed", "failures", "fails"), COUNTED.values(), ids=COUNTED)
def test_hosts_on_which_apply_would_fail_are_counted(
    run: Run,
    write: Any,
    kernel: FakeKernel,
    tmp_path: Path,
    lines: list[str],
    listed: list[Any],
    failures: int,
    fails: bool,
) -> None:
    """Passing and failing hosts count. The count agrees with apply, which then changes nothing."""
    for line in lines:
        kernel.ip(line)
    overlap = {"expectedCidrs": [EXPECTED], "mode": "STRICT", "settleSeconds": 0}
    path = write({"hostRouting": section(*listed, keep=["ib0"], routeOverlap=overlap)})
    snapshot = write_file(tmp_path / "snapshots" / "node.json", take_snapshot(kernel).to_text())
    words = ("judge", path, snapshot)
    first, group, *_ = run(*words)[1].splitlines()
    counts = f"1 snapshot: {1 - failures} ok, {failures} overlap, 0 unknown"
    assert first == f"{counts}{'; apply would fail on 1' if fails else ''}"
    assert ("; apply would fail" in group) is fails
    document = json.loads(run(*words, "--output", "json")[1])
    assert (document["wouldFail"], document["groups"][0]["wouldFail"]) == (int(fails), fails)
    before = read_routes(kernel, Table.MAIN)
    assert run("apply", "--routes-only", path)[0] == int(fails)
    assert (read_routes(kernel, Table.MAIN) == before) is fails


def test_hosts_on_which_apply_would_fail_for_other_reasons_are_no_group(
    kernel: FakeKernel,
) -> None:
    """One CIDR fails by one interface on both, and nothing is proposed on either."""
    config = Config.from_mapping({"hostRouting": section(*HALVES, ON_ETH9, cidrs=[EXPECTED])})
    lacking = attrs.evolve(take_snapshot(kernel), host="lacking")
    for line in ("link add eth9", "address add 10.9.9.9/24 dev eth9"):
        kernel.ip(line)
    kernel.ip(f"route add {HALVES[0]} dev ib0 proto static")
    groups = judge([lacking, attrs.evolve(take_snapshot(kernel), host="refusing")], config).groups
    told = {group.hosts: group.hints[-1].partition(":")[0] for group in groups}
    assert told == dict.fromkeys((("lacking",), ("refusing",)), "first fix why apply would fail")


def test_a_router_that_listed_routes_would_cut_off_is_named(
    run: Run, write: Any, kernel: FakeKernel, host: Host
) -> None:
    """The config has the fix of another host, on which no route leads through this router."""
    others = attrs.evolve(take_snapshot(kernel), host="other")
    kernel.ip("route add 192.168.100.0/24 via 172.16.0.1 dev ib0")
    told = (
        "packets no longer go to 172.16.0.1, the gateway of 192.168.100.0/24 via 172.16.0.1"
        " dev ib0, through ib0, but through eth0"
    )
    path = write(LISTED)
    assert f"caution: {told}" in run("check", path)[1]
    groups = judge([others, take_snapshot(kernel)], Config.from_mapping(LISTED)).groups
    assert sorted(told in group.cautions for group in groups) == [False, True]
    assert told in run("plan", path, "--output", "json")[1].replace('\\"', '"')
    assert told in run("apply", "--routes-only", path)[2]


def test_a_config_without_routes_takes_none_away_silently(
    run: Run, write: Any, host: Host, kernel: FakeKernel
) -> None:
    assert run("apply", "--routes-only", write(LISTED))[0] == 0
    write_file(host.layout.config, '{"node": {}}')
    code, _, said = run("apply", "--routes-only")
    assert (code, "applying it would remove our routes" in said) == (78, True)
    assert len(ours(kernel)) == 2
    path = write({"hostRouting": section(cidrs=["10.96.0.0/12"])})
    predicted = json.loads(run("plan", path, "--output", "json")[1])["warnings"]
    code, out, said = run("apply", "--routes-only", path, "--output", "json")
    warned = json.loads(out)["warnings"]
    assert (code, bool(warned), set(warned) <= set(predicted)) == (0, True, True)
    assert any("no longer go to 172.16.0.0/16 through eth0" in line for line in warned)
    assert all(line in said for line in warned)


REMOVES = "hostrouting apply CONFIG removes installed routes that CONFIG doesn't list"


def test_routes_that_apply_would_remove_are_named(run: Run, write: Any, tmp_path: Path) -> None:
    assert run("apply", "--routes-only", write(LISTED))[0] == 0
    others = [EXPECTED, {"cidr": "10.96.0.0/16", "devs": ["ib0"]}]
    path = write({"hostRouting": {"routeOverlap": {"expectedCidrs": others}, "waitSeconds": 0}})
    code, out, _ = run("check", path)
    removes = "removes 2 installed routes, not listed in CONFIG"
    loss = f"hostrouting plan {path} says what that takes away"
    caution = f"caution: hostrouting apply {path} {removes}: {loss}"
    assert (code, caution in out.splitlines()) == (1, True)
    snapshot = write_file(tmp_path / "node.json", run("snapshot")[1])
    assert f"caution: {REMOVES}: " in run("judge", path, snapshot)[1]
    assert "removes" not in run("judge", write(LISTED), snapshot)[1]
    assert "removes" not in run("judge", "--cidr", EXPECTED, snapshot)[1]
    assert "removes" not in run("check", write(LISTED))[1]
    assert "removes" not in run("check", "--cidr", EXPECTED)[1]


def test_a_config_without_the_installed_keep_is_offered_it(run: Run, write: Any) -> None:
    installed = section(*HALVES, cidrs=[EXPECTED], keep=["ib0"])
    assert run("apply", "--routes-only", write({"hostRouting": installed}))[0] == 0
    path = write({"hostRouting": section(HALVES[0], cidrs=[HALVES[0]])})
    warnings = json.loads(run("plan", path, "--output", "json")[1])["warnings"]
    lost = f"packets from the addresses of ib0 no longer go to {HALVES[0]} through ib0, but through"
    offer = 'to keep them on ib0, add to hostRouting.staticRoutes.keep: "ib0"'
    assert f"{lost} eth0; {offer}" in warnings


@pytest.mark.parametrize(
    ("destination", "loses"),
    [("172.16.1.0/24", True), ("10.96.0.0/24", True), ("10.7.0.0/16", False)],
    ids=["expected", "other", "none"],
)
def test_a_removal_that_takes_something_away_points_to_plan(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path, destination: str, loses: bool
) -> None:
    """The route leads an expected CIDR, or other packets, or nothing, off an interface."""
    add_nics(kernel, eth1="10.100.0.5/24")
    kernel.ip("route add 10.96.0.0/24 via 10.100.0.1 dev eth1 metric 900 proto static")
    installed = [SHADOWED, destination] if destination != SHADOWED else [SHADOWED]
    assert run("apply", "--routes-only", write({"hostRouting": section(*installed)}))[0] == 0
    left = () if destination == SHADOWED else (SHADOWED,)
    path = write({"hostRouting": section(*left)})
    code, out, _ = run("check", path)
    told = "removes 1 installed route, not listed in CONFIG"
    assert (code, told in out, f"hostrouting plan {path} says what" in out) == (0, True, loses)
    snapshot = write_file(tmp_path / "node.json", run("snapshot")[1])
    out = run("judge", path, snapshot)[1]
    see = "hostrouting plan CONFIG says what that takes away"
    assert (f"caution: {REMOVES}" in out, see in out) == (True, loses)
    assert ("no longer go" in "".join(run("plan", path)[1:])) is loses


def test_each_failing_range_has_a_reason_while_apply_would_fail(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """A gateway inside the failing CIDR has a reason of its own."""
    kernel.ip("route add 10.99.0.0/24 via 172.16.0.1 dev ib0")
    kernel.ip("route add 172.16.0.0/17 dev ib0 proto static")
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED])})
    document = json.loads(run("check", path, "--output", "json")[1])
    told = [ip_network(part) for each in document["unfixable"] for part in each["ranges"]]
    (finding,) = document["findings"]
    failing = [ip_network(part) for part in finding["ranges"]]
    assert [part for part in failing if not any(map(part.overlaps, told))] == []
    assert len(document["unfixable"]) == 2


@pytest.mark.parametrize("listed", [[*HALVES], [*HALVES, "10.96.0.0/17", "10.96.128.0/17"]])
def test_a_rule_before_kept_addresses_is_named_though_a_cidr_fails(
    run: Run, write: Any, kernel: FakeKernel, listed: list[str]
) -> None:
    """wg-quick's rules come after apply, before ours, so that no apply would succeed."""
    installed = section(*HALVES, cidrs=[EXPECTED, "10.96.0.0/16"], keep=["ib0"])
    assert run("apply", "--routes-only", write({"hostRouting": installed}))[0] == 0
    kernel.ip("link add wg0\naddress add 10.200.0.2/24 dev wg0")
    kernel.ip("route add default dev wg0 table 51820\nrule add not fwmark 51820 table 51820")
    kernel.ip("rule add table main suppress_prefixlength 0")
    path = write({"hostRouting": installed | {"staticRoutes": section(*listed)["staticRoutes"]}})
    document = json.loads(path.read_text())
    document["hostRouting"]["staticRoutes"]["keep"] = ["ib0"]
    path.write_text(json.dumps(document))
    code, out, _ = run("check", path)
    assert (code, "kernel lacks it: hostrouting apply" in out) == (1, False)
    code, _, said = run("fix", "--in-place", path)
    assert code == 1
    assert json.loads(path.read_text()) == document
    reason = "no route is proposed for 10.96.0.0/16: apply would fail, as the hint says"
    lines = [line.strip() for line in (*out.splitlines(), *said.splitlines())]
    assert [line.startswith("also add") for line in lines].count(True) == 2 * (len(listed) < 4)
    assert lines.count(reason) == 2
    for text in (out, said, run("apply", "--routes-only", path)[2]):
        assert "can't keep 172.16.0.10 on ib0" in text
        assert "because of the rule 2168: from all lookup main suppress_prefixlength 0" in text
    (commands,) = re.findall(r": (ip -4 rule add [^;]*);", said)
    for command in commands.split(" && "):
        kernel.ip(command.removeprefix("ip -4 "))
    assert run("fix", "--in-place", path)[0] == 0
    assert run("apply", "--routes-only", path)[0] == 0
    assert run("check", path)[0] == 0


def test_one_judging_names_all_that_a_host_with_a_vpns_rules_needs(
    run: Run, write: Any, kernel: FakeKernel, host: Host
) -> None:
    """wg-quick's rules precede those of keep, and its tunnel takes a CIDR that isn't listed."""
    config = section(*HALVES, cidrs=[EXPECTED, "10.96.0.0/16"], keep=["ib0"])
    path = write({"hostRouting": config})
    assert run("apply", "--routes-only", path)[0] == 0
    kernel.ip("link add wg0\naddress add 10.200.0.2/24 dev wg0")
    kernel.ip("route add default dev wg0 table 51820\nrule add not fwmark 51820 table 51820")
    kernel.ip("rule add table main suppress_prefixlength 0")
    (group,) = judge([take_snapshot(kernel)], Config.load(path)).groups
    (unfixable,) = group.unfixable
    assert (group.would_fail, group.fix, unfixable.ranges) == (True, (), (RANGE,))
    document = json.loads(run("check", path, "--output", "json")[1])
    assert document["unfixable"] == [unfixable.to_json()]
    assert document["hints"] == [*group.hints]
    assert [finding["fix"] for finding in document["findings"]] == [[]]
    (commands,) = re.findall(r": (ip -4 rule add [^;]*);", group.hints[-1])
    for command in commands.split(" && "):
        kernel.ip(command.removeprefix("ip -4 "))
    (entry,) = re.findall(r"also add to hostRouting\.staticRoutes\.routes: (.*)", unfixable.reason)
    config["staticRoutes"]["routes"].append(json.loads(entry))
    assert run("apply", "--routes-only", write({"hostRouting": config}))[0] == 0
    assert check(Config.load(path), host=host).verdict is Verdict.OK


def test_an_uplink_of_keep_stops_no_check(run: Run, write: Any) -> None:
    """The config names no uplinks, so it may keep eth0, but that is the default route's."""
    path = write({"hostRouting": section(cidrs=[EXPECTED], keep=["eth0"])})
    code, out, _ = run("check", path)
    assert (code, '"ib0"' in out) == (1, True)


@pytest.mark.usefixtures("vpn")
def test_apply_is_not_advised_before_a_listed_route_wins(run: Run, write: Any) -> None:
    """The route to 10.9.1.0/24 wins only after the rule that the fix adds."""
    routes = (*HALVES, "10.9.1.0/24")
    listed = section(*routes, cidrs=[EXPECTED, "10.9.0.0/16"], keep=["ib0"])
    path = write({"hostRouting": {**listed, "uplinks": ["eth0"]}})
    assert run("apply", "--routes-only", path)[0] == 1
    _, out, _ = run("check", path)
    assert ("kernel lacks" in out, '"priority": 5269' in out) == (False, True)
    assert "hint: without this fix, apply would fail: 10.9.1.0/24 via" in out
    assert run("fix", "--in-place", path)[0] == 0
    assert run("apply", "--routes-only", path)[0] == 0
    assert run("check", path)[0] == 0


def test_the_report_has_what_is_listed(run: Run, write: Any, host: Host) -> None:
    report = check(Config.from_mapping(LISTED), host=host)
    assert (report.verdict, report.fix.routes, report.fix.keep) == (Verdict.OVERLAP, (), ())
    assert report.unapplied == Config.from_mapping(LISTED).static_routes
    document = json.loads(run("check", write(LISTED), "--output", "json")[1])
    assert document["unapplied"] == LISTED["hostRouting"]["staticRoutes"]
    assert [(each["fix"], each["rules"]) for each in document["findings"]] == [([], [])]
    assert json.loads(run("check", "--cidr", EXPECTED, "--output", "json")[1])["unapplied"] is None


def test_judge_says_apply_on_snapshots(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    take_snapshot(kernel).save(tmp_path / "lacking.json")
    code, out, _ = run("judge", write(LISTED), tmp_path / "lacking.json")
    assert (code, WHOLE in out, "add to" in out) == (1, True, False)
    assert run("apply", "--routes-only", write(LISTED))[0] == 0
    report = judge([take_snapshot(kernel), tmp_path / "lacking.json"], Config.from_mapping(LISTED))
    assert [group.verdict for group in report.groups] == [Verdict.OK, Verdict.OVERLAP]


@pytest.fixture
def flushed(run: Run, write: Any, host: Host, kernel: FakeKernel) -> Path:
    """Return an installed default CONFIG, whose routes another program has flushed."""
    path = write_file(host.layout.config, json.dumps(LISTED))
    assert run("apply")[0] == 0
    assert kernel.write(Write.DELETE, ours(kernel)) == ()
    return path


def test_the_doctor_says_apply(run: Run, flushed: Path) -> None:
    findings = json.loads(run("doctor", "--output", "json")[1])["findings"]
    (hint,) = {each["hint"] for each in findings if each["kind"] == "shadowed"}
    assert hint == "hostrouting apply"


def test_a_start_that_would_wait_for_the_default_route_is_told(
    run: Run, host: Host, kernel: FakeKernel
) -> None:
    """Our routes are still there, so the check passes. A start reads their gateway again."""
    named = LISTED["hostRouting"] | {"uplinks": ["eth0"]}
    write_file(host.layout.config, json.dumps({"hostRouting": named}))
    assert run("apply")[0] == 0
    told = "the next start that the gate checks waits for the default route on eth0 ("
    assert told not in run("check")[1]
    lose_default_route(kernel)
    code, out, _ = run("check")
    waits = "needed by 172.16.0.0/17, and is then held"
    assert (code, f"note: {told}" in out, waits in out) == (0, True, True)
    snapshot = write_file(host.layout.config.with_name("node.json"), run("snapshot")[1])
    assert f"note: {told}" in run("check", "--snapshot", snapshot)[1]
    findings = json.loads(run("doctor", "--output", "json")[1])["findings"]
    (message,) = [each["message"] for each in findings if each["kind"] == "route-waits"]
    assert "; until that is fixed, the gate holds each start of " in message


def test_only_an_installed_config_holds_the_next_start(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """Until an ``apply`` succeeds, a start installs what is installed now."""
    theirs = "10.96.0.0/16 via 10.1.0.9 dev eth0 proto 216"
    kernel.ip(f"route add {theirs}")
    told = "the next start that the gate checks is held: can't "
    path = write({"hostRouting": section("10.96.0.0/16", cidrs=["10.96.0.0/16"])})
    _, out, _ = run("check", path)
    assert f"note: with CONFIG installed, {told}" in out
    kernel.ip(f"route del {theirs}")
    assert run("apply", path)[0] == 0
    kernel.ip(f"route replace {theirs}")
    assert f"note: {told}" in run("check", path)[1]


@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
def test_a_start_that_is_held_in_warn_mode_is_told_beside_failures(
    run: Run, write: Any, kernel: FakeKernel, mode: str
) -> None:
    """In STRICT mode, each failure holds a start."""
    cidrs = (EXPECTED, "10.96.0.0/12")
    path = write({"hostRouting": section(*HALVES, cidrs=cidrs, mode=mode, uplinks=["eth0"])})
    assert run("apply", path)[0] == 0
    lose_default_route(kernel)
    told = "the next start that the gate checks waits for the default route on eth0"
    code, out, _ = run("check", path)
    assert (code, f"note: {told}" in out) == (1, mode == "WARN")
    code, line, _ = run("check", path, "--output", "nagios")
    assert (code, "1 of 2 expected CIDRs fails" in line) == ({"WARN": 1, "STRICT": 2}[mode], True)
    assert f"; {told}" in line.partition(" fails: ")[2] or mode == "STRICT", "the failure is first"


@pytest.mark.parametrize("word", ["check", "fix"])
def test_the_default_config_needs_no_argument(run: Run, flushed: Path, word: str) -> None:
    code, out, err = run(word)
    text = err if word == "fix" else out
    assert (code, text.partition("lacks it: ")[2].splitlines()[0]) == (1, "hostrouting apply")


def test_the_watchers_failure_says_apply(host: Host) -> None:
    report = check(Config.from_mapping(LISTED), host=host)
    (event,) = of_failures(None, report, ())
    assert event.message.endswith(f"fix: CONFIG {WHOLE}: hostrouting apply CONFIG")
    assert event.fields["FIX"] == []
    unanswered = attrs.evolve(report, fix=Fix())  # ``fix`` may propose routes after an answer
    (event,) = of_failures(None, unanswered, ())
    assert event.message.endswith("; no route is proposed; hostrouting fix says why")


# --- what CONFIG no longer lists ------------------------------------------------------------------

STORAGE = "10.100.0.0/24"
ON_ETH1 = {"cidr": STORAGE, "devs": ["eth1"]}
STALE = "10.100.0.0/25 via 10.1.0.1 dev eth0 proto hostrouting"
NO_LONGER = f"fix: CONFIG no longer lists what causes this ({STALE}): hostrouting apply"


@pytest.fixture
def stale(kernel: FakeKernel) -> None:
    add_nics(kernel, eth1="10.100.0.5/24")
    kernel.ip(f"route add {STALE}")


@pytest.mark.usefixtures("stale")
@pytest.mark.parametrize("routes", [[], ["10.99.0.0/17"]], ids=["none", "others"])
def test_what_is_no_longer_listed_is_to_be_removed(
    run: Run, write: Any, tmp_path: Path, routes: list[str]
) -> None:
    """All commands say ``apply``, instead of routes on top of the stale one."""
    path = write({"hostRouting": section(*routes, cidrs=[ON_ETH1])})
    code, out, _ = run("check", path)
    told = f"{NO_LONGER} {path}\n"
    assert (code, told in out, "add to" in out, "caution" in out) == (1, True, False, False)
    code, out, err = run("fix", path)
    assert (code, told in err, "nothing fails" in err) == (1, True, False)
    assert json.loads(out) == json.loads(Path(path).read_text())
    assert told in run("fix", "--in-place", path)[2]
    snapshot = write_file(tmp_path / "node.json", run("snapshot")[1])
    code, out, _ = run("judge", path, snapshot)
    assert (code, f"{NO_LONGER} CONFIG\n" in out, "add to" in out) == (1, True, False)
    told = json.loads(run("check", path, "--output", "json")[1])
    assert (told["unlisted"], told["unapplied"]) == ([STALE], None)
    assert run("apply", "--routes-only", path)[0] == 0
    assert run("check", path)[0] == 0


@pytest.mark.usefixtures("stale")
def test_a_route_that_is_listed_otherwise_is_to_be_applied(run: Run, write: Any) -> None:
    near = {"destination": "10.100.0.0/25", "gateway": "onlink", "dev": "eth1"}
    path = write({"hostRouting": section(near, cidrs=[ON_ETH1])})
    code, out, _ = run("check", path)
    assert (code, "already lists what fixes this (1 route)" in out) == (1, True)
    assert applied_by(out, run) == 0
    assert run("check", path)[0] == 0


def test_a_rule_that_is_no_longer_listed_is_to_be_removed(
    run: Run, write: Any, kernel: FakeKernel, vpn: None
) -> None:
    assert run("apply", "--routes-only", write(RULED))[0] == 0
    wanted = {"cidr": "10.9.0.0/16", "devs": ["ib0"]}
    path = write({"hostRouting": section(cidrs=[wanted])})
    code, out, _ = run("check", path)
    assert (code, "CONFIG no longer lists what causes this (5269:" in out) == (1, True)
    assert run("apply", "--routes-only", path)[0] == 0
    assert run("check", path)[0] == 0


@pytest.mark.usefixtures("stale")
def test_what_else_is_needed_comes_beside_the_removal(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """The routes that ``apply`` removes may also fix what fails afterwards."""
    for half in HALVES:
        kernel.ip(f"route add {half} via 10.1.0.1 dev eth0 proto hostrouting")
    path = write({"hostRouting": section(cidrs=[ON_ETH1, EXPECTED], keep=["ib0"])})
    code, out, _ = run("check", path)
    assert (code, "causes a part of this" in out) == (1, True)
    assert [json.dumps({"destination": half}) in out for half in HALVES] == [True, True]


@pytest.mark.usefixtures("stale")
def test_with_cidrs_alone_nothing_is_to_be_removed(run: Run, kernel: FakeKernel) -> None:
    """CONFIG may list all of them."""
    kernel.ip("route add default via 10.100.0.1 dev eth1 metric 500")  # otherwise waited for
    code, out, _ = run("check", "--cidr", "10.1.0.0/16", "--cidr", STORAGE, "--uplink", "eth1")
    assert (code, "no longer lists" in out) == (1, False)


@pytest.mark.usefixtures("stale")
def test_the_watcher_and_the_doctor_say_apply_of_a_stale_route(
    run: Run, host: Host, kernel: FakeKernel
) -> None:
    document = {"hostRouting": section(cidrs=[ON_ETH1])}
    write_file(host.layout.config, json.dumps(document))
    assert run("apply")[0] == 0
    kernel.ip(f"route add {STALE}")
    (event,) = of_failures(None, check(Config.from_mapping(document), host=host), ())
    assert event.message.endswith(f"{NO_LONGER} CONFIG")
    findings = json.loads(run("doctor", "--output", "json")[1])["findings"]
    (hint,) = {each["hint"] for each in findings if each["kind"] == "shadowed"}
    assert hint == "hostrouting apply"


def test_a_route_that_fixes_a_part_is_no_cause(run: Run, write: Any, kernel: FakeKernel) -> None:
    """Without it, more addresses fail."""
    add_nics(kernel, eth1="10.100.0.5/24")
    kernel.ip(f"route add {STALE}")
    path = write({"hostRouting": section(cidrs=[STORAGE])})
    code, out, _ = run("check", path)
    assert (code, "no longer lists what causes" in out, "removes 1" in out) == (1, False, True)


def test_the_doctor_names_the_config_whose_routes_fix_a_held_start(
    run: Run, kernel: FakeKernel, host: Host
) -> None:
    """``fix --in-place`` has written the default CONFIG, and ``apply`` hasn't run yet."""
    write_file(host.layout.config, json.dumps(LISTED))
    assert run("apply")[0] == 0
    kernel.ip("route add 172.16.128.0/18 dev ib0")
    assert run("fix", "--in-place")[0] == 0
    findings = json.loads(run("doctor", "--output", "json")[1])["findings"]
    (hint,) = {each["hint"] for each in findings if each["kind"] == "shadowed"}
    assert hint == "hostrouting apply"
    assert run("apply")[0] == 0
    assert run("check")[0] == 0


# --- what CONFIG lists wrongly --------------------------------------------------------------------

WRONG = [
    {"destination": f"10.100.0.{host}/25", "gateway": "10.1.0.1", "dev": "eth0"}
    for host in (0, 128)
]


@pytest.fixture
def storage(kernel: FakeKernel) -> None:
    add_nics(kernel, eth1="10.100.0.5/24")


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("is_installed", [True, False])
def test_a_listed_route_that_is_wrong_is_named(
    run: Run, write: Any, tmp_path: Path, count: int, *, is_installed: bool
) -> None:
    """Its removal fixes the failure, instead of more routes on top of it."""
    path = write({"hostRouting": section(*WRONG[:count], cidrs=[ON_ETH1])})
    said = [run("fix", path)]
    if is_installed:
        said.append(run("apply", path))
        snapshot = write_file(tmp_path / "node.json", run("snapshot")[1])
        said += [run("check", path), run("judge", path, snapshot)]
    listed = ", ".join(f"{each['destination']} via 10.1.0.1 dev eth0" for each in WRONG[:count])
    told = f"CONFIG's own {listed} lead"
    for code, out, err in said:
        assert (code, told in out + err, "staticRoutes.routes" in out + err) == (1, True, False)
    assert json.loads(said[0][1]) == json.loads(Path(path).read_text())
    right = write({"hostRouting": section(cidrs=[ON_ETH1])})
    assert run("apply", "--routes-only", right)[0] == 0
    assert run("check", right)[0] == 0


def test_a_listed_route_whose_removal_fixes_nothing_is_not_named(run: Run, write: Any) -> None:
    """InfiniBand's connected network would shadow the CIDR all the same."""
    wrong = {"destination": HALVES[0], "gateway": "onlink", "dev": "ib0"}
    path = write({"hostRouting": section(wrong, cidrs=[EXPECTED], uplinks=["eth0"])})
    err = run("fix", path)[2]
    assert ("CONFIG's own" in err, "OVERLAP" in err) == (False, True)


# --- in JSON, on snapshots ------------------------------------------------------------------------


REFUSED = {
    "another's route": ([f"route add {HALVES[0]} dev ib0 proto static"], [*HALVES]),
    "no interface": ([], [ON_ETH9]),
    "a rule decides": ([LOSES, "route add default dev ib0 table 77"], ["172.16.1.0/24"]),
}


@pytest.mark.parametrize(("lines", "listed"), REFUSED.values(), ids=REFUSED)
def test_a_plan_on_a_snapshot_says_in_one_way_that_apply_would_fail(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path, lines: list[str], listed: list[Any]
) -> None:
    for line in lines:
        kernel.ip(line)
    path = write({"hostRouting": section(*listed, cidrs=[EXPECTED])})
    snapshot = attrs.evolve(take_snapshot(kernel), host="gpu-7")
    words = ("plan", path, "--snapshot", write_file(tmp_path / "a.json", snapshot.to_text()))
    code, out, err = run(*words, "--output", "json")
    told = json.loads(out)
    assert (code, told["host"], told["wouldFail"], "error" in told) == (2, "gpu-7", True, False)
    (why,) = (line for line in told["warnings"] if line.startswith("apply would fail: "))
    assert told["nextStart"]["admitted"] is False
    assert told["nextStart"]["reason"] == why.removeprefix("apply would fail: ")
    assert f"hostrouting: {why}\n" in err
    code, out, _ = run(*words)
    assert (code, "nothing to change" in out, "would be held back" in out) == (2, False, True)
    said = run("apply", "--routes-only", path)[2]
    assert not ours(kernel)
    assert why.rpartition("; ")[2].partition(", or")[0] in said
    fine = write({"hostRouting": section("10.60.0.0/16", cidrs=[EXPECTED])})
    told = json.loads(run("plan", fine, *words[2:], "--output", "json")[1])
    assert (told["wouldFail"], [line for line in told["warnings"] if "fail" in line]) == (False, [])


FOREIGN = {
    "another gateway": f"route replace {HALVES[0]} via 10.1.0.9 dev eth0 proto 216",
    "a side table": "route replace 10.9.0.0/16 dev eth0 table 2170000 proto static scope link",
}


@pytest.mark.parametrize("line", FOREIGN.values(), ids=FOREIGN)
def test_another_programs_route_that_holds_a_start_is_told(
    run: Run, write: Any, kernel: FakeKernel, line: str
) -> None:
    """The expected CIDR leaves right, but the gate holds the next start."""
    path = write(LISTED)
    assert run("apply", path)[0] == 0
    kernel.ip(line)
    code, told, _ = run("check", path)
    held = "the next start that the gate checks is held: can't "
    assert (code, f"note: {held}" in told) == (0, True)
    code, told, _ = run("check", path, "--output", "nagios")
    assert (code, told.startswith(f"HOSTROUTING WARNING - {held}")) == (1, True)
    code, out, err = run("plan", path)
    assert (code, "would be held back: " in out, "apply would fail: " in err) == (2, True, True)
    document = json.loads(run("plan", path, "--output", "json")[1])
    assert (document["wouldFail"], document["nextStart"]["admitted"]) == (True, False)
    deleting = line.replace("replace", "del")
    advice = "hostrouting check says" if "proto 216" in line else f"ip -4 {deleting}"
    assert advice in document["nextStart"]["reason"]
    kernel.ip(deleting)
    assert run("plan", path)[1].count("would be let through") == 1


@pytest.mark.parametrize("command", ["check", "fix", "plan"])
def test_a_failure_on_a_snapshot_names_its_host(
    run: Run, elsewhere: Run, write: Any, kernel: FakeKernel, tmp_path: Path, command: str
) -> None:
    """A script that collects documents files each under its host."""
    snapshot = attrs.evolve(take_snapshot(kernel), host="gpu-7")
    recorded = write_file(tmp_path / "a.json", snapshot.to_text())
    broken = write({"hostRouting": {"waitSeconds": -1}})
    words = (command, broken, "--output", "json")
    hosts: list[str | None] = []
    for given in (recorded, write_file(tmp_path / "b.json", "{")):
        code, out, _ = elsewhere(*words, "--snapshot", given)
        assert (code, "error" in json.loads(out)) == (78, True)
        hosts.append(json.loads(out)["host"])
    hosts.append(json.loads(run(*words)[1])["host"])
    assert hosts == ["gpu-7", None, os.uname().nodename]


def test_a_refused_fix_on_a_snapshot_names_its_host(
    elsewhere: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    snapshot = attrs.evolve(take_snapshot(kernel), host="gpu-7")
    recorded = write_file(tmp_path / "a.json", snapshot.to_text())
    path = write({"hostRouting": section(ON_ETH9, cidrs=[EXPECTED])})
    code, out, _ = elsewhere("fix", path, "--snapshot", recorded, "--output", "json")
    told = json.loads(out)
    assert (code, "error" in told, told["host"], told["overlap"]["host"]) == (
        1,
        True,
        *["gpu-7"] * 2,
    )


@pytest.mark.parametrize("lost", ["script", "drop-ins"])
def test_nagios_warns_of_a_gate_that_lacks_a_file(
    run: Run, write: Any, host: Host, lost: str
) -> None:
    """The next start is held, or isn't checked at all."""
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED], uplinks=["eth0"])})
    assert run("apply", path)[0] == 0
    assert run("check", "--output", "nagios")[0] == 0
    paths = [host.layout.script(ROUTES_PART)]
    if lost == "drop-ins":
        paths = [*host.layout.units.glob("*.d/*hostrouting.conf")]
    for each in paths:
        each.unlink()
    code, line, _ = run("check", "--output", "nagios")
    assert code == 1, line
    assert all(each.name in line for each in paths), line
    assert line.count("see: hostrouting doctor") == 1


def test_a_rule_for_no_expected_cidr_is_noted(run: Run, write: Any) -> None:
    """Like such a route, it stays in CONFIG after its owner has expected less."""
    rules = [TO_VPN, {"to": "10.8.0.0/16", "priority": 5269}]
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED], rules=rules[:1])})
    told = "note: the rule for 10.9.0.0/16 concerns no expected CIDR, and stays until removed"
    for word in ("check", "fix", "plan", "doctor"):
        assert told in "".join(run(word, path)[1:])
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED], rules=rules)})
    assert (
        "note: the rules for 10.9.0.0/16, 10.8.0.0/16 concern no expected" in run("check", path)[1]
    )


def test_a_route_that_a_vpns_rule_beats_names_the_fix(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    path = write({"hostRouting": section("10.9.0.0/16", cidrs=["10.9.0.0/16"])})
    assert run("apply", path)[0] == 0
    assert kernel.write(Write.ADD, [VPN]) == ()
    kernel.add_rule(BY_VPN)
    hint = "hostrouting fix says what helps; look at: ip -4 rule"
    for word in ("plan", "apply"):
        assert hint in run(word, path)[2]
    told = json.loads(run("doctor", path, "--output", "json")[1])
    (finding,) = [each for each in told["findings"] if each["kind"] == "route-fails"]
    assert finding["hint"].startswith(hint)


@pytest.mark.parametrize("is_installed", [True, False], ids=["installed", "new"])
@pytest.mark.parametrize("way", [(), ("--in-place",)], ids=["printed", "in place"])
def test_a_route_whose_cidr_may_now_go_through_a_vpn_is_to_be_removed(
    run: Run, write: Any, kernel: FakeKernel, *, is_installed: bool, way: tuple[str, ...]
) -> None:
    allowed = [{"cidr": "10.9.0.0/16", "devs": ["ib0"]}]
    path = write({"hostRouting": section("10.9.0.0/16", cidrs=["10.9.0.0/16"])})
    if is_installed:
        assert run("apply", path)[0] == 0
    assert kernel.write(Write.ADD, [VPN]) == ()
    kernel.add_rule(BY_VPN)
    path = write({"hostRouting": section("10.9.0.0/16", cidrs=allowed)})
    code, _, err = run("fix", path, *way)
    removal = "remove 10.9.0.0/16 from hostRouting.staticRoutes.routes"
    assert f"{removal} (its CIDR may now go through ib0)" in err
    assert (code, "nothing to fix" in err, "fix says" in err) == (1, False, False)
    assert run("apply", path)[0] == 1
    path = write({"hostRouting": section(cidrs=allowed)})
    assert [run(word, path)[0] for word in ("fix", "apply", "check")] == [0, 0, 0]


@pytest.mark.parametrize("fails", [False, True], ids=["another fails", "its CIDR fails, too"])
def test_a_needless_route_is_to_be_removed_beside_failures(
    run: Run, write: Any, kernel: FakeKernel, *, fails: bool
) -> None:
    """The fix doesn't advise to run the fix. If the route's own CIDR fails, it may be needed."""
    assert kernel.write(Write.ADD, [VPN]) == ()
    kernel.add_rule(BY_VPN)
    cidrs = [EXPECTED, "10.9.0.0/16"] if fails else [EXPECTED]
    path = write({"hostRouting": section("10.9.0.0/16", cidrs=cidrs)})
    code, _, err = run("fix", path)
    assert (code, "doesn't win" in err, "fix says" in err) == (1, True, False)
    assert ("hint: remove 10.9.0.0/16 from" in err) is not fails


def test_a_route_that_a_vpn_beats_in_part_is_not_to_be_removed(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """The VPN has only the first half of the route's addresses. The others need the route."""
    kernel.ip("route add 10.9.0.0/17 dev ib0 table 52")
    kernel.ip("route add 10.8.0.0/15 dev ib0")
    kernel.add_rule(BY_VPN)
    halves = [{"cidr": "10.9.0.0/17", "devs": ["ib0"]}, "10.9.128.0/17"]
    path = write({"hostRouting": section("10.9.0.0/16", cidrs=halves)})
    code, _, err = run("fix", path)
    assert (code, "doesn't win" in err) == (1, True)
    assert ("remove 10.9.0.0/16" in err, "fix says" in err) == (False, False)


@pytest.mark.usefixtures("vpn")
@pytest.mark.parametrize("cidrs", [["10.9.0.0/16"], ["10.96.0.0/16"]], ids=["it fails", "fine"])
def test_a_listed_rule_behind_another_is_told_where_apply_would_fail(
    run: Run, write: Any, cidrs: list[str]
) -> None:
    """The listed rule comes after the VPN's, and ``apply`` refuses a rule without effect."""
    late = [{"to": "10.9.0.0/24", "priority": 6000}]
    path = write({"hostRouting": {**section(cidrs=cidrs, rules=late), "uplinks": ["eth0"]}})
    _, said, _ = run("check", path)
    is_fixed = run("fix", "--in-place", path)[0] == 0
    code, _, error = run("apply", "--routes-only", path)
    assert is_fixed is (code == 0)
    if code:
        assert "6000" in error
        assert "apply would fail: the rule 6000" in said
