"""Tests that a bad config raises one error with all problems and paths, and that constructors apply
the same rules.
"""

from __future__ import annotations

import os
import re
from ipaddress import IPv4Address, IPv4Network
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from config_schema import integer_keys, keys_of_routing, unmarked
from hypothesis import given
from hypothesis import strategies as st
from nightly import by_day

from hostrouting import (
    Config,
    ConfigError,
    ExpectedCidr,
    Keep,
    OverlapMode,
    RouteOverlap,
    StaticRoute,
    StaticRoutes,
    StaticRule,
)
from hostrouting.boot.files import write_if_changed
from hostrouting.boot.manifest import SHARED_KEYS
from hostrouting.config import routing
from hostrouting.config.routing import CONTAINER_DEVS, Watch
from hostrouting.model.errors import FileError
from hostrouting.model.family import Family
from hostrouting.model.links import is_like

REFERENCE = {
    "azure": {"subscriptionId": "x", "nested": {"anything": [1, 2]}},
    "hostRouting": {
        "staticRoutes": {
            "enabled": True,
            "routes": [
                {"destination": "172.16.1.0/24", "gateway": "10.1.0.1", "dev": "eth0", "metric": 0}
            ],
        },
        "routeOverlap": {"expectedCidrs": ["172.16.0.0/16", "10.96.0.0/12"], "mode": "STRICT"},
    },
}


def section(**keys: Any) -> dict[str, Any]:
    return {"hostRouting": keys}


def routes(*entries: Any) -> dict[str, Any]:
    return section(staticRoutes={"enabled": True, "routes": list(entries)})


def overlap(**keys: Any) -> dict[str, Any]:
    return section(routeOverlap=keys)


def problems_of(document: Any) -> list[tuple[str, str]]:
    """Return the problems of a bad config, which an editor marks too."""
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping(document)
    assert str(caught.value) == "\n".join(f"{p}: {m}" if p else m for p, m in caught.value.problems)
    assert unmarked(document, caught.value.problems) == []
    return list(caught.value.problems)


def only_problem(document: Any) -> tuple[str, str]:
    (problem,) = problems_of(document)
    return problem


def test_the_reference_config_loads_unchanged_and_siblings_are_ignored() -> None:
    config = Config.from_mapping(REFERENCE)
    assert config == Config(
        static_routes=StaticRoutes(True, [StaticRoute("172.16.1.0/24", "10.1.0.1", "eth0", 0)]),
        route_overlap=RouteOverlap(["172.16.0.0/16", "10.96.0.0/12"], "STRICT"),
    )
    route = config.static_routes.routes[0]
    assert (route.destination, route.gateway) == (
        IPv4Network("172.16.1.0/24"),
        IPv4Address("10.1.0.1"),
    )
    assert config.wait_seconds == 30
    assert config.route_overlap.container_devs == CONTAINER_DEVS


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"hostRouting": None},
        {"hostRouting": {}},
        section(staticRoutes=None, routeOverlap=None, waitSeconds=None),
        section(
            staticRoutes={"enabled": None, "routes": None},
            routeOverlap={"expectedCidrs": None, "mode": ""},
        ),
        {"somebodyElse": 1},
    ],
)
def test_null_and_missing_are_the_same_empty_config(document: dict[str, Any]) -> None:
    assert Config.from_mapping(document) == Config()


def test_all_problems_are_reported_in_the_documents_order() -> None:
    bad = {"destination": "10.0.0.0/8", "gateway": "fe80:::1", "dev": "../x", "metric": True}
    document = routes(
        {"destination": "172.16.1.5/24"}, bad, 7, {"gateway": "10.1.0.1"}, ROUTE | {"metrc": 4}
    )
    document["hostRouting"]["routeOverlap"] = {
        "expectedCidrs": ["10.0.0.0/08", "ff02::/16"],
        "mode": "LOUD",
    }
    found = {path.removeprefix("hostRouting."): message for path, message in problems_of(document)}
    places = (
        "[0].destination",
        "[1].gateway",
        "[1].dev",
        "[1].metric",
        "[2]",
        "[3].destination",
        "[4].metrc",
    )
    assert list(found) == [
        *(f"staticRoutes.routes{place}" for place in places),
        *(f"routeOverlap.{key}" for key in ("expectedCidrs[0]", "expectedCidrs[1]", "mode")),
    ]
    gateway = found["staticRoutes.routes[1].gateway"]
    assert gateway == "'fe80:::1' is not an IPv6 address; expected for example fd00:1::20"


NO_PREFIX, NO_ADDRESS = "not an IPv4 prefix", "not an IPv4 address"
NO_NAME, NO_STRING = "not an interface name", "expected a string"
ROUTE = {"destination": "172.16.1.0/24"}
ENTRIES: dict[str, dict[str, Any]] = {
    "staticRoutes.routes[0]": ROUTE,
    "staticRoutes.rules[0]": {"to": "10.244.0.0/16", "priority": 5269},
    "staticRoutes.keep[0]": {"dev": "ib*", "gateway": "10.2.0.1"},
    "routeOverlap.expectedCidrs[0]": {"cidr": "10.0.0.0/8", "devs": ["ib*"]},
}


def at(place: str, value: Any) -> tuple[dict[str, Any], str]:
    """Return a config with a value at a position, and the value's path in error messages."""
    section, _, key = place.rpartition(".")
    path = f"hostRouting.{place}"
    if key.endswith("[0]"):
        key, value = key.removesuffix("[0]"), [value]
    if section in ENTRIES:
        key, value = section.removesuffix("[0]"), [ENTRIES[section] | {key: value}]
        section, _, key = key.rpartition(".")
    opted_in = {"enabled": True} if key in ("routes", "rules", "keep") else {}
    return {"hostRouting": {section: opted_in | {key: value}} if section else {key: value}}, path


# Invalid values by position and part of the error message.
REFUSED: dict[str, dict[str, list[Any]]] = {
    "staticRoutes.routes[0].destination": {
        "host bits set; did you mean 172.16.1.0/24?": ["172.16.1.5/24"],
        "not an IPv4 prefix; expected an address and a length": ["172.16.1.0"],
        NO_PREFIX: [
            *("172.16.1.0/255.255.255.0", "172.16.1.0/0.0.0.255", "172.16.01.0/24"),
            *("172.16.1.0/024", "172.16.1.0/33", "172.16.1.0/-1", "172.16.1.256/32"),
            *(" 172.16.1.0/24", "172.16.1.0/24\n", "172.16.1.0 /24", "１７２.16.1.0/24"),
            *("172.16.1.0/24; reboot", "$(reboot)/24", "10.1/16", "", "default"),
        ],
        "the default route": ["0.0.0.0/0", "::/0"],
        "means this host": ["0.1.0.0/16", "::1/128"],
        "stands for IPv4 addresses": ["::ffff:0:0/96"],
        "means nothing without an interface": ["fe80::/64"],
        "host bits set; did you mean fd00:1::/48?": ["fd00:1::1/48"],
        "has a zone": ["fd00::%1/64"],
        "not an IPv6 prefix": ["fd00::/129", "fd00::/", "::ffff:10.1.0.0/112"],
        "loopback": ["127.0.0.0/8"],
        "multicast": ["224.1.0.0/16", "224.0.0.0/3"],
        "reserved": ["240.0.0.0/4", "255.255.255.255/32"],
        NO_STRING: [5, ["172.16.1.0/24"], True],
    },
    "staticRoutes.routes[0].gateway": {
        "is not an IPv4 gateway for 172.16.1.0/24": ["fe80::1", "fd00::1"],
        "has a zone": ["fe80::1%eth0"],
        NO_ADDRESS: ["10.1.0", "010.1.0.1", "10.1.0.1/24", "10.1.0.300", " "],
        "means this host": ["0.0.0.0"],
        "loopback": ["127.0.0.1"],
        "multicast": ["224.0.0.1"],
        "reserved": ["255.255.255.255"],
        'did you mean "onlink"?': ["OnLink", "on-link"],
        NO_STRING: [167772161, False],
    },
    "staticRoutes.routes[0].dev": {
        NO_NAME: [
            *(".", "..", "a/b", "eth 0", "eth0;reboot", "$(x)", "`x`", "eth0\n", "a" * 16),
            *("ëth0", "eth0'", 'e"', 7, "%s:"),
        ],
    },
    "staticRoutes.routes[0].metric": {"": [True, False, -1, 2**32, 1.0, "1", [], float("nan")]},
    "staticRoutes.routes[0].metrc": {"unknown key; did you mean metric?": [1]},
    "staticRoutes.rules[0].to": {
        "host bits set; did you mean 172.16.1.0/24?": ["172.16.1.5/24"],
        NO_PREFIX: ["172.16.1.0/024", "10.244.0.0/33", "10.244.0.0/16\n", "all", ""],
        "not an IPv4 prefix; expected an address and a length": ["10.244.0.1"],
        "the default route": ["0.0.0.0/0", "::/0"],
        "means this host": ["0.1.0.0/16", "::1/128"],
        "loopback": ["127.0.0.0/8"],
        "multicast": ["224.1.0.0/16", "ff02::/16"],
        "means nothing without an interface": ["fe80::/64"],
        NO_STRING: [5, ["172.16.1.0/24"], True],
    },
    "staticRoutes.rules[0].priority": {
        "is not an integer": [True, "5269", 1.0, [], 9.5],
        "is out of range; expected 1 to 32765": [0, -1, 32766, 2**32],
        "belongs to keep, as 2170 to 2172 do": [2170, 2171, 2172],
    },
    "staticRoutes.rules[0].from": {"unknown key": ["10.0.0.0/8"]},
    "staticRoutes.rules[0].table": {"unknown key": [254]},
    "staticRoutes.rules[0]": {"expected an object": ["10.244.0.0/16", 5, [], True]},
    "staticRoutes.rules": {"expected a list": [{"to": "10.244.0.0/16"}, "x", 5]},
    "staticRoutes.keep[0].dev": {
        "not a pattern": ["", "a b", "a/b", "$(x)", "ib*\n", "a|b", "!ib*"],
        "": [5, True, ["ib*"]],
    },
    "staticRoutes.keep[0].gateway": {
        "is not an IPv4 address": ["fe80::1", "fd00:1::1", "10.1.0", "10.1.0.1/24", "010.1.0.1"],
        "means this host": ["0.0.0.0"],
        "loopback": ["127.0.0.1"],
        "multicast": ["224.0.0.1"],
        "reserved": ["255.255.255.255"],
        'did you mean "onlink"?': ["OnLink", "on-link"],
        NO_STRING: [167772161, False],
    },
    "staticRoutes.keep[0].devs": {"unknown key; did you mean dev?": [["ib*"]]},
    "staticRoutes.keep[0]": {
        "not a pattern": ["", "a b", "ib*\n"],
        "expected a pattern of interface names or an object": [5, True, ["ib*"]],
    },
    "staticRoutes.keep": {"expected a list": ["ib*", {"dev": "ib*"}, 5]},
    "staticRoutes.enabled": {"not a boolean": ["true", 1, 0, "yes", []]},
    "staticRoutes.routes": {"expected a list": ["172.16.1.0/24", {"destination": "x"}, 3, True]},
    "staticRoutes": {"expected an object": [[], "x", 3, True]},
    "routeOverlap": {"expected an object": [[], "x", 3, True]},
    "routeOverlap.expectedCidrs[0]": {
        "": [
            *("0.1.0.0/16", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32", "240.0.0.0/3"),
            *("10.0.0.0", "fd00::", 3),
        ],
        "means this host": ["::1/128", "::/127"],
        "stands for IPv4 addresses": ["::ffff:a00:0/104"],
        "multicast": ["ff02::/16"],
        "means nothing without an interface": ["fe80::/64"],
        "has a zone": ["fd00::%1/64"],
        "lies in 127.0.0.0/8": ["127.0.0.0/9"],
        "without a dotted quad (write IPv4 alone, such as 10.1.0.0/16)": ["::ffff:10.0.0.0/104"],
        "not an IPv6 prefix": [
            *("fd00::/129", "fd00::/048", "fd00:::/48", "fd00::10.0.0.1/128", "fd00::/48 "),
        ],
    },
    "routeOverlap.expectedCidrs[0].cidr": {NO_PREFIX: ["10.0.0.0"], NO_STRING: [5]},
    "routeOverlap.expectedCidrs[0].devs[0]": {"not a pattern": ["", "a b"], "": [5]},
    "routeOverlap.containerDevs[0]": {"not a pattern": ["", "a b"], "": [5]},
    "routeOverlap.allowedDevs[0]": {"not a pattern": ["", "a b"], "": [5]},
    "routeOverlap.foreseen[0]": {"which means nothing without an interface": ["fe80::/10"]},
    "routeOverlap.mode": {"": ["LOUD", " strict", 1, True, ["WARN"], "ﬅrict", "ſtrict"]},
    "routeOverlap.settleSeconds": {"": [-1, 601, True, 1.5, "30"]},
    "routeOverlap.coverage": {"every address of an expected CIDR is checked": ["EXACT"]},
    "waitSeconds": {"": [-1, 601, True, 1.5, "30"]},
    "uplinks": {"": [[]]},
    "uplinks[0]": {"": ["", "a b", 5]},
    "watch.enabled": {"not a boolean": ["true", 1, 0, "yes", []]},
    "watch.textfile": {
        "is not the absolute path of a textfile": [
            *("", "x.prom", "/x", "/x.prom", "/etc/x.prom"),
            *(f"/var/lib{path}" for path in ("/x.prom/", "/.prom", "/a\n.prom", "/a\0.prom")),
            *(f"/var/lib{path}" for path in ("/../x.prom", "/./x.prom", "//x.prom", "/x.prom\n")),
            *(7, True, ["/var/lib/x.prom"]),
        ],
        "too long": [f"/a/{'a' * 256}/x.prom", f"/a/{'é' * 128}/x.prom"],
    },
    "wathc": {"unknown key": [{}]},
    "staticroutes": {"unknown key": [{}]},
    "consumer": {
        "": [
            *("", "kubelet", "a/b.service", "../x.service", "a b.service", "x.socket"),
            *("a@b@c.service", "x.service\n", "$(x).service", "--help.service", "-H@.service"),
            *(f"{'x' * 229}.service", f"{'x' * 228}@.service", 3, True),
        ],
        "name its template, systemd-nspawn@.service": ["systemd-nspawn@kube1.service"],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (place, value, words)
        for place, rows in REFUSED.items()
        for words, row in rows.items()
        for value in row
    ],
)
def test_a_bad_value_is_refused_with_path_and_reason(place: str, value: Any, words: str) -> None:
    """The reference accepts host bits, for example; the kernel then rejects the route."""
    document, path = at(place, value)
    where, message = only_problem(document)
    assert where == path
    assert words in message
    assert words or "unknown key" not in message


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ({"gateway": "10.1.0.1"}, "'10.1.0.1' is not an IPv6 gateway for fd00:1::/48"),
        ({"gateway": "fe80::1"}, "'fe80::1' is link-local; name dev"),
        ({"gateway": "ff02::1"}, "'ff02::1' lies in ff00::/8, which is multicast"),
    ],
)
def test_a_gateway_must_suit_an_ipv6_destination(route: dict[str, str], words: str) -> None:
    static = {"enabled": True, "routes": [{"destination": "fd00:1::/48", **route}]}
    path, message = only_problem({"hostRouting": {"staticRoutes": static}})
    assert path == "hostRouting.staticRoutes.routes[0].gateway"
    assert message == words


@pytest.mark.parametrize("unit", ["x@", "-", "x.service", "@", "x"][: by_day(2, by_night=5)])
@pytest.mark.parametrize("key", ["consumer", "watch.textfile"])
def test_a_name_of_a_million_letters_is_refused(key: str, unit: str) -> None:
    """The parsing time must be linear in the name's length.

    Quadratic parsing would take a quarter of an hour.
    """
    unit = f"/{unit}" if key == "watch.textfile" else unit
    document, path = at(key, unit * (1_000_000 // len(unit)))
    assert only_problem(document)[0] == path


# Values by position that a config keeps as they are, and that aren't the default.
GOOD: dict[str, list[Any]] = {
    "staticRoutes.enabled": [True],
    "staticRoutes.routes[0].destination": ["10.0.0.0/8", "fd00:1::/48"],
    "staticRoutes.routes[0].gateway": ["onlink", "10.1.0.1"],
    "staticRoutes.routes[0].dev": [
        *("eth0", "a", "enp0s31f6.100", "br-0_x", "a" * 15, "...", "-x"),
    ],
    "staticRoutes.rules[0].to": ["10.0.0.0/8", "fd00:1::/48"],
    "staticRoutes.keep[0].dev": ["ib*", "wg[01]"],
    "staticRoutes.keep[0].gateway": ["onlink", "10.1.0.1"],
    "routeOverlap.expectedCidrs[0].cidr": ["10.0.0.0/8", "fd00:1::/48"],
    "routeOverlap.expectedCidrs[0].devs[0]": ["ib*"],
    "routeOverlap.mode": ["STRICT"],
    "routeOverlap.containerDevs[0]": ["ib*"],
    "routeOverlap.allowedDevs[0]": ["ib*"],
    "routeOverlap.foreseen[0]": ["10.0.0.0/8", "fd00:1::/48"],
    "uplinks[0]": ["eth0", "ib*"],
    "consumer": [
        *("kubelet.service", "a:b-c_d.e@.service", f"{'x' * 227}@.service"),
    ],
    "watch.enabled": [True],
    "watch.textfile": ["/var/lib/x.prom"],
}


@pytest.mark.parametrize(
    ("place", "value"), [(place, value) for place, values in GOOD.items() for value in values]
)
def test_a_good_value_is_kept_unchanged(place: str, value: Any) -> None:
    document, path = at(place, value)
    held: Any = Config.from_mapping(document).to_mapping()
    for key in re.findall(r"\w+", path):
        held = held[int(key) if key.isdigit() else key]
    assert held == value


def test_every_key_has_refused_and_good_values_here() -> None:
    keys = {*keys_of_routing()}
    unrefused = sorted(keys - {*REFUSED})
    assert not unrefused, f"add to REFUSED wrong values of each of these keys: {unrefused}"
    numbers = {path.removeprefix("hostRouting.") for path in integer_keys()}
    wrong = sorted((keys - numbers) ^ {*GOOD})
    assert not wrong, f"add to GOOD values of each of these keys, or delete it: {wrong}"


def test_every_value_outside_the_sections_is_of_all_parts() -> None:
    alone = {key.removesuffix("[0]") for key in keys_of_routing() if "." not in key}
    shared = alone - {"consumer"}  # the manifest has it for the whole installation
    assert shared == {*SHARED_KEYS}, (
        "add to SHARED_KEYS in boot/manifest.py the keys that several parts use, or else to this"
        f" test with the place that keeps its value: {sorted(shared ^ {*SHARED_KEYS})}"
    )


def test_a_duplicate_route_is_refused_and_names_the_first() -> None:
    twin = {"destination": "172.16.1.0/24", "dev": "eth1"}
    path, message = only_problem(
        routes({"destination": "172.16.1.0/24"}, {"destination": "10.0.0.0/8"}, twin)
    )
    assert path == "hostRouting.staticRoutes.routes[2]"
    assert "already routes[0]" in message
    # IPv6's default metric.
    same = {"destination": "fd00:1::/48"}, {"destination": "fd00:1:0::/48", "metric": 512}
    assert "with metric 512 is already routes[0]" in only_problem(routes(*same))[1]
    Config.from_mapping(routes({"destination": "172.16.1.0/24"}, {**twin, "metric": 5}))


@pytest.mark.parametrize("enabled", [{"enabled": False}, {"enabled": None}, {}])
def test_missing_opt_in_and_duplicates_are_reported_too(enabled: dict[str, Any]) -> None:
    assert (
        only_problem(section(staticRoutes=enabled | {"routes": [ROUTE]}))[0]
        == "hostRouting.staticRoutes.enabled"
    )
    entries = [{"destination": "10.0.0.0/8"}, {"destination": "x"}, {"destination": "10.0.0.0/8"}]
    found = problems_of(section(staticRoutes=enabled | {"routes": entries}))
    assert [path.removeprefix("hostRouting.staticRoutes.") for path, _ in found] == [
        *("enabled", "routes[1].destination", "routes[2]")
    ]


@pytest.mark.parametrize(
    ("key", "entry", "words"),
    [
        ("rules", {"to": "10.244.0.0/16", "priority": 5269}, "where rules are given"),
        ("keep", "ib*", "where keep is given"),
    ],
)
@pytest.mark.parametrize("enabled", [{"enabled": False}, {}])
def test_rules_and_keep_need_the_opt_in_too(
    key: str, entry: Any, words: str, enabled: dict[str, Any]
) -> None:
    path, message = only_problem(section(staticRoutes=enabled | {key: [entry]}))
    assert path == "hostRouting.staticRoutes.enabled"
    assert words in message


def test_rules_and_keep_are_read() -> None:
    rules = [
        {"to": "10.244.0.0/16", "priority": 5269},
        {"to": "FD00:1::/48", "priority": 5269},
        {"to": "10.244.0.0/17", "priority": 1},
    ]
    keep = ["ib*", {"dev": "ib*"}, {"dev": "eth1", "gateway": "10.2.0.1"},
            {"dev": "wg[01]", "gateway": "onlink"}, {"dev": "eth2", "gateway": ""}]  # fmt: skip
    document = section(staticRoutes={"enabled": True, "rules": rules, "keep": keep})
    static = Config.from_mapping(document).static_routes
    assert static == StaticRoutes(
        True,
        rules=[
            StaticRule("10.244.0.0/16", 5269),
            StaticRule("fd00:1::/48", 5269),
            StaticRule("10.244.0.0/17", 1),
        ],
        keep=[
            Keep("ib*"),
            Keep("ib*"),
            Keep("eth1", "10.2.0.1"),
            Keep("wg[01]", "onlink"),
            Keep("eth2"),
        ],
    )
    assert static.is_wanted
    assert static.families == (Family.IPV4, Family.IPV6)
    assert static.rules_of(Family.IPV6) == (StaticRule("fd00:1::/48", 5269),)
    assert static.of(Family.IPV4) == ()
    assert [str(rule) for rule in static.rules] == [
        "to 10.244.0.0/16 priority 5269",
        "to fd00:1::/48 priority 5269",
        "to 10.244.0.0/17 priority 1",
    ]
    assert [str(entry) for entry in static.keep] == [
        *("ib*", "ib*", "eth1 via 10.2.0.1", "wg[01] onlink", "eth2"),
    ]
    # An entry without a gateway is written as a string.
    assert static.to_mapping()["keep"] == [
        *("ib*", "ib*", {"dev": "eth1", "gateway": "10.2.0.1"}),
        *({"dev": "wg[01]", "gateway": "onlink"}, "eth2"),
    ]


def test_each_problem_of_rules_and_keep_has_its_path() -> None:
    rules = [
        {"to": "10.0.0.1/8", "priority": 2170},
        {"to": "10.0.0.0/8"},
        {"priority": 5},
        {"to": "10.0.0.0/8", "priority": 7},
        "10.0.0.0/8",
    ]
    keep = ["a b", {"gateway": "10.1.0.1"}, {"dev": "a b", "gateway": "x", "table": 7}]
    found = problems_of(section(staticRoutes={"enabled": False, "rules": rules, "keep": keep}))
    assert [path.removeprefix("hostRouting.staticRoutes.") for path, _ in found] == [
        "enabled",
        *("rules[0].to", "rules[0].priority", "rules[1].priority", "rules[2].to", "rules[4]"),
        *("keep[0]", "keep[1].dev", "keep[2].table", "keep[2].dev", "keep[2].gateway"),
    ]


def test_a_cidr_has_one_rule_and_several_may_share_a_priority() -> None:
    first, other = {"to": "10.0.0.0/8", "priority": 5}, {"to": "fd00:1::/48", "priority": 5}
    same = {"to": "FD00:1:0::/48", "priority": 6}
    document = section(staticRoutes={"enabled": True, "rules": [first, other, same]})
    path, message = only_problem(document)
    assert path == "hostRouting.staticRoutes.rules[2]"
    assert message == "fd00:1::/48 is already rules[1]"
    Config.from_mapping(section(staticRoutes={"enabled": True, "rules": [first, other]}))


@pytest.mark.parametrize(
    ("pattern", "uplinks", "is_refused"),
    [
        ("eth0", ["eth0"], True),
        ("eth0", ["ib*", "eth?"], True),
        ("eth*", ["eth*"], True),
        ("eth1*", ["eth*"], True),
        ("eth?", ["e*"], True),
        ("*", ["*"], True),
        ("[e]th0", ["[e]th0"], True),
        ("eth*", ["eth0"], False),
        ("eth*", ["eth?"], False),
        ("eth1", ["eth0"], False),
        ("*", ["eth*"], False),
    ],
)
def test_keeping_only_uplinks_is_refused(
    pattern: str, uplinks: list[str], is_refused: bool
) -> None:
    static = {"enabled": True, "keep": [pattern]}
    document = section(uplinks=uplinks, staticRoutes=static)
    if not is_refused:
        Config.from_mapping(document)
        return
    path, message = only_problem(document)
    assert path == "hostRouting.staticRoutes.keep[0]"
    assert message == f"'{pattern}' matches only uplinks, whose packets follow the routes"


_patterns = st.text(st.sampled_from("ab*?[]-"), min_size=1, max_size=4)
_names = ["".join(letters) for size in range(1, 4) for letters in product("ab-]", repeat=size)]


@given(_patterns, st.lists(_patterns, min_size=1, max_size=2))
def test_what_is_refused_as_an_uplink_matches_no_other_interface(
    pattern: str, uplinks: list[str]
) -> None:
    if routing._is_within(pattern, tuple(uplinks)):
        kept = [name for name in _names if is_like(name, (pattern,))]
        assert all(is_like(name, tuple(uplinks)) for name in kept)


@pytest.mark.parametrize(
    "key",
    ["hostrouting", "HostRouting", "HOSTROUTING", "host_routing", "host-routing", "Host_Routing",
     "hostRoutng", "hostRoutingg", "hostRoutlng", "hostRoutnig"],
)  # fmt: skip
def test_a_misspelt_section_is_an_error(key: str) -> None:
    assert only_problem({key: {}}) == (key, "unknown key; did you mean hostRouting?")
    assert Config.from_mapping({key: {}, "hostRouting": {}}) == Config()


@pytest.mark.parametrize("key", ["hostNetworking", "hostRoutes", "routing", "ghostRouters"])
def test_a_similar_key_belongs_to_another_program(key: str) -> None:
    assert Config.from_mapping({key: {}}) == Config()


def test_keys_of_the_section_are_refused_outside_it() -> None:
    document: dict[str, object] = {"staticRoutes": {}, "routeOverlap": {}}
    assert problems_of(document) == [(key, "belongs into hostRouting") for key in document]
    assert Config.from_mapping(document | {"hostRouting": {}}) == Config()


def test_expected_cidrs_are_masked_and_may_repeat_and_nest() -> None:
    given = ["172.16.3.4/16", "172.16.0.0/16", "172.16.1.0/24", "0.0.0.0/0", "FD00:1::5/48", "::/0"]
    config = Config.from_mapping(overlap(expectedCidrs=given))
    found = [str(cidr) for cidr in config.route_overlap.expected_cidrs]
    assert found == [
        "172.16.0.0/16",
        "172.16.0.0/16",
        "172.16.1.0/24",
        "0.0.0.0/0",
        "fd00:1::/48",
        "::/0",
    ]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("", "WARN"),
        ("warn", "WARN"),
        ("WARN", "WARN"),
        ("strict", "STRICT"),
        ("Strict", "STRICT"),
        (None, "WARN"),
    ],
)
def test_the_mode_ignores_case_and_empty_means_warn(mode: str | None, expected: str) -> None:
    assert Config.from_mapping(overlap(mode=mode)).route_overlap.mode is OverlapMode(expected)


def test_device_patterns_replace_the_default_and_are_globs() -> None:
    config = Config.from_mapping(
        overlap(containerDevs=["pod[0-9]*"], allowedDevs=["wg?", "ens1f0.100"])
    )
    assert config.route_overlap.container_devs == ("pod[0-9]*",)
    assert config.route_overlap.allowed_devs == ("wg?", "ens1f0.100")
    found = problems_of(overlap(allowedDevs=["a b", "", "$(x)", "a|b", 4], containerDevs="veth*"))
    assert [path for path, _ in found] == [
        "hostRouting.routeOverlap.containerDevs",
        *(f"hostRouting.routeOverlap.allowedDevs[{n}]" for n in range(5)),
    ]


def test_a_wait_of_zero_is_not_the_default() -> None:
    """In STRICT mode, the check waits for InfiniBand unless the config disables that."""
    default, never = (
        Config.from_mapping(overlap(mode="STRICT", **more)) for more in ({}, {"settleSeconds": 0})
    )
    assert default != never
    assert Config.from_mapping(never.to_mapping()) == never
    assert "settleSeconds" not in default.to_mapping()["hostRouting"]["routeOverlap"]
    assert (default.route_overlap.address_seconds, never.route_overlap.address_seconds) == (60, 0)
    assert RouteOverlap(["10.0.0.0/8"], settle_seconds=None) == RouteOverlap(["10.0.0.0/8"])


def test_an_expected_cidr_may_name_its_only_interfaces() -> None:
    cidrs = [
        "10.0.0.1/8",
        {"cidr": "10.1.0.0/16", "devs": ["eth*", "bond0"]},
        {"cidr": "10.2.0.0/16"},
    ]
    document = overlap(expectedCidrs=cidrs)
    config = Config.from_mapping(document)
    assert config.route_overlap.expected_cidrs == (
        ExpectedCidr("10.0.0.0/8"),
        ExpectedCidr("10.1.0.0/16", ["eth*", "bond0"]),
        ExpectedCidr(IPv4Network("10.2.0.0/16")),
    )
    assert Config.from_mapping(config.to_mapping()) == config
    assert config == Config(route_overlap=RouteOverlap([*config.route_overlap.expected_cidrs]))


def test_each_problem_of_an_expected_cidr_has_its_path() -> None:
    given = [
        "10.0.0.0",
        {"cidr": "127.0.0.0/8", "devs": ["a b"]},
        {"devs": []},
        {"cidr": "10.0.0.0/8", "dev": "e"},
        5,
    ]
    places = "[0]", "[1].cidr", "[1].devs[0]", "[2].cidr", "[2].devs", "[3].dev", "[4]"
    where = "hostRouting.routeOverlap.expectedCidrs"
    assert [path for path, _ in problems_of(overlap(expectedCidrs=given))] == [
        f"{where}{place}" for place in places
    ]
    assert (
        only_problem(overlap(expectedCidrs=[{"cidr": "10.0.0.0/8", "devs": []}]))[0]
        == f"{where}[0].devs"
    )


def test_the_watcher_needs_an_opt_in_and_has_a_textfile() -> None:
    assert Config().watch == Watch(enabled=False, textfile=None)
    assert Config.from_mapping(section(watch={"enabled": True})).watch == Watch(enabled=True)
    path = "/var/lib/node_exporter/a b/hostrouting.prom"
    config = Config.from_mapping(section(watch={"textfile": path}))
    assert config.watch == Watch(textfile=path)
    assert Config.from_mapping(config.to_mapping()) == config


LONGEST = "/" + "/".join(["a" * 254] * 15) + f"/{'b' * 100}/{'c' * 141}.prom"


@pytest.mark.parametrize(
    "path", [f"/a/{'a' * 255}/{'b' * 228}.prom", f"/a/{'é' * 127}/{'é' * 114}.prom", LONGEST]
)
def test_a_textfiles_name_leaves_room_for_the_temporary_file(path: str, tmp_path: Path) -> None:
    longer = path.replace(".prom", "x.prom")
    assert Watch(textfile=path).textfile == path
    where, message = only_problem(section(watch={"textfile": longer}))
    assert where == "hostRouting.watch.textfile"
    assert "too long" in message
    if path is not LONGEST:
        write_if_changed(Path(f"{tmp_path}{path}"), "")
        with pytest.raises(FileError):
            write_if_changed(Path(f"{tmp_path}{longer}"), "")


def test_a_hostile_key_can_not_forge_a_line() -> None:
    ((path, message),) = problems_of(section(**{"x\nhostRouting.mode: fine": 1}))
    assert len(f"{path}: {message}".splitlines()) == 1
    ((path, _),) = problems_of(section(**{"x" * 10_000: 1}))
    assert len(path) < 100


def test_constructors_apply_the_same_rules_and_report_all_fields() -> None:
    with pytest.raises(ConfigError) as caught:
        StaticRoute("10.0.0.1/8", gateway="x", dev="a/b", metric=-1)
    assert [path for path, _ in caught.value.problems] == [
        "destination",
        "gateway",
        "dev",
        "metric",
    ]
    with pytest.raises(ConfigError, match="enabled"):
        StaticRoutes(routes=[StaticRoute("10.0.0.0/8")])
    with pytest.raises(ConfigError, match="expectedCidrs"):
        RouteOverlap(["x"])
    with pytest.raises(ConfigError, match=r"routeOverlap\.mode"):
        Config(route_overlap={"mode": "x"})


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (True, "true"),
        (None, "null"),
        (1e999, "a number beyond"),
        (b"\xff.service".decode("utf-8", "surrogateescape"), "isn't UTF-8"),
    ],
)
def test_a_refused_value_is_named_as_in_json(value: object, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StaticRoute("10.0.0.0/8", dev=value, metric=value)  # type: ignore[arg-type]
    assert word in caught.value.problems[-1][1]


# --- files ----------------------------------------------------------------------------------------


def load(tmp_path: Path, text: str | bytes) -> Config:
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Config.load(path)


def test_duplicate_keys_are_errors_only_inside_the_section(tmp_path: Path) -> None:
    load(tmp_path, '{"other": {"a": 1, "a": 2}, "other": 3}')
    with pytest.raises(ConfigError) as caught:
        load(
            tmp_path,
            '{"hostRouting": {"waitSeconds": 1, "waitSeconds": 2, '
            '"staticRoutes": {"routes": [], "routes": []}}}',
        )
    assert [path for path, _ in caught.value.problems] == [
        "hostRouting.waitSeconds",
        "hostRouting.staticRoutes.routes",
    ]
    with pytest.raises(ConfigError, match="given twice"):
        load(tmp_path, '{"hostRouting": {}, "hostRouting": {}}')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("{", "not JSON"),
        ("[1,]", "not JSON"),
        (b"\xff\xff", "not JSON"),
        (b"\xef\xbb\xbf{}", "UTF-8 without BOM"),
        ("{}".encode("utf-16"), "UTF-8 without BOM"),
        ("[" * 100_000, "nested too deeply"),
        ('{"hostRouting": {"waitSeconds": Infinity}}', "Infinity is not a JSON number"),
        ('{"x": NaN}', "NaN is not a JSON number"),
        (f'{{"x": {"1" * 5000}}}', "thousands of digits"),
        ("[]", "expected an object"),
        ("null", "expected an object"),
    ],
)
def test_a_file_without_a_json_object_is_a_config_error(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, text)


NO_FILES: dict[str, tuple[type[Exception], str]] = {
    "none.json": (ConfigError, r"/none\.json: there is no such file"),
    ".": (ConfigError, "is a directory"),
    "a\0b": (ConfigError, "is not a path"),
    "endless.json": (ConfigError, "larger than 64 MiB"),
    "loop.json": (FileError, "can't read the config .*symbolic links"),
    "pipe.json": (ConfigError, "not a regular file"),
    "/dev/zero": (ConfigError, "not a regular file"),
}


@pytest.mark.parametrize("name", NO_FILES)
def test_a_file_that_can_not_be_read_is_a_named_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "endless.json").touch()
    os.truncate(tmp_path / "endless.json", 1 << 40)
    error, words = NO_FILES[name]
    with pytest.raises(error, match=words) as caught:
        Config.load(tmp_path / name)
    assert not getattr(caught.value, "is_not_permitted", False)


def test_a_file_without_read_permission_is_not_permitted(
    tmp_path: Path, as_ordinary_user: Any
) -> None:
    path = tmp_path / "secret.json"
    path.write_text("{}")
    path.chmod(0)
    with as_ordinary_user(), pytest.raises(FileError, match="run as root") as caught:
        Config.load(path)
    assert caught.value.is_not_permitted


def test_a_config_is_loaded_from_a_path() -> None:
    document: Any = {}
    with pytest.raises(TypeError, match=r"takes the path of a file, not {}.*Config\.from_mapping"):
        Config.load(document)


def test_a_mapping_has_only_known_keys() -> None:
    assert Config(wait_seconds=5).to_mapping("waitSeconds") == {"hostRouting": {"waitSeconds": 5}}
    with pytest.raises(ValueError, match="'route_overlap' isn't a key; expected staticRoutes, "):
        Config().to_mapping("route_overlap")
