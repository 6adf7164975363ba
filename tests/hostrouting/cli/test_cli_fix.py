"""Tests for ``fix``, for references to it in ``check``, and for ``config set``, which edits our
keys and keeps the rest.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import attrs
import pytest
from file_trees import version_of, write_file
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import by_day
from node import SECOND_GATEWAY, add_nics
from wanted import lose_default_route

from hostrouting import Config, Host, Layout
from hostrouting.cli.edit_config import set_sections
from hostrouting.kernel.port import Write
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.model.rules import Rule
from hostrouting.routes import formats
from hostrouting.testing import FakeKernel, FakeSystemd

Run = Callable[..., tuple[int, str, str]]


EXPECTED = "172.16.0.0/16"
HALVES = [{"destination": "172.16.0.0/17"}, {"destination": "172.16.128.0/17"}]
NOTHING = "nothing fails: there is nothing to fix\n"


def expecting(*cidrs: str, **more: Any) -> dict[str, Any]:
    return {"hostRouting": {"waitSeconds": 0, "routeOverlap": {"expectedCidrs": [*cidrs]}, **more}}


def static(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"enabled": True, "routes": [*entries]}


def led_away(*entries: dict[str, Any]) -> dict[str, Any]:
    """Return routes that lead away what ib0's own address sends, with the interface to keep."""
    return static(*entries) | {"keep": ["ib0"]}


def commands(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if not line.startswith("#")]


# --- the document ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "routes", [None, {}, {"enabled": False}, {"enabled": None, "routes": None}, static()]
)
def test_a_config_without_routes_gets_them_enabled(run: Run, write: Any, routes: object) -> None:
    path = write(expecting(EXPECTED, staticRoutes=routes))
    before = path.read_text()
    code, out, _ = run("fix", path)
    assert (code, path.read_text()) == (0, before)
    assert json.loads(out)["hostRouting"]["staticRoutes"] == led_away(*HALVES)
    assert Config.from_mapping(json.loads(out)).static_routes.enabled


def test_a_question_is_answered_before_anything_is_written(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    hops = (NextHop("ib0", IPv4Address("172.16.0.1")),)
    halves = IPv4Network("10.9.0.0/16").subnets()
    routes = [Route(half, hops, protocol=Protocol.DHCP) for half in halves]
    assert kernel.write(Write.ADD, routes) == ()
    path = write(expecting("10.9.0.0/16"))
    before = path.read_text()
    code, out, err = run("fix", "--in-place", path)
    assert (code, path.read_text()) == (1, before)
    assert (err.count("nothing is proposed for"), err.count('"uplinks": ["eth0"]')) == (2, 1)
    assert "  the answers are those above\n" in err
    for form in ("ip", "netplan", "networkd"):
        code, out, _ = run("fix", path, "--format", form)
        assert (code, "10.9." in out) == (1, False)
    named = write(expecting("10.9.0.0/16", uplinks=["eth0"]))
    assert run("fix", "--in-place", named)[0] == 0
    assert len(json.loads(named.read_text())["hostRouting"]["staticRoutes"]["routes"]) == 4


def test_routes_missing_from_the_config_are_not_relied_on(
    run: Run, write: Any, tmp_path: Path
) -> None:
    entry = {"destination": "172.16.0.0/24"}
    assert (
        run(
            "apply", "--routes-only", write(expecting("172.16.0.0/23", staticRoutes=static(entry)))
        )[0]
        == 0
    )
    code, out, _ = run("fix", write(expecting("172.16.0.0/23")))
    assert (code, json.loads(out)["hostRouting"]["staticRoutes"]) == (
        0,
        led_away({"destination": "172.16.0.0/23"}),
    )
    alone = json.loads(run("fix", "--cidr", "172.16.0.0/23")[1])["hostRouting"]
    overlap = {"expectedCidrs": ["172.16.0.0/23"]}
    assert alone == {
        "staticRoutes": led_away({"destination": "172.16.1.0/24"}),
        "routeOverlap": overlap,
    }
    fixed = write_file(tmp_path / "fixed.json", out)
    assert run("apply", "--routes-only", fixed)[0] == 0
    assert run("check", fixed)[0] == 0


def test_cidrs_next_to_a_config_are_fixed_and_expected_too(run: Run, write: Any) -> None:
    document = expecting("172.16.1.0/24", staticRoutes=static({"destination": "172.16.2.0/24"}))
    code, out, _ = run("fix", write(document), "--cidr", "172.16.2.0/23")
    entries = ({"destination": f"172.16.{number}.0/24"} for number in (2, 1, 3))
    document["hostRouting"]["staticRoutes"] = led_away(*entries)
    document["hostRouting"]["routeOverlap"]["expectedCidrs"].append("172.16.2.0/23")
    assert (code, json.loads(out)) == (0, document)
    code, out, _ = run("fix", write(document), "--cidr", "172.16.2.0/23", "--cidr", "10.96.0.0/12")
    assert json.loads(out)["hostRouting"]["routeOverlap"]["expectedCidrs"][2:] == ["10.96.0.0/12"]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"agent": 1},
        expecting(),
        expecting("10.96.0.0/12"),
    ],
)
def test_without_a_failure_the_config_is_printed_unchanged(
    run: Run, write: Any, document: object
) -> None:
    code, out, err = run("fix", write(document))
    assert (code, out) == (0, json.dumps(document, indent=2) + "\n")
    is_asked = bool(document.get("hostRouting", {}).get("routeOverlap", {}).get("expectedCidrs"))  # type: ignore[attr-defined]
    assert (NOTHING in err, "nothing-expected" in err) == (is_asked, not is_asked)
    has_no_key = "hostRouting" not in document  # type: ignore[operator]
    assert ("has no key hostRouting: it enables nothing" in err) == has_no_key


def test_without_a_failure_cidrs_get_no_route(run: Run) -> None:
    code, out, err = run("fix", "--cidr", "10.96.0.0/12")
    overlap = {"expectedCidrs": ["10.96.0.0/12"]}
    assert (code, json.loads(out)) == (
        0,
        {"hostRouting": {"staticRoutes": static(), "routeOverlap": overlap}},
    )
    assert err == NOTHING
    assert Config.from_mapping(json.loads(out)) == Config(
        static_routes={"enabled": True}, route_overlap=overlap
    )
    for format_ in ("ip", "netplan", "networkd"):
        code, out, err = run("fix", "--cidr", "10.96.0.0/12", "--format", format_)
        assert (code, out.strip(), err) == (0, "", NOTHING)


BY_VPN = Rule(5270, table=52)
VPN = Route(IPv4Network("10.9.0.0/16"), (NextHop("ib0"),), table=52, protocol=Protocol.STATIC)
TO_VPN = {"to": "10.9.0.0/16", "priority": 5269}


@pytest.fixture
def vpn(kernel: FakeKernel) -> None:
    assert kernel.write(Write.ADD, [VPN]) == ()
    kernel.add_rule(BY_VPN)


@pytest.mark.usefixtures("vpn")
def test_rules_and_kept_interfaces_are_merged(run: Run, write: Any) -> None:
    """Existing entries stay, a rule for the same CIDR gets the new priority, and no entry comes
    twice.
    """
    other = {"to": "10.7.0.0/16", "priority": 77}
    late = {"to": "10.9.0.0/16", "priority": 6000}
    there = {"enabled": True, "rules": [late, other], "keep": ["eth1"]}
    path = write(expecting("10.9.0.0/16", EXPECTED, uplinks=["eth0"], staticRoutes=there))
    assert run("fix", "--in-place", path)[0] == 0
    section = json.loads(path.read_text())["hostRouting"]
    assert section["staticRoutes"] == {
        "enabled": True,
        "rules": [TO_VPN, other],
        "keep": ["eth1", "ib0"],
        "routes": HALVES,
    }
    assert "watch" not in section
    assert run("apply", "--routes-only", path)[0] == 0
    assert run("check", path)[0] == 0
    before = path.read_text()
    assert run("fix", "--in-place", path)[:2] == (0, "nothing to change\n")
    assert path.read_text() == before


@pytest.mark.usefixtures("vpn")
def test_each_form_has_rules_and_kept_interfaces(run: Run, write: Any) -> None:
    path = write(expecting("10.9.0.0/16", uplinks=["eth0"]))
    code, out, err = run("fix", path, "--cidr", EXPECTED)
    static = json.loads(out)["hostRouting"]["staticRoutes"]
    assert (code, static["rules"], static["keep"]) == (0, [TO_VPN], ["ib0"])
    assert "ip rule" not in err
    code, text, _ = run("check", path)
    assert f"fix: add to hostRouting.staticRoutes.rules:\n  {json.dumps(TO_VPN)}\n" in text
    document = json.loads(run("check", path, "--output", "json")[1])
    assert [finding["rules"] for finding in document["findings"]] == [[TO_VPN]]
    assert (document["findings"][0]["fix"], document["keep"]) == ([], [])
    as_ip = run("fix", path, "--format", "ip")[1]
    assert commands(as_ip) == [
        "ip -4 rule add from all to 10.9.0.0/16 lookup local pref 5269 proto 216",
        "ip -4 rule add from all to 10.9.0.0/16 lookup main pref 5269 proto 216",
    ]
    for form, words in (("networkd", "# eth0: "), ("netplan", '    "eth0":\n')):
        assert words in run("fix", path, "--format", form)[1]


@pytest.mark.parametrize("watch", [None, {"textfile": "/var/lib/x.prom"}, {"enabled": True}])
def test_the_watcher_comes_with_rules_where_networkd_removes_them(
    run: Run, write: Any, host: Host, watch: Any
) -> None:
    """networkd drops other programs' rules when it is reloaded, unless it is told not to."""
    units = host.units
    assert isinstance(units, FakeSystemd)
    path = write(expecting(EXPECTED, **({"watch": watch} if watch else {})))
    section = json.loads(run("fix", path)[1])["hostRouting"]
    assert section.get("watch") == watch
    units.start("systemd-networkd.service")
    code, out, err = run("fix", path)
    assert json.loads(out)["hostRouting"]["watch"] == (watch or {}) | {"enabled": True}
    is_new = watch is None or not watch.get("enabled")
    assert (code, "removes other programs' policy rules" in err) == (0, is_new)
    write_file(
        host.layout.root / "etc/systemd/networkd.conf",
        "[Network]\nManageForeignRoutingPolicyRules=no\n",
    )
    assert json.loads(run("fix", path)[1])["hostRouting"].get("watch") == watch


# --- offers ---------------------------------------------------------------------------------------


BY_DEFAULT = "packets from 10.2.0.4 (eth1) that only a default route carries"
STAY = "to keep them on eth1"
OFFERS = {
    "an unknown router": (
        [],
        '{"dev": "eth1", "gateway": "GATEWAY"} with its router\'s address for GATEWAY',
    ),
    "a default route of its own": (
        [Route(DEFAULT_DESTINATION, (NextHop("eth1", SECOND_GATEWAY),), metric=900)],
        '"eth1"',
    ),
    "a default route in another table": (
        [Route(DEFAULT_DESTINATION, (NextHop("eth1", SECOND_GATEWAY),), table=60)],
        '{"dev": "eth1", "gateway": "10.2.0.1"}',
    ),
    "a gateway of another route": (
        [Route(IPv4Network("10.7.0.0/16"), (NextHop("eth1", SECOND_GATEWAY),))],
        '{"dev": "eth1", "gateway": "10.2.0.1"}',
    ),
    "two gateways": (
        [
            Route(IPv4Network("10.7.0.0/16"), (NextHop("eth1", SECOND_GATEWAY),)),
            Route(IPv4Network("10.8.0.0/16"), (NextHop("eth1", IPv4Address("10.2.0.2")),)),
        ],
        '{"dev": "eth1", "gateway": "GATEWAY"} with its router\'s address for GATEWAY',
    ),
    "a default route without a gateway": (
        [Route(DEFAULT_DESTINATION, (NextHop("eth1"),), table=60)],
        '{"dev": "eth1", "gateway": "onlink"}',
    ),
}


@pytest.mark.parametrize(("routes", "offer"), OFFERS.values(), ids=OFFERS)
def test_a_second_interface_is_offered_to_be_kept(
    run: Run, write: Any, kernel: FakeKernel, routes: list[Route], offer: str
) -> None:
    add_nics(kernel, eth1="10.2.0.4/24")
    there = [attrs.evolve(route, protocol=Protocol.STATIC) for route in routes]
    assert kernel.write(Write.ADD, there) == ()
    path = write(expecting("10.96.0.0/12", uplinks=["eth0"]))
    code, out, err = run("fix", path)
    lines = err.splitlines()
    assert (code, lines[0]) == (0, NOTHING.rstrip())
    assert out == json.dumps(json.loads(path.read_text()), indent=2) + "\n"
    (at,) = [at for at, line in enumerate(lines) if "keep" in line]
    gateway = re.search(r'"gateway": "([\d.]+|GATEWAY)"', offer)
    promise = f"to send all of them to {gateway[1]} through eth1" if gateway else STAY
    assert lines[at - 1 : at + 1] == [
        f"note: {BY_DEFAULT} leave through eth0, as without hostrouting",
        f"  {promise}, add to hostRouting.staticRoutes.keep: {offer}",
    ]
    assert "keep" not in run("check", path)[1]
    entry = json.loads(offer.partition(" with ")[0].replace("GATEWAY", "10.2.0.1"))
    keep = {"enabled": True, "keep": [entry]}
    kept = write(expecting("10.96.0.0/12", uplinks=["eth0"], staticRoutes=keep))
    told = f"the kernel lacks the rules or routes that keep eth1: hostrouting apply {kept}\n"
    assert told in run("fix", kept)[2]
    assert told in run("check", kept)[1]
    assert run("apply", "--routes-only", kept)[0] == 0
    assert told not in run("check", kept)[1]
    (found,) = kernel.lookup([IPv4Address("198.51.100.9")], source=IPv4Address("10.2.0.4"))
    assert found.route is not None
    assert found.route.devs == ("eth1",)
    assert "keep" not in run("fix", kept)[2]


def test_an_offer_says_what_an_uplinks_neighbours_lose(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """A part of eth1's network is on eth0's link, where eth1's address answers until it is kept."""
    add_nics(kernel, eth1="10.2.0.4/24")
    kernel.add_address("eth0", "10.2.0.66/26")
    kernel.ip("route add 10.7.0.0/16 via 10.2.0.1 dev eth1")
    told = run("fix", write(expecting("10.96.0.0/12", uplinks=["eth0"])))[2]
    assert (
        'keep: {"dev": "eth1", "gateway": "10.2.0.1"}, but packets from the addresses of eth1 no '
        "longer go to 10.2.0.64/26 through eth0, but through eth1\n"
    ) in told


@pytest.mark.parametrize("listed", ["eth1", "e*1"])
def test_a_gateway_is_offered_for_an_interface_kept_without_one(
    run: Run, write: Any, kernel: FakeKernel, listed: str
) -> None:
    """Of the entries that match an interface, the first counts. It replaces the present rules."""
    add_nics(kernel, eth1="10.2.0.4/24")
    kernel.ip("route add 10.7.0.0/16 via 10.2.0.1 dev eth1")
    path = write(expecting("10.96.0.0/12", staticRoutes={"enabled": True, "keep": [listed]}))
    assert run("apply", "--routes-only", path)[0] == 0
    told = run("fix", path, "--uplink", "eth0")[2]
    entry = {"dev": "eth1", "gateway": "10.2.0.1"}
    offer = f"add to hostRouting.staticRoutes.keep, as its first entry: {json.dumps(entry)}\n"
    assert offer in told, "and nothing is lost"
    static = {"enabled": True, "keep": [entry, listed]}
    path = write(expecting("10.96.0.0/12", staticRoutes=static))
    for dev in ("eth0", "eth1"):
        to = [IPv4Address("198.51.100.9"), IPv4Address("172.16.9.9")]
        found = kernel.lookup(to, source=IPv4Address("10.2.0.4"))
        assert [each.route and each.route.devs for each in found] == [(dev,), ("ib0",)]
        assert run("apply", "--routes-only", path)[0] == 0


# --- the other formats ----------------------------------------------------------------------------


def test_a_file_for_networkd_has_only_the_proposed_routes(run: Run, write: Any) -> None:
    own = {"destination": "172.16.2.0/24"}
    path = write(expecting("172.16.2.0/23", staticRoutes=static(own)))
    _, out, _ = run("fix", path, "--format", "networkd")
    assert [line for line in out.splitlines() if line.startswith("Destination=172.16.")] == [
        "Destination=172.16.3.0/24",
        "Destination=172.16.0.0/16",
    ]


def test_commands_have_what_the_kernel_lacks_of_config_too(run: Run, write: Any) -> None:
    own = {"destination": "172.16.2.0/24"}
    path = write(expecting("172.16.2.0/23", staticRoutes=static(own)))
    to_add = [
        "ip -4 route add 172.16.2.0/24 via 10.1.0.1 dev eth0 proto 216",
        "ip -4 route add 172.16.3.0/24 via 10.1.0.1 dev eth0 proto 216",
        "ip -4 route add 172.16.0.0/16 dev ib0 table 2170000 proto 216 scope link src 172.16.0.10",
        "ip -4 rule add from 172.16.0.10 lookup 2170000 pref 2170 proto 216",
    ]
    assert commands(run("fix", path, "--format", "ip")[1]) == to_add
    assert run("apply", "--routes-only", path)[0] == 0
    assert commands(run("fix", path, "--format", "ip")[1]) == to_add[1:]


def test_more_routes_than_networkd_reads_are_reported(
    run: Run, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """networkd drops the rest, and neither its exit code nor that of netplan says so."""
    hosts = [
        Route(IPv4Network((number, 32)), (NextHop("eth0"),))
        for number in range(formats.NETWORKD_ROUTES + 1)
    ]
    assert formats.too_many_for_networkd(hosts[1:]) == ()
    assert "eth0 gets 8,001 routes" in formats.too_many_for_networkd(hosts)[0]
    monkeypatch.setattr(formats, "NETWORKD_ROUTES", 1)
    for format_, is_warned in (("networkd", True), ("netplan", True), ("ip", False)):
        code, out, err = run(
            "fix", write(expecting(EXPECTED)), "--format", format_, "--output", "json"
        )
        assert (code, "eth0 gets 2 routes" in err, len(json.loads(out)["warnings"])) == (
            0,
            is_warned,
            is_warned,
        )


# --- unfixable failures, and unknown verdicts -----------------------------------------------------


def test_an_unfixable_failure_is_1_and_the_rest_is_printed(run: Run, kernel: FakeKernel) -> None:
    lost = Route(IPv4Network("172.16.5.5/32"), (NextHop("ib0"),), protocol=Protocol.STATIC)
    assert kernel.write(Write.ADD, [lost]) == ()
    code, out, err = run("fix", "--cidr", "172.16.5.0/24")
    assert code == 1
    assert json.loads(out)["hostRouting"]["staticRoutes"] == led_away(
        {"destination": "172.16.5.0/24"}
    )
    verdict, finding, reason, *_ = err.splitlines()
    assert "1 of 1 expected CIDRs fails" in verdict
    assert finding.startswith("✗ OVERLAP: expected CIDR 172.16.5.0/24 ")
    assert reason == (
        "no route fixes 172.16.5.5: 172.16.5.5 dev ib0 proto static scope link "
        "is for this address alone, and no route is longer: remove it"
    )
    code, out, _ = run("fix", "--cidr", "172.16.5.5/32")
    assert (code, json.loads(out)["hostRouting"]["staticRoutes"]) == (1, static())
    assert run("fix", "--cidr", "172.16.5.5/32", "--format", "ip")[:2] == (1, "")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (
            {"destination": "172.16.9.0/24", "gateway": "10.9.0.1", "dev": "eth9"},
            (
                r"^hostrouting: can't install the config's routes without .*eth9.*\n"
                r".* hint: bring it up or add it"
            ),
        ),
        ({"destination": EXPECTED}, "of ib0, name its halves, 172.16.0.0/17 and 172.16.128.0/17"),
        ({"destination": "172.16.0.10/32"}, r"doesn't win: .* local 172\.16\.0\.10 dev ib0"),
    ],
)
def test_beside_a_route_that_can_not_be_installed_only_failures_are_told(
    run: Run, write: Any, entry: dict[str, Any], why: str
) -> None:
    path = write(expecting(EXPECTED, staticRoutes=static(entry)))
    code, out, err = run("fix", path)
    assert (code, out) == (1, "")
    assert f"✗ OVERLAP: expected CIDR {EXPECTED} " in err
    assert re.search(why, err, re.MULTILINE)
    assert run("check", path)[0] == 1
    told = json.loads(run("fix", path, "--output", "json")[1])
    assert (told["overlap"]["verdict"], bool(told["error"])) == ("overlap", True)
    before = path.read_text()
    assert run("fix", "--in-place", path)[0] == 1
    assert path.read_text() == before
    path = write(expecting("10.99.0.0/24", staticRoutes=static(entry)))
    for words in ((), ("--in-place",)):
        code, _, err = run("fix", *words, path)
        assert (code, "caution: hostrouting apply would fail: " in err) == (1, True)
        assert "nothing to fix" not in err


# --- the file of CONFIG ---------------------------------------------------------------------------


OWN = """{ "agent":{"z": 1e2,"a":[1.50, null,"ü"] },
\t"hostRouting": {"waitSeconds": 0, "routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]}}  ,
  "last":"\\u00fc hostRouting"}
"""


def test_in_place_the_rest_stays_byte_for_byte(run: Run, tmp_path: Path) -> None:
    path = write_file(tmp_path / "given.json", OWN)
    code, out, err = run("fix", "--in-place", path)
    warning = f"before hostrouting apply {path}, read the caution above"
    assert (code, out) == (0, f"replaced  {path}\n{warning}\n")
    assert err.count("\ncaution: ") == 1
    assert '\nfix: add to hostRouting.staticRoutes.keep:\n  "ib0"\n' in err
    text = path.read_text()
    before, after = OWN.split('{"waitSeconds"')[0], OWN.split('["172.16.0.0/16"]}}')[1]
    assert text.startswith(before)
    assert text.endswith(after)
    section = json.loads(text[len(before) : -len(after)])
    assert section == json.loads(OWN)["hostRouting"] | {"staticRoutes": led_away(*HALVES)}
    assert run("apply", "--routes-only", path)[0] == 0
    assert run("fix", "--in-place", path)[:2] == (0, "nothing to change\n")
    assert path.read_text() == text


SECTION = {"routeOverlap": {"expectedCidrs": [EXPECTED]}}


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
@pytest.mark.parametrize("others", [{}, {"a": [1, {"b": 2}]}])
def test_in_place_keeps_the_files_style(
    run: Run, tmp_path: Path, indent: int | str | None, others: dict[str, Any]
) -> None:
    """A line that has nothing but our keys is too long, so it becomes several."""
    path = tmp_path / "given.json"
    path.write_text(json.dumps(others | {"hostRouting": SECTION}, indent=indent) + "\n")
    assert run("fix", "--in-place", path)[0] == 0
    text = path.read_text()
    document = json.loads(text)
    assert document["hostRouting"]["staticRoutes"]["routes"] == HALVES
    assert text == json.dumps(document, indent=indent if others or indent else 2) + "\n"


@pytest.mark.parametrize("indent", [None, 1, 4, "\t"])
def test_a_new_key_has_the_files_style(
    run: Run, tmp_path: Path, ours: Path, indent: int | str | None
) -> None:
    path = tmp_path / "given.json"
    path.write_text(json.dumps({"a": [1, {"b": 2}]}, indent=indent))
    assert run("config", "set", path, "--from", ours)[0] == 0
    assert path.read_text() == json.dumps(json.loads(path.read_text()), indent=indent)


def test_in_place_writes_nothing_without_a_proposal(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    path = write(expecting("10.96.0.0/12"))
    before = path.read_text(), version_of(path)
    assert run("fix", "--in-place", path)[:2] == (0, "nothing to change\n")
    lose_default_route(kernel)
    for words in ([], ["--in-place"]):
        code, out, err = run("fix", *words, path)
        assert (code, out) == (2, "nothing to change\n" if words else "")
        assert err.startswith("the check couldn't judge anything: no-default-route: ")
        assert "why there is none: ip -4 address; ip -4 route" in err
    assert (path.read_text(), version_of(path)) == before


def test_a_concurrent_change_is_not_lost(
    run: Run, write: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write(expecting(EXPECTED))
    theirs = json.dumps(expecting(EXPECTED, "10.96.0.0/12"))

    def write_meanwhile(_: Layout) -> tuple[()]:
        path.write_text(theirs)
        return ()

    monkeypatch.setattr("hostrouting.host_files.resolv_conf.nameservers", write_meanwhile)
    code, out, err = run("fix", "--in-place", path)
    assert (code, out) == (2, "")
    assert "was changed in the meantime" in err
    assert path.read_text() == theirs


def test_its_json_has_findings_proposal_and_changes(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    path = write(expecting(EXPECTED))
    fixed = json.loads(run("fix", path)[1])
    code, out, _ = run("fix", path, "--output", "json")
    document = json.loads(out)
    assert (code, document["host"], document["changed"], document["files"]) == (
        0,
        os.uname().nodename,
        False,
        [],
    )
    assert (document["overlap"]["verdict"], document["fix"]["routes"]) == ("overlap", HALVES)
    assert document["overlap"]["keep"] == document["fix"]["keep"] == ["ib0"]
    assert (document["format"], document["proposal"]) == ("config", fixed)
    done = json.loads(run("fix", path, "--output", "json", "--in-place")[1])
    assert (done["changed"], done["files"]) == (True, [{"path": str(path), "change": "replaced"}])
    assert json.loads(path.read_text()) == fixed
    as_ip = json.loads(
        run("fix", "--cidr", "172.16.9.0/24", "--output", "json", "--format", "ip")[1]
    )
    assert as_ip["proposal"] == run("fix", "--cidr", "172.16.9.0/24", "--format", "ip")[1].rstrip()
    lose_default_route(kernel)
    code, out, _ = run("fix", write(expecting(EXPECTED)), "--output", "json")
    assert (code, json.loads(out)["overlap"]["verdict"], json.loads(out)["proposal"]) == (
        2,
        "unknown",
        None,
    )


# --- nameservers, and snapshots -------------------------------------------------------------------


DNS_CHANGES = (
    "caution: the node then reaches the DNS server 172.16.1.53 of resolv.conf through eth0, not ib0"
)


@pytest.mark.parametrize(
    ("cidr", "text", "told"),
    [
        (
            EXPECTED,
            (
                "search example.com\nnameserver 172.16.1.53\n"
                "nameserver 10.1.0.53\nnameserver fd00::1\n"
            ),
            [DNS_CHANGES],
        ),
        ("172.16.2.0/24", "nameserver 172.16.1.53\n", []),
        (EXPECTED, "nameserver 172.16.0.10\n", []),  # an address of this host
    ],
)
def test_a_nameserver_whose_route_changes_is_reported(
    run: Run, host: Host, cidr: str, text: str, told: list[str]
) -> None:
    host.layout.resolv_conf.write_text(text)
    assert [line for line in run("fix", "--cidr", cidr)[2].splitlines() if "DNS" in line] == told


@pytest.mark.parametrize("format_", ["config", "ip", "netplan", "networkd"])
def test_a_fix_for_a_snapshot(
    run: Run, elsewhere: Run, host: Host, write: Any, tmp_path: Path, format_: str
) -> None:
    host.layout.resolv_conf.write_text("nameserver 172.16.1.53\n")
    path = write_file(tmp_path / "node.json", run("snapshot")[1])
    for words in (("--cidr", EXPECTED), (write(expecting(EXPECTED)),)):
        here = run("fix", *words, "--format", format_)
        assert elsewhere("fix", *words, "--format", format_, "--snapshot", path) == here
        assert DNS_CHANGES in here[2].splitlines()


# --- config set -----------------------------------------------------------------------------------


OURS: dict[str, Any] = {
    "hostRouting": {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]}},
    "hostNetworking": {"loadBalancerProbe": {"enabled": True}},
}
AGENT = """{ "azure":{"token": "abc","a":[1.50, null,"ü"] },
\t"hostRouting": {"waitSeconds": 1}  ,
  "last":"\\u00fc" }
"""


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return write_file(tmp_path / "ours.json", json.dumps(OURS))


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """Return a config file that contains an agent's token."""
    return write_file(tmp_path / "config.json", AGENT, 0o600)


def test_other_components_bytes_stay(run: Run, agents: Path, ours: Path) -> None:
    assert run("config", "set", agents, "--from", ours) == (0, f"replaced  {agents}\n", "")
    text = agents.read_text()
    assert text.startswith(AGENT.partition('{"waitSeconds"')[0])
    assert '  ,\n  "last":"\\u00fc"' in text
    assert json.loads(text) == json.loads(AGENT) | OURS


def test_mode_owner_and_link_stay(run: Run, agents: Path, ours: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(agents, 12, 34)
    before, link = agents.stat(), tmp_path / "link.json"
    link.symlink_to(agents.name)
    assert run("config", "set", link, "--from", ours)[0] == 0
    after = agents.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert after.st_ino != before.st_ino, "it is replaced as a whole"
    assert sorted(each.name for each in tmp_path.glob("*.json")) == [
        "config.json",
        "link.json",
        "ours.json",
    ]
    assert link.is_symlink()


def test_a_key_missing_from_config_stays(run: Run, agents: Path, ours: Path) -> None:
    ours.write_text(json.dumps({"hostNetworking": OURS["hostNetworking"], "other": 1}))
    assert run("config", "set", agents, "--from", ours)[0] == 0
    assert json.loads(agents.read_text()) == json.loads(AGENT) | {
        "hostNetworking": OURS["hostNetworking"]
    }


def test_a_new_file_is_readable_by_its_owner_alone(run: Run, ours: Path, tmp_path: Path) -> None:
    """Other components may add secrets to the file."""
    path = tmp_path / "new/config.json"
    assert run("config", "set", path, "--from", ours)[:2] == (0, f"added     {path}\n")
    assert json.loads(path.read_text()) == OURS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_its_json_lists_the_changes(run: Run, agents: Path, ours: Path) -> None:
    words = ("config", "set", agents, "--from", ours, "--output", "json")
    done, before, again = json.loads(run(*words)[1]), version_of(agents), json.loads(run(*words)[1])
    assert (done["changed"], done["files"]) == (True, [{"path": str(agents), "change": "replaced"}])
    assert (again["changed"], again["files"], again["host"]) == (False, [], os.uname().nodename)
    assert version_of(agents) == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[1]",
        '"hostRouting"',
        '{"hostRouting": {}, "hostRouting": {"waitSeconds": 1}}',
        '{"a": 1} x',
    ],
)
def test_an_unsuitable_file_is_refused_and_stays(
    run: Run, agents: Path, ours: Path, text: str
) -> None:
    agents.write_text(text)
    code, out, err = run("config", "set", agents, "--from", ours)
    assert (code, out, agents.read_text()) == (78, "", text)
    assert str(agents) in err


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"hostRouting": None},
        {"other": {}},
        {"hostRouting": {"mode": "STRICT"}},
        {"hostNetworking": {"loadBalancerProbe": {"enabled": 1}}},
    ],
)
def test_an_empty_or_wrong_config_is_refused(
    run: Run, agents: Path, ours: Path, document: dict[str, Any]
) -> None:
    ours.write_text(json.dumps(document))
    assert run("config", "set", agents, "--from", ours)[0] == 78
    assert agents.read_text() == AGENT


KEYS = st.sampled_from(["hostRouting", "hostNetworking", "a", "hostRoutin", '"', "\\", "ü", ""])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=by_day(2, by_night=5000))
@given(
    others=st.dictionaries(KEYS, VALUES, max_size=5),
    ours=st.dictionaries(st.sampled_from([*OURS]), VALUES.filter(bool), min_size=1),
    indent=st.sampled_from([None, 0, 1, 4]),
    is_ascii=st.booleans(),
)
def test_other_components_keys_keep_their_meaning(
    tmp_path_factory: pytest.TempPathFactory,
    others: dict[str, Any],
    ours: dict[str, Any],
    indent: int | None,
    is_ascii: bool,
) -> None:
    path = tmp_path_factory.mktemp("any") / "config.json"
    path.write_text(json.dumps(others, indent=indent, ensure_ascii=is_ascii))
    set_sections(path, ours)
    assert json.loads(path.read_text()) == others | ours
