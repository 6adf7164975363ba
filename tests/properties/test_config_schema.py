"""Tests that any document is a config or one ConfigError, as the JSON Schema says, as far as a
schema can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from all_keys import see_all_keys
from config_schema import SCHEMA, VALIDATOR, unmarked
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from nightly import by_day

from hostrouting import (
    Config,
    ConfigError,
    Host,
    Keep,
    Layout,
    RouteOverlap,
    StaticRoute,
    StaticRoutes,
    StaticRule,
    cli,
)
from hostrouting.azure import HostNetworking
from hostrouting.config.routing import METRIC_MAX, ExpectedCidr, Watch
from hostrouting.config.values import parse_pattern
from hostrouting.model.jsonable import json_key
from hostrouting.model.parsing import parse_any_cidr, parse_any_prefix, parse_device, parse_gateway
from hostrouting.testing import FakeKernel, FakeSystemd

# Addresses in these keys may belong to either family and depend on each other, which a schema can't
# express.
OF_EITHER_FAMILY = tuple(
    f"hostNetworking.staleAzureVnet.{key}" for key in ("cidrs[", "keep[", "uplink")
)


def problems(document: object) -> tuple[tuple[str, str], ...]:
    """Return a document's problems, each of which is a line of one error."""
    try:
        Config.from_mapping(document)  # type: ignore[arg-type]
        HostNetworking.from_mapping(document)  # type: ignore[arg-type]
    except ConfigError as error:
        assert all(message for _, message in error.problems)
        assert len(str(error).splitlines()) == len(error.problems) > 0
        return error.problems
    return ()


# --- accepted documents ---------------------------------------------------------------------------


def mostly(right: Any, other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 11).flatmap(
        lambda chance: other if chance == 0 else st.sampled_from(right)
    )


octets = st.integers(0, 255) | st.sampled_from(
    [0, 1, 99, 100, 119, 126, 127, 128, 199, 223, 224, 239, 240, 255, 256]
)
addresses = st.tuples(octets, octets, octets, octets).map(lambda parts: ".".join(map(str, parts)))
lengths = st.integers(0, 33).map(str) | st.sampled_from(["08", "", "+8", "8 "])
prefixes = st.builds("{}/{}".format, addresses, lengths) | st.builds(
    "{}.0.0.0/{}".format, octets, st.integers(0, 8)
)
odd = st.sampled_from(
    ["", " ", "10.0.0.1\n", "10.0.0.0/8\n", "010.0.0.0/8", "::1", "eth0\n"]
) | st.text(max_size=6)
wrong = (
    st.sampled_from(
        [None, True, False, 0, 1, -1, 601, 2**32, 1.0, 0.5, [], {}, [None], [1], {"x": 1}]
    )
    | odd
)
cidrs = mostly(["172.16.0.0/16", "10.96.0.0/12", "0.0.0.0/1", "10.0.0.1/32"], prefixes)
names = ["eth0", "ib0", "x" * 15, "..."]
patterns = mostly(
    [*names, "veth*", "gn[0-9]*", "x" * 16], st.sampled_from(["a/b", "a^b", "a\\b", ""])
)
seconds = mostly([0, 30, 600], st.just(601))
units = mostly(
    ["kubelet.service", "systemd-nspawn@.service", f"{'a' * 228}.service"],
    st.sampled_from(
        [".service", "a@@.service", "a/b.service", "-a.service", f"{'a' * 229}.service"]
    ),
)
textfiles = mostly(
    ["/a/b/c.prom", "/var/lib/a/b.prom", "/é/é/é.prom", ""],
    st.sampled_from(
        [
            "a.prom",
            "/a.prom",
            "/a/b.prom",
            "/a/b/.prom",
            "/a/.prom",
            "/a/../b.prom",
            "/a//b.prom",
            "/a.prom/",
            "/a.prom\n",
        ]
    ),
)


def objects(
    cls: type, required: tuple[str, ...] = (), **values: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw JSON objects for a section or an item of the config, mostly without some of the keys."""
    # hostNetworking uses hostRouting's consumer.
    see_all_keys(cls, {*values, "consumer"})
    drawn = {json_key(name): value for name, value in values.items()}
    always = {key: drawn.pop(key) for key in required}
    return st.fixed_dictionaries(always, optional=drawn)


routes = objects(
    StaticRoute,
    required=("destination",),
    destination=cidrs,
    gateway=mostly(["onlink", "10.1.0.1", ""], addresses | st.just("ONLINK")),
    dev=mostly([*names, ""], st.sampled_from([".", "..", "a/b", "x" * 16])),
    metric=mostly([0, 1, METRIC_MAX], st.just(METRIC_MAX + 1)),
)
priorities = mostly([1, 9, 2169, 2173, 5269, 32765], st.integers(-1, 32767))
rules = objects(
    StaticRule,
    required=("to", "priority"),
    to=cidrs | st.sampled_from(["fd00:1::/48", "fd00:2::/48"]),
    priority=priorities | st.integers(2169, 2173),
)
keep = patterns | objects(
    Keep,
    required=("dev",),
    dev=patterns,
    gateway=mostly(["onlink", "10.1.0.1", ""], addresses | st.just("fd00:1::1")),
)
expected = objects(
    ExpectedCidr,
    required=("cidr",),
    cidr=cidrs,
    devs=st.lists(patterns, min_size=1, max_size=2),
)
sections = objects(
    Config,
    static_routes=objects(
        StaticRoutes,
        required=("enabled",),
        enabled=st.just(True),
        routes=st.lists(routes, max_size=3),
        rules=st.lists(rules, max_size=3),
        keep=st.lists(keep, max_size=3),
    ),
    route_overlap=objects(
        RouteOverlap,
        expected_cidrs=st.lists(cidrs | expected, max_size=3),
        mode=mostly(["warn", "Strict", "STRICT", ""], st.just("STRICTER")),
        container_devs=st.lists(patterns, max_size=2),
        allowed_devs=st.lists(patterns, max_size=2),
        settle_seconds=seconds,
        foreseen=st.lists(cidrs, max_size=2),
    ),
    wait_seconds=seconds,
    uplinks=st.lists(patterns, min_size=1, max_size=2),
    consumer=units,
    watch=objects(Watch, enabled=st.booleans(), textfile=textfiles),
)


pods = mostly(["10.241.0.0/16", "fd00:1::/64"], cidrs | st.just("fd00:1::1/64"))
networking = objects(
    HostNetworking,
    load_balancer_probe=st.fixed_dictionaries(
        {"enabled": st.just(True)},
        optional={
            "devices": st.lists(patterns, max_size=2),
            "ipv6Detection": mostly(
                ["METADATA", "always", ""], st.sampled_from(["NEVER", "KERNEL"])
            ),
        },
    ),
    stale_azure_vnet=st.fixed_dictionaries(
        {"cidrs": st.lists(pods, min_size=1, max_size=2)},
        optional={
            "keep": st.lists(mostly(["10.241.0.7", "fd00:1::7"], addresses), max_size=1),
            "bridge": mostly(["azure0", "br0"], patterns),
            "uplink": mostly(["eth1"], patterns),
            "lockWaitSeconds": seconds,
        },
    ),
)


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """Draw a mostly valid config.

    In half of the configs, one value is replaced or one key is added.
    """
    keys = ["hostRouting"] * 8 + [
        "staticRoutes",
        "host_routing",
        "HOST-ROUTING",
        "hostRoutng",
        "agent",
    ]
    document = {draw(st.sampled_from(keys)): draw(sections)}
    if draw(st.booleans()):
        document["hostNetworking"] = draw(networking)
    if draw(st.booleans()):
        place: Any = document
        for _ in range(draw(st.integers(0, 3))):
            place = draw(st.sampled_from(places(place)))
        at = (
            draw(st.sampled_from([*place, "x"]))
            if isinstance(place, dict)
            else draw(st.integers(0, len(place) - 1))
        )
        place[at] = draw(wrong)
    return document


def places(value: object) -> list[Any]:
    """Return a document's non-empty objects and lists."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if inner else []), *(place for each in inner for place in places(each))]


# --- any JSON -------------------------------------------------------------------------------------


def _keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
    for inner in (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    ):
        yield from _keys(inner)


KEYS = sorted(set(_keys(SCHEMA)))
WORDS = [
    "",
    "10.0.0.0/8",
    "10.0.0.1",
    "onlink",
    "eth0",
    "STRICT",
    "0.0.0.0/0",
    "::/0",
    "a\nb",
    "/a/b.prom",
]

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True),
    st.sampled_from(WORDS),
    st.text(max_size=20),
)
any_json = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=5)), inner),
    ),
    max_leaves=30,
)


@given(documents() | documents() | any_json.map(lambda section: {"hostRouting": section}))
@settings(max_examples=by_day(36, by_night=15_000))
@example(None)
@example({"hostRouting": None, "routeOverlap": {}})
def test_schema_and_code_agree(document: object) -> None:
    found = problems(document)
    if found:
        assert (
            unmarked(document, [each for each in found if not each[0].startswith(OF_EITHER_FAMILY)])
            == []
        )
    else:
        assert [error.message for error in VALIDATOR.iter_errors(document)] == []
        config = Config.from_mapping(document)  # type: ignore[arg-type]
        assert VALIDATOR.is_valid(config.to_mapping())
        assert Config.from_mapping(config.to_mapping()) == config


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(routes=FakeKernel(), units=FakeSystemd(), layout=Layout(tmp_path))
    assert cli.main(["schema"], host=host) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
    Draft202012Validator.check_schema(SCHEMA)


PLAIN, HOSTILE = (
    ["", "10.0.0.0/8", "10.0.0.1", "eth0", "v*"],
    ["\n", " ", "$(reboot)", "`", ";", '"', "\\", "\x00", "\u202e"],
)


@given(st.builds("{}{}".format, st.sampled_from(PLAIN), st.sampled_from(HOSTILE) | st.text()))
@settings(max_examples=by_day(100, by_night=30_000))
def test_only_canonical_prefixes_and_plain_names_pass(text: str) -> None:
    """The parsers accept only canonical text, so nothing else can reach a script or a netlink
    message.
    """
    for parse in (parse_any_prefix, parse_any_cidr, parse_gateway, parse_device, parse_pattern):
        try:
            value = parse(text)
        except ValueError as error:
            assert str(error).isprintable()
        else:
            assert re.fullmatch(r"[][A-Za-z0-9_.:/*?-]+", text)
            assert str(value) == text or ":" in text
